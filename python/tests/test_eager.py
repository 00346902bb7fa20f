# SPDX-License-Identifier: Apache-2.0
"""An eager call gives and does what its kernel's `run` gives and does as it is."""

import collections
import functools
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ejk.ops import Kernel, find_labels_in_lowered
from kernels import OneConfig

X = jnp.arange(1.0, 5.0)


# ---- what cannot be traced as a whole -----------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def cut(x, lengths):
    return x * lengths


cut.defvjp(lambda x, lengths: (x * lengths, None), lambda lengths, kept, g: (g * lengths * 2,))


class NotWhole(OneConfig):
    """It works on arrays, and not on traced ones: an array is an argument that is not differentiated."""

    op_id = "not_whole"

    def run(self, x, lengths, *, cfg):
        return cut(x, lengths)


def test_a_function_that_cannot_be_traced_runs_as_it_is(executor):
    kernel, lengths = NotWhole(), jnp.array([1.0, 2.0, 3.0, 4.0])
    for _ in range(3):
        np.testing.assert_array_equal(executor(kernel, X, lengths), X * lengths)
    grad = jax.grad(lambda x: executor(kernel, x, lengths).sum())
    for _ in range(3):
        np.testing.assert_array_equal(grad(X), 2 * lengths)


class Odd(OneConfig):
    """Raises an error of its own where it is traced."""

    op_id = "odd"
    error = KeyError

    def run(self, x, *, cfg):
        if isinstance(x, jax.core.Tracer):
            raise self.error("traced")
        return x + 1


@pytest.mark.parametrize("error", [KeyError, ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError])
def test_errors_that_plain_execution_does_not_raise_are_not_raised(executor, error):
    kernel = Odd()
    kernel.error = error
    for _ in range(3):
        np.testing.assert_array_equal(executor(kernel, X), X + 1)
    np.testing.assert_array_equal(executor.compile(kernel, X)(X), X + 1)


def test_errors_that_plain_execution_raises_are_raised_as_they_are(executor):
    class Refuses(OneConfig):
        op_id = "refuses"

        def run(self, x, n, *, cfg):
            if n > 2:
                raise ValueError(f"{n} is too much")
            return x * n

    kernel = Refuses()
    for n in (1, 3, 1, 3):
        if n == 3:
            with pytest.raises(ValueError, match="3 is too much") as raised:
                executor(kernel, X, n)
            assert raised.value.__context__ is None
        else:
            np.testing.assert_array_equal(executor(kernel, X, n), X)


def test_a_trace_of_the_caller_gets_no_second_jit(executor):
    class Plain(OneConfig):
        op_id = "plain"

        def run(self, x, *, cfg):
            return jax.lax.sin(x)

    kernel = Plain()
    for _ in range(2):
        executor(kernel, X)
        for wrapped in (lambda x: executor(kernel, x), jax.vmap(lambda x: executor(kernel, x))):
            assert [step.primitive.name for step in jax.make_jaxpr(wrapped)(X).eqns] == ["sin"]


# ---- results ------------------------------------------------------------------------------------


class Out(typing.NamedTuple):
    y: jax.Array
    n: int


class Numbers(OneConfig):
    op_id = "numbers"
    traced = 0

    def run(self, x, *, cfg):
        type(self).traced += 1
        return Out(x * 2, x.shape[0]), {"half": 0.5, "flag": True, "name": "x", "none": None, "size": x.size}


def test_numbers_and_texts_in_a_result_stay_what_they_are(executor):
    kernel = Numbers()
    for x in (X, X, X[:2], X, X[:2]):
        out, rest = executor(kernel, x)
        assert type(out) is Out and type(out.n) is int and out.n == len(x)
        np.testing.assert_array_equal(out.y, x * 2)
        assert rest == {"half": 0.5, "flag": True, "name": "x", "none": None, "size": x.size}
        assert [type(rest[name]) for name in ("half", "flag", "size")] == [float, bool, int]
    assert Numbers.traced == 2


# ---- donated buffers ----------------------------------------------------------------------------


@functools.partial(jax.jit, donate_argnums=(1,))
def update(x, kept):
    return kept.at[: x.shape[0]].set(x)


class Donates(OneConfig):
    op_id = "donates"

    def run(self, x, kept, *, cfg, f=None):
        return update(x, kept)


class DonatesWithGradient(Donates):
    op_id = "donates_with_gradient"

    def fwd_with_residuals(self, x, kept, *, cfg, f=None):
        return update(x, kept), None

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        return dy[:4], None


class DonatesACopy(Donates):
    op_id = "donates_a_copy"

    def run(self, x, kept, *, cfg, f=None):
        return update(x, kept + 0)


@pytest.mark.parametrize("kind", [Donates, DonatesWithGradient, DonatesACopy])
def test_a_buffer_that_run_donates_is_donated_and_no_other(executor, kind):
    kernel, x = kind(), X + 0
    for _ in range(4):  # the last ones are warm
        kept = jnp.zeros(8)
        jax.block_until_ready(kept)
        out = executor(kernel, x, kept)
        np.testing.assert_array_equal(out, [1, 2, 3, 4, 0, 0, 0, 0])
        assert kept.is_deleted() == (kind is not DonatesACopy) and not x.is_deleted()


# ---- floats -------------------------------------------------------------------------------------


class Scale(OneConfig):
    op_id = "scale"
    traced = 0

    def run(self, x, scale, shift=1.0, *, cfg, f=None):
        type(self).traced += 1
        return x * scale + shift if f is None else f(x) * scale


class Decides(Scale):
    op_id = "decides"

    def run(self, x, scale, *, cfg):
        type(self).traced += 1
        return x * scale if scale > 1 else x * scale - 1


class Asks(Scale):
    """It does something else with what is no float."""

    op_id = "asks"

    def run(self, x, scale, *, cfg):
        return x * scale if isinstance(scale, float) else x * scale + 1


def test_a_float_that_changes_becomes_an_input(executor):
    kernel = Scale()
    for i in range(8):
        np.testing.assert_allclose(executor(kernel, X, 0.1 * i), X * (0.1 * i) + 1, rtol=1e-6)
    before = Scale.traced
    for i in range(50):
        np.testing.assert_allclose(executor(kernel, X, 0.3 * i), X * (0.3 * i) + 1, rtol=1e-6)
    assert Scale.traced == before
    for i in range(8):
        got = executor(kernel, X, 0.7, 0.2 * i)
        np.testing.assert_allclose(got, X * 0.7 + 0.2 * i, rtol=1e-6)
    executor(kernel, X, 0.8, 0.3)  # both differ from now on
    before = Scale.traced
    for i in range(20):
        np.testing.assert_allclose(executor(kernel, X, 0.7 * i, 0.1 * i), X * (0.7 * i) + 0.1 * i, rtol=1e-6)
    assert Scale.traced == before


def test_a_float_that_a_function_holds_becomes_an_input(executor):
    kernel = Scale()
    for i in range(8):
        executor(kernel, X, 1.0, f=lambda v: v * (0.1 * i))
    before = Scale.traced
    rates = [0.01 * i for i in range(20)]
    for rate in rates:
        got = executor(kernel, X, 1.0, f=lambda v: v * rate)
        np.testing.assert_allclose(got, X * rate, rtol=1e-6)
    assert Scale.traced - before <= 6  # one function more: it reads another variable


@pytest.mark.parametrize("kind", [Decides, Asks])
def test_a_float_that_decides_stays_a_value(executor, kind):
    kernel = kind()
    for i in range(12):
        scale = 0.25 * i
        expected = X * scale - (1 if kind is Decides and scale <= 1 else 0)
        np.testing.assert_allclose(executor(kernel, X, scale), expected, rtol=1e-6)


class Rated(OneConfig):
    """What `f` makes of an array and a float."""

    op_id = "rated"
    traces = 0

    def run(self, x, rate, f, *, cfg):
        type(self).traces += isinstance(x, jax.core.Tracer)
        return f(x, rate) if rate is not None else f(x)


def tries(x, rate):
    try:
        return x * int(rate)
    except Exception:
        return x - 1


def matches(x, rate):
    match rate:
        case 1.0:
            return x - 1
        case float():
            return x * rate
    return x + 1


@functools.lru_cache
def halved(rate):
    return rate / 2


KINDS_OF_NUMBERS = {float: 2.0}

SHOWS = {
    "equal": lambda x, rate: x - 1 if rate == 1.0 else x * rate,
    "unequal": lambda x, rate: x * rate if rate != 1.0 else x - 1,
    "less": lambda x, rate: x - 1 if rate < 0 else x * rate,
    "greater": lambda x, rate: x - 1 if 1.5 > rate else x * rate,
    "truth": lambda x, rate: x * rate if rate else x - 1,
    "or": lambda x, rate: x * (rate or 7.0),
    "max": lambda x, rate: x * max(rate, 0.5),
    "in": lambda x, rate: x - 1 if rate in (0.0, 1.0) else x * rate,
    "sign": lambda x, rate: x * math.copysign(1, rate),
    "int": lambda x, rate: x * int(rate),
    "round": lambda x, rate: x * round(rate),
    "whole": lambda x, rate: x - 1 if rate.is_integer() else x * rate,
    "text": lambda x, rate: x - 1 if f"{rate}" == "1.0" else x * rate,
    "str": lambda x, rate: x * len(str(rate)),
    "percent": lambda x, rate: x * len("%g" % rate),  # noqa: UP031
    "dict": lambda x, rate: x * {1.0: 5.0}.get(rate, 3.0),
    "cached": lambda x, rate: x * halved(rate),
    "type": lambda x, rate: x - 1 if type(rate) is float and rate == 1.0 else x * rate,
    "kind": lambda x, rate: x - KINDS_OF_NUMBERS.get(type(rate), 1),
    "instance": lambda x, rate: x - 1 if isinstance(rate, float) and rate == 1.0 else x * rate,
    "class": lambda x, rate: x * rate if rate.__class__ is float else x - 1,
    "attribute": lambda x, rate: x - 1 if hasattr(rate, "shape") or hasattr(rate, "dtype") else x * rate,
    "array": lambda x, rate: x - 1 if isinstance(rate, (jax.Array, jax.core.Tracer)) else x * rate,
    "text of another": lambda x, rate: x * rate if rate != "auto" and rate is not None else x - 1,
    "leaves": lambda x, rate: x * sum(leaf if isinstance(leaf, float) else 9 for leaf in jax.tree.leaves([rate])),
    "mapped": lambda x, rate: jax.vmap(lambda v, r: v - 1 if isinstance(r, float) and r == 1 else v * r, (0, None))(x, rate),
    "math": lambda x, rate: x * math.exp(rate),
    "numpy": lambda x, rate: x * np.float32(np.sin(rate)),
    "array of numpy": lambda x, rate: x * (np.array([1e9 + 1, 2, 3, 4]) - 1e9 * rate),
    "shape": lambda x, rate: jnp.tile(x, 1 + abs(int(rate))),
    "tries": tries,
    "matches": matches,
    "difference": lambda x, rate: x * ((rate + 1e9) - 1e9),
    "quotient": lambda x, rate: x * (1e-30 / (1e-30 + rate * 1e-42)),
    "power": lambda x, rate: x * (1 - 0.999**rate),
    "division": lambda x, rate: x * (1 / (rate - 3.0)),
    "root": lambda x, rate: jnp.abs(x * rate**0.5),
    "result": lambda x, rate: (x * 2, rate * 2),
    "nothing": lambda x, rate: x * 2,
}
RATES = (0.25, 0.3, 0.7, 2.5, 0.1, 1.0, -2.0, 0.0, -0.0, 4.0, 1e-9, float("inf"), 0.3, 1.0)


def outcome(call):
    try:
        return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, call())
    except Exception as error:
        return type(error)


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert type(a) is type(b)
        np.testing.assert_allclose(a, b, rtol=1e-6) if isinstance(a, np.ndarray) else np.testing.assert_equal(a, b)


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "captured"])
@pytest.mark.parametrize("name", SHOWS)
def test_a_float_answers_every_question(executor, name, is_given):
    kernel, f = Rated(), SHOWS[name]
    for rate in RATES:
        ours = (rate, f) if is_given else (None, lambda x: f(x, rate))
        assert_same(outcome(lambda: executor(kernel, X, *ours)), outcome(lambda: f(X, rate)))


@jax.jit
def jitted(x, rate):
    return x * (rate + 1)


COMPUTES = {
    "product": lambda x, rate: rate * x,
    "all": lambda x, rate: (-rate + x / rate - rate / x) ** rate + rate**x + abs(rate) % 3 // x,
    "less": lambda x, rate: jnp.where(x < rate, x, rate),
    "functions": lambda x, rate: jnp.maximum(x, rate) + jnp.clip(x, 0.0, rate) + jnp.tanh(rate),
    "of floats": lambda x, rate: x * (1 - rate) + rate**2 * x,
    "instance": lambda x, rate: x * rate if isinstance(rate, float) else x - 1,
    "jitted": jitted,
    "scan": lambda x, rate: jax.lax.scan(lambda carry, _: (carry * rate, None), x, None, length=2)[0],
    "vmap": lambda x, rate: jax.vmap(lambda v, rate: v * rate, (0, None))(x, rate),
    "set": lambda x, rate: x.at[0].set(rate),
    "sum": lambda x, rate: sum([x, rate]) + jnp.stack([x[0], rate])[1],
    "nothing": lambda x, rate: x * 2,
}


@pytest.mark.parametrize("name", COMPUTES)
def test_a_float_that_is_but_computed_with_is_compiled_for_once(executor, name):
    kernel, f = Rated(), COMPUTES[name]
    for i in range(1, 8):
        executor(kernel, X, 0.1 * i, f)
    before = Rated.traces
    for i in range(1, 20):
        np.testing.assert_allclose(executor(kernel, X, 0.3 * i, f), f(X, 0.3 * i), rtol=1e-6)
    assert Rated.traces == before


def test_a_float_that_is_seen_is_compiled_for_when_it_comes_again(executor):
    kernel, f = Rated(), SHOWS["equal"]
    for i in range(10):
        executor(kernel, X, 0.1 * i, f)
    before = Rated.traces
    for i in range(10, 30):
        executor(kernel, X, 0.1 * i, f)
    assert Rated.traces == before
    for _ in range(3):
        executor(kernel, X, 7.5, f)
    assert Rated.traces == before + 1


def test_the_config_follows_the_value_of_a_float(executor):
    class Follows(Kernel):
        op_id = "follows"

        def run(self, x, scale, *, cfg):
            return x * scale * cfg

        def heuristic_cfg(self, inv):
            return 2 if inv.args[1] > 1 else 3

    kernel = Follows()
    for i in range(20):
        scale = 0.2 * i
        np.testing.assert_allclose(executor(kernel, X, scale), X * scale * (2 if scale > 1 else 3), rtol=1e-6)


def test_results_keep_the_type_that_a_float_gives_them(executor):
    class Half(OneConfig):
        op_id = "half"

        def run(self, x, scale, *, cfg):
            return x * scale

    kernel, x = Half(), X.astype(jnp.bfloat16)
    for i in range(10):
        assert executor(kernel, x, 0.5 * i).dtype == jnp.bfloat16
        assert executor(kernel, jnp.arange(3), 0.5 * i).dtype == jnp.float32


def test_labels_of_warm_traces_are_as_the_environment_says(executor, monkeypatch):
    class Labelled(OneConfig):
        op_id = "labelled"

        def run(self, x, *, cfg):
            return x * 2

    kernel = Labelled()

    def labels():
        return find_labels_in_lowered(jax.jit(lambda x: executor(kernel, x)).lower(X))

    for stamp in ("hash", "none", "hash", "none", "hash"):
        monkeypatch.setenv("EJKERNEL_OPS_STAMP", stamp)
        assert labels() == ([executor.label(kernel, X)] if stamp == "hash" else [])


# ---- order ------------------------------------------------------------------------------------------


class Ordered(OneConfig):
    """What it gives depends on the order of items."""

    op_id = "ordered"

    def run(self, x, held=None, *, cfg, see=None, **named):
        if see is not None:
            see(x)
        for value in (held or named).values():
            if isinstance(value, dict):
                x = self.run(x, value, cfg=cfg)
            else:
                x = sum(value.values(), x * 2) if isinstance(value, list) else x * 2 + value
        return x


def wants_numbers(x):
    return float(x[0])


ORDERS = {
    "dict": [({"b": X, "a": 2, "c": 0.5},), ({"a": 2, "c": 0.5, "b": X},), ({"a": 2, "b": X, "c": 0.5},)],
    "nested": [({"z": {"b": X, "a": 1}, "y": 3},), ({"y": 3, "z": {"a": 1, "b": X}},), ({"z": {"a": 1, "b": X}, "y": 3},)],
    "numbers": [({3: X, 1: 2},), ({1: 2, 3: X},)],
    "default dict": [(collections.defaultdict(int, {"b": X, "a": 2}),), (collections.defaultdict(int, {"a": 2, "b": X}),)],
    "ordered dict": [(collections.OrderedDict(b=X, a=2),), (collections.OrderedDict(a=2, b=X),)],
}
ORDERS_OF_NAMES = [dict(b=X, a=2, c=3), dict(a=2, b=X, c=3), dict(c=3, b=X, a=2)]


@pytest.mark.parametrize("see", [None, wants_numbers], ids=["traced", "as it is"])
@pytest.mark.parametrize("name", ORDERS)
def test_items_come_in_the_order_of_the_caller(executor, name, see):
    kernel = Ordered()
    for given in ORDERS[name] * 3:
        want = kernel.run(X, *given, cfg=1)
        np.testing.assert_allclose(executor(kernel, X, *given, see=see), want, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(lambda x: executor(kernel, x, *given))(X), want, rtol=1e-6)


@pytest.mark.parametrize("see", [None, wants_numbers], ids=["traced", "as it is"])
def test_named_arguments_come_in_the_order_of_the_caller(executor, see):
    kernel = Ordered()
    for named in ORDERS_OF_NAMES * 3:
        np.testing.assert_allclose(executor(kernel, X, see=see, **named), kernel.run(X, cfg=1, **named), rtol=1e-6)


def test_keys_of_dicts_may_be_anything_with_a_hash(executor):
    class Sum(OneConfig):
        op_id = "sum"

        def run(self, x, held, *, cfg):
            return x * sum(held.values())

    for key in (frozenset({1, "a"}), (frozenset({1}), 2), jnp.float32, ((1, (2, (3,))),)):
        for _ in range(2):
            np.testing.assert_array_equal(executor(Sum(), X, {key: 2}), X * 2)


# ---- what changes its arguments -----------------------------------------------------------------


class Changing(OneConfig):
    op_id = "changing"

    def run(self, x, change, held, *, cfg):
        return x * change(held, x)


def counts(held, x):
    held["n"] += 1
    return held["n"]


def puts(held, x):
    held["x"] = x * 2
    return len(held)


def appends(held, x):
    held.append(x * 2)
    return len(held)


def counts_inside(held, x):
    return counts(held[0]["of"], x)


CHANGES = {
    "a number": (counts, lambda: {"n": 0}),
    "a number beside an array": (counts, lambda: {"n": 0, "w": X}),
    "an array into an empty dict": (puts, dict),
    "an array into a dict": (puts, lambda: {"w": X}),
    "an array into an empty list": (appends, list),
    "an array into a list": (appends, lambda: [X]),
    "a number far inside": (counts_inside, lambda: ({"of": {"n": 0, "w": X}}, X)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_kernel_changes_its_callers_objects(executor, name):
    change, make = CHANGES[name]
    kernel, ours, theirs = Changing(), make(), make()
    for _ in range(3):
        np.testing.assert_array_equal(executor(kernel, X, change, ours), kernel.run(X, change, theirs, cfg=1))
        assert jax.tree_util.tree_structure(ours) == jax.tree_util.tree_structure(theirs)
        for a, b in zip(*map(jax.tree_util.tree_leaves, (ours, theirs))):
            np.testing.assert_array_equal(a, b)
