# SPDX-License-Identifier: Apache-2.0
"""Plain values, which are constants and compared as such, and the structure of pytrees."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterator
from typing import Any

from ejk._libraries import is_library

_OF_MEMBERS = frozenset("_value_ _name_ __objclass__ _sort_order_ _inverted_".split())
PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented), range, types.CodeType)


def is_plain(value: Any) -> bool:
    """Whether it is a number, a text, a type of elements or the like, or a tuple or a set of such."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(map(is_plain, value))
    if kind in PLAIN or kind in (float, complex):
        return True
    if isinstance(value, type):
        return is_library(value.__module__)
    if isinstance(value, enum.Enum):
        return not has_functions(kind) and is_plain_member(value)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.dtype, numpy.generic))


def told_apart(value: Any) -> tuple[Any, ...]:
    """What tells plain values apart: 1, 1.0 and True are three, also inside of tuples and sets; so are 0.0 and -0.0."""
    kind = type(value)
    if kind in (tuple, list, frozenset):  # equal sets may be of another order
        return kind, tuple(map(told_apart, value))
    if kind is float:
        return kind, value.hex()
    if kind in (complex, range):
        return kind, repr(value)
    if not isinstance(value, type) and hasattr(value, "tobytes"):  # a scalar of NumPy; times have units in their dtype
        return kind, str(value.dtype), value.tobytes()
    return kind, value


def tree_told_apart(tree: Any) -> Any:
    """The same of the structure of a pytree with plain data."""
    node = tree.node_data()
    return node and (node[0], told_apart(node[1]), tuple(map(tree_told_apart, tree.children())))


def has_functions(kind: Any) -> bool:
    """Whether a class of enums has some of its own, or its members hold some: they may read anything."""
    own = [base for base in kind.__mro__ if not is_library(base.__module__)]
    # The one function that every enum has is a library's.
    values = [value for base in own for value in vars(base).values() if not is_library(getattr(value, "__module__", ""))]
    if any(isinstance(value, (types.FunctionType, staticmethod, classmethod, property)) for value in values):
        return True
    return not (is_library(kind.__module__) or all(map(is_plain_member, kind.__members__.values())))


def is_plain_member(member: enum.Enum) -> bool:
    """Whether a member of an enum is but a name for a plain value."""
    return is_plain(member._value_) and not own_attributes(member)


def own_attributes(member: enum.Enum) -> dict[str, Any]:
    return {name: value for name, value in vars(member).items() if name not in _OF_MEMBERS}


def has_data(tree: Any) -> bool:
    """Whether nodes of a pytree hold more than their leaves."""
    node = tree.node_data()
    if node is None:
        return False
    is_usual = node[0] in (tuple, list, dict, type(None)) or node[1] is None or is_plain(node[1])
    return not is_usual or any(map(has_data, tree.children()))


def classes_in(tree: Any) -> Iterator[type]:
    """Those of a program that nodes of a pytree are of."""
    node = tree.node_data()
    if node is None:
        return
    if not is_library(node[0].__module__):
        yield node[0]
    for child in tree.children():
        yield from classes_in(child)


def has_attributes(named_tuple: object) -> bool:
    """Whether an object of a class of named tuples is more than a tuple."""
    return isinstance(named_tuple, tuple) and bool(getattr(named_tuple, "__dict__", None))
