# SPDX-License-Identifier: Apache-2.0
"""Operations that are ready to use: the C++ library's kernels, in JAX and on arrays in memory.

    from ejk.modules import flash_attention
    out = flash_attention(q, k, v, causal=True)

Arrays of JAX: on a CPU the C++ kernels run, inside of `jit`, `grad`, `vmap`, `scan` and `shard_map` too,
with the config that the default executor finds for their shapes; elsewhere, and for types other than float32
and bfloat16, plain JAX computes the same. `cfg=` sets the config of one call, `executor=` another executor.

Arrays of NumPy, and any other that offers DLPack (without JAX, too): the C++ library runs, with the config
that it finds. The result is an array of NumPy, or of PyTorch for its tensors, or else offers DLPack.

Errors of shapes and types are ValueError; they name the operation, what was given and what is needed.
"""

from __future__ import annotations

import sys
from typing import Any

from ejk import _core, _jax
from ejk.modules import _ffi, _plain
from ejk.modules._kernels import (
    DecodeAttention,
    FlashAttention,
    GroupedMatmul,
    LayerNorm,
    Matmul,
    NativeKernel,
    PagedDecodeAttention,
    RmsNorm,
    Softmax,
)
from ejk.modules._libraries import CppKernel, load_kernels

_softmax, _rms_norm, _layer_norm, _matmul = Softmax(), RmsNorm(), LayerNorm(), Matmul()
_grouped_matmul, _flash_attention = GroupedMatmul(), FlashAttention()
_decode_attention, _paged_decode_attention = DecodeAttention(), PagedDecodeAttention()

_TYPES = ("float32", "bfloat16")


def softmax(x: Any, *, scale: float = 1.0, cfg=None, executor=None) -> Any:
    """softmax(scale x) over the last axis."""
    _check(_softmax, x.ndim >= 1, (x,), "x with at least one axis")
    return _run(_softmax, _plain.softmax, (x,), {"scale": float(scale)}, cfg, executor)


def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, cfg=None, executor=None) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    _check(_rms_norm, x.ndim >= 1 and _is_line(weight, x), (x, weight), "x[..., n] and weight[n]")
    return _run(_rms_norm, _plain.rms_norm, (x, weight), {"eps": float(eps)}, cfg, executor)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, cfg=None, executor=None) -> Any:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis."""
    fits = x.ndim >= 1 and _is_line(weight, x) and _is_line(bias, x)
    _check(_layer_norm, fits, (x, weight, bias), "x[..., n], weight[n] and bias[n]")
    return _run(_layer_norm, _plain.layer_norm, (x, weight, bias), {"eps": float(eps)}, cfg, executor)


def matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    result: str | None = None,
    cfg=None,
    executor=None,
) -> Any:
    """a b + bias, summed in float32.

    `a` is [..., m, k], `b` is [k, n] or has the leading axes of `a`, `bias` is [n]; the transposes swap the last
    two axes of an argument. `result` names the result's type, by default that of `a`: "float32" for bfloat16.
    """
    needed = "a[..., m, k], b[k, n] or b[..., k, n] with the leading axes of a, and bias[n]"
    fits = a.ndim >= 2 and b.ndim >= 2 and (b.ndim == 2 or a.shape[:-2] == b.shape[:-2])
    fits = fits and a.shape[-2 if transpose_a else -1] == b.shape[-1 if transpose_b else -2]
    fits = fits and (bias is None or tuple(bias.shape) == (b.shape[-2 if transpose_b else -1],))
    _check(_matmul, fits, (a, b, bias), needed)
    options = {"transpose_a": bool(transpose_a), "transpose_b": bool(transpose_b), "result": _named(result)}
    return _run(_matmul, _plain.matmul, (a, b, bias), options, cfg, executor)


def grouped_matmul(a: Any, b: Any, group_sizes: Any, *, result: str | None = None, cfg=None, executor=None) -> Any:
    """Row i of `a` [rows, k] times the matrix of its group in `b` [groups, k, n].

    The first group_sizes[0] rows are group 0, the next ones group 1, and so on; rows behind the last group give
    zeros.
    """
    fits = a.ndim == 2 and b.ndim == 3 and group_sizes.ndim == 1
    fits = fits and a.shape[1] == b.shape[1] and group_sizes.shape[0] == b.shape[0]
    _check(_grouped_matmul, fits, (a, b, group_sizes), "a[rows, k], b[groups, k, n] and group_sizes[groups]")
    arrays = (a, b, _int32(group_sizes))
    return _run(_grouped_matmul, _plain.grouped_matmul, arrays, {"result": _named(result)}, cfg, executor)


def flash_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: bool = False,
    sliding_window: int | tuple[int | None, int | None] | None = None,
    logits_soft_cap: float | None = None,
    softmax_scale: float | None = None,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    cfg=None,
    executor=None,
) -> Any:
    """softmax(softmax_scale query key^T) value, without ever holding all weights.

    `query` is [batch, sequence, heads, dim], `key` and `value` [batch, sequence, kv_heads, dim]; heads are a
    multiple of kv_heads. With `causal`, query i sees keys up to i; with `sliding_window` (left, right), from
    i - left to i + right (one number: the same for both). `logits_soft_cap` makes logits cap * tanh(logits / cap). `softmax_scale`
    is 1 / sqrt(dim) unless given. Lengths are one number per batch element: what lies beyond is not seen, and sees
    nothing. A query that sees nothing gives zeros.
    """
    window = sliding_window if isinstance(sliding_window, (tuple, list)) else (sliding_window, sliding_window)
    arrays = (query, key, value)
    fits = all(a.ndim == 4 for a in arrays) and tuple(key.shape) == tuple(value.shape)
    fits = fits and query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3]
    fits = fits and (query.shape[2] % key.shape[2] == 0 if key.shape[2] else query.shape[2] == 0)
    _check(_flash_attention, fits, arrays, "[batch, sequence, heads, dim], heads of query a multiple of key's")
    lengths = (query_seq_lengths, key_value_seq_lengths)
    fits = all(a is None or tuple(a.shape) == (query.shape[0],) for a in lengths)
    _check(_flash_attention, fits, lengths, f"a length for each of the {query.shape[0]} batch elements")
    options = {
        "causal": bool(causal),
        "window_left": _whole(window[0]),
        "window_right": _whole(window[1]),
        "softcap": _real(logits_soft_cap),
        "scale": _real(softmax_scale),
    }
    arrays = (*arrays, *map(_int32, lengths))
    return _run(_flash_attention, _plain.flash_attention, arrays, options, cfg, executor)


def decode_attention(
    query: Any,
    key: Any,
    value: Any,
    lengths: Any = None,
    *,
    block_table: Any = None,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    softmax_scale: float | None = None,
    cfg=None,
    executor=None,
) -> Any:
    """Attention of one query per sequence against a cache.

    `query` is [batch, heads, dim], `key` and `value` [batch, positions, kv_heads, dim], of which the first
    lengths[i] are filled (all, without `lengths`). With a `block_table` [batch, pages of a sequence] they are pages
    [pages, page size, kv_heads, dim], and `lengths` must be given. The query stands at the end of its sequence and sees
    `sliding_window` keys before it. It has no gradient of its own: flash_attention has.
    """
    fits = query.ndim == 3 and key.ndim == 4 and tuple(key.shape) == tuple(value.shape)
    fits = fits and query.shape[2] == key.shape[3]
    fits = fits and (query.shape[1] % key.shape[2] == 0 if key.shape[2] else query.shape[1] == 0)
    fits = fits and (block_table is not None or query.shape[0] == key.shape[0])
    needed = "query[batch, heads, dim], key and value [batch, positions, kv_heads, dim], heads a multiple of kv_heads"
    _check(_decode_attention, fits, (query, key, value), needed)
    fits = lengths is None or tuple(lengths.shape) == (query.shape[0],)
    _check(_decode_attention, fits, (lengths,), f"a length for each of the {query.shape[0]} sequences")
    options = {
        "window_left": _whole(sliding_window),
        "softcap": _real(logits_soft_cap),
        "scale": _real(softmax_scale),
    }
    if block_table is None:
        arrays = (query, key, value, _int32(lengths))
        return _run(_decode_attention, _plain.decode_attention, arrays, options, cfg, executor)
    fits = lengths is not None and block_table.ndim == 2 and block_table.shape[0] == query.shape[0]
    _check(_paged_decode_attention, fits, (block_table, lengths), "block_table[batch, pages] and lengths[batch]")
    arrays = (query, key, value, _int32(block_table), _int32(lengths))
    return _run(_paged_decode_attention, _plain.paged_decode_attention, arrays, options, cfg, executor)


# ---- where a call goes ---------------------------------------------------------------------------


def _run(kernel, plain, arrays, options, cfg, executor):
    there = [a for a in arrays if a is not None]
    if not any(map(_jax.is_array, there)):
        return _in_memory(kernel, arrays, options, cfg, executor)
    jnp = _jax.required().numpy
    arrays = [a if a is None or _jax.is_array(a) else jnp.asarray(a) for a in arrays]
    types = {a.dtype.name for a in arrays if a is not None and not jnp.issubdtype(a.dtype, jnp.integer)}
    if len(types) != 1 or not jnp.issubdtype(arrays[0].dtype, jnp.floating):
        _check(kernel, False, arrays, "arrays of one floating type")
    if not (types <= set(_TYPES) and _on_cpu() and _ffi.is_ready()):
        return plain(*arrays, **options)
    if any(map(_jax.is_tracer, there)):
        arrays = _ffi.varying_alike(arrays)
    if executor is None:
        from ejk.ops.execution.executor import default_executor

        executor = default_executor()
    if cfg is not None:
        options = {**options, "cfg": cfg}
    return executor(kernel, *arrays, **options)


def _on_cpu() -> bool:
    return _jax.required().default_backend() == "cpu"


def _in_memory(kernel, arrays, options, cfg, executor):
    if cfg is not None or executor is not None:
        raise ValueError(f"[{kernel.op_id}] cfg= and executor= are for arrays of JAX: the C++ library chooses here")
    native = kernel.native(*arrays, **options)[1]
    there = [a for a in arrays if a is not None]
    first = there[0]
    if _jax.is_numpy(first):
        of_bits = first.dtype.name == "bfloat16"  # a type that NumPy has from elsewhere, and cannot hand on
        given = [a.view("uint16") if _jax.is_numpy(a) and a.dtype.name == "bfloat16" else a for a in there]
        out = _core.op_call(kernel.op_id, given, native, of_bits, True)
        return out.view(first.dtype) if out.dtype.name == "uint16" else out
    out = _core.op_call(kernel.op_id, there, native, False, False)
    torch = sys.modules.get("torch")
    return torch.from_dlpack(out) if torch is not None and isinstance(first, torch.Tensor) else out


# ---- arguments -----------------------------------------------------------------------------------


def _check(kernel, fits: bool, arrays, needed: str) -> None:
    if not fits:
        given = ", ".join(
            "None" if a is None else f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in arrays
        )
        raise ValueError(f"[{kernel.op_id}] {given} was given: {needed} is needed")


def _is_line(vector, x) -> bool:
    return vector is None or tuple(vector.shape) == (x.shape[-1],)


def _int32(numbers):
    if numbers is None or "int32" in str(numbers.dtype) and "uint" not in str(numbers.dtype):
        return numbers
    return numbers.astype("int32")


def _named(dtype):
    if dtype is None or isinstance(dtype, str):
        return dtype
    import numpy

    return numpy.dtype(dtype).name


def _whole(value):
    return None if value is None else int(value)


def _real(value):
    return None if value is None else float(value)


__all__ = [
    "CppKernel",
    "DecodeAttention",
    "FlashAttention",
    "GroupedMatmul",
    "LayerNorm",
    "Matmul",
    "NativeKernel",
    "PagedDecodeAttention",
    "RmsNorm",
    "Softmax",
    "decode_attention",
    "flash_attention",
    "grouped_matmul",
    "layer_norm",
    "load_kernels",
    "matmul",
    "rms_norm",
    "softmax",
]
