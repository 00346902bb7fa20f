# SPDX-License-Identifier: Apache-2.0
"""What objects are taken apart into. A word is what comes next, or something that is compared."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable
from typing import Any


class Opaque(Exception):
    """Something that cannot be seen into."""


class Word(enum.Enum):
    """What comes next. A word is compared by identity."""

    AGAIN = enum.auto()  # what was met before
    ARGUMENT = enum.auto()  # an array that is an argument itself
    ARRAY = enum.auto()
    BOUND = enum.auto()  # a builtin method of an object
    CONTAINER = enum.auto()
    DICT = enum.auto()
    EMPTY = enum.auto()  # a cell or a name without a value
    FLOAT = enum.auto()
    FUNCTION = enum.auto()
    METHOD = enum.auto()
    MODULE = enum.auto()
    NUMPY = enum.auto()  # an array of NumPy
    OBJECT = enum.auto()
    PARTIAL = enum.auto()
    PYTREE = enum.auto()
    REFERENCE = enum.auto()  # to something of a user's that counts by its identity
    SAME = enum.auto()  # something of a library's that does
    SET = enum.auto()
    SLICE = enum.auto()
    TREE = enum.auto()
    VALUE = enum.auto()

    __hash__ = object.__hash__


class Same:
    __slots__ = ("thing",)

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.thing is other.thing


class Member(Same):
    """A member of an enum. What it holds is told with its class."""

    __slots__ = ()


class Exact:
    """A value that is equal to no other: -0.0 is not 0.0, NaN is NaN. `text` tells it apart."""

    __slots__ = ("text", "value")

    def __init__(self, value: Any, text: Any) -> None:
        self.value, self.text = value, text

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return type(other) is Exact and type(self.value) is type(other.value) and self.text == other.text


class Copy(types.ModuleType):
    """A module with other arrays in it."""


def things_of_libraries(words: Iterable[Any]) -> list[Any]:
    """What counts by its identity among what was seen."""
    return [word.thing for word in words if type(word) is Same]


def codes_of_functions(words: Iterable[Any]) -> list[types.CodeType]:
    return [word for word in words if type(word) is types.CodeType]


def outline_of(part: Any) -> Any:
    """Words without the numbers, texts and contents of arrays among them; anything else as it is."""
    if type(part) is not tuple:
        return part
    found: list[Any] = []
    distance = {Word.VALUE: 2, Word.NUMPY: 5}  # to the value
    left_out = -1
    for place, word in enumerate(part):
        if place == left_out:
            continue
        found.append(word)
        if type(word) is Word and word in distance:
            left_out = place + distance[word]
    return tuple(found)
