# SPDX-License-Identifier: Apache-2.0
"""Callables that change what they hold, or cannot be seen into, run as they are."""

import collections
import enum
import functools
import typing
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from captures import MODULE, Apply, Head, X, array, is_same, reads_global, set_global


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


def test_a_function_that_reaches_too_much_runs_as_it_is(executor):
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


def test_a_value_that_libraries_change_is_never_a_constant(executor):
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
def test_a_value_that_a_library_makes_anew_is_never_a_constant(executor, name, tmp_path, monkeypatch):
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
def test_a_value_that_a_library_always_gives_is_compiled_once(executor, name):
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


def test_functions_that_are_looked_up_by_their_name_are_never_constants(executor, monkeypatch):
    kernel = Apply()
    for value in (1, 2, 3):
        monkeypatch.setitem(globals(), "WEIGHT", array(value))
        assert is_same(executor(kernel, X, lambda v: v * globals()["WEIGHT"]), X * value)
        assert is_same(executor(kernel, X, lambda v: eval("v * WEIGHT", globals(), {"v": v})), X * value)


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


def test_a_function_sets_a_name_in_a_module_once(executor):
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
def test_a_function_changes_a_class_once(executor, f):
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


def test_values_that_members_of_enums_hold_are_followed(executor):
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


def test_a_function_writes_to_a_member_of_an_enum_once(executor):
    class Log(enum.Enum):
        LINES = []

    def notes(v):
        Log.LINES.value.append(1)
        return v * len(Log.LINES.value)

    kernel = Apply()
    for n in (1, 2, 3, 4):
        assert is_same(executor(kernel, X, notes), X * n)
