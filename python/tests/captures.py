# SPDX-License-Identifier: Apache-2.0
"""Kernels that call their arguments, and every kind of what these can have captured."""

import collections
import dataclasses
import functools
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
from kernels import OneConfig


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
