# SPDX-License-Identifier: Apache-2.0
"""Recorded calls: what `autotune_recorded` and `autotune_lowered` tune.

Arrays are kept as their types and shapes, never as themselves. With EJKERNEL_OPS_RECORD=1 calls are also
kept on disk ($EJKERNEL_OPS_RECORD_DIR, else in the folder of the store), kernels as "module:class", so that
another process can tune them.
"""

from __future__ import annotations

import threading

from ejk import _configs, _core, _jax, _log
from ejk.ops.core.kernel import Invocation, describe

_recorded: dict = {}  # device -> op -> key -> (kernel, args, kwargs)
_numbers: dict = {}  # (device, op, key) -> what the call is counted under
_lock = threading.Lock()


def record_invocation(first, *rest) -> None:
    """record_invocation(kernel, inv), or (device, op_id, call_key, kernel, args, kwargs)."""
    if isinstance(first, str):
        if len(rest) != 5:
            raise TypeError(
                f"[record_invocation] {1 + len(rest)} arguments: (kernel, inv) or "
                "(device, op_id, call_key, kernel, args, kwargs) are expected"
            )
        op, key, kernel, args, kwargs = rest
        _keep(first, op, key, kernel, args, kwargs)
        return
    if len(rest) != 1:
        raise TypeError(f"[record_invocation] {1 + len(rest)} arguments: (kernel, inv) are expected")
    record_call(first, rest[0])


def record_call(kernel, inv, on_disk: bool = False) -> int:
    """The number that the call is counted under on disk; 0: it is not there."""
    call = describe(inv, kernel)
    is_new = _keep(call.device, call.op, call.key, kernel, inv.args, dict(inv.kwargs))
    name = (call.device, call.op, call.key)
    if on_disk and (is_new or name not in _numbers):
        from ejk.ops.core.call import KernelCall

        _numbers[name] = _core.record(call, KernelCall(kernel, inv, None))
    return _numbers.get(name, 0) if on_disk else 0


def _keep(device, op, key, kernel, args, kwargs) -> bool:
    with _lock:
        calls = _recorded.setdefault(device, {}).setdefault(op, {})
        if key in calls:
            return False
        calls[key] = (kernel, _without_data(tuple(args)), _without_data(dict(kwargs)))
        return True


def _without_data(tree):
    if _jax.loaded() is None:
        return tree
    from ejk.ops.utils.fingerprint import abstractify

    return abstractify(tree)


# ---- on disk ------------------------------------------------------------------------------------


def sketch_of(kernel, inv):
    """The kernel by name and attributes, the arguments as plain data; None if that cannot be said."""
    attributes = {k: v for k, v in getattr(kernel, "__dict__", {}).items() if k != "_ejk_compiled"}
    sketch = {
        "python": _configs.name_of(type(kernel)),
        "kernel": _sketched(attributes),
        "args": [_sketched(arg) for arg in inv.args],
        "kwargs": {name: _sketched(value) for name, value in inv.kwargs.items()},
    }
    return None if "$opaque" in _core.stable_json(sketch) else [sketch]


def _sketched(value):
    if _jax.is_array(value) or _jax.is_numpy(value) or type(value).__name__ == "ShapeDtypeStruct":
        sketch = {"$array": getattr(value.dtype, "name", str(value.dtype)), "shape": [int(d) for d in value.shape]}
        return sketch | {"numpy": True} if _jax.is_numpy(value) else sketch
    if type(value) is dict and all(type(k) is str and not k.startswith("$") for k in value):
        return {name: _sketched(item) for name, item in value.items()}
    if type(value) is list:
        return [_sketched(item) for item in value]
    if type(value) is tuple:
        return {"$tuple": [_sketched(item) for item in value]}
    return _configs.encode(value) if value is not None else None


def _rebuilt(value, seed: int = 0):
    """Arrays of JAX as ShapeDtypeStruct, those of NumPy with numbers in them."""
    if isinstance(value, list):
        return [_rebuilt(item, seed + i) for i, item in enumerate(value, 1)]
    if not isinstance(value, dict):
        return value
    if value.get("numpy") and "$array" in value:
        return _jax.example_numbers(_configs.dtype_named(value["$array"]), tuple(value["shape"]), seed)
    if "$array" in value:
        jax = _jax.required()
        return jax.ShapeDtypeStruct(tuple(value["shape"]), jax.numpy.dtype(value["$array"]))
    if "$tuple" in value:
        return tuple(_rebuilt(value["$tuple"], seed))
    if any(name.startswith("$") for name in value):
        return _configs.decode(value)
    return {name: _rebuilt(item, seed + i) for i, (name, item) in enumerate(value.items(), 1)}


def call_from(sketch: dict) -> tuple:
    """(kernel, args, kwargs) of what `sketch_of` wrote. Raises ValueError if the kernel is not known here."""
    cls = _configs.class_named(sketch["python"])
    kernel = cls.__new__(cls)
    for name, value in _rebuilt(sketch["kernel"]).items():
        object.__setattr__(kernel, name, value)
    return kernel, tuple(_rebuilt(sketch["args"])), _rebuilt(sketch["kwargs"], 1000)


def read_recorded(device: str, folder: str = "") -> dict:
    """{op: {key: (kernel, args, kwargs)}} of the calls on disk whose kernels are known in this process."""
    found: dict = {}
    for op, key, sketches in _core.recorded_calls(folder, device):
        if not sketches or "python" not in sketches[0]:
            continue
        try:
            call = call_from(sketches[0])
        except (ValueError, TypeError) as error:
            _log.warn_once((op, key), f"[{op}] the recorded call {key} cannot be made again: {error}")
            continue
        found.setdefault(op, {})[key] = call
    return found


def get_invocations(dev: str | None = None):
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


def with_data(tree, seed: int = 0):
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
