# SPDX-License-Identifier: Apache-2.0
"""Operations that are ready to use: the C++ library's kernels, in JAX and on arrays in memory.

    from ejk.modules import flash_attention
    out = flash_attention(q, k, v, causal=True)

Arrays of JAX: on a CPU the C++ kernels run, inside of `jit`, `grad`, `vmap`, `scan` and `shard_map` too,
with the config that the default executor finds for their shapes; elsewhere, and for types other than float32
and bfloat16, plain JAX computes the same. `cfg=` sets the config of one call, `executor=` another executor.

Arrays of NumPy, and any other that offers DLPack (without JAX, too): the C++ library runs, with the config
that it finds. The result is an array of NumPy, or of PyTorch for its tensors, or else offers DLPack.

Gradients are for reverse mode (`jax.grad`, `jax.vjp`); the plain implementation also has forward mode.

Errors of shapes and types are ValueError; they name the operation, what was given and what is needed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from ejk import _core, _jax, _sites
from ejk.modules import _ffi
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
from ejk.ops.execution import executor as _executors
from ejk.ops.execution.executor import Executor, default_executor

_softmax, _rms_norm, _layer_norm, _matmul = Softmax(), RmsNorm(), LayerNorm(), Matmul()
_grouped_matmul, _flash_attention = GroupedMatmul(), FlashAttention()
_decode_attention, _paged_decode_attention = DecodeAttention(), PagedDecodeAttention()

_TYPES = ("float32", "bfloat16")
_warm_call = _core.warm_call


def softmax(x: Any, *, scale: float = 1.0, cfg: Any = None, executor: Any = None) -> Any:
    """softmax(scale x) over the last axis."""
    return _run(_softmax, (x,), (scale,), cfg, executor)


def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, cfg: Any = None, executor: Any = None) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return _run(_rms_norm, (x, weight), (eps,), cfg, executor)


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, cfg: Any = None, executor: Any = None
) -> Any:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis."""
    return _run(_layer_norm, (x, weight, bias), (eps,), cfg, executor)


def matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    result: Any = None,
    cfg: Any = None,
    executor: Any = None,
) -> Any:
    """a b + bias, summed in float32.

    `a` is [..., m, k], `b` is [k, n] or has the leading axes of `a`, `bias` is [n]; the transposes swap the last
    two axes of an argument. `result` names the result's type, by default that of `a`: "float32" for bfloat16.
    """
    return _run(_matmul, (a, b, bias), (transpose_a, transpose_b, result), cfg, executor)


def grouped_matmul(
    a: Any, b: Any, group_sizes: Any, *, result: Any = None, cfg: Any = None, executor: Any = None
) -> Any:
    """Row i of `a` [rows, k] times the matrix of its group in `b` [groups, k, n].

    The first group_sizes[0] rows are group 0, the next ones group 1, and so on; rows behind the last group give
    zeros.
    """
    return _run(_grouped_matmul, (a, b, group_sizes), (result,), cfg, executor)


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
    cfg: Any = None,
    executor: Any = None,
) -> Any:
    """softmax(softmax_scale query key^T) value, without ever holding all weights.

    `query` is [batch, sequence, heads, dim], `key` and `value` [batch, sequence, kv_heads, dim]; heads are a
    multiple of kv_heads. With `causal`, query i sees keys up to i; with `sliding_window` (left, right), from
    i - left to i + right (one number: the same for both). `logits_soft_cap` makes logits
    cap * tanh(logits / cap). `softmax_scale` is 1 / sqrt(dim) unless given. Lengths are one number per batch
    element: what lies beyond is not seen, and sees nothing. A query that sees nothing gives zeros.
    """
    arrays = (query, key, value, query_seq_lengths, key_value_seq_lengths)
    return _run(_flash_attention, arrays, (causal, sliding_window, logits_soft_cap, softmax_scale), cfg, executor)


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
    cfg: Any = None,
    executor: Any = None,
) -> Any:
    """Attention of one query per sequence against a cache.

    `query` is [batch, heads, dim], `key` and `value` [batch, positions, kv_heads, dim], of which the first
    lengths[i] are filled (all, without `lengths`). With a `block_table` [batch, pages of a sequence] they are pages
    [pages, page size, kv_heads, dim], and `lengths` must be given. The query stands at the end of its sequence and sees
    `sliding_window` keys before it.
    """
    options = (sliding_window, logits_soft_cap, softmax_scale)
    if block_table is None:
        return _run(_decode_attention, (query, key, value, lengths), options, cfg, executor)
    return _run(_paged_decode_attention, (query, key, value, block_table, lengths), options, cfg, executor)


# ---- operations without a function of their own here ---------------------------------------------


def _face(kernel: NativeKernel) -> Any:
    """The operation as a function of the arrays and options that its folder in src/ops describes."""
    arrays = [name for name, _ in kernel.described["arrays"]]
    options = [name for name, _, _ in kernel.described["options"]]
    by_place, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    required = inspect.Parameter.empty
    signature = inspect.Signature(
        [inspect.Parameter(a, by_place, default=None if may_miss else required) for a, may_miss in kernel.described["arrays"]]
        + [inspect.Parameter(o, by_name, default=default) for o, _, default in kernel.described["options"]]
        + [inspect.Parameter(name, by_name, default=None) for name in ("cfg", "executor")]
    )

    def face(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        of_run = tuple(values[name] for name in arrays), tuple(values[name] for name in options)
        return _run(kernel, *of_run, values["cfg"], values["executor"])

    face.__name__ = face.__qualname__ = kernel.op_id
    face.__doc__ = type(kernel).__doc__
    face.__signature__ = signature  # type: ignore[attr-defined]
    return face


def _described_alone(op: str) -> NativeKernel:
    about = f"The operation {op} of the C++ library, on CPUs."
    made: NativeKernel = type(op, (NativeKernel,), {"op_id": op, "__doc__": about})()
    return made


# ---- where a call goes ---------------------------------------------------------------------------


def _run(kernel: NativeKernel, arrays: tuple[Any, ...], given: tuple[Any, ...], cfg: Any, executor: Any) -> Any:
    if cfg is None:
        out = _warm_call(executor or _executors._default or kernel, kernel, arrays, given)
        if out is not NotImplemented:
            return out
    return _checked_run(kernel, arrays, given, cfg, executor)


def _checked_run(kernel: NativeKernel, arrays: tuple[Any, ...], given: tuple[Any, ...], cfg: Any, executor: Any) -> Any:
    for a in arrays:
        if a is not None and not (hasattr(a, "shape") and hasattr(a, "dtype")):
            raise TypeError(f"[{kernel.op_id}] got {type(a).__name__}; expected an array (numpy.asarray, jnp.asarray)")
    checked, options = kernel.checked(arrays, given)
    if not any(map(_jax.is_array, checked)):
        return _in_memory(kernel, checked, options, cfg, executor)
    checked = _of_one_type(kernel, checked)
    if not (checked[0].dtype.name in _TYPES and _kind_of_device(kernel, checked) == "cpu" and _ffi.is_ready()):
        return kernel.plain(*checked, **options)
    checked = _ffi.varying_alike(checked)
    executor = default_executor() if executor is None else executor
    if cfg is not None:
        return executor(kernel, *checked, cfg=cfg, **options)
    out = executor(kernel, *checked, **options)
    if isinstance(executor, Executor) and all(a is b for a, b in zip(arrays, checked)):
        executor._publish_as(kernel, arrays, given, (kernel, *checked), options)
    return out


def _kind_of_device(kernel: NativeKernel, arrays: Sequence[Any]) -> str:
    try:
        return _sites.for_arrays(*arrays).kind
    except ValueError as error:
        raise ValueError(f"[{kernel.op_id}] {error}") from None


def _of_one_type(kernel: NativeKernel, arrays: Sequence[Any]) -> Sequence[Any]:
    jnp = _jax.required().numpy
    arrays = [a if a is None or _jax.is_array(a) else jnp.asarray(a) for a in arrays]
    types = {a.dtype for a in arrays if a is not None and not jnp.issubdtype(a.dtype, jnp.integer)}
    kernel.check(len(types) == 1 and arrays[0].dtype in types and jnp.issubdtype(arrays[0].dtype, jnp.floating),
                 arrays, "arrays of one floating type")  # fmt: skip
    return arrays


def _in_memory(kernel: NativeKernel, arrays: Sequence[Any], options: dict[str, Any], cfg: Any, executor: Any) -> Any:
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


paged_decode_attention = _face(_paged_decode_attention)
for _op in _core.op_descriptions().keys() - globals().keys():
    globals()[_op] = _face(_described_alone(_op))

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
    "paged_decode_attention",
    "rms_norm",
    "softmax",
]
