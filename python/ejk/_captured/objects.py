# SPDX-License-Identifier: Apache-2.0
"""What objects and classes consist of, and what of it Python or a library has put there."""

from __future__ import annotations

import collections
import functools
import sys
import types
import weakref
from typing import Any

from ejk import _jax
from ejk._captured.values import is_plain
from ejk._captured.words import Opaque
from ejk._libraries import gives_the_same, is_library

_OF_PYTHON = frozenset(
    "__abstractmethods__ __annotate__ __annotate_func__ __annotations__ __annotations_cache__ __class_vars__ "
    "__dataclass_fields__ __dataclass_params__ __dict__ __doc__ __final__ __firstlineno__ __match_args__ __module__ "
    "__non_callable_proto_members__ __orig_bases__ __parameters__ __private_attributes__ __protocol_attrs__ "
    "__qualname__ __signature__ __slotnames__ __slots__ __static_attributes__ __type_params__ __weakref__ _abc_impl".split()
)
_FIELD = type(vars(collections.namedtuple("Named", "field"))["field"])
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def is_public(thing: Any) -> bool:
    """Whether it is what a library has under its name."""
    module: Any
    module, name = getattr(thing, "__module__", None), getattr(thing, "__name__", None)
    if not (isinstance(name, str) and gives_the_same(thing)):
        return False
    return getattr(sys.modules.get(module), name, None) is thing


def is_its_own(value: Any) -> bool:
    """Whether a library's attribute is a thing of a library's, and no array."""
    if _jax.is_array(value) or _jax.is_numpy(value) or not is_library(type(value).__module__):
        return False
    while not isinstance(value, types.FunctionType) and callable(getattr(value, "__wrapped__", None)):
        value = value.__wrapped__
    return not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) or gives_the_same(value)


def is_of_dataclasses(value: object) -> bool:
    """Whether a special method of a dataclass is one that was made for it: those read its fields alone."""
    if not isinstance(value, types.FunctionType):
        return False
    return "__create_fn__" in value.__code__.co_qualname or value.__globals__.get("__name__") == "dataclasses"


def is_of_named_tuples(value: object) -> bool:
    """The same for a named tuple."""
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__")).startswith(("collections", "namedtuple_"))
    return type(value) is _FIELD


def is_of_python(name: str) -> bool:
    """Whether an attribute of a class is one that Python or pydantic keeps there for itself."""
    return name in _OF_PYTHON or name.startswith("__pydantic_")


@functools.cache
def _type_of_jitted(jax: Any) -> type:
    return type(jax.jit(is_plain))


def jitted_type() -> Any:
    jax = _jax.loaded()
    return _type_of_jitted(jax) if jax is not None else ()


def own_dict(thing: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    if type(held) is not dict:
        raise Opaque
    return held


def is_filled(slot: Any, thing: Any) -> bool:
    try:
        slot.__get__(thing)
    except AttributeError:
        return False
    return True


_slots: weakref.WeakKeyDictionary[type, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def slots_of(kind: type) -> tuple[Any, ...]:
    """The slots of objects that consist of attributes and slots; others are opaque."""
    found = _slots.get(kind)
    if found is not None:
        return found
    if kind.__itemsize__ or hasattr(kind, "__del__"):
        raise Opaque
    members = [slot for base in kind.__mro__ for slot in vars(base).values()]
    found = tuple(slot for slot in members if isinstance(slot, types.MemberDescriptorType) and slot.__name__ != "__dict__")
    words_of_object = object.__basicsize__ // 8 + len(found) + 2  # 2: its dict, its weak references
    if kind is not types.SimpleNamespace and kind.__basicsize__ > 8 * words_of_object:
        raise Opaque
    try:
        empty(kind)
    except TypeError as error:
        raise Opaque from error
    _slots[kind] = found
    return found


def empty(kind: Any) -> Any:
    return types.SimpleNamespace() if kind is types.SimpleNamespace else object.__new__(kind)
