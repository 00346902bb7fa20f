# SPDX-License-Identifier: Apache-2.0
"""What kernels and configs hold, as keys: two are equal only if both hold the same values of the same types.

A class is a value with its objects: of its methods nothing is looked at, of its own attributes the data is.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import types
import weakref
from typing import NamedTuple

from ejk import _jax
from ejk._captured import Opaque, Seen, is_plain, told_apart
from ejk._known import is_named_tuple, is_pydantic

_DEEPEST = 50
_MOST_BYTES = 1 << 20  # of an array that may change: to look at more costs more than it saves


class Held(NamedTuple):
    """`is_data`: it holds no callable and no object that is more than its attributes. `is_constant`: nothing of it can
    change but by setting an attribute. `has_arrays`: the key keeps arrays alive."""

    key: tuple
    is_data: bool
    is_constant: bool
    has_arrays: bool


def held_by_kernel(kernel) -> Held:
    """What a kernel's attributes and those of its class are. Opaque if that cannot be seen."""
    slots = slots_of(type(kernel))
    if slots is None:
        raise Opaque
    looking = _Looking(may_hold_arrays=True)
    named = _attributes_and_those_of_class(kernel, slots)
    return looking.held(tuple((name, looking.exact(value)) for name, value in named))


def held_by_config(config) -> Held:
    looking = _Looking(may_hold_arrays=False)
    return looking.held(looking.exact(config))


class _Looking:
    def __init__(self, may_hold_arrays: bool):
        self._may_hold_arrays, self._seen = may_hold_arrays, Seen(is_fixed=True)
        self._is_constant, self._has_arrays = True, False

    def held(self, key) -> Held:
        words = tuple(self._seen.all_words())
        found = Held((key, words), not words, self._is_constant and not words, self._has_arrays)
        try:
            hash(found.key)
        except TypeError as error:
            raise Opaque from error
        return found

    def exact(self, value, depth=0):
        if depth > _DEEPEST:
            raise Opaque
        kind = type(value)
        if kind in (tuple, frozenset):  # a set in its order: whoever goes over it sees that
            return kind, tuple(self.exact(item, depth + 1) for item in value)
        if is_plain(value):
            return told_apart(value)
        if kind in (list, set):
            self._is_constant = False
            return kind, tuple(self.exact(item, depth + 1) for item in list(value))
        if kind is dict:
            self._is_constant = False
            pairs = list(value.items())
            return kind, tuple((self.exact(key, depth + 1), self.exact(item, depth + 1)) for key, item in pairs)
        if isinstance(value, type):
            return type, weakref.ref(value)
        if _jax.is_array(value) or _jax.is_numpy(value):
            return self._array(value)
        parts = _parts_of(value)
        if parts is not None:
            return weakref.ref(kind), tuple((name, self.exact(part, depth + 1)) for name, part in parts)
        self._seen.add_whole(value)
        return (Seen,)

    def _array(self, array):
        if not self._may_hold_arrays or _jax.is_tracer(array):
            raise Opaque
        self._has_arrays, self._is_constant = True, False
        if _jax.is_array(array):
            return _Identity, _Identity(array)
        if array.nbytes > _MOST_BYTES or array.dtype.hasobject:
            raise Opaque
        digest = hashlib.sha256(array.tobytes()).digest()
        return type(array), str(array.dtype), array.shape, digest


class _Identity:
    """A thing that does not change, equal to itself alone."""

    __slots__ = ("_thing",)

    def __init__(self, thing):
        self._thing = thing

    def __hash__(self):
        return id(self._thing)

    def __eq__(self, other):
        return type(other) is _Identity and self._thing is other._thing


def _parts_of(value):
    """Name and value of all that an object which is data consists of; None if it may be more."""
    kind = type(value)
    if is_named_tuple(kind):
        return [*zip(kind._fields, value), *getattr(value, "__dict__", {}).items()]
    if is_pydantic(kind):
        hidden = ("__pydantic_extra__", "__pydantic_private__")
        return [*value.__dict__.items(), *((name, getattr(value, name, None)) for name in hidden)]
    if kind is types.SimpleNamespace:
        return list(vars(value).items())
    if not dataclasses.is_dataclass(kind) or callable(value) or slots_of(kind) is None:
        return None
    return list(_attributes_and_those_of_class(value, slots_of(kind)))


def _attributes_and_those_of_class(thing, slots):
    return attributes_of(thing, (*slots, *data_of_class(type(thing))))


def attributes_of(thing, slots):
    for name, value in list(getattr(thing, "__dict__", {}).items()):
        if name != "_ejk_compiled":
            yield name, value
    for name in slots:
        if hasattr(thing, name):
            yield name, getattr(thing, name)


def data_of_class(cls: type) -> tuple[str, ...]:
    """The names of attributes that a class and its bases have for their objects: no methods, no classes, nothing that
    its own runs set, as counters are. Classes of this package stay as they are."""
    names, not_these = {}, _set_by_runs(cls)
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "ejk":
            continue
        for name, value in list(vars(base).items()):
            is_special = name.startswith("__") or name == "_abc_impl" or name in not_these
            is_data = not is_special and not isinstance(value, type) and not hasattr(type(value), "__get__")
            names.setdefault(name, is_data)  # what a class has itself hides that of its bases
    return tuple(name for name, is_data in names.items() if is_data)


_TRACED = ("run", "fwd_with_residuals", "vjp", "custom_vjp", "create_shard_map_wrapper")
_known_set_by_runs = weakref.WeakKeyDictionary()  # by class


def _set_by_runs(cls: type) -> frozenset:
    if cls not in _known_set_by_runs:
        members = [member for base in cls.__mro__ for member in vars(base).items()]
        runs = [run for name, run in members if name.startswith(_TRACED) and isinstance(run, types.FunctionType)]
        _known_set_by_runs[cls] = frozenset(name for run in runs for name in _attributes_set_in(run.__code__))
    return _known_set_by_runs[cls]


def _attributes_set_in(code):
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _attributes_set_in(constant)


_known_slots = weakref.WeakKeyDictionary()  # by class


def slots_of(cls: type) -> tuple[str, ...] | None:
    """The names of the attributes of a class's objects that are not in their __dict__; None if they have more to them
    than attributes."""
    if cls not in _known_slots:
        _known_slots[cls] = _find_slots(cls)
    return _known_slots[cls]


def _find_slots(cls: type) -> tuple[str, ...] | None:
    names = []
    for base in cls.__mro__:
        found = base.__dict__.get("__slots__", ())
        names += [found] if isinstance(found, str) else found
    if len(set(names)) < len(names) or any(name.startswith("__") for name in names):
        return None
    alike = type("Alike", (), {"__slots__": (*names, "__dict__", "__weakref__")})
    return tuple(names) if alike.__basicsize__ == cls.__basicsize__ else None


__all__ = ["Held", "attributes_of", "data_of_class", "held_by_config", "held_by_kernel", "slots_of"]
