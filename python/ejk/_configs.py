# SPDX-License-Identifier: Apache-2.0
"""Configs of any Python type as plain data, and back as the type that went in.

Plain data stands for itself. Whatever JSON has no word for is an object with one member that begins
with "$": {"$type": "module:Config", "block": 64}, {"$tuple": [1, 2]}, {"$dtype": "float32"}. Reading
never imports anything: a type must be known in the process, because it was used or because its module
is loaded.
"""

import dataclasses
import enum
import itertools
import sys
import types
import weakref

_known = weakref.WeakValueDictionary()  # name -> class, of the configs seen in this process
_opaque = {}  # objects without a written form, for this process alone
_opaque_ids = {}
_opaque_count = itertools.count()


def encode(config):
    """`config` as plain data."""
    return {"$none": True} if config is None else _encode(config, 0)


def decode(value):
    """The config that `value` was made of. Raises ValueError that says why it cannot be."""
    if value == {"$none": True}:
        return None
    return _decode(value)


def name_of(cls) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def remember(cls) -> None:
    """Makes a class known, so that stored configs of it can be read."""
    if isinstance(cls, type):
        _known[name_of(cls)] = cls


def fit(config, cls):
    """A config that came without a type (imported, written by hand) as `cls`, if it fits."""
    if cls is None or not isinstance(config, dict) or not isinstance(cls, type):
        return config
    if issubclass(cls, dict) or not (dataclasses.is_dataclass(cls) or _is_pydantic(cls)):
        return config
    return _build(cls, config, untyped=True)


# ---- writing ------------------------------------------------------------------------------------


def _encode(obj, depth):
    if depth > 50:
        raise ValueError("a config is nested deeper than 50 levels, or contains itself")
    if obj is None or type(obj) in (bool, int, float, str):
        return obj
    if type(obj) is list:
        return [_encode(item, depth + 1) for item in obj]
    if type(obj) is tuple:
        return {"$tuple": [_encode(item, depth + 1) for item in obj]}
    if type(obj) is dict:
        return _encode_dict(obj, depth)
    if isinstance(obj, enum.Enum):
        remember(type(obj))
        return {"$enum": name_of(type(obj)), "name": obj.name}
    if isinstance(obj, type):
        remember(obj)
        return {"$class": name_of(obj)}
    if _is_pydantic(type(obj)):
        fields = {name: getattr(obj, name) for name in type(obj).model_fields}
        return _encode_fields(obj, {**fields, **(obj.model_extra or {})}, depth)
    if dataclasses.is_dataclass(obj):
        return _encode_fields(obj, {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj)}, depth)
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return _encode_fields(obj, dict(zip(obj._fields, obj)), depth)
    if isinstance(obj, types.SimpleNamespace):
        return {"$namespace": _encode_dict(vars(obj), depth)}
    if type(obj) in (set, frozenset):
        items = sorted((_encode(item, depth + 1) for item in obj), key=repr)
        return {"$set": items, "frozen": type(obj) is frozenset}
    if type(obj) is bytes:
        return {"$bytes": obj.hex()}
    if type(obj) is complex:
        return {"$complex": [obj.real, obj.imag]}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.dtype):
        return {"$dtype": obj.name}
    if numpy is not None and isinstance(obj, numpy.generic):
        return {"$numpy": obj.dtype.name, "value": _encode(obj.item(), depth + 1)}
    return _encode_reference(obj)


def _encode_dict(mapping, depth):
    if all(type(key) is str and not key.startswith("$") for key in mapping):
        return {key: _encode(value, depth + 1) for key, value in mapping.items()}
    return {"$dict": [[_encode(k, depth + 1), _encode(v, depth + 1)] for k, v in mapping.items()]}


def _encode_fields(obj, fields, depth):
    remember(type(obj))
    return {"$type": name_of(type(obj))} | {k: _encode(v, depth + 1) for k, v in fields.items()}


def _encode_reference(obj):
    """A function by its name; anything else keeps its identity for this process."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if callable(obj) and module and name and _look_up(f"{module}:{name}") is obj:
        return {"$object": f"{module}:{name}"}
    if id(obj) not in _opaque_ids:
        token = f"{type(obj).__name__} {next(_opaque_count)} of one process"
        _opaque[token], _opaque_ids[id(obj)] = obj, token
    return {"$opaque": _opaque_ids[id(obj)]}


# ---- reading ------------------------------------------------------------------------------------


def _decode(value):
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next((name for name in value if name.startswith("$")), None)
    if tag is None:
        return {name: _decode(item) for name, item in value.items()}
    reader = _readers.get(tag)
    if reader is None:
        raise ValueError(f"a config holds {tag!r}, which this version does not know")
    return reader(value)


def _look_up(name: str):
    module, _, path = name.partition(":")
    found = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def class_named(name: str):
    """The class of that name, if this process knows it; else ValueError."""
    found = _known.get(name)
    if found is None:
        found = _look_up(name)
    if not isinstance(found, type):
        raise ValueError(f"the type {name} is not known in this process")
    return found


def _read_type(value):
    fields = {name: _decode(item) for name, item in value.items() if name != "$type"}
    return _build(class_named(value["$type"]), fields)


def _build(cls, fields, untyped=False):
    try:
        if _is_pydantic(cls):
            return cls.model_validate(fields)
        if dataclasses.is_dataclass(cls):
            return _build_dataclass(cls, fields, untyped)
        return cls(**fields)
    except Exception as error:  # the type has changed: a stored config that no longer fits
        raise ValueError(f"{cls.__qualname__}: {error}") from None


def _build_dataclass(cls, fields, untyped):
    known = {f.name: f for f in dataclasses.fields(cls)}
    for name in fields:
        if name not in known:
            raise ValueError(f"unknown field {name!r}")
    if untyped:
        hints = _hints(cls)
        fields = {name: _as_hinted(value, hints.get(name)) for name, value in fields.items()}
    elif missing := [name for name in known if name not in fields and known[name].init]:
        raise ValueError(f"field {missing[0]!r} is missing")
    made = cls(**{name: value for name, value in fields.items() if known[name].init})
    for name, value in fields.items():
        if not known[name].init:
            object.__setattr__(made, name, value)
    return made


def _hints(cls):
    import typing

    try:
        return typing.get_type_hints(cls)
    except Exception:  # an annotation is any expression; one that cannot be evaluated says nothing
        return {}


def _as_hinted(value, hint):
    """Data without types by what the field's annotation says: nested configs, tuples."""
    import typing

    options = typing.get_args(hint) or (hint,)
    if isinstance(value, dict):
        for option in options:
            if isinstance(option, type) and (dataclasses.is_dataclass(option) or _is_pydantic(option)):
                return _build(option, value, untyped=True)
    if isinstance(value, list):
        for option in (hint, *options):
            if option is tuple or typing.get_origin(option) is tuple:
                return tuple(value)
    return value


def _read_enum(value):
    try:
        return class_named(value["$enum"])[value["name"]]
    except KeyError:
        raise ValueError(f"{value['$enum']} has no {value['name']!r}") from None


def _read_object(value):
    found = _look_up(value["$object"])
    if found is None:
        raise ValueError(f"{value['$object']} is not known in this process")
    return found


def _read_opaque(value):
    try:
        return _opaque[value["$opaque"]]
    except KeyError:
        raise ValueError("it holds an object that only the process which stored it had") from None


def _numpy():
    import numpy

    if "jax" in sys.modules:  # bfloat16 and its like become known to numpy
        import ml_dtypes  # noqa: F401
    return numpy


def dtype_named(name: str):
    return _numpy().dtype(name)


def _is_pydantic(cls) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


_readers = {
    "$type": _read_type,
    "$enum": _read_enum,
    "$class": lambda value: class_named(value["$class"]),
    "$object": _read_object,
    "$opaque": _read_opaque,
    "$tuple": lambda value: tuple(_decode(item) for item in value["$tuple"]),
    "$dict": lambda value: {_hashable(_decode(k)): _decode(v) for k, v in value["$dict"]},
    "$set": lambda value: (frozenset if value["frozen"] else set)(map(_decode, value["$set"])),
    "$bytes": lambda value: bytes.fromhex(value["$bytes"]),
    "$complex": lambda value: complex(*value["$complex"]),
    "$namespace": lambda value: types.SimpleNamespace(**_decode(value["$namespace"])),
    "$dtype": lambda value: _numpy().dtype(value["$dtype"]),
    "$numpy": lambda value: _numpy().dtype(value["$numpy"]).type(_decode(value["value"])),
    "$none": lambda value: None,
}


def _hashable(key):
    return tuple(key) if isinstance(key, list) else key
