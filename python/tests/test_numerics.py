# SPDX-License-Identifier: Apache-2.0
"""AutotunePolicy.numerics: choices that change no bit of a result."""

import dataclasses

import numpy
import pytest
from ejk.ops import AutotunePolicy, ConfigSelectorChain, Executor, Kernel, policy_override


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


def test_explain_says_what_is_excluded():
    text = Executor(ConfigSelectorChain(policy=AutotunePolicy(numerics="same"))).explain(Tens(), X)
    assert "numerics = same excludes 2 of 3 candidates, which are not of class 0: 2 of class 1" in text


def test_a_word_that_is_none_is_refused():
    with pytest.raises(ValueError, match="expected 'any' or 'same'"):
        AutotunePolicy(numerics="equal")
