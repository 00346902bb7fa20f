# SPDX-License-Identifier: Apache-2.0
"""What devices and calls are known by."""

from __future__ import annotations

from typing import Any

from ejk import _core, _jax, _sites


def stable_json(obj: Any) -> str:
    """The canonical text of `obj`: sorted, without white space, arrays by type and shape."""
    return _core.stable_json(obj)


def short_hash(obj: Any) -> str:
    """The first 16 hex digits of SHA-256 over `stable_json(obj)`."""
    return _core.short_hash(obj)


def abstractify(pytree: Any) -> Any:
    """`pytree` with every array as a jax.ShapeDtypeStruct."""
    jax = _jax.required()

    def leaf(x: Any) -> Any:
        if _jax.is_array(x) or _jax.is_numpy(x):
            return jax.ShapeDtypeStruct(x.shape, x.dtype)
        return x

    return jax.tree_util.tree_map(leaf, pytree)


def sharding_fingerprint(x: Any) -> str | None:
    """How an array is spread over devices; None for anything else."""
    if not _jax.is_array(x):
        return None
    try:
        return repr(x.sharding)
    except Exception:  # of a tracer it may not be known
        return repr(getattr(_jax.loaded().typeof(x), "sharding", None))


def default_key_builder_with_sharding(inv: Any, args: Any = None, kwargs: Any = None) -> str:
    """A key in which the sharding of arrays counts too.

    Of an invocation: 16 hex digits; `key_builder = default_key_builder_with_sharding` in a kernel makes
    it that kernel's key. Of (kernel, args, kwargs): "OP:KEY", to put and get configs by.
    """
    if hasattr(args, "batch_axes"):  # as a method of a kernel
        inv, args = args, None
    if args is not None or kwargs is not None or not hasattr(inv, "batch_axes"):
        from ejk.ops.core.kernel import Invocation, versioned_op

        call = Invocation(kernel=inv, args=tuple(args) if isinstance(args, (tuple, list)) else (args,), kwargs=kwargs)
        return f"{versioned_op(inv)}:{default_key_builder_with_sharding(call)}"
    spec = {
        "args_spec": inv.args,
        "kwargs_spec": dict(inv.kwargs),
        "batch_axes": inv.batch_axes,
        "sharding": {"args": _shardings(inv.args), "kwargs": _shardings(dict(inv.kwargs))},
    }
    return short_hash(spec)


def _shardings(tree: Any) -> Any:
    jax = _jax.loaded()
    if jax is not None:
        return jax.tree_util.tree_map(sharding_fingerprint, tree)
    if isinstance(tree, dict):
        return {name: _shardings(item) for name, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_shardings(item) for item in tree]
    return None


# ---- devices ------------------------------------------------------------------------------------


def this_device(dev: Any = None) -> _core.Device:
    """A device as the core sees it; without one, that of calls that are made here."""
    return _site(dev).core


def _site(dev: Any) -> _sites.Site:
    return _sites.current() if dev is None else _sites.site_of(dev)


def device_fingerprint(dev: Any = None) -> str:
    """What stored configs of a device are found by: its kind, its model and a hash of the rest."""
    return this_device(dev).fingerprint


def original_fingerprint(dev: Any = None) -> str:
    """What ejkernel calls the same device in its files."""
    if dev is None:
        dev = _sites.current().device
    if dev is None:
        return "cpu|cpu"
    kind = getattr(dev, "device_kind", getattr(dev, "platform", "unknown"))
    return f"{kind}|{getattr(getattr(dev, 'client', None), 'platform_version', '')}"


def device_kind(dev: Any = None) -> str:
    """"cpu", "gpu" or "tpu". Without a device, that of calls that are made here: inside of `for_device`, or of a hook or
    a method of a kernel, what that is for; else what `jax.default_device` or JAX's first device is; "cpu" in a program
    that has not imported JAX."""
    return _site(dev).kind


def get_device_platform(dev: Any = None) -> str:
    """How kernels are written for a device: "triton" on a GPU, "pallas" on a TPU, "xla" elsewhere."""
    return _site(dev).platform


__all__ = [
    "abstractify",
    "default_key_builder_with_sharding",
    "device_fingerprint",
    "device_kind",
    "get_device_platform",
    "sharding_fingerprint",
    "short_hash",
    "stable_json",
]
