# SPDX-License-Identifier: Apache-2.0
"""Callables that are made anew, or called again, are compiled once, stay warm and are tuned with what they hold."""

import collections
import functools
import gc
import typing
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from captures import (
    KINDS,
    MODULE,
    OF_CLASSES,
    Apply,
    Data,
    Head,
    X,
    array,
    is_same,
    plain,
    reads_global,
    set_global,
)
from ejk.ops import AutotunePolicy, ConfigCache, ConfigSelectorChain, Executor, policy_override


def fresh(w, way="lambda"):
    if way == "lambda":
        return lambda v: jnp.tanh(v) * w
    if way == "object":
        return Head(w)
    if way == "dataclass":
        return Data(w)
    return functools.partial(Head.method, Head(w))


@pytest.mark.parametrize("way", ["lambda", "object", "dataclass", "partial"])
def test_equal_functions_made_anew_are_compiled_once(executor, way):
    kernel = Apply()
    executor(kernel, X, fresh(array(1), way))
    before = Apply.traced
    for value in range(20):
        got = executor(kernel, X, fresh(array(value), way))
        assert is_same(got, plain(X, fresh(array(value), way)))
    assert Apply.traced - before == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_CLASSES], ids=lambda kind: kind.__name__)
def test_every_kind_of_capture_is_compiled_once(executor, kind):
    kernel = Apply()
    head, put = kind(array(1))
    executor(kernel, X, head)
    before = Apply.traced
    for value in (2, 3):
        put(array(value))
        assert is_same(executor(kernel, X, head), plain(X, head))
    assert Apply.traced == before


class WithMore(collections.namedtuple("WithMore", "w")):
    """Its objects have attributes too."""

    scale = 1

    def __call__(self, v):
        return v * self.w * self.scale * getattr(self, "extra", 1)


SCALE = 1


class WithDefault(typing.NamedTuple):
    w: typing.Any
    n: int = 2

    def __call__(self, v):
        return v * self.w * type(self)(1).n * self.n * SCALE


def test_all_that_named_tuples_have_is_followed(executor, monkeypatch):
    kernel = Apply()
    for head in (WithMore(array(2)), WithDefault(array(2))):
        executor(kernel, X, head)
        for n in (2, 3):
            before = Apply.traced
            assert is_same(executor(kernel, X, type(head)(array(n))), type(head)(array(n))(X))
        assert Apply.traced == before
    more = WithMore(array(2))
    for n in (2, 3):
        monkeypatch.setitem(globals(), "SCALE", n)
        monkeypatch.setattr(WithMore, "scale", n)
        assert is_same(executor(kernel, X, more), X * 2 * n)
        assert is_same(executor(kernel, X, WithDefault(array(1))), X * 4 * n)
    for n in (2, 3):
        more.extra = n
        assert is_same(executor(kernel, X, more), X * 6 * n)
    monkeypatch.setattr(WithDefault.__new__, "__defaults__", (5,))
    assert is_same(executor(kernel, X, WithDefault(array(1))), X * 25 * 3)


class Traces(Apply):
    """`traces` counts how often it was traced."""

    op_id = "traces"
    traces = 0

    def run(self, x, f, *, cfg):
        type(self).traces += isinstance(x, jax.core.Tracer)
        return f(x) if callable(f) else x * f


@pytest.mark.parametrize(
    "make",
    [
        lambda step: step,
        lambda step: lambda v: v * step,
        lambda step: lambda v: v * int(str(step)),
        lambda step: functools.partial(jnp.multiply, np.float32(step)),
        lambda step: lambda v, w=np.full(3, step, np.float32): v * w,
    ],
    ids=["given", "captured", "text", "number of NumPy", "array of NumPy"],
)
def test_numbers_that_are_new_in_every_call_are_not_compiled_for(executor, make):
    kernel, before = Traces(), Traces.traces
    for step in range(40):
        assert is_same(executor(kernel, X, make(step)), X * step)
    assert Traces.traces - before <= 8
    for _ in range(3):  # these come again
        before = Traces.traces
        for step in range(50, 70):
            assert is_same(executor(kernel, X, make(step)), X * step)
    assert Traces.traces == before


def test_objects_whose_text_shows_their_numbers_are_compiled_once(executor):
    class Shown(Head):
        def __repr__(self):
            return f"Shown({self.w})"

    kernel = Apply()
    for value in range(4):  # a class made for one call would not be worth it
        before = Apply.traced
        assert is_same(executor(kernel, X, Shown(array(value))), X * value)
    assert Apply.traced == before


def test_jitted_functions_without_captures_are_compiled_with_the_call(executor):
    kernel, act = Apply(), jax.jit(lambda v: jnp.tanh(v) * 2)
    for _ in range(3):  # the first of them as it is: it may be made for that call alone
        before = Apply.traced
        executor(kernel, X, act)
    assert Apply.traced == before


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_nothing_keeps_functions_or_what_they_hold_alive(executor, transform):
    kernel = Apply()
    alive = []

    def step(x, w):
        f = fresh(w)
        alive.append(weakref.ref(f))
        return executor(kernel, x, f).sum()

    with jax.checking_leaks():
        for value in range(3):
            transform(lambda w: step(X, w))(array(value))
            executor(kernel, X, fresh(array(value)))
    gc.collect()
    assert [f() for f in alive] == [None] * len(alive)


def test_nothing_keeps_arrays_alive(executor):
    kernel = Apply()
    x, w = X + 1, array(2)
    head = Head(w)
    executor(kernel, x, head)
    alive = [weakref.ref(thing) for thing in (x, w, head)]
    del x, w, head
    gc.collect()
    assert [thing() for thing in alive] == [None] * 3


def test_calls_with_functions_made_anew_leave_nothing_behind(executor):
    kernel, w = Apply(), array(2)

    def call(count):
        for i in range(count):
            executor(kernel, X, lambda v, n=i % 3: v * w + n)

    call(30)
    gc.collect()
    before = len(gc.get_objects())
    call(600)
    gc.collect()
    assert len(gc.get_objects()) - before < 100


# ---- warm calls ---------------------------------------------------------------------------------


def test_calls_with_functions_stay_warm_and_see_what_is_there_now(executor):
    kernel, w, n = Apply(), array(1), 1

    def helper(v):
        return v * w

    def head(v, times=2, *, plus=0.5):
        return jnp.tanh(helper(v)) * n * times + plus

    def lambdas():
        return [head, lambda v: reads_global(v) + w, lambda v: MODULE.w * v, jnp.tanh, jax.nn.relu]

    set_global(array(2))
    MODULE.w = array(3)
    for f in lambdas() * 2:
        executor(kernel, X, f)
    before, entries = Apply.traced, executor._warm_entries
    assert entries == 5
    for value in (2, 3, 4):
        w = array(value)
        set_global(array(value + 1))
        MODULE.w = array(value + 2)
        for f in lambdas():
            assert is_same(executor(kernel, X, f), jax.jit(lambda x: f(x))(X))
    assert Apply.traced == before and executor._warm_entries == entries
    for change in (
        lambda: set_global(2.0),
        lambda: head.__kwdefaults__.update(plus=0.25),
        lambda: setattr(head, "__defaults__", (3,)),
        lambda: setattr(MODULE, "w", 5),
    ):
        change()
        for f in lambdas() * 2:
            assert is_same(executor(kernel, X, f), jax.jit(lambda x: f(x))(X))
    n = 3
    assert is_same(executor(kernel, X, head), jax.jit(lambda x: head(x))(X))

    def helper(v):  # noqa: F811
        return v + w

    for _ in range(3):
        assert is_same(executor(kernel, X, head), jax.jit(lambda x: head(x))(X))


def test_arrays_of_functions_come_in_the_order_of_their_names(executor):
    class Both(Apply):
        op_id = "both"

        def run(self, x, *, cfg, zeta, alpha, y):
            return zeta(x) - 2 * alpha(x) + 5 * y

    kernel = Both()
    for value in range(6):
        a, z, y = array(value), array(value + 10), array(100 * value)
        got = executor(kernel, X, zeta=lambda v: v * z, y=y, alpha=lambda v: v * a)
        assert is_same(got, X * z - 2 * X * a + 5 * y)
        got = executor(kernel, X, y=y, alpha=lambda v: v * a, zeta=lambda v: v * z)
        assert is_same(got, X * z - 2 * X * a + 5 * y)
    assert executor._warm_entries == 2


def test_arrays_under_two_names_stay_warm(executor):
    class Two(Apply):
        op_id = "two_names"

        def run(self, x, *, cfg, beta, alpha, y):
            type(self).traced += 1
            return beta(x) - 2 * alpha(x) + 5 * y

    kernel = Two()
    for n in range(6):
        a, b = array(n), array(n + 10)
        before = Two.traced
        got = executor(kernel, a, beta=lambda v: v * a + b, y=b, alpha=lambda v: v * b - a)
        assert is_same(got, a * a + b - 2 * (a * b - a) + 5 * b)
        got = executor(kernel, X, beta=lambda v: v * a + a, y=X, alpha=lambda v: v * b - a)
        assert is_same(got, X * a + a - 2 * (X * b - a) + 5 * X)
    assert Two.traced == before and executor._warm_entries == 2


def test_a_function_in_two_places_and_functions_without_end(executor):
    class Two(Apply):
        op_id = "two"

        def run(self, x, f, g, *, cfg):
            return f(x) + 3 * g(x)

    kernel, w = Two(), None

    def f(v):
        return v * w

    def down(v, n=2):
        return down(v, n - 1) if n else v * w

    for value in range(5):
        w = array(value)
        assert is_same(executor(kernel, X, f, f), X * w * 4)
        assert is_same(executor(kernel, X, f, down), X * w * 4)


# ---- tuning -------------------------------------------------------------------------------------


class Tuned(Apply):
    op_id = "tuned"

    def run(self, x, f, *, cfg):
        y = f(x)
        for _ in range(cfg):
            y = y + 0.0 * jnp.sin(jnp.outer(y, y) @ jnp.outer(y, y)).sum()
        return y

    def heuristic_cfg(self, inv):
        return 30

    def candidate_cfgs(self, inv):
        return [30, 0]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"])
def test_calls_with_functions_are_tuned_with_what_they_hold(transform):
    policy = AutotunePolicy(budget_seconds=600)  # enough on a busy machine too
    executor, kernel = Executor(ConfigSelectorChain(ConfigCache(), policy)), Tuned()

    def times(w):
        return lambda v: v * w

    ours = transform(lambda w: executor(kernel, X, times(w)).sum())
    theirs = transform(lambda w: times(w)(X).sum())
    for value in (2, 3):
        np.testing.assert_allclose(ours(array(value)), theirs(array(value)), rtol=1e-5)
    with policy_override(allow_autotune=False):  # what is there already
        assert executor.choose_config(kernel, X, times(array(1))) == 0


def times(rate, way):
    if way == "closure":
        return lambda v: v * rate
    if way == "default":
        return lambda v, rate=rate: v * rate
    if way == "named default":
        return lambda v, *, rate=rate: v * rate
    if way == "container":
        rates = {"rate": (rate,)}
        return lambda v: v * rates["rate"][0]
    return functools.partial(jnp.multiply, rate)


@pytest.mark.parametrize("way", ["closure", "default", "named default", "container", "partial"])
def test_a_float_that_changes_inside_of_a_function_is_not_chosen_for_again(executor, way):
    chosen = []

    class Chooses(Apply):
        op_id = "chooses"

        def heuristic_cfg(self, inv):
            chosen.append(inv)
            return 1

    kernel = Chooses()
    for n in range(8):
        assert is_same(executor(kernel, X, times(0.5 * n, way)), X * (0.5 * n))
    assert len(chosen) == 1
    assert executor.label(kernel, X, times(0.5, way)) != executor.label(kernel, X, times(1, way))


def test_a_function_that_cannot_be_seen_into_is_tuned_as_it_is():
    executor, kernel, steps = Executor(ConfigSelectorChain(ConfigCache())), Tuned(), iter(range(10**6))

    def f(v):
        return v * 2 + 0 * next(steps)

    for _ in range(2):
        np.testing.assert_allclose(executor(kernel, X, f), X * 2, rtol=1e-5)
    assert executor.choose_config(kernel, X, f) == 0
