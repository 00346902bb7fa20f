# SPDX-License-Identifier: Apache-2.0
"""Recorded calls: what `autotune_recorded` and `autotune_lowered` tune.

Arrays are kept as their types and shapes, never as themselves. With EJKERNEL_OPS_RECORD=1 calls are also
kept on disk ($EJKERNEL_OPS_RECORD_DIR, else in the folder of the store), kernels as "module:class", so that
another process can tune them.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any, overload

from ejk import _configs, _core, _jax, _log
from ejk._known import NotKnown, name_of
from ejk.ops.core.kernel import (
    Invocation,
    class_named,
    declare_types_of,
    describe,
    goes_by_its_own_name,
    may_be_set,
    remember_class,
    versioned_op,
)

_Recorded = tuple[Any, tuple[Any, ...], dict[str, Any]]  # (kernel, args, kwargs)
_recorded: dict[str, dict[str, dict[str, _Recorded]]] = {}  # device -> op -> key -> (kernel, args, kwargs)
_numbers: dict[tuple[str, str, str], int] = {}  # (device, op, key) -> what the call is counted under
_lock = threading.Lock()


_RECORD = ("dev", "op_id_v", "call_key", "kernel", "args", "kwargs")


def record_invocation(*given: Any, **named: Any) -> None:
    """record_invocation(kernel, inv), or (dev, op_id_v, call_key, kernel, args, kwargs)."""
    in_full = "dev" in named or isinstance(next(iter(given), None), str)
    form = _RECORD if in_full else ("kernel", "inv")
    rest = form[len(given) :]
    if len(given) > len(form) or set(named) != set(rest):
        raise TypeError(
            f"[record_invocation] got {len(given)} arguments and {sorted(named)}; expected (kernel, inv) or "
            f"({', '.join(_RECORD)}); pass one of these forms"
        )
    (_keep if in_full else record_call)(*given, *(named[name] for name in rest))


def record_call(kernel: Any, inv: Any, on_disk: bool = False) -> int:
    """The number that the call is counted under on disk; 0: it is not there."""
    call = describe(inv, kernel)
    is_new = _keep(call.device, call.op, call.key, kernel, inv.args, dict(inv.kwargs))
    name = (call.device, call.op, call.key)
    if on_disk and (is_new or name not in _numbers):
        from ejk.ops.core._call import KernelCall
        from ejk.ops.core._function import site_of_call

        _numbers[name] = _core.record(call, KernelCall(kernel, inv, site_of_call(inv)))
    return _numbers.get(name, 0) if on_disk else 0


def _keep(device: str, op: str, key: str, kernel: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    with _lock:
        calls = _recorded.setdefault(device, {}).setdefault(op, {})
        if key in calls:
            return False
        calls[key] = (kernel, _without_data(tuple(args)), _without_data(dict(kwargs)))
        return True


def _without_data(tree: Any) -> Any:
    if _jax.loaded() is None:
        return tree
    from ejk.ops.utils.fingerprint import abstractify

    return abstractify(tree)


# ---- on disk ------------------------------------------------------------------------------------


def sketch_of(kernel: Any, inv: Any) -> list[dict[str, Any]] | None:
    """The kernel by name and attributes, the arguments as plain data; None if that cannot be said."""
    attributes = {k: v for k, v in getattr(kernel, "__dict__", {}).items() if k != "_ejk_compiled"}
    remember_class(type(kernel))
    whose = name_of(type(kernel))
    sketch = {
        "python": whose,
        "kernel": _sketched(attributes, whose),
        "args": [_sketched(arg, whose) for arg in inv.args],
        "kwargs": {name: _sketched(value, whose) for name, value in inv.kwargs.items()},
    }
    return None if "$opaque" in _core.stable_json(sketch) else [sketch]


def _sketched(value: Any, whose: str) -> Any:
    if _jax.is_array(value) or _jax.is_numpy(value) or type(value).__name__ == "ShapeDtypeStruct":
        sketch = {"$array": getattr(value.dtype, "name", str(value.dtype)), "shape": [int(d) for d in value.shape]}
        return sketch | {"numpy": True} if _jax.is_numpy(value) else sketch
    if type(value) is dict and all(type(k) is str and not k.startswith("$") for k in value):
        return {name: _sketched(item, whose) for name, item in value.items()}
    if type(value) is list:
        return [_sketched(item, whose) for item in value]
    if type(value) is tuple:
        return {"$tuple": [_sketched(item, whose) for item in value]}
    return _configs.encode(value, whose) if value is not None else None


class _Room:
    """The memory that arrays of recorded calls may take together."""

    def __init__(self) -> None:
        self.size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4  # tuning makes copies
        self.taken = 0


_MAX_AXES = 64


class _Rebuilding:
    """What a sketch says, made of what this process has used for the same class of kernels."""

    def __init__(self, whose: str, room: _Room) -> None:
        self.whose, self.room = whose, room
        self.bytes = self.made = 0  # of all arrays of the call; of those that are there already

    def value(self, value: Any, seed: int = 0) -> Any:
        """Arrays of JAX as ShapeDtypeStruct, those of NumPy with numbers in them."""
        if isinstance(value, list):
            return [self.value(item, seed + i) for i, item in enumerate(value, 1)]
        if not isinstance(value, dict):
            return value
        if "$array" in value:
            return self.array(value, seed)
        if "$tuple" in value and isinstance(value["$tuple"], list):
            return tuple(self.value(value["$tuple"], seed))
        if any(name.startswith("$") for name in value):
            return _configs.decode(value, self.whose)
        return {name: self.value(item, seed + i) for i, (name, item) in enumerate(value.items(), 1)}

    def array(self, sketch: dict[str, Any], seed: int) -> Any:
        shape, dtype = sketch.get("shape"), _configs.dtype_named(sketch["$array"])
        if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
            raise ValueError(f"{str(shape)[:100]} is not a shape")
        if len(shape) > _MAX_AXES:
            raise ValueError(f"an array of it has {len(shape)} axes, more than {_MAX_AXES}")
        size = math.prod(shape) * _jax.example_bytes(dtype)
        self.bytes += size
        self.made += size if sketch.get("numpy") else 0
        if max(self.bytes, self.room.taken + self.made) > self.room.size:
            raise ValueError("its arrays, or those of all calls, take more than a quarter of the memory")
        if sketch.get("numpy"):
            return _jax.example_numbers(dtype, tuple(shape), seed)
        if _jax.loaded() is None:
            raise ValueError("it takes arrays of JAX, which nothing has imported here")
        return _jax.loaded().ShapeDtypeStruct(tuple(shape), dtype)


def call_from(sketch: dict[str, Any], room: _Room | None = None) -> _Recorded:
    """(kernel, args, kwargs) of what `sketch_of` wrote. Raises ValueError if the kernel is not known here, or what
    it and its arguments are made of, or if there is no room for its arrays."""
    cls, room = class_named(sketch.get("python")), room or _Room()
    try:
        return _call_of(cls, sketch, room)
    except NotKnown:
        declare_types_of(cls, name_of(cls))
        return _call_of(cls, sketch, room)


def _call_of(cls: Any, sketch: dict[str, Any], room: _Room) -> _Recorded:
    written = sketch.get("kernel"), sketch.get("args"), sketch.get("kwargs")
    if not (isinstance(written[0], dict) and isinstance(written[1], list) and isinstance(written[2], dict)):
        raise ValueError("it is not a sketch of a call")
    rebuilding = _Rebuilding(name_of(cls), room)
    attributes = rebuilding.value(written[0])
    kernel = cls.__new__(cls)
    for name, value in attributes.items():
        if not may_be_set(cls, name, value):
            raise ValueError(f"its kernel has an attribute {name[:100]!r}, which would take the place of a method")
        object.__setattr__(kernel, name, value)
    if not goes_by_its_own_name(kernel):
        raise ValueError(f"its kernel goes by {versioned_op(kernel)[:100]!r}, which {name_of(cls)} does not")
    call = kernel, tuple(rebuilding.value(written[1])), rebuilding.value(written[2], 1000)
    room.taken += rebuilding.made
    return call


def is_sketch(sketches: object) -> bool:
    """Whether that is what `sketch_of` gives."""
    return isinstance(sketches, list) and bool(sketches) and isinstance(sketches[0], dict) and "python" in sketches[0]


def read_recorded(device: str, folder: str = "") -> dict[str, dict[str, _Recorded]]:
    """{op: {key: (kernel, args, kwargs)}} of the calls on disk whose kernels are known in this process."""
    found: dict[str, dict[str, _Recorded]] = {}
    room = _Room()
    for op, key, sketches in _core.recorded_calls(folder, device):
        if not is_sketch(sketches):
            continue
        try:
            call = call_from(sketches[0], room)
        except Exception as error:  # whatever is written there
            _log.warn_once((op, key), f"[{op}] the recorded call {key} cannot be made again: {error}")
            continue
        found.setdefault(op, {})[key] = call
    return found


@overload
def get_invocations(dev: str) -> dict[str, dict[str, _Recorded]]: ...
@overload
def get_invocations(dev: None = None) -> list[Invocation]: ...
def get_invocations(dev: str | None = None) -> Any:
    """With a device: {op: {key: (kernel, args, kwargs)}}. Without: a list of invocations of this one.

    Those recorded in this process, and those on disk whose kernels are known here. Arrays of JAX in them
    are jax.ShapeDtypeStruct.
    """
    if dev is not None:
        found = read_recorded(dev)
        with _lock:
            for op, calls in _recorded.get(dev, {}).items():
                found.setdefault(op, {}).update(calls)
        return found
    from ejk.ops.utils.fingerprint import device_fingerprint

    found = get_invocations(device_fingerprint())
    return [
        Invocation(kernel=kernel, args=args, kwargs=kwargs)
        for calls in found.values()
        for kernel, args, kwargs in calls.values()
    ]


def clear_invocations() -> None:
    """Forgets all recorded calls."""
    with _lock:
        _recorded.clear()
        _numbers.clear()


def with_data(tree: Any, seed: int = 0) -> Any:
    """Arrays like the recorded ones: seeded numbers."""
    jax = _jax.loaded()
    if jax is None:
        return tree
    leaves, structure = jax.tree_util.tree_flatten(tree)
    made = [
        _jax.example_data(leaf, seed + i) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree_util.tree_unflatten(structure, made)


__all__ = ["clear_invocations", "get_invocations", "record_invocation"]
