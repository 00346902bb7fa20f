# SPDX-License-Identifier: Apache-2.0
"""The C++ operations as a custom call of XLA."""

from __future__ import annotations

import pathlib
import re
import threading
from collections.abc import Sequence
from typing import Any

from ejk import _core, _jax, _log

_TARGET = "ejk_call"
_state: bool | None = None  # whether it is registered; None: not tried
_lock = threading.Lock()


def is_ready() -> bool:
    """Whether calls can be made; registers the handler the first time. Where it cannot be, this is said once."""
    global _state
    if _state is None:
        with _lock:
            if _state is None:
                _state = _register()
    return _state


def _register() -> bool:
    jax = _jax.required()
    why = _obstacle(jax)
    if why:
        _log.warn_once("ffi", f"[ejk.modules] the C++ operations cannot be used from JAX: {why}. Plain JAX is used.")
        return False
    jax.ffi.register_ffi_target(_TARGET, _core.ffi_handler(), platform="cpu")
    return True


def _obstacle(jax: Any) -> str:
    """Why this jaxlib would refuse the handler. It must not be asked: its CPU backend would not start again."""
    built = _core.ffi_version()
    if built is None:
        return "this package was built without jaxlib; install it again where jaxlib is installed"
    there = _version_of(jax)
    if there is None:
        return "jaxlib does not say which version of the FFI it has"
    if built[0] != there[0] or built[1] > there[1]:
        return (
            f"they were built for version {built[0]}.{built[1]} of its FFI and this one has {there[0]}.{there[1]}; "
            "install this package again with this jaxlib"
        )
    return ""


def _version_of(jax: Any) -> tuple[int, int] | None:
    try:
        header = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    except (AttributeError, OSError, TypeError):
        return None
    major, minor = (re.search(rf"#define XLA_FFI_API_{part} (\d+)", header) for part in ("MAJOR", "MINOR"))
    return (int(major[1]), int(minor[1])) if major and minor else None


def call(
    op: str,
    arrays: Sequence[Any],
    options: dict[str, Any],
    config: Any,
    results: Sequence[tuple[Any, Any]],
    pull: bool = False,
) -> list[Any]:
    """The operation, or with `pull` its gradients. `results`: (shape, dtype) of each; gives a list."""
    jax = _jax.required()
    text = _core.stable_json(
        {
            "op": op,
            "dtype": arrays[0].dtype.name,
            "config": config,
            "options": options,
            "pull": pull,
            "rank": len(results[0][0]),
        }
    )
    return _custom_call(jax, arrays, results, text)


def call_registered(
    op: str,
    arrays: Sequence[Any],
    arguments: list[Any],
    copies: list[list[int]],
    config: Any,
    results: Sequence[tuple[Any, Any]],
    pull: dict[str, Any] | None = None,
) -> list[Any]:
    """The same of a kernel that a library registered; python/ffi.cpp says what the members mean."""
    members = {
        "registered": op,
        "config": config,
        "arguments": arguments,
        "copies": copies,
        "rank": len(results[0][0]),
    }
    text = _core.stable_json(members if pull is None else {**members, "pull": pull})
    return _custom_call(_jax.required(), arrays, results, text)


def _custom_call(jax: Any, arrays: Sequence[Any], results: Sequence[tuple[Any, Any]], text: str) -> list[Any]:
    if not is_ready():  # a recorded call comes here without ejk.modules' own functions
        raise RuntimeError("[ejk.modules] C++ kernels cannot be called from this JAX: a warning said why")
    types = [_result_type(jax, arrays, shape, dtype) for shape, dtype in results]
    found: list[Any] = jax.ffi.ffi_call(_TARGET, types, vmap_method="expand_dims")(*arrays, call=text)
    return found


# ---- arrays that vary over a mesh ----------------------------------------------------------------


def varying_axes(jax: Any, x: Any) -> frozenset[str]:
    """The axes of a mesh that a value varies over, inside of shard_map."""
    abstract = jax.typeof(x)
    manual = getattr(abstract, "manual_axis_type", None)
    return frozenset(manual.varying if manual is not None else getattr(abstract, "vma", None) or ())


def varying_alike(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays, all varying over the axes that any of them varies over, as a custom call wants them."""
    jax = _jax.required()
    axes = [varying_axes(jax, a) if a is not None and _jax.is_tracer(a) else frozenset() for a in arrays]
    union: frozenset[str] = frozenset().union(*axes)
    if not union:
        return arrays
    return [
        a if a is None or union == own else _vary(jax, a, tuple(sorted(union - own))) for a, own in zip(arrays, axes)
    ]


def _vary(jax: Any, x: Any, axes: tuple[str, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)


def _result_type(jax: Any, arrays: Sequence[Any], shape: Sequence[int], dtype: Any) -> Any:
    for array in arrays:
        if varying_axes(jax, array):
            abstract = jax.typeof(array)
            sharding = abstract.sharding
            spec = jax.sharding.PartitionSpec(*([None] * len(shape)))
            return abstract.update(
                shape=tuple(shape),
                dtype=jax.numpy.dtype(dtype),
                weak_type=False,
                sharding=jax.sharding.NamedSharding(sharding.mesh, spec),
            )
    return jax.ShapeDtypeStruct(tuple(shape), dtype)
