# SPDX-License-Identifier: Apache-2.0
"""What calls can be told apart by, beside arrays, numbers and texts."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from ejk import _core, _jax
from ejk._captured import codes_of_functions, has_functions, things_of_libraries
from ejk._code import reads_of
from ejk.ops.core._function import Form
from ejk.ops.execution._held import attributes_of, state_of_class


def learn(dispatcher: _core.Dispatcher, kernel: Any, config: Any, arguments: tuple[Any, ...], form: Form) -> None:
    """Tells a dispatcher of what types objects are in a call of `kernel`, and what functions among the arguments read;
    `config` is the caller's own, or None."""
    for code in codes_of_functions(form.words):
        dispatcher._add_code(code, tuple(reads_of(code).names.items()))
    for thing in things_of_libraries(form.words):
        dispatcher._add_same(thing)
    for plain in (kernel, *_dataclasses_in(config)):
        state = state_of_class(type(plain))
        if state is not None:  # what a class has for its objects is read as if it were theirs
            dispatcher._add_plain_class(type(plain), state_of_class)
        names = () if state is None else state.names
        arguments = (*arguments, *(value for _, value in attributes_of(plain, names)))
    for found in _constant_types(arguments):
        dispatcher._add_constant_type(found)


def _dataclasses_in(value: Any) -> Iterator[Any]:
    """A config and those that it is made of. Other objects may be more than data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not callable(value):
        yield value
        for field in dataclasses.fields(value):
            yield from _dataclasses_in(getattr(value, field.name, None))


def _constant_types(values: Iterable[Any]) -> Iterator[type]:
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


__all__ = ["learn"]
