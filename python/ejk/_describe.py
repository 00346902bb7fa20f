# SPDX-License-Identifier: Apache-2.0
"""What arguments that are neither plain data nor arrays count as in a key.

Two objects that differ in what they hold must not look alike, and one object must look the same in
every process: no addresses, no paths.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import sys
import threading
import types
from typing import Any

from ejk import _core

_LEVELS_ABOVE = 20  # that arguments may have above a callable
_DEEPEST = 4  # containers in which floats are looked for
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def is_scalar(obj: object) -> bool:
    """Whether an object with shape and dtype is a number all the same."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, (numpy.generic, numpy.dtype, type))


def simpler(obj: Any) -> Any:
    """`obj` as plain data, at least at the top. Of a callable or an object that does not let itself be looked at, or has
    no end, what it is of."""
    try:
        found = _simpler(obj)
        if callable(obj) and not isinstance(obj, type):
            _check_that_it_ends(found)
    except Exception:  # of any kind: it comes from the object's own code
        return _kind(obj)
    return found


_checking = threading.local()


def _check_that_it_ends(found: Any) -> None:
    """ValueError if it is nested too deeply to stand in a key, a few levels down. Once for all that it holds."""
    if getattr(_checking, "now", False):
        return
    for _ in range(_LEVELS_ABOVE):
        found = [found]
    _checking.now = True
    try:
        _core.stable_json(found)
    finally:
        _checking.now = False


def _kind(obj: Any) -> dict[str, Any]:
    if isinstance(obj, types.FunctionType):
        return _name_and_code(obj)
    return {"__object__": f"{type(obj).__module__}.{type(obj).__qualname__}"}


def _simpler(obj: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(obj, numpy.dtype):
            return obj.name
        if isinstance(obj, (numpy.integer, numpy.floating, numpy.bool_)):
            return obj.item()
    if isinstance(obj, type):
        return {"__type__": f"{obj.__module__}.{obj.__qualname__}"}
    if isinstance(obj, enum.Enum):
        return f"<{type(obj).__name__}.{obj.name}: {_text(obj.value)}>"
    if isinstance(obj, functools.partial):
        keywords = _without_floats(tuple(sorted(obj.keywords.items())))
        return {"__partial__": True, "func": obj.func, "args": _without_floats(obj.args), "kwargs": keywords}
    if isinstance(obj, types.MethodType):
        return {"__method__": obj.__func__, "self": _state(obj.__self__)}
    if isinstance(obj, types.FunctionType):
        return _function(obj)
    if callable(obj) and callable(getattr(obj, "__wrapped__", None)):
        # jitted functions and their like, in place of what JAX keeps in them
        return {"__wrapper__": f"{type(obj).__module__}.{type(obj).__qualname__}", "function": obj.__wrapped__}
    if isinstance(obj, (types.BuiltinFunctionType, types.ModuleType)):
        return {"__callable__": True, "module": getattr(obj, "__module__", None), "name": obj.__name__}
    if _is_pydantic(obj):
        return obj.model_dump()
    if hasattr(type(obj), "__dataclass_fields__"):
        return {name: getattr(obj, name) for name in type(obj).__dataclass_fields__ if hasattr(obj, name)}
    if isinstance(obj, (set, frozenset)):
        return {"__set__": sorted(map(_text, obj))}
    if isinstance(obj, (bytes, bytearray, complex, range, slice)):
        return repr(obj)
    if hasattr(obj, "items") and hasattr(obj, "keys"):
        return dict(obj.items())
    if type(obj).__module__.startswith("jax") and hasattr(obj, "dtype") and callable(obj):
        return {"__type__": f"jax.numpy.{obj.dtype.name}"}  # jnp.float32 and its like
    return _state(obj)


def _is_pydantic(obj: object) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(obj, pydantic.BaseModel)


def _name_and_code(function: types.FunctionType) -> dict[str, Any]:
    code = hashlib.sha256()
    _add_code(function.__code__, code)
    return {
        "__callable__": True,
        "module": function.__module__,
        "name": function.__qualname__,
        "code": code.hexdigest()[:16],
    }


def _function(function: types.FunctionType) -> dict[str, Any]:
    """By its name and what it does: two lambdas of one line are two functions."""
    found = _name_and_code(function)
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    if held:
        found["closure"] = [None if value is function else _without_floats(value) for value in held]
    if function.__defaults__:
        found["defaults"] = _without_floats(function.__defaults__)
    if function.__kwdefaults__:
        found["kwdefaults"] = _without_floats(function.__kwdefaults__)
    return found


def _without_floats(value: Any, depth: int = 0) -> Any:
    """What a function holds, with no more said of floats than that they are: one made anew for every step of a program,
    with its rate in it, is no other function to choose for."""
    kind = type(value)
    if kind is float:
        return {"__float__": True}
    if kind in (tuple, list) and depth < _DEEPEST:
        return [_without_floats(item, depth + 1) for item in value]
    if kind is dict and depth < _DEEPEST:
        return {key: _without_floats(item, depth + 1) for key, item in value.items()}
    return value


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _add_code(code: types.CodeType, digest: Any) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names + code.co_varnames + code.co_freevars).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(constant, digest)
        else:
            digest.update(f"{type(constant).__name__} {_text(constant)};".encode())


def _text(value: Any) -> str:
    """Its repr, with sets in sorted order: their own is another one in each process."""
    kind = type(value)
    if kind is tuple:
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    if kind not in (set, frozenset) or not value:
        return repr(value)
    members = f"{{{', '.join(sorted(map(_text, value)))}}}"
    return members if kind is set else f"frozenset({members})"


def _state(obj: Any) -> Any:
    """An object of some class: its own text if that says what it holds, else what it holds."""
    text = repr(obj)
    if not _ADDRESS.search(text):
        return text
    found: dict[str, Any] = {"__object__": f"{type(obj).__module__}.{type(obj).__qualname__}"}
    try:
        state = obj.__reduce_ex__(4)
    except Exception:  # a lock, a file: nothing that a key could hold
        state = None
    if isinstance(state, tuple):
        # The first part makes an object of that class, which is said already.
        found["state"] = [part for part in state[1:3] if part is not None and part != (type(obj),)]
    return found
