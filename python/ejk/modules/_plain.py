# SPDX-License-Identifier: Apache-2.0
"""The same operations in plain JAX: for other devices and for types that the C++ library does not take.

Their signatures say which arrays and options an operation has; `_kernels.py` reads them there."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ejk import _jax


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(jax, *arrays, **options)` as a function of the arrays, jitted once for each set of options. Those that
    are floats are inputs: programs have many of them, one for each step or temperature."""

    @functools.lru_cache(256)
    def compiled(options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
        jax = _jax.required()

        def operation(floats: dict[str, float], *arrays: Any) -> Any:
            return function(jax, *arrays, **dict(options), **floats)

        operation.__name__ = function.__name__
        found: Callable[..., Any] = jax.jit(operation)
        return found

    @functools.wraps(function)
    def call(*arrays: Any, **options: Any) -> Any:
        floats = {name: value for name, value in options.items() if type(value) is float}
        others = tuple(sorted((name, value) for name, value in options.items() if name not in floats))
        return compiled(others)(floats, *arrays)

    return call


def _wide(jax: Any, x: Any) -> Any:
    """Sums are made in float32 at least."""
    return x.astype(jax.numpy.promote_types(x.dtype, "float32"))


@jitted
def softmax(jax: Any, x: Any, *, scale: float = 1.0) -> Any:
    return jax.nn.softmax(_wide(jax, x) * scale, axis=-1).astype(x.dtype)


@jitted
def rms_norm(jax: Any, x: Any, weight: Any = None, *, eps: float = 1e-6) -> Any:
    wide = _wide(jax, x)
    out = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + eps)
    return (out if weight is None else out * _wide(jax, weight)).astype(x.dtype)


@jitted
def layer_norm(jax: Any, x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    wide = _wide(jax, x)
    apart = wide - wide.mean(-1, keepdims=True)
    out = apart * jax.lax.rsqrt((apart * apart).mean(-1, keepdims=True) + eps)
    out = out if weight is None else out * _wide(jax, weight)
    return (out if bias is None else out + _wide(jax, bias)).astype(x.dtype)


@jitted
def matmul(
    jax: Any,
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    result: str | None = None,
) -> Any:
    jnp = jax.numpy
    a = jnp.swapaxes(a, -1, -2) if transpose_a else a
    b = jnp.swapaxes(b, -1, -2) if transpose_b else b
    out = jnp.matmul(a, b, preferred_element_type=jnp.promote_types(a.dtype, "float32"), precision="highest")
    return (out if bias is None else out + bias).astype(result or a.dtype)


@jitted
def grouped_matmul(jax: Any, a: Any, b: Any, group_sizes: Any, *, result: str | None = None) -> Any:
    jnp = jax.numpy
    wide = jnp.promote_types(a.dtype, "float32")
    out = jax.lax.ragged_dot(a, b, group_sizes, preferred_element_type=wide, precision="highest")
    behind = jnp.arange(a.shape[0]) >= group_sizes.sum()
    return jnp.where(behind[:, None], 0, out).astype(result or a.dtype)


@jitted
def flash_attention(
    jax: Any,
    q: Any,
    k: Any,
    v: Any,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    *,
    causal: bool = False,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Any:
    jnp = jax.numpy
    queries, keys = jnp.arange(q.shape[1]), jnp.arange(k.shape[1])
    sees = jnp.ones((1, q.shape[1], k.shape[1]), bool)
    ahead = keys[None, :] - queries[:, None]
    if causal:
        sees &= ahead <= 0
    if window_left is not None:
        sees &= -ahead <= window_left
    if window_right is not None:
        sees &= ahead <= window_right
    if query_seq_lengths is not None:
        sees &= (queries < query_seq_lengths[:, None])[:, :, None]
    if key_value_seq_lengths is not None:
        sees &= (keys < key_value_seq_lengths[:, None])[:, None, :]
    return _attention(jax, q, k, v, sees, softcap, scale)


def _attention(jax: Any, q: Any, k: Any, v: Any, sees: Any, softcap: Any, scale: Any) -> Any:
    """q [batch, queries, heads, dim], k and v [batch, keys, kv_heads, dim], sees [batch or 1, queries, keys]."""
    jnp = jax.numpy
    batch, count, heads, dim = q.shape
    kv_heads = k.shape[2]
    grouped = _wide(jax, q).reshape(batch, count, kv_heads, heads // max(kv_heads, 1), dim)
    logits = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, _wide(jax, k), precision="highest")
    logits = logits * (1 / math.sqrt(dim) if scale is None else scale)
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    seen = sees[:, None, None]
    logits = jnp.where(seen, logits, -jnp.inf)
    most = jnp.where(seen.any(-1, keepdims=True), jax.lax.stop_gradient(logits).max(-1, keepdims=True, initial=-jnp.inf), 0)
    weights = jnp.where(seen, jnp.exp(logits - most), 0)
    total = weights.sum(-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    out = jnp.einsum("bhgqk,bkhd->bqhgd", weights, _wide(jax, v), precision="highest")
    return out.reshape(q.shape).astype(q.dtype)


@jitted
def decode_attention(
    jax: Any,
    q: Any,
    k: Any,
    v: Any,
    lengths: Any = None,
    *,
    window_left: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Any:
    return _decode(jax, q, k, v, lengths, window_left, softcap, scale)


@jitted
def paged_decode_attention(
    jax: Any,
    q: Any,
    k_pages: Any,
    v_pages: Any,
    block_table: Any,
    lengths: Any = None,
    *,
    window_left: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Any:
    # Entries beyond a length may be anything.
    table = jax.numpy.clip(block_table, 0, max(k_pages.shape[0] - 1, 0))

    def in_order(pages: Any) -> Any:
        found = pages[table]
        return found.reshape(found.shape[0], -1, *found.shape[3:])

    return _decode(jax, q, in_order(k_pages), in_order(v_pages), lengths, window_left, softcap, scale)


def _decode(jax: Any, q: Any, k: Any, v: Any, lengths: Any, window_left: Any, softcap: Any, scale: Any) -> Any:
    jnp = jax.numpy
    positions = jnp.arange(k.shape[1])
    if lengths is None:
        lengths = jnp.full((q.shape[0],), k.shape[1])
    sees = positions < lengths[:, None]
    if window_left is not None:
        sees &= positions >= lengths[:, None] - 1 - window_left
    return _attention(jax, q[:, None], k, v, sees[:, None], softcap, scale)[:, 0]
