# SPDX-License-Identifier: Apache-2.0
"""What is captured counts by its value: numbers, objects, arrays of NumPy, parts of pytrees."""

import dataclasses
import functools
import gc
import importlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from captures import Apply, Head, Second, X, array, is_same, reads_global, set_global
from conftest import run_program
from ejk.ops import pmap_with_config, vmap_with_config


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
def test_equal_values_that_differ_are_told_apart(executor, name, is_given):
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


def test_writes_into_arrays_of_numpy_are_seen(executor):
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


def test_a_function_writes_into_an_array_of_numpy(executor):
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


def test_an_array_under_two_names_is_a_single_array_inside(executor, monkeypatch):
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
