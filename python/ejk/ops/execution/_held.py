# SPDX-License-Identifier: Apache-2.0
"""What kernels and configs hold, as keys: two are equal only if both hold the same values of the same types.

A class is a value with its objects: its methods count by their identity, its own attributes by what they are.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ejk import _jax
from ejk._captured import Opaque, Seen, is_of_python, is_plain, slots_of, told_apart
from ejk._captured.words import Same
from ejk._known import is_named_tuple, is_pydantic

_DEEPEST = 50
_MAX_BYTES = 1 << 20  # of an array that may change: to look at more costs more than it saves


class Held(NamedTuple):
    """`is_data`: it holds no callable and no object that is more than its attributes. `is_constant`: nothing of it can
    change but by setting an attribute. `has_arrays`: the key keeps arrays alive."""

    key: tuple[Any, ...]
    is_data: bool
    is_constant: bool
    has_arrays: bool


def held_by_kernel(kernel: Any) -> Held:
    """What a kernel's attributes and those of its class are. Opaque if that cannot be seen."""
    state = state_of_class(type(kernel))
    if state is None:
        raise Opaque
    looking = _Looking(may_hold_arrays=True)
    named = attributes_of(kernel, state.names)
    return looking.held((state.key(), tuple((name, looking.exact(value)) for name, value in named)))


def held_by_config(config: Any) -> Held:
    looking = _Looking(may_hold_arrays=False)
    return looking.held(looking.exact(config))


class _Looking:
    def __init__(self, may_hold_arrays: bool) -> None:
        self._may_hold_arrays, self._seen = may_hold_arrays, Seen(is_fixed=True)
        self._is_constant, self._has_arrays = True, False

    def held(self, key: Any) -> Held:
        words = tuple(self._seen.all_words())
        found = Held((key, words), not words, self._is_constant and not words, self._has_arrays)
        try:
            hash(found.key)
        except TypeError as error:
            raise Opaque from error
        return found

    def exact(self, value: Any, depth: int = 0) -> tuple[Any, ...]:
        if depth > _DEEPEST:
            raise Opaque
        kind = type(value)
        if kind in (tuple, frozenset):  # a set in its order, which iterating shows
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
            named = tuple((name, self.exact(part, depth + 1)) for name, part in parts)
            return weakref.ref(kind), _members_of(kind).key(), named
        self._seen.add_whole(value)
        return (Seen,)

    def _array(self, array: Any) -> tuple[Any, ...]:
        if not self._may_hold_arrays or _jax.is_tracer(array):
            raise Opaque
        self._has_arrays, self._is_constant = True, False
        if _jax.is_array(array):
            return Same, Same(array)
        if array.nbytes > _MAX_BYTES or array.dtype.hasobject:
            raise Opaque
        digest = hashlib.sha256(array.tobytes()).digest()
        return type(array), str(array.dtype), array.shape, digest


def _identity_of(thing: Any) -> Any:
    """Equal to that of this thing alone, and it does not keep the thing alive if that can be."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return Same(thing)


def _parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """Name and value of all that an object which is data consists of; None if it may be more."""
    kind = type(value)
    if is_named_tuple(kind):
        return [*zip(kind._fields, value), *getattr(value, "__dict__", {}).items()]
    if is_pydantic(kind):
        hidden = ("__pydantic_extra__", "__pydantic_private__")
        return [*value.__dict__.items(), *((name, getattr(value, name, None)) for name in hidden)]
    if kind is types.SimpleNamespace:
        return list(vars(value).items())
    state = state_of_class(kind) if dataclasses.is_dataclass(kind) and not callable(value) else None
    return None if state is None else list(attributes_of(value, state.names))


def attributes_of(thing: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for name, value in list(getattr(thing, "__dict__", {}).items()):
        if name != "_ejk_compiled":
            yield name, value
    for name in names:
        if hasattr(thing, name):
            yield name, getattr(thing, name)


class StateOfClass(NamedTuple):
    """`names` of the attributes that objects have beside their __dict__: slots, and the data of their class. `members`:
    methods and whatever else a class has for its objects."""

    names: tuple[str, ...]
    members: tuple[Any, ...]

    def key(self) -> tuple[Any, ...]:
        return tuple(map(_identity_of, self.members))


def state_of_class(cls: type) -> StateOfClass | None:
    """None if objects have more to them than attributes."""
    try:
        slots = slots_of(cls)
    except Opaque:
        return None
    of_class = _members_of(cls)
    return StateOfClass((*dict.fromkeys(slot.__name__ for slot in slots), *of_class.names), of_class.members)


def _members_of(cls: type) -> StateOfClass:
    """What a class and its bases have for their objects, but for what its own runs set, as counters are. Classes of this
    package stay as they are."""
    found: dict[str, Any] = {}  # what a class has itself hides that of its bases
    for base in cls.__mro__:
        if base is not object and base.__module__.partition(".")[0] != "ejk":
            for name, value in list(vars(base).items()):
                found.setdefault(name, value)
    members = {name: value for name, value in found.items() if isinstance(value, type) or hasattr(type(value), "__get__")}
    not_these = members.keys() | _set_by_runs(cls)
    data = tuple(name for name in found if not is_of_python(name) and name not in not_these)
    return StateOfClass(data, tuple(members.values()))


_TRACED = ("run", "fwd_with_residuals", "vjp", "custom_vjp", "create_shard_map_wrapper")


def _set_by_runs(cls: type) -> frozenset[str]:
    members = [member for base in cls.__mro__ for member in list(vars(base).items()) if member[0].startswith(_TRACED)]
    runs = [run for _, run in members if isinstance(run, types.FunctionType)]
    return frozenset().union(*(_attributes_set_in(run.__code__) for run in runs))


@functools.lru_cache(1024)
def _attributes_set_in(code: types.CodeType) -> frozenset[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
    inside = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(names).union(*map(_attributes_set_in, inside))


__all__ = ["Held", "attributes_of", "held_by_config", "held_by_kernel", "state_of_class"]
