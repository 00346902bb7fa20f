# SPDX-License-Identifier: Apache-2.0
"""Batches and devices: one config for all elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ejk import _jax
from ejk._captured import Opaque
from ejk.ops.core._function import Arguments
from ejk.ops.core.kernel import Kernel
from ejk.ops.execution._held import held_by_config, held_by_kernel
from ejk.ops.execution._jitted import put
from ejk.ops.execution.executor import default_executor

_MAX_MAPPED = 16  # functions that one pmap_with_config keeps compiled


def vmap_with_config(executor: Any, kernel: Any = None, in_axes: Any = 0) -> Callable[..., Any]:
    """A function that runs a kernel over a batch with one config, chosen for one element.

    `vmap_with_config(executor, kernel, in_axes=0)`, or `vmap_with_config(kernel, in_axes=0)` with the
    default executor. `in_axes` as in jax.vmap: a number for all positional arguments, or one for each;
    None: not batched. Named arguments are not batched.
    """
    executor, kernel = _told_apart("vmap_with_config", executor, kernel)

    def batched(*args: Any, **named: Any) -> Any:
        jax = _jax.required()
        axes = _axes("vmap_with_config", in_axes, args)
        cfg = executor.choose_config(kernel, *_first(jax, args, axes), **named)
        kwargs = {name: value for name, value in named.items() if name not in ("cfg", "_cfg")}

        def one(*element: Any) -> Any:
            return executor(kernel, *element, cfg=cfg, **kwargs)

        return jax.vmap(one, in_axes=axes)(*args)

    return batched


def pmap_with_config(
    executor: Any, kernel: Any = None, in_axes: Any = 0, axis_name: str = "devices"
) -> Callable[..., Any]:
    """A function that runs a kernel on several devices with one config, chosen for one of them.

    Arguments as in `vmap_with_config`; `axis_name` as in jax.pmap.
    """
    executor, kernel = _told_apart("pmap_with_config", executor, kernel)
    mapped: dict[Any, Callable[..., Any]] = {}

    def parallel(*args: Any, **named: Any) -> Any:
        jax = _jax.required()
        axes = _axes("pmap_with_config", in_axes, args)
        cfg = executor.choose_config(kernel, *_first(jax, args, axes), **named)
        kwargs = {name: value for name, value in named.items() if name not in ("cfg", "_cfg")}

        def one(*element: Any) -> Any:
            return executor(kernel, *element, cfg=cfg, **kwargs)

        return _pmapped(jax, mapped, one, kernel, axes, axis_name, cfg, kwargs)(*args)

    return parallel


def _pmapped(
    jax: Any,
    mapped: dict[Any, Callable[..., Any]],
    function: Callable[..., Any],
    kernel: Any,
    axes: tuple[Any, ...],
    axis_name: str,
    cfg: Any,
    kwargs: dict[str, Any],
) -> Callable[..., Any]:
    """One jax.pmap for each config and state of the kernel: it compiles a new function object anew. What objects hold
    may change, so with such it does."""
    key = None
    if not Arguments((), kwargs).holds_objects() and not any(map(_has_arrays, kwargs.values())):
        key = _key_of_data(kernel, cfg, kwargs, axes)
    if key is None:
        once: Callable[..., Any] = jax.pmap(function, in_axes=axes, axis_name=axis_name)
        return once
    if key in mapped:
        return mapped[key]
    made: Callable[..., Any] = jax.pmap(function, in_axes=axes, axis_name=axis_name)
    return put(mapped, key, made, _MAX_MAPPED)


def _key_of_data(kernel: Any, cfg: Any, kwargs: dict[str, Any], axes: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """None if one of them is more than data."""
    try:
        held = [held_by_kernel(kernel), held_by_config(cfg), held_by_config(kwargs)]
    except Opaque:
        return None
    return (*(each.key for each in held), repr(axes)) if all(each.is_data for each in held) else None


def _told_apart(name: str, executor: Any, kernel: Any) -> tuple[Any, Any]:
    if isinstance(executor, Kernel):
        if kernel is not None:
            raise TypeError(f"[{name}] got a kernel first and another argument by place; expected in_axes= by name")
        return default_executor(), executor
    if kernel is None:
        raise TypeError(f"[{name}] got no kernel; expected (executor, kernel) or (kernel)")
    return executor, kernel


def _axes(name: str, in_axes: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
    if len(axes) != len(args):
        raise ValueError(f"[{name}] in_axes has {len(axes)} entries for {len(args)} arguments: one for each is expected")
    batched = tuple(None if axis is None or not _has_arrays(arg) else axis for axis, arg in zip(axes, args))
    if all(axis is None for axis in batched):
        raise ValueError(f"[{name}] no argument is batched: at least one array with an axis is needed")
    return batched


def _has_arrays(arg: Any) -> bool:
    leaves = _jax.required().tree_util.tree_leaves(arg)
    return any(_jax.is_array(leaf) or _jax.is_numpy(leaf) for leaf in leaves)


def _first(jax: Any, args: tuple[Any, ...], axes: tuple[Any, ...]) -> tuple[Any, ...]:
    """One element of the batch, to choose a config for."""

    def element(axis: int, leaf: Any) -> Any:
        if not (_jax.is_array(leaf) or _jax.is_numpy(leaf)):
            return leaf
        return jax.lax.index_in_dim(jax.numpy.asarray(leaf), 0, axis, keepdims=False)

    def of_one(arg: Any, axis: Any) -> Any:
        if axis is None:
            return arg
        if isinstance(axis, int):
            return jax.tree_util.tree_map(functools.partial(element, axis), arg)

        def of_part(a: Any, part: Any) -> Any:  # in_axes may end earlier than the argument does
            return part if a is None else jax.tree_util.tree_map(functools.partial(element, a), part)

        return jax.tree_util.tree_map(of_part, axis, arg, is_leaf=lambda a: a is None)

    return tuple(of_one(arg, axis) for arg, axis in zip(args, axes))


__all__ = ["pmap_with_config", "vmap_with_config"]
