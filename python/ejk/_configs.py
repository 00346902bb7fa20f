# SPDX-License-Identifier: Apache-2.0
"""Configs of any Python type as plain data, and back as the type that went in.

Plain data stands for itself. Whatever JSON has no word for is an object with one member that begins
with "$": {"$type": "module:Config", "block": 64}, {"$tuple": [1, 2]}, {"$dtype": "float32"}. What is read is
data from anyone: its names stand for what this process has used for the same kernel (ejk._known) and for nothing
else.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import os
import secrets
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ejk._known import Known, NotKnown, field_names, hints_of, is_built, is_pydantic, known_of, name_of, nobody

_DEEPEST = 50
_process = secrets.token_hex(8)
# id of an object without a written form -> (its name in this process, a reference to the object)
_opaque: dict[int, tuple[str, Callable[[], Any]]] = {}
_opaque_kept: collections.deque[int] = collections.deque(maxlen=256)  # of those without weak references: they stay a while
_opaque_count, _opaque_lock = itertools.count(), threading.RLock()  # a reference may be cleared while it is held

# Types of elements are data, in any module.
_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
_MORE_DTYPES = frozenset(
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu float4_e2m1fn int2 int4 uint2 uint4".split()
)


def encode(config: Any, whose: str = "") -> Any:
    """`config` as plain data. `whose`: the op it is a config of, whose written configs may be made of the same."""
    return {"$none": True} if config is None else _encode(config, known_of(whose), 0)


def decode(value: Any, whose: str, cfg_type: Any = None) -> Any:
    """The config of that op that `value` was made of. `cfg_type`: what the program says that such configs are.

    ValueError says why it cannot be; NotKnown if it names something that is not known of the op.
    """
    if value == {"$none": True}:
        return None
    known = known_of(whose)
    known.declare(cfg_type)
    try:
        return _decode(value, known, 0)
    except ValueError:
        raise
    except Exception as error:  # whatever is written where another kind of data belongs
        raise ValueError(f"{type(error).__name__}: {error}") from None


def fit(config: Any, cls: Any) -> Any:
    """A config that came without a type (imported, written by hand) as `cls`, if it fits."""
    if cls is None or not isinstance(config, dict) or not isinstance(cls, type):
        return config
    if issubclass(cls, dict) or not (dataclasses.is_dataclass(cls) or is_pydantic(cls)):
        return config
    return _build(cls, config, untyped=True)


# ---- writing ------------------------------------------------------------------------------------


def _encode(obj: Any, known: Known, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"a config is nested deeper than {_DEEPEST} levels, or contains itself")
    if obj is None or type(obj) in (bool, int, float, str):
        return obj
    if type(obj) is list:
        return [_encode(item, known, depth + 1) for item in obj]
    if type(obj) is tuple:
        return {"$tuple": [_encode(item, known, depth + 1) for item in obj]}
    if type(obj) is dict:
        return _encode_dict(obj, known, depth)
    if isinstance(obj, enum.Enum):
        return {"$enum": known.add_type(type(obj)), "name": obj.name}
    if isinstance(obj, type):
        known.add_object("$class", name_of(obj), obj)
        return {"$class": name_of(obj)}
    if is_built(type(obj)):
        return _encode_fields(obj, known, depth)
    if isinstance(obj, types.SimpleNamespace):
        return {"$namespace": _encode_dict(vars(obj), known, depth)}
    if type(obj) in (set, frozenset):
        items = sorted((_encode(item, known, depth + 1) for item in obj), key=repr)
        return {"$set": items, "frozen": type(obj) is frozenset}
    if type(obj) is bytes:
        return {"$bytes": obj.hex()}
    if type(obj) is complex:
        return {"$complex": [obj.real, obj.imag]}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, (numpy.dtype, numpy.generic)):
        return _encode_numpy(obj, isinstance(obj, numpy.generic), known, depth)
    return _encode_reference(obj, known)


def _encode_dict(mapping: Mapping[Any, Any], known: Known, depth: int) -> dict[str, Any]:
    if all(type(key) is str and not key.startswith("$") for key in mapping):
        return {key: _encode(value, known, depth + 1) for key, value in mapping.items()}
    pairs = mapping.items()
    return {"$dict": [[_encode(k, known, depth + 1), _encode(v, known, depth + 1)] for k, v in pairs]}


def _encode_fields(obj: Any, known: Known, depth: int) -> dict[str, Any]:
    fields = {name: getattr(obj, name) for name in field_names(type(obj))}
    more = (obj.model_extra or {}) if is_pydantic(type(obj)) else {}
    written = {name: _encode(value, known, depth + 1) for name, value in {**fields, **more}.items()}
    return {"$type": known.add_type(type(obj), more)} | written


def _encode_numpy(obj: Any, is_scalar: bool, known: Known, depth: int) -> dict[str, Any]:
    dtype = obj.dtype if is_scalar else obj
    known.add_object("$dtype", dtype.name, dtype)
    if not is_scalar:
        return {"$dtype": dtype.name}
    return {"$numpy": dtype.name, "value": _encode(obj.item(), known, depth + 1)}


def _encode_reference(obj: Any, known: Known) -> dict[str, Any]:
    """A function by its name; anything else keeps its identity for this process."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if callable(obj) and module and name and _is_what_it_says(obj, module, name):
        tag, name = "$object", f"{module}:{name}"
    else:
        tag, name = "$opaque", _opaque_name(obj)
    known.add_object(tag, name, obj)
    return {tag: name}


def _is_what_it_says(obj: Any, module: str, path: str) -> bool:
    """Whether an object of this process is where its own attributes say."""
    found = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is obj


def _opaque_name(obj: Any) -> str:
    with _opaque_lock:
        name, reference = _opaque.get(id(obj), ("", None))
        if reference is None or reference() is not obj:
            name = f"{type(obj).__name__} {next(_opaque_count)} of process {_process}.{os.getpid()}"
            _opaque[id(obj)] = name, _reference(obj)
        return name


def _reference(obj: Any) -> Callable[[], Any]:
    """While it is there, no other object has this id, or it says that its own is gone."""
    number = id(obj)
    try:
        return weakref.ref(obj, functools.partial(_forget, number))
    except TypeError:
        if len(_opaque_kept) == _opaque_kept.maxlen:
            _opaque.pop(_opaque_kept[0], None)
        _opaque_kept.append(number)
        return lambda: obj


def _forget(number: int, reference: Callable[[], Any]) -> None:
    if _opaque.get(number, (None, None))[1] is reference:
        del _opaque[number]


# ---- reading ------------------------------------------------------------------------------------


def _decode(value: Any, known: Known, depth: int) -> Any:
    if depth > 2 * _DEEPEST:  # a dict that has other keys than names is written as two levels
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    if isinstance(value, list):
        return [_decode(item, known, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next((name for name in value if name.startswith("$")), None)
    if tag is None:
        return {name: _decode(item, known, depth + 1) for name, item in value.items()}
    reader = _readers.get(tag)
    if reader is None:
        raise ValueError(f"it holds {tag[:100]!r}, which this version does not know")
    return reader(value, known, depth)


def _items(value: dict[str, Any], tag: str, known: Known, depth: int) -> list[Any]:
    if not isinstance(value[tag], list):
        raise ValueError(f"{tag} needs a list")
    return [_decode(item, known, depth + 1) for item in value[tag]]


def _read_type(value: dict[str, Any], known: Known, depth: int) -> Any:
    cls = known.type_named(value["$type"])
    written = {name: item for name, item in value.items() if name != "$type"}
    if issubclass(cls, enum.Enum):
        raise ValueError(f"{cls.__qualname__} is an enum and has no fields")
    fields = known.fields_of(cls)
    if more := [name for name in written if name not in fields]:
        raise ValueError(f"{cls.__qualname__}: unknown field {more[0][:100]!r}")
    return _build(cls, {name: _decode(item, known, depth + 1) for name, item in written.items()})


def _build(cls: Any, fields: dict[str, Any], untyped: bool = False) -> Any:
    try:
        if is_pydantic(cls):
            return cls.model_validate(fields)
        if dataclasses.is_dataclass(cls):
            return _build_dataclass(cls, fields, untyped)
        return cls(**fields)
    except Exception as error:  # the type has changed: a stored config that no longer fits
        raise ValueError(f"{cls.__qualname__}: {error}") from None


def _build_dataclass(cls: Any, fields: dict[str, Any], untyped: bool) -> Any:
    known = {f.name: f for f in dataclasses.fields(cls)}
    for name in fields:
        if name not in known:
            raise ValueError(f"unknown field {name!r}")
    if untyped:
        hints = hints_of(cls)
        fields = {name: _as_hinted(value, hints.get(name)) for name, value in fields.items()}
    elif missing := [name for name in known if name not in fields and known[name].init]:
        raise ValueError(f"field {missing[0]!r} is missing")
    made = cls(**{name: value for name, value in fields.items() if known[name].init})
    for name, value in fields.items():
        if not known[name].init:
            object.__setattr__(made, name, value)
    return made


def _as_hinted(value: Any, hint: Any) -> Any:
    """Data without types by what the field's annotation says: nested configs, tuples."""
    options = typing.get_args(hint) or (hint,)
    if isinstance(value, dict):
        for option in options:
            if isinstance(option, type) and (dataclasses.is_dataclass(option) or is_pydantic(option)):
                return _build(option, value, untyped=True)
    if isinstance(value, list):
        for option in (hint, *options):
            if option is tuple or typing.get_origin(option) is tuple:
                return tuple(value)
    return value


def _read_enum(value: dict[str, Any], known: Known, _: int) -> Any:
    cls = known.type_named(value["$enum"])
    if not issubclass(cls, enum.Enum):
        raise ValueError(f"{cls.__qualname__} is not an enum")
    try:
        return cls.__members__[value["name"]]
    except KeyError:
        raise ValueError(f"{cls.__qualname__} has no {value.get('name')!r}") from None


def _read_class(value: dict[str, Any], known: Known, _: int) -> Any:
    """One that was used, or the class of a type of elements."""
    name = value["$class"]
    try:
        return known.object_named("$class", name)
    except NotKnown:
        for module in ("numpy", "jax.numpy"):
            for dtype in _DTYPES | _MORE_DTYPES:
                if name == f"{module}:{dtype}" and hasattr(sys.modules.get(module), dtype):
                    return getattr(sys.modules[module], dtype)
        raise


def _read_dict(value: dict[str, Any], known: Known, depth: int) -> dict[Any, Any]:
    pairs = _items(value, "$dict", known, depth)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError("$dict needs a list of pairs")
    return {_hashable(key): item for key, item in pairs}


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def _read_set(value: dict[str, Any], known: Known, depth: int) -> set[Any] | frozenset[Any]:
    return (frozenset if value["frozen"] is True else set)(_items(value, "$set", known, depth))


def _read_complex(value: dict[str, Any], known: Known, depth: int) -> complex:
    real, imaginary = _items(value, "$complex", known, depth)
    return complex(float(real), float(imaginary))


def _read_namespace(value: dict[str, Any], known: Known, depth: int) -> types.SimpleNamespace:
    members = _decode(value["$namespace"], known, depth + 1)
    if type(members) is not dict or not all(type(name) is str and not name.startswith("__") for name in members):
        raise ValueError("$namespace needs members with names")
    return types.SimpleNamespace(**members)


def dtype_named(name: Any, known: Known = nobody) -> Any:
    """A type of elements that NumPy, or JAX if it is loaded, has anyway, or one that was used. Imports nothing."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and name in _DTYPES:
        return numpy.dtype(name)
    if numpy is not None and name in _MORE_DTYPES and hasattr(sys.modules.get("ml_dtypes"), name):
        return numpy.dtype(getattr(sys.modules["ml_dtypes"], name))
    return known.object_named("$dtype", name)


def _read_numpy(value: dict[str, Any], known: Known, depth: int) -> Any:
    item = _decode(value["value"], known, depth + 1)
    if type(item) not in (bool, int, float, complex, str, bytes):
        raise ValueError("$numpy needs a number or a text")
    return dtype_named(value["$numpy"], known).type(item)


_readers: dict[str, Callable[[dict[str, Any], Known, int], Any]] = {
    "$type": _read_type,
    "$enum": _read_enum,
    "$class": _read_class,
    "$object": lambda value, known, _: known.object_named("$object", value["$object"]),
    "$opaque": lambda value, known, _: known.object_named("$opaque", value["$opaque"]),
    "$tuple": lambda value, known, depth: tuple(_items(value, "$tuple", known, depth)),
    "$dict": _read_dict,
    "$set": _read_set,
    "$bytes": lambda value, *_: bytes.fromhex(value["$bytes"]),
    "$complex": _read_complex,
    "$namespace": _read_namespace,
    "$dtype": lambda value, known, _: dtype_named(value["$dtype"], known),
    "$numpy": _read_numpy,
    "$none": lambda *_: None,
}
