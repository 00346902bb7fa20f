# SPDX-License-Identifier: Apache-2.0
"""AutotunePolicy.numerics: choices that change no bit of a result."""

import dataclasses

import numpy
import pytest
from ejk.ops import AutotunePolicy, ConfigSelectorChain, Executor, Invocation, Kernel, policy_override


@dataclasses.dataclass(frozen=True)
class Block:
    size: int


class Tens(Kernel):
    """Runs with a size; those with the same number of tens are of one class."""

    op_id, version = "tens", "1"

    def run(self, x, *, cfg):
        return x + cfg.size

    def heuristic_cfg(self, inv):
        return Block(7)

    def candidate_cfgs(self, inv):
        return [Block(11), Block(12), Block(2)]

    def numerics(self, cfg, inv):
        return cfg.size // 10


X = numpy.zeros(4)


def chosen(selector):
    return int(Executor(selector)(Tens(), X)[0])


def test_same_leaves_the_configs_of_the_heuristics_class():
    assert chosen(ConfigSelectorChain(policy=AutotunePolicy(numerics="same"))) in (2, 7)


def test_a_reference_may_be_named():
    policy = AutotunePolicy(numerics="same", allow_autotune=False)
    assert chosen(ConfigSelectorChain(policy=policy, reference_cfgs={"tens@v1": Block(15)})) == 15


def test_choices_of_a_scope_are_kept_apart():
    policy = AutotunePolicy(allow_autotune=False)
    selector = ConfigSelectorChain(policy=policy, reference_cfgs={"tens@v1": Block(15)})
    for _ in range(2):
        assert chosen(selector) == 7
        with policy_override(numerics="same"):
            assert chosen(selector) == 15


# ---- gradients ----------------------------------------------------------------------------------


class Squares(Tens):
    """The last bits of its results and its gradients depend on the class. Notes which sizes ran."""

    op_id = "squares"

    def __init__(self):
        super().__init__()
        self.ran, self.went_backward = set(), set()

    @staticmethod
    def factor(tens):
        return numpy.float32(1 + tens * 2**-20)

    def run(self, x, *, cfg):
        self.ran.add(cfg.size)
        return x * x * self.factor(cfg.size // 10)

    def fwd_with_residuals(self, x, *, cfg):
        return self.run(x, cfg=cfg), x

    def vjp(self, residuals, dy, x, *, cfg):
        self.went_backward.add(cfg.size)
        return (2 * residuals * dy * self.factor(cfg.size // 10),)


@pytest.mark.parametrize("validate_backward", [False, True])
def test_gradients_are_those_of_the_references_class(validate_backward):
    jax = pytest.importorskip("jax")
    x, kernel = jax.numpy.arange(1, 5, dtype="float32"), Squares()
    selector = ConfigSelectorChain(policy=AutotunePolicy(validate_backward=validate_backward))
    selector.tune(Invocation(kernel=kernel, args=(x,), kwargs={}), kernel, [Block(12)])
    executor = Executor(selector)

    def results():
        """A new function each time: JAX keeps what it traced."""
        forward_and_back = jax.value_and_grad(lambda x: executor(kernel, x).sum())
        return [tuple(map(numpy.asarray, f(x))) for f in (forward_and_back, jax.jit(forward_and_back))]

    def expected(tens):
        factor = Squares.factor(tens)
        return numpy.asarray((x * x * factor).sum()), numpy.asarray(2 * x * factor)

    def is_of(tens):
        return all(a.tobytes() == b.tobytes() for found in results() for a, b in zip(found, expected(tens), strict=True))

    assert is_of(1) and not is_of(0)
    kernel.ran.clear(), kernel.went_backward.clear()
    with policy_override(numerics="same"):
        assert is_of(0)
    assert kernel.ran <= {2, 7} and {size // 10 for size in kernel.went_backward} == {0}
    assert kernel.went_backward == {2, 7} or not validate_backward, "both are measured with their gradients"
    assert is_of(1), "choices of the scope are kept apart"


def test_explain_says_what_is_excluded():
    text = Executor(ConfigSelectorChain(policy=AutotunePolicy(numerics="same"))).explain(Tens(), X)
    assert "numerics = same excludes 2 of 3 candidates, which are not of class 0: 2 of class 1" in text


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="expected 'any' or 'same'"):
        AutotunePolicy(numerics="equal")
