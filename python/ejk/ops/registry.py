# SPDX-License-Identifier: Apache-2.0
"""Recorded calls: what `autotune_recorded` and `autotune_lowered` tune.

Arrays are kept as their types and shapes, never as themselves.
"""

from __future__ import annotations

import threading

from ejk import _jax
from ejk.ops.core.kernel import Invocation, describe

_recorded: dict = {}  # device -> op -> key -> (kernel, args, kwargs)
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


def record_call(kernel, inv) -> None:
    call = describe(inv, kernel)
    _keep(call.device, call.op, call.key, kernel, inv.args, dict(inv.kwargs))


def _keep(device, op, key, kernel, args, kwargs) -> None:
    with _lock:
        calls = _recorded.setdefault(device, {}).setdefault(op, {})
        if key not in calls:
            calls[key] = (kernel, _without_data(tuple(args)), _without_data(dict(kwargs)))


def _without_data(tree):
    if _jax.loaded() is None:
        return tree
    from ejk.ops.utils.fingerprint import abstractify

    return abstractify(tree)


def get_invocations(dev: str | None = None):
    """With a device: {op: {key: (kernel, args, kwargs)}}. Without: a list of invocations of this one.

    Arrays in them are jax.ShapeDtypeStruct.
    """
    with _lock:
        if dev is not None:
            return {op: dict(calls) for op, calls in _recorded.get(dev, {}).items()}
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
