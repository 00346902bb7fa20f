# SPDX-License-Identifier: Apache-2.0
"""A call computes what its arguments are now, whatever callables and objects among them have captured."""

import collections
import dataclasses
import enum
import functools
import gc
import importlib
import sys
import types
import typing
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program
from ejk.ops import ConfigCache, ConfigSelectorChain, Executor, pmap_with_config, policy_override, vmap_with_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels import OneConfig, without_tuning


class Apply(OneConfig):
    """What its argument does; `traced` counts how often its Python code runs."""

    op_id = "apply"
    traced = 0

    def run(self, x, f, *, cfg, g=None):
        type(self).traced += 1
        y = f(x) if callable(f) else f.of(x)
        return y if g is None else g(y)


class WithGradient(Apply):
    """With a gradient of its own, which leaves alone what the argument holds."""

    op_id = "apply_with_gradient"

    def fwd_with_residuals(self, x, f, *, cfg, g=None):
        return jax.vjp(lambda x: self.run(x, f, cfg=cfg, g=g), x)

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        return *residuals(dy), None


class Second(Apply):
    op_id = "second"

    def run(self, x, *, cfg, g=None, w=None):
        return x * w if g is None else g(x)


@pytest.fixture
def executor():
    return without_tuning()


X = jnp.arange(1.0, 4.0)


def array(value):
    return jnp.full(3, float(value))


# ---- every kind of capture ----------------------------------------------------------------------
#
# A kind gives (callable, set): what the callable computes with is what `set` was called with last.

GLOBAL = None
TABLE = {"w": None, "nested": [None, {"w": None}]}
MODULE = types.ModuleType("a_module_of_weights")
exec("w = None\ndef times(v):\n    return v * w", MODULE.__dict__)


def set_global(value):
    global GLOBAL
    GLOBAL = value


def reads_global(v):
    return v * GLOBAL


def through_another_function(v):
    return reads_global(v) + 0


def cell(w):
    def head(v):
        return v * w

    def put(value):
        nonlocal w
        w = value

    return head, put


def default(w):
    def head(v, w=w):
        return v * w

    def put(value):
        head.__defaults__ = (value,)

    return head, put


def named_default(w):
    def head(v, *, w=w):
        return v * w

    def put(value):
        head.__kwdefaults__["w"] = value

    return head, put


def of_globals(w):
    set_global(w)
    return reads_global, set_global


def of_globals_far_away(w):
    set_global(w)
    return through_another_function, set_global


def of_a_nested_lambda(w):
    set_global(w)
    return lambda v: (lambda u: u * GLOBAL)(v), set_global


def of_a_dict(w):
    TABLE["w"] = w
    return lambda v: v * TABLE["w"], functools.partial(TABLE.__setitem__, "w")


def of_nested_containers(w):
    TABLE["nested"][1]["w"] = w
    return lambda v: v * TABLE["nested"][1]["w"], functools.partial(TABLE["nested"][1].__setitem__, "w")


def of_a_module(w):
    MODULE.w = w
    return lambda v: v * MODULE.w, functools.partial(setattr, MODULE, "w")


def of_a_function_in_a_module(w):
    MODULE.w = w
    return lambda v: MODULE.times(v), functools.partial(setattr, MODULE, "w")


class Head:
    def __init__(self, w):
        self.w = w

    def __call__(self, v):
        return v * self.w

    def method(self, v):
        return self(v)

    @property
    def weight(self):
        return self.w


class Slots:
    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w

    def __call__(self, v):
        return v * self.w


@dataclasses.dataclass
class Data:
    w: typing.Any
    name: str = "data"

    def of(self, v):
        return v * self.w


class Named(typing.NamedTuple):
    w: typing.Any
    n: int


class OfTheClass:
    w = None

    def __call__(self, v):
        return v * self.w


class ReadsGlobal:
    def __call__(self, v):
        return v * GLOBAL


class Anything:
    """What it has is found by its own function."""

    def __init__(self, w):
        self.held = {"w": w}

    def __getattr__(self, name):
        if name != "w":
            raise AttributeError(name)
        return self.held[name]

    def __call__(self, v):
        return v * self.w


def an_object(kind):
    def made(w):
        head = kind(w)
        return head, functools.partial(setattr, head, "w")

    made.__name__ = kind.__name__.lower()
    return made


def bound_method(w):
    head = Head(w)
    return head.method, functools.partial(setattr, head, "w")


def read_property(w):
    head = Head(w)
    return lambda v: v * head.weight, functools.partial(setattr, head, "w")


def own_attribute_lookup(w):
    head = Anything(w)
    return head, functools.partial(head.held.__setitem__, "w")


def class_attribute(w):
    OfTheClass.w = w
    return OfTheClass(), functools.partial(setattr, OfTheClass, "w")


def globals_of_a_method(w):
    set_global(w)
    return ReadsGlobal(), set_global


def attribute_of_a_function(w):
    def head(v):
        return v * head.w

    head.w = w
    return head, functools.partial(setattr, head, "w")


def partial(w):
    held = [w]
    return functools.partial(lambda held, v: v * held[0], held), functools.partial(held.__setitem__, 0)


def partial_of_jax(w):
    held = [w]
    head = jax.tree_util.Partial(lambda v: v * held[0])
    return head, functools.partial(held.__setitem__, 0)


def nested_callables(w):
    inner, put = cell(w)
    return functools.partial(lambda f, v: f(v), lambda v: Head(inner).w(v)), put


def recursive(w):
    held = {"w": w}

    def head(v, n=2):
        return head(v, n - 1) if n else v * held["w"]

    return head, functools.partial(held.__setitem__, "w")


def named_tuple(w):
    held = [Named(w, 1)]
    return lambda v: v * held[0].w * held[0].n, lambda value: held.__setitem__(0, Named(value, 1))


def wrapped_by_jax(w):
    head, put = cell(w)
    return lambda v: jax.vmap(head)(jnp.stack([v, v]))[0], put


def with_its_own_gradient(w):
    held = [w]
    head = jax.custom_vjp(lambda v, w: v * w)
    head.defvjp(
        lambda v, w: (v * w, (v, w)),
        lambda kept, g: (g * kept[1], jnp.broadcast_to((g * kept[0]).sum(), jnp.shape(kept[1]))),
    )
    return lambda v: head(v, held[0]), functools.partial(held.__setitem__, 0)


def ordered_and_default_dicts(w):
    held = collections.defaultdict(list, {"a": collections.OrderedDict(w=w)})
    return lambda v: v * held["a"]["w"], functools.partial(held["a"].__setitem__, "w")


def namespace(w):
    held = types.SimpleNamespace(w=w)
    return lambda v: v * held.w, functools.partial(setattr, held, "w")


KINDS = [
    cell, default, named_default, of_globals, of_globals_far_away, of_a_nested_lambda, of_a_dict, of_nested_containers,
    of_a_module, of_a_function_in_a_module, an_object(Head), an_object(Slots), an_object(Data), bound_method,
    read_property, own_attribute_lookup, class_attribute, globals_of_a_method, attribute_of_a_function, partial,
    partial_of_jax, nested_callables, recursive, named_tuple, wrapped_by_jax, with_its_own_gradient,
    ordered_and_default_dicts, namespace,
]  # fmt: skip


OF_CLASSES = (class_attribute, globals_of_a_method)  # classes are not made anew, so they run as they are


def plain(x, f):
    return f(x) if callable(f) else f.of(x)


def scanned(call, x):
    return jax.lax.scan(lambda carry, _: (call(carry), carry), x, None, length=2)[0]


WAYS = {
    "eager": lambda call, x: call(x),
    "jit": lambda call, x: jax.jit(call)(x),
    "grad": lambda call, x: jax.grad(lambda x: call(x).sum())(x),
    "jit of grad": lambda call, x: jax.jit(jax.grad(lambda x: call(x).sum()))(x),
    "vmap": lambda call, x: jax.vmap(call)(jnp.stack([x, x + 1])),
    "scan": scanned,
    "remat": lambda call, x: jax.grad(lambda x: jax.checkpoint(call)(x).sum())(x),
}


def is_same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and np.allclose(a, b, rtol=1e-6)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_call_computes_what_its_arguments_are_now(data):
    executor = without_tuning()
    kind = data.draw(st.sampled_from(KINDS), "kind")
    kernel = data.draw(st.sampled_from([Apply, WithGradient]), "kernel")()
    make = data.draw(st.sampled_from([array, lambda value: np.full(3, value, np.float32), float]), "values")
    head, put = kind(make(1))
    for _ in range(data.draw(st.integers(2, 6), "calls")):
        if data.draw(st.booleans(), "changes"):
            put(make(data.draw(st.integers(-3, 3), "value")))
        if data.draw(st.booleans(), "made anew"):
            w = make(data.draw(st.integers(-3, 3), "first value"))
            head, put = kind(w)
        way = data.draw(st.sampled_from(sorted(WAYS)), "way")
        got = WAYS[way](lambda x: executor(kernel, x, head), X)
        assert is_same(got, WAYS[way](lambda x: plain(x, head), X)), (kind.__name__, way)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_capture_is_followed(executor, kind, way):
    kernel = Apply()
    head, put = kind(array(1))
    for value in (2, 3, 3, 5):
        put(array(value))
        for run in (way, "eager"):
            got = WAYS[run](lambda x: executor(kernel, x, head), X)
            assert is_same(got, WAYS[run](lambda x: plain(x, head), X)), run


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("of", [Apply, WithGradient])
def test_captured_tracers_work_in_any_number_of_traces(executor, kind, of):
    if of is WithGradient and kind in OF_CLASSES:
        pytest.skip("JAX refuses a gradient that closes over what is differentiated")
    kernel = of()
    head, put = kind(array(1))

    def loss(call):
        def of(w):
            put(w)
            return call(X, head).sum()

        return of

    ours, theirs = loss(lambda x, f: executor(kernel, x, f)), loss(plain)
    for value in (2, 3):
        for way in (jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.vmap(f)):
            w = jnp.stack([array(value)] * 2) if way(abs).__name__ == "vmap" else array(value)
            assert is_same(way(ours)(w), way(theirs)(w))
        put(array(value))
        assert is_same(executor(kernel, X, head), plain(X, head))


class WithOneFunction(Apply):
    op_id = "apply_with_one_function"

    def custom_vjp(self, args, cfg, kwargs, cotangents):
        return jax.vjp(lambda x: self.run(x, *args[1:], cfg=cfg, **kwargs), args[0])[1](cotangents[0])[0], None


class OnlyForward(WithGradient):
    """JAX finds no gradient of it."""

    op_id = "only_forward"

    def run(self, x, f, *, cfg, g=None):
        return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), f(x))

    def fwd_with_residuals(self, x, f, *, cfg, g=None):
        return self.run(x, f, cfg=cfg), jax.vjp(f, x)[1]


@pytest.mark.parametrize("of", [Apply, WithGradient, WithOneFunction])
def test_gradients_reach_what_functions_hold(executor, of):
    kernel, ws = of(), jnp.stack([array(2), array(3)])

    def layers(call):
        def step(carry, w):
            return call(carry, lambda v: jnp.tanh(v * w) + carry), None

        return lambda x, ws: jax.lax.scan(step, x, ws)[0].sum()

    ours, theirs = layers(lambda x, f: executor(kernel, x, f)), layers(plain)
    for of_which in (0, 1, (0, 1)):
        a, b = jax.grad(ours, of_which), jax.grad(theirs, of_which)
        xs = jnp.stack([X, X + 1])
        pairs = [(a(X, ws), b(X, ws)), (jax.jit(a)(X, ws), b(X, ws))]
        pairs.append(tuple(jax.vmap(f, (0, None))(xs, ws) for f in (a, b)))
        for got, want in pairs:
            assert all(map(is_same, jax.tree.leaves(got), jax.tree.leaves(want)))


def test_a_gradient_of_its_own_is_asked_for_no_more_than_is_needed(executor):
    kernel = OnlyForward()

    def loss(x, w):
        return executor(kernel, x, lambda v: v * w).sum()

    assert is_same(jax.jit(jax.grad(loss))(X, array(2)), array(2))
    with pytest.raises(ValueError, match="callbacks do not support"):
        jax.grad(loss, 1)(X, array(2))


# ---- what cannot be seen into runs as it is -----------------------------------------------------


def test_a_callable_that_changes_what_it_holds_does_so_in_every_call(executor):
    kernel, calls, state = Apply(), [], {"n": 0}

    def counts(v):
        calls.append(1)
        state["n"] += 1
        return v * state["n"]

    number = 0

    def counts_in_a_cell(v):
        nonlocal number
        number += 1
        return v * number

    head = Head(2.0)
    head.seen = 0

    def counts_in_an_object(v):
        head.seen = head.seen + 1
        return v * head.seen

    for n in (1, 2, 3):
        for f in (counts, counts_in_a_cell, counts_in_an_object):
            assert is_same(executor(kernel, X, f), X * n), f.__name__
    assert len(calls) == state["n"] == number == head.seen == 3


def test_objects_of_the_caller_stay_as_they_are(executor):
    kernel, head = Apply(), Head([array(2), {"w": array(3)}])
    held, w = head.w, list(head.w)

    def f(v):
        return v * head.w[0] + head.w[1]["w"]

    before = dict(f.__globals__)
    for _ in range(3):
        executor(kernel, X, f)
    assert head.w is held and head.w[0] is w[0] and head.w[1] is w[1] and vars(head) == {"w": held}
    assert f.__globals__ == before


def test_what_reaches_too_much_runs_as_it_is(executor):
    kernel, many = Apply(), {str(i): i for i in range(1500)}

    def f(v):
        return v * many["7"]

    for n in (1, 2, 3):
        many["7"] = array(n)
        assert is_same(executor(kernel, X, f), X * n)


def test_many_arguments_are_not_too_much(executor):
    class Many(Apply):
        op_id = "many"

        def run(self, x, numbers, *, cfg):
            type(self).traced += 1
            return x * sum(numbers)

    kernel, numbers = Many(), list(range(2000))
    executor(kernel, X, numbers)
    before = Many.traced
    assert is_same(executor(kernel, X, numbers), X * sum(numbers)) and Many.traced == before


def test_values_that_decide_run_as_they_are(executor):
    kernel, w = Apply(), None

    def f(v):
        return v * 2 if float(w.sum()) > 0 else v * 3

    for value in (1, -1, 1):
        w = array(value)
        assert is_same(executor(kernel, X, f), X * (2 if value > 0 else 3))


def test_what_libraries_change_is_never_a_constant(executor):
    import random

    kernel = Apply()
    drawn = [float(executor(kernel, X, lambda v: v * random.random())[0]) for _ in range(3)]
    assert len(set(drawn)) == 3
    generator = np.random.default_rng(0)
    drawn = [float(executor(kernel, X, lambda v: v * generator.random())[0]) for _ in range(3)]
    assert len(set(drawn)) == 3
    steps = iter(range(9))
    assert [float(executor(kernel, X, lambda v: v * next(steps))[0]) for _ in range(3)] == [0, 1, 2]


CHANGING = {
    "random of scipy": "scipy.stats.norm.rvs()",
    "function of scipy": "norm.rvs()",
    "file of numpy": "np.load(path)[0]",
    "file of JAX": "jnp.load(path)[0]",
    "numbers in a file": "np.fromfile(path, np.uint8)[-1] / 64 + np.load(path)[0]",
    "function of numpy": "load(path)[0]",
    "mapped file": "np.memmap(path, np.float64, 'r')[-1]",
    "path": "float(pathlib.Path(number).read_text())",
    "class of paths": "float(Path(number).read_text())",
    "time": "time.perf_counter() % 1",
    "function of time": "perf_counter() % 1",
    "date": "datetime.datetime.now().microsecond",
    "class of dates": "Date.now().microsecond",
    "environment": "float(os.environ['EJK_TEST_NUMBER'])",
    "variables of the environment": "float(environ['EJK_TEST_NUMBER'])",
    "one variable": "float(getenv('EJK_TEST_NUMBER'))",
    "bytes": "int.from_bytes(token_bytes(3), 'big')",
    "unique": "uuid4().int % 10**6",
    "counter": "next(counter)",
    "weak": "reference()[0]",
    "statistics": "statistics.NormalDist().samples(1)[0]",
    "file": "float(io.open(number).read())",
    "lines": "float(linecache.updatecache(number)[0])",
    "queue": "queue.get()",
    "decimal": "float(Decimal(1) / Decimal(3)) * getcontext().prec",
}


def changing_things(folder):
    import datetime
    import io
    import itertools
    import linecache
    import os
    import pathlib
    import queue
    import secrets
    import statistics
    import time
    import uuid
    from decimal import Decimal, getcontext

    import scipy.stats

    numbers = queue.Queue()
    held = [np.zeros(1)]
    found = dict(
        np=np, jnp=jnp, scipy=scipy, norm=scipy.stats.norm, load=np.load, pathlib=pathlib, Path=pathlib.Path, time=time,
        perf_counter=time.perf_counter, datetime=datetime, Date=datetime.datetime, os=os, environ=os.environ,
        getenv=os.getenv, token_bytes=secrets.token_bytes, uuid4=uuid.uuid4, counter=itertools.count(), io=io,
        linecache=linecache, statistics=statistics, queue=numbers, Decimal=Decimal, getcontext=getcontext,
        path=str(folder / "w.npy"), number=str(folder / "number"), reference=weakref.ref(held[0]),
    )  # fmt: skip

    def change(n):
        held[0] = np.full(1, float(n))
        found["reference"] = weakref.ref(held[0])
        np.save(folder / "w.npy", np.full(1, n / 4))
        (folder / "number").write_text(str(n))
        os.environ["EJK_TEST_NUMBER"] = str(n)
        numbers.put(n), numbers.put(n + 0.5)
        getcontext().prec = 20 + n

    return found, change


@pytest.mark.parametrize("name", CHANGING)
def test_what_a_library_gives_anew_is_never_a_constant(executor, name, tmp_path, monkeypatch):
    monkeypatch.setenv("EJK_TEST_NUMBER", "0")
    things, change = changing_things(tmp_path)
    things["__name__"] = "a_program"
    f, kernel = eval(f"lambda v: v * ({CHANGING[name]})", things), Apply()
    before, drawn = Apply.traced, set()
    for n in (1, 2, 3, 4):
        change(n)
        drawn.add(float(executor(kernel, X, f)[0]))
    assert len(drawn) == 4 and Apply.traced - before == 4
    things["getcontext"]().prec = 28


PURE = {
    "math": "math.exp(n) + pi",
    "functions": "functools.reduce(operator.mul, [n, 2], itertools.chain([1], [2]).__next__())",
    "texts": "len(re.sub('a', 'b', 'aa')) + len(json.dumps([n]))",
    "numpy": "np.sqrt(n) + np.linalg.norm(np.eye(2)) + np.float32(2) + np.full(3, n).sum() + np.fft.fft([1, n]).real[0]",
    "scipy": "scipy.special.erf(n) + scipy.linalg.det(np.eye(2))",
    "JAX": "jnp.sin(v) + jax.nn.relu(v) + jax.random.normal(jax.random.key(n), (3,)) + jnp.asarray(n, jnp.float32)",
    "classes": "isinstance(v, jax.Array) + len(collections.OrderedDict(a=n)) + float(fractions.Fraction(n, 3))",
}


@pytest.mark.parametrize("name", PURE)
def test_what_a_library_always_gives_is_compiled_once(executor, name):
    import fractions
    import itertools
    import json
    import math
    import operator
    import re

    import scipy.linalg
    import scipy.special

    modules = dict(
        math=math, functools=functools, operator=operator, itertools=itertools, re=re, json=json, np=np, scipy=scipy,
        jnp=jnp, jax=jax, collections=collections, fractions=fractions, pi=math.pi, n=2, __name__="a_program",
    )  # fmt: skip
    f, kernel = eval(f"lambda v: v * ({PURE[name]})", modules), Apply()
    executor(kernel, X, f)
    before = Apply.traced
    for _ in range(3):
        assert is_same(executor(kernel, X, f), f(X))
    assert Apply.traced == before


def test_functions_that_are_looked_up_by_their_name_are_never_constants(executor):
    kernel = Apply()
    for value in (1, 2, 3):
        set_global(array(value))
        assert is_same(executor(kernel, X, lambda v: v * globals()["GLOBAL"]), X * value)
        assert is_same(executor(kernel, X, lambda v: eval("v * GLOBAL", globals(), {"v": v})), X * value)


def weight_of(module):
    return module.w


READS_OF_A_MODULE = {
    "getattr": lambda v: v * getattr(MODULE, "w"),  # noqa: B009
    "vars": lambda v: v * vars(MODULE)["w"],
    "__dict__": lambda v: v * MODULE.__dict__["w"],
    "another function": lambda v: v * weight_of(MODULE),
    "a name": lambda v: (lambda m: v * m.w)(MODULE),
}


@pytest.mark.parametrize("name", READS_OF_A_MODULE)
@pytest.mark.parametrize("make", [int, array, lambda n: np.full(3, n, np.float32)], ids=["int", "JAX", "NumPy"])
def test_a_module_that_is_handed_on_may_be_read_anywhere(executor, name, make):
    kernel, f = Apply(), READS_OF_A_MODULE[name]
    for n in (1, 2, 3):
        MODULE.w = make(n)
        for _ in range(2):
            assert is_same(executor(kernel, X, f), f(X))


def test_what_a_function_sets_in_a_module_is_set_once(executor):
    kernel = Apply()

    def counts(v):
        MODULE.count += 1
        return v * MODULE.count

    def keeps(v):
        MODULE.last = v * 2
        return v

    def keeps_inside(v):
        MODULE.kept.setdefault("v", v * 2)
        MODULE.kept[len(MODULE.kept)] = v
        return v * len(MODULE.kept)

    MODULE.count, MODULE.kept = 0, {}
    for n in (1, 2, 3):
        assert is_same(executor(kernel, X, counts), X * n) and MODULE.count == n
        executor(kernel, X, keeps)
        assert is_same(MODULE.last + 0, X * 2)
        assert is_same(executor(kernel, X, keeps_inside), X * (n + 1)) and is_same(MODULE.kept["v"] + 0, X * 2)


class Counter:
    n = 0
    seen: typing.ClassVar = []
    kept: typing.ClassVar = {}

    def of_its_class(self, v):
        type(self).n += 1
        return v * self.n

    def of_its_class_by_name(self, v):
        self.__class__.n += 1
        return v * self.n

    @classmethod
    def by_class(cls, v):
        cls.n += 1
        return v * cls.n

    def in_its_list(self, v):
        self.seen.append(v)
        return v * len(self.seen)

    def in_its_dict(self, v):
        self.kept[len(self.kept)] = v * 2
        return v * len(self.kept)

    def in_its_list_by_name(self, v):
        found = self.seen
        found += [v]
        return v * len(found)


def in_a_class(v):
    Counter.n += 1
    return v * Counter.n


def in_a_class_by_another_name(v):
    kind = Counter
    kind.n = kind.n + 1
    kind.last = v * 2
    return v * kind.n


def in_a_class_by_setattr(v):
    setattr(Counter, "n", Counter.n + 1)  # noqa: B010
    return v * Counter.n


def in_a_class_far_away(v):
    def bump(kind):
        kind.n += 1

    bump(Counter)
    return v * Counter.n


def in_a_list_of_a_class(v):
    Counter.seen.append(v)
    return v * len(Counter.seen)


COUNTS = [
    Counter().of_its_class, Counter().of_its_class_by_name, Counter.by_class, lambda v: Counter.by_class(v),
    Counter().in_its_list, Counter().in_its_dict, Counter().in_its_list_by_name, in_a_class, in_a_class_by_another_name,
    in_a_class_by_setattr, in_a_class_far_away, in_a_list_of_a_class,
]  # fmt: skip


@pytest.mark.parametrize("f", COUNTS, ids=lambda f: f.__name__)
def test_what_a_function_changes_in_a_class_it_changes_once(executor, f):
    kernel, Counter.n = Apply(), 0
    Counter.seen.clear()
    Counter.kept.clear()
    for n in (1, 2, 3):
        assert is_same(executor(kernel, X, f), X * n)
        assert n in (Counter.n, len(Counter.seen), len(Counter.kept))
    for value in (*Counter.seen, *Counter.kept.values(), getattr(Counter, "last", X)):
        assert not isinstance(value, jax.core.Tracer)


def test_methods_that_set_attributes_of_their_object_are_compiled(executor):
    class Local(Head):
        names = ("a", "b")

        def __init__(self, w):
            super().__init__(w)
            self.twice = w * 2

        def __call__(self, v):
            return v * self.twice * len(self.names)

    kernel = Apply()
    for n in (1, 2, 3):
        before = Apply.traced
        assert is_same(executor(kernel, X, Local(array(n))), X * 4 * n)
    assert Apply.traced == before


class Activation(enum.Enum):
    GLOBAL = functools.partial(reads_global)
    LIST = [1]
    PLAIN = 2


class Table(enum.Enum):
    NUMPY = np.ones(3, np.float32)


class Scaled(enum.Enum):
    ONE = 1

    def __init__(self, value):
        self.scale = value


class WithoutHash(enum.Enum):
    ONE = 1
    TWO = 2

    def __eq__(self, other):
        return self.value == other


def test_what_members_of_enums_hold_is_followed(executor):
    kernel = Apply()
    for n in (1, 2, 3):
        set_global(n)
        Activation.LIST.value[0], Table.NUMPY.value[:], Scaled.ONE.scale, Activation.PLAIN.extra = n, n, n, n
        for _ in range(2):
            for member in Activation.LIST, Table.NUMPY:
                assert is_same(executor(kernel, X, lambda v: v * jnp.asarray(member.value)), X * n)
            assert is_same(executor(kernel, X, lambda v: Activation.GLOBAL.value(v)), X * n)
            assert is_same(executor(kernel, X, lambda v: v * Scaled.ONE.scale), X * n)
            assert is_same(executor(kernel, X, lambda v: v * Activation.PLAIN.extra), X * n)
    for _ in range(2):
        for member in WithoutHash:
            assert is_same(executor(kernel, X, lambda v: v * member.value), X * member.value)


def test_what_a_function_puts_into_a_member_of_an_enum_is_there_once(executor):
    class Log(enum.Enum):
        LINES = []

    def notes(v):
        Log.LINES.value.append(1)
        return v * len(Log.LINES.value)

    kernel = Apply()
    for n in (1, 2, 3, 4):
        assert is_same(executor(kernel, X, notes), X * n)


@pytest.mark.parametrize("static", [2, 2.0, "two", True, None, 1 + 2j, jnp.float32, np.float32(2), slice(1, 2)], ids=repr)
def test_values_that_are_no_arrays_count_too(executor, static):
    kernel = Apply()
    held = [static]

    def f(v):
        return v * (7 if repr(held[0]) == repr(static) else 8)

    for _ in range(2):
        held[0] = static
        assert is_same(executor(kernel, X, f), X * 7)
        held[0] = "other"
        assert is_same(executor(kernel, X, f), X * 8)


def test_equal_values_of_other_types_are_others(executor):
    kernel, held = Apply(), [0]

    def f(v):
        return v * {int: 1, bool: 2, float: 3, complex: 4}[type(held[0])] * (-1 if str(held[0])[0] == "-" else 1)

    for value, times in ((0, 1), (False, 2), (0.0, 3), (-0.0, -3), (0j, 4)):
        held[0] = value
        assert is_same(executor(kernel, X, f), X * times)


def test_equal_sets_and_keys_of_other_types_are_others(executor):
    kernel, held = Apply(), [None]

    def f(v):
        return v * (2 if all(type(part) is int for key in held[0] for part in key) else 3)

    for value, times in (({(1,)}, 2), ({(1.0,)}, 3), ({(1,): 0}, 2), ({(True,): 0}, 3), (frozenset([(1,)]), 2)):
        held[0] = value
        assert is_same(executor(kernel, X, f), X * times)


class Node:
    def __init__(self, w, data):
        self.w, self.data = w, data

    def of(self, v):
        return v * self.w * abs(self.data) * (-1 if str(self.data)[0] == "-" else 1)


jax.tree_util.register_pytree_node(Node, lambda node: ((node.w,), node.data), lambda data, w: Node(w[0], data))


EQUAL = {
    "order of sets": ([{8, 0}, {0, 8}], lambda held, v: v * next(iter(held))),
    "order of frozensets": ([frozenset([8, 0]), frozenset([0, 8])], lambda held, v: v * next(iter(held))),
    "ranges": ([range(0, 3, 2), range(0, 4, 2)], lambda held, v: v * held.stop),
    "keys": ([{1: 2}, {1.0: 2}, {True: 2}], lambda held, v: v.astype(int) * next(iter(held))),
    "zeros as keys": ([{0.0: 2}, {-0.0: 2}], lambda held, v: jnp.copysign(v, next(iter(held)))),
    "data": ([Node(2, 1), Node(2, 1.0), Node(2, True)], lambda held, v: held.of(v.astype(int))),
    "zeros as data": ([Node(2, 0.0), Node(2, -0.0)], lambda held, v: jnp.copysign(v, held.data)),
    "zeros of NumPy": ([Node(2, np.float32(0.0)), Node(2, np.float32(-0.0))], lambda held, v: jnp.copysign(v, held.data)),
}


class Held(Apply):
    op_id = "held"

    def run(self, x, held, f, *, cfg):
        type(self).traced += 1
        return f(held, x)


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "captured"])
@pytest.mark.parametrize("name", EQUAL)
def test_what_is_equal_and_yet_another_is_another(executor, name, is_given):
    values, f = EQUAL[name]
    for _ in range(2):
        for held in values:
            got = executor(Held(), X, held, f) if is_given else executor(Apply(), X, lambda v: f(held, v))
            want = f(held, X)
            assert got.dtype == want.dtype and got.tobytes() == want.tobytes()


def test_data_that_is_no_number_is_compiled_once(executor):
    kernel = Held()
    executor(kernel, X, Node(array(1), float("nan")), lambda held, v: v * held.w)
    before = Held.traced
    for n in (1, 2, 3):
        executor(kernel, X, Node(array(n), float("nan")), lambda held, v: v * held.w)
    assert Held.traced - before == 1  # a function of another place


class CallsAPartial:
    __call__ = functools.partial(reads_global)


class Dunder:
    __scale__ = 1

    def __call__(self, v):
        return v * self.__scale__


def test_attributes_of_classes_with_any_name_are_followed(executor):
    kernel = Apply()
    for n in (1, 2, 3):
        set_global(n)
        Dunder.__scale__ = n
        for head in (CallsAPartial(), Dunder()):
            assert is_same(executor(kernel, X, head), X * n)


def test_methods_of_dataclasses_are_followed_in_a_program_without_a_file():
    run_program("""
        import dataclasses, jax.numpy as jnp
        from ejk.ops import AutotunePolicy, ConfigCache, ConfigSelectorChain, Executor, Kernel

        class Apply(Kernel):
            op_id = "apply"
            def run(self, x, f, *, cfg):
                return f(x)
            def heuristic_cfg(self, inv):
                return 1

        @dataclasses.dataclass
        class Head:
            n: int = 1
            def __call__(self, v):
                return v * scale

        policy = AutotunePolicy(allow_autotune=False, cache_miss_fallback="heuristics")
        executor = Executor(ConfigSelectorChain(ConfigCache(), policy=policy))
        for scale in (1, 2, 3):
            assert executor(Apply("apply"), jnp.ones(3), Head())[0] == scale
    """)


def test_a_module_of_the_program_with_the_name_of_a_library_is_followed(executor, tmp_path, monkeypatch):
    (tmp_path / "imghdr.py").write_text("scale = 1\ndef times(v):\n    return v * scale\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imghdr", raising=False)
    module, kernel = importlib.import_module("imghdr"), Apply()
    for n in (1, 2, 3):
        module.scale = n
        assert is_same(executor(kernel, X, module.times), X * n)
        assert is_same(executor(kernel, X, lambda v, times=module.times: times(v)), X * n)
    monkeypatch.delitem(sys.modules, "imghdr")


def test_methods_that_are_put_in_place_of_others_are_seen(executor):
    kernel = Apply()

    class Local:
        def __call__(self, v):
            return v * 2

    head = Local()
    for _ in range(3):
        assert is_same(executor(kernel, X, head), X * 2)
    Local.__call__ = lambda self, v: v * 3
    assert is_same(executor(kernel, X, head), X * 3)


def test_callbacks_reach_what_the_caller_holds(executor):
    kernel, log, w = Apply(), [], np.ones(3, np.float32)

    def notes(v):
        jax.debug.callback(lambda v: log.append(float(v[0])), v)
        return v * jax.pure_callback(lambda: w, jax.ShapeDtypeStruct((3,), jnp.float32))

    for n in (1, 2, 3):
        w[:] = n
        assert is_same(executor(kernel, X, notes), X * n)
        jax.effects_barrier()
        assert log == [1.0] * n


def test_what_is_written_into_arrays_of_numpy_is_seen(executor):
    kernel, w = Apply(), np.ones(3, np.float32)
    for n in (1, 2, 3):
        w[:] = n
        assert is_same(executor(kernel, X, lambda v: v * w), X * n)


def sorts_a_copy(w, v):
    copy = w.copy()
    copy.sort()
    return v * copy


NUMPY = {
    "difference of float64": (np.array([1e9 + 1, 1e9, 1e9 + 3]), lambda w, v: v * (w - 1e9)),
    "bits of int64": (np.array([2**40, 1, 2**33]), lambda w, v: v * (w >> 32)),
    "sort": (np.array([3, 1, 2], np.float32), sorts_a_copy),
    "big endian": (np.array([1, 2, 3], ">i4"), lambda w, v: v * w.astype(np.int32) + (w.dtype.byteorder == ">")),
    "order": (np.asfortranarray(np.arange(6.0).reshape(2, 3)), lambda w, v: v * w.ravel("K")[:3]),
    "nothing": (np.zeros((0, 3)), lambda w, v: v * w.sum(0) + w.shape[1]),
    "texts": (np.array(["a", "bc"]), lambda w, v: v * len(w[1])),
    "objects": (np.array([2, 3], object), lambda w, v: v * w[0]),
    "large": (np.full(10**5, 1e9 + 1), lambda w, v: v * (w[:3] - 1e9)),
    "matrix": (np.matrix([[1.0, 2.0], [3.0, 4.0]]), lambda w, v: v * (w * w)[0, 0]),
    "read only": (np.broadcast_to(np.float32(2), (3,)), lambda w, v: v * w + w.flags.writeable),
}


@pytest.mark.parametrize("name", NUMPY)
def test_arrays_of_numpy_are_those_of_numpy_inside(executor, name):
    kernel, (w, f) = Apply(), NUMPY[name]
    for _ in range(3):
        assert is_same(executor(kernel, X, lambda v: f(w, v)), f(w, X))
    w = np.array(w[::-1], subok=True) if w.ndim == 1 else w.copy("A")
    assert is_same(executor(kernel, X, lambda v: f(w, v)), f(w, X))


def test_errors_of_numpy_are_raised(executor):
    kernel, w = Apply(), np.ones(3, np.float32)
    for _ in range(2):
        with pytest.raises(IndexError):
            executor(kernel, X, lambda v: v * w[5])


def test_what_a_function_writes_into_an_array_of_numpy_is_there(executor):
    kernel, w = Apply(), np.zeros(3, np.float32)

    def f(v):
        w[0] += 1
        return v * w[0]

    for n in (1, 2, 3):
        assert is_same(executor(kernel, X, f), X * n) and w[0] == n


def test_functions_that_read_an_array_of_numpy_are_compiled_once(executor):
    kernel, w = Apply(), np.arange(3.0)
    executor(kernel, X, lambda v: v * w)
    before = Apply.traced
    for _ in range(3):
        w = w.copy()
        assert is_same(executor(kernel, X, lambda v: v * w), X * jnp.arange(3.0))
    # A function made at another place has another code.
    assert Apply.traced - before == 1


def test_functions_that_take_the_place_of_a_library_s_are_followed(executor, monkeypatch):
    kernel, w = Apply(), None
    monkeypatch.setattr(jnp, "tanh", lambda v: v * w)
    for n in (1, 2, 3):
        w = array(n)
        assert is_same(executor(kernel, X, lambda v: jnp.tanh(v)), X * n)
    import builtins

    for n in (1, 2, 3):
        monkeypatch.setattr(builtins, "WEIGHT", array(n), raising=False)
        assert is_same(executor(kernel, X, lambda v: v * WEIGHT), X * n)  # noqa: F821


def test_arrays_in_static_fields_of_pytrees_are_followed(executor):
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["f"])
    @dataclasses.dataclass
    class Tree:
        x: jax.Array
        f: object

        def of(self, v):
            return v * self.x + self.f(v)

    kernel, w = Apply(), None
    tree = Tree(array(2), lambda v: v * w)
    for n in (1, 2, 3):
        w = array(n)
        assert is_same(executor(kernel, X, tree), X * (2 + n))


def test_jitted_functions_give_what_jax_gives(executor):
    kernel = Apply()
    w, n = array(2), 2
    with_array, with_number = jax.jit(lambda v: v * w), jax.jit(lambda v: v * n)
    with_nothing = jax.jit(lambda v: jnp.tanh(v))
    for i in range(4):
        w, n = array(i), i
        for f in (with_array, with_number, with_nothing):
            assert is_same(executor(kernel, X, f), f(X))
            assert is_same(executor(kernel, X, lambda v: f(v)), f(X))


@pytest.mark.parametrize("mapped", [pmap_with_config, vmap_with_config])
def test_mapped_functions_see_what_is_there_now(executor, mapped):
    w = None
    run, x = mapped(executor, Second("second")), jnp.stack([X, X + 1])
    head, numbers = Head(None), np.ones(3, np.float32)
    for n in (1, 2, 3):
        w = head.w = array(n)
        numbers[:] = n
        assert is_same(run(x, g=lambda v: v * w), x * n)
        assert is_same(run(x, g=head), x * n)
        assert is_same(run(x, w=numbers), x * n)


A, B = array(2), array(3)


def tied(v):
    return v * A * (5 if A is B else 7)


def of_pairs(pairs):
    def head(v):
        return v * sum(7 if a is b else 1 for a, b in pairs) * pairs[0][0]

    return head


def test_one_array_under_two_names_is_one_array_inside(executor, monkeypatch):
    kernel, w = Apply(), array(4)
    for same in (False, True, False, True):
        for n in (2, 3):
            monkeypatch.setitem(globals(), "A", array(n))
            monkeypatch.setitem(globals(), "B", A if same else array(n))
            pairs = [(A, B), (B, w), (w, w)]
            for f in (tied, of_pairs(pairs), lambda v: v * (5 if v is A else 6) + B):
                for x in (X, A):
                    for _ in range(2):
                        assert is_same(executor(kernel, x, f), f(x))


def test_mapped_functions_do_not_pile_up(executor):
    class Named(Second):
        op_id = "named"

        def run(self, x, *, cfg, name):
            return x * len(name)

    def count():
        gc.collect()
        functions = [thing for thing in gc.get_objects() if isinstance(thing, types.FunctionType)]
        return sum(f.__qualname__.endswith("parallel.<locals>.one") and hasattr(f, "__wrapped__") for f in functions)

    run, x, before = pmap_with_config(executor, Named()), jnp.stack([X, X + 1]), count()
    for n in range(40):
        assert is_same(run(x, name="a" * n), x * n)
    assert count() - before <= 16


# ---- functions made anew ------------------------------------------------------------------------


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


class WithDefault(typing.NamedTuple):
    w: typing.Any
    n: int = 2

    def __call__(self, v):
        return v * self.w * type(self)(1).n * self.n * GLOBAL


def test_all_that_named_tuples_have_is_followed(executor, monkeypatch):
    kernel = Apply()
    set_global(1)
    for head in (WithMore(array(2)), WithDefault(array(2))):
        executor(kernel, X, head)
        for n in (2, 3):
            before = Apply.traced
            assert is_same(executor(kernel, X, type(head)(array(n))), type(head)(array(n))(X))
        assert Apply.traced == before
    more = WithMore(array(2))
    for n in (2, 3):
        set_global(n)
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


def test_one_function_in_two_places_and_functions_without_end(executor):
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
    executor, kernel = Executor(ConfigSelectorChain(ConfigCache())), Tuned()

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
