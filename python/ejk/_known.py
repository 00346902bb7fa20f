# SPDX-License-Identifier: Apache-2.0
"""What written configs of a kernel may be made of: the types and objects that this process has used for it.

Written text names something in here or nothing: it is never looked up in a module.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

_MAX_KEPT = 256
_of: dict[str, Known] = {}  # op, or class of a kernel by its name -> Known


class NotKnown(ValueError):
    """A text names something that this process has not used for the kernel."""


class _Opaque:
    """Objects without a written form, by name. Such a config keeps them alive; of those that have no weak
    references the newest stay."""

    def __init__(self) -> None:
        self._weak: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._kept: dict[str, Any] = {}

    def add(self, name: str, obj: Any) -> None:
        try:
            self._weak[name] = obj
        except TypeError:
            self._kept[name] = obj
            if len(self._kept) > _MAX_KEPT:
                self._kept.pop(next(iter(self._kept)), None)

    def named(self, name: str) -> Any:
        """KeyError if there is none."""
        found = self._weak.get(name)
        return found if found is not None else self._kept[name]


class Known:
    """Types that may be built, and objects that are found, by the name that a written config gives them."""

    def __init__(self) -> None:
        self._types: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
        self._more_fields: dict[str, set[str]] = {}  # of models of pydantic that take any: those that were used
        self._objects: dict[tuple[str, str], Any] = {}  # (tag, name) -> object
        self._opaque = _Opaque()

    def add_type(self, cls: type, more_fields: Iterable[str] = ()) -> str:
        """What it is called."""
        name = name_of(cls)
        self._types[name] = cls
        if more_fields:
            self._more_fields.setdefault(name, set()).update(more_fields)
        return name

    def add_object(self, tag: str, name: str, obj: Any) -> None:
        if tag == "$opaque":
            self._opaque.add(name, obj)
        else:
            self._objects[tag, name] = obj

    def declare(self, hint: Any) -> None:
        """What an annotation names, and the annotations of its fields. Types that are not configs are left out."""
        for part in typing.get_args(hint):
            self.declare(part)
        if not is_built(hint) or self._types.get(name_of(hint)) is hint:
            return
        self.add_type(hint)
        if not issubclass(hint, enum.Enum):
            for of_field in hints_of(hint).values():
                self.declare(of_field)

    def type_named(self, name: object) -> type:
        found = self._types.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotKnown(f"the type {_quoted(name)} is not known in this process as one of this kernel's")
        return found

    def object_named(self, tag: str, name: Any) -> Any:
        try:
            return self._opaque.named(name) if tag == "$opaque" else self._objects[tag, name]
        except (KeyError, TypeError):
            raise NotKnown(f"{_quoted(name)} is not known in this process as something of this kernel's") from None

    def fields_of(self, cls: type) -> set[str]:
        """The names that a written config of this type may have."""
        return {*field_names(cls), *self._more_fields.get(name_of(cls), ())}


class _Nobody(Known):
    """For whom nothing is kept."""

    def add_type(self, cls: type, more_fields: Iterable[str] = ()) -> str:
        return name_of(cls)

    def add_object(self, tag: str, name: str, obj: Any) -> None:
        pass


nobody = _Nobody()


def known_of(whose: str) -> Known:
    """What is known of an op, or of a class of kernels by its name; "": nothing."""
    if not whose:
        return nobody
    found = _of.get(whose)
    return found if found is not None else _of.setdefault(whose, Known())


def name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def is_pydantic(cls: object) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def is_named_tuple(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_built(cls: object) -> bool:
    """Whether a config may be of this type or hold one."""
    if not isinstance(cls, type):
        return False
    return dataclasses.is_dataclass(cls) or is_pydantic(cls) or is_named_tuple(cls) or issubclass(cls, enum.Enum)


def field_names(cls: Any) -> list[str]:
    if is_pydantic(cls):
        return list(cls.model_fields)
    return [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else list(cls._fields)


def hints_of(function_or_class: Any) -> dict[str, Any]:
    """Its annotations. One that cannot be evaluated (it is any expression) says nothing."""
    try:
        return typing.get_type_hints(function_or_class)
    except Exception:  # whatever the expression raises
        return dict(_hints_one_by_one(function_or_class)) if callable(function_or_class) else {}


def _hints_one_by_one(function_or_class: Any) -> Iterator[tuple[str, Any]]:
    is_class = isinstance(function_or_class, type)
    for owner in reversed(function_or_class.__mro__) if is_class else [inspect.unwrap(function_or_class)]:
        names = vars(sys.modules.get(owner.__module__, object)) if is_class else getattr(owner, "__globals__", {})
        for name, hint in inspect.get_annotations(owner).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            try:
                yield name, typing.get_type_hints(alone, dict(names), dict(vars(owner)))[name]
            except Exception:  # whatever the expression raises: this one is left out
                continue


def _quoted(name: object) -> str:
    text = name if isinstance(name, str) else repr(name)
    return text if len(text) <= 100 else f"{text[:100]}..."
