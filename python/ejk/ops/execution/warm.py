# SPDX-License-Identifier: Apache-2.0
"""What calls can be told apart by, beside arrays, numbers and texts."""

from __future__ import annotations

import dataclasses
import enum
import sys
import weakref
from collections.abc import Iterator

from ejk import _jax
from ejk._captured import codes_of_functions, has_functions, things_of_libraries
from ejk._code import reads_of


def learn(dispatcher, kernel, config, arguments, form) -> None:
    """Tells a dispatcher of what types objects are in a call of `kernel`, and what functions among the arguments read;
    `config` is the caller's own, or None."""
    for code in codes_of_functions(form.words):
        dispatcher._add_code(code, tuple(reads_of(code).names.items()))
    for thing in things_of_libraries(form.words):
        dispatcher._add_same(thing)
    for plain in (kernel, *_dataclasses_in(config)):
        slots = _slots_of(type(plain))
        if slots is not None:
            dispatcher._add_plain_class(type(plain), slots)
        arguments = (*arguments, *(value for _, value in _attributes(plain, slots or ())))
    for found in _constant_types(arguments):
        dispatcher._add_constant_type(found)


def _dataclasses_in(value):
    """A config and those that it is made of. Other objects may be more than data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not callable(value):
        yield value
        for field in dataclasses.fields(value):
            yield from _dataclasses_in(getattr(value, field.name, None))


def state_of(kernel) -> frozenset:
    """What a kernel's attributes are, equal for two kernels of a class only if all are the same values of the same
    types. TypeError if it has more to it than attributes."""
    slots = _slots_of(type(kernel))
    if slots is None:
        raise TypeError(f"objects of {type(kernel).__qualname__} have more to them than attributes")
    return frozenset((name, _exact(value)) for name, value in _attributes(kernel, slots))


def _attributes(kernel, slots):
    for name, value in list(getattr(kernel, "__dict__", {}).items()):
        if name != "_ejk_compiled":
            yield name, value
    for name in slots:
        if hasattr(kernel, name):
            yield name, getattr(kernel, name)


def _exact(value):
    """1, 1.0 and True are three, wherever they stand; so are 0.0 and -0.0."""
    cls = type(value)
    if cls is float:
        return cls, value.hex()
    if isinstance(value, (tuple, frozenset)):
        return cls, (tuple if isinstance(value, tuple) else frozenset)(map(_exact, value))
    if dataclasses.is_dataclass(value) and cls.__eq__ is not object.__eq__ and not isinstance(value, type):
        hash(value)  # TypeError if it may change
        return cls, tuple(_exact(getattr(value, field.name)) for field in dataclasses.fields(value))
    return cls, value


def _constant_types(values) -> Iterator[type]:
    """The types, in tuples and sets too, of which there is only one object of each value: enums, types of elements."""
    for value in values:
        if type(value) in (tuple, frozenset):
            yield from _constant_types(value)
        elif _is_constant(type(value)):
            yield type(value)


def _is_constant(cls: type) -> bool:
    numpy, jax = sys.modules.get("numpy"), _jax.loaded()
    if numpy is not None and issubclass(cls, numpy.dtype):
        return True
    if issubclass(cls, enum.Enum):
        return not has_functions(cls)
    return jax is not None and cls is type(jax.numpy.float32)


_known_slots = weakref.WeakKeyDictionary()  # by class


def _slots_of(cls: type) -> tuple[str, ...] | None:
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


__all__ = ["learn", "state_of"]
