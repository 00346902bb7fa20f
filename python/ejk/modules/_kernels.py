# SPDX-License-Identifier: Apache-2.0
"""The C++ operations as kernels: the config is chosen while JAX traces, and goes along with the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from ejk import _core
from ejk.modules import _ffi, _plain
from ejk.ops.core.kernel import Invocation, Kernel

Arrays = Sequence[Any]  # of JAX or in memory; None where one is left out
Options = dict[str, Any]
Shapes = list[Sequence[int]]
Results = list[tuple[tuple[int, ...], str]]  # (shape, dtype)

_DESCRIBED = _core.op_descriptions()


class NativeKernel(Kernel):
    """An operation of the C++ library. Configs are dicts; `help(ejk.modules)` lists the operations.

    Its arrays, options, results and gradients are those that its folder in src/ops describes."""

    version = "1"
    described: ClassVar[dict[str, Any]]  #: what the C++ library says about the operation: arrays, options, results
    _may_miss: ClassVar[list[tuple[int, str]]]
    _options: ClassVar[list[tuple[str, Callable[[Any], Any], Any]]]

    def __init__(self) -> None:
        super().__init__(self.op_id)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        described = _DESCRIBED.get(getattr(cls, "op_id", ""))
        if described is None:
            return
        cls.described = described
        cls._may_miss = [(place, name) for place, (name, may_miss) in enumerate(described["arrays"]) if may_miss]
        cls._options = [(name, _reader(kind, default), default) for name, kind, default in described["options"]]

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        """What a function of ejk.modules was given, in order, as (arrays, options) of `run`. Raises ValueError."""
        return arrays, self.options_of(*given)

    def plain(self, *arrays: Any, **options: Any) -> Any:
        """The same in plain JAX, for other devices and types."""
        raise NotImplementedError(f"[{self.op_id}] runs on CPUs, with float32 or bfloat16 arrays: it has no plain JAX")

    def options_of(self, *values: Any) -> Options:
        """The options of `run`, all of them, in order."""
        return {name: read(value) for (name, read, _), value in zip(self._options, values, strict=True)}

    def native(self, *args: Any, **kwargs: Any) -> tuple[Shapes, Options]:
        """(shapes, options): the shapes in which C++ takes the arrays that are there, and the options, among them
        whether arrays that may be missing are there."""
        options = self.options_of(*(kwargs.pop(name, default) for name, _, default in self._options))
        if kwargs:
            raise TypeError(
                f"[{self.op_id}] got {', '.join(kwargs)} by name; expected arrays by place; options are "
                + ", ".join(options)
            )
        if options.get("result", "") is None:
            options["result"] = _dtype_name(args[0])
        there = {name: place < len(args) and args[place] is not None for place, name in self._may_miss}
        return self.shapes(args_there(args), options), options | there

    def shapes(self, arrays: Arrays, options: Options) -> Shapes:
        """The shape that the C++ kernel sees of each array: leading axes are joined where it wants fewer."""
        return [a.shape for a in arrays]

    def run(self, *args: Any, cfg: Any, **kwargs: Any) -> Any:
        return self.forward(args, kwargs, cfg)[0]

    def heuristic_cfg(self, inv: Invocation) -> dict[str, Any]:
        return _core.op_heuristic(self.op_id, *self._described(inv))

    def candidate_cfgs(self, inv: Invocation) -> list[dict[str, Any]]:
        return _core.op_candidates(self.op_id, *self._described(inv), self.tunes_backward)

    def is_valid(self, cfg: Any, inv: Invocation) -> bool:
        """Whether the C++ kernel can run this call with this config."""
        return _core.op_is_valid(self.op_id, cfg, *self._described(inv))

    def numerics(self, cfg: Any, inv: Invocation) -> Any:
        """The class of this config, as the C++ kernel states it."""
        return _core.op_numerics(self.op_id, cfg, *self._described(inv))

    tunes_backward = False  #: whether candidates for the gradient are offered too

    def _described(self, inv: Invocation) -> tuple[list[tuple[str, list[int]]], Options]:
        shapes, options = self.native(*inv.args, **inv.kwargs)
        return [(a.dtype.name, list(shape)) for a, shape in zip(args_there(inv.args), shapes)], options

    def check(self, fits: bool, arrays: Iterable[Any], needed: str) -> None:
        """Raises `ValueError` with what it got and what is needed, unless it fits."""
        if not fits:
            given = ", ".join(
                "None" if a is None else f"{_dtype_name(a)}{list(a.shape)}" for a in arrays
            )
            raise ValueError(f"[{self.op_id}] got {given}; expected {needed}")

    # -- how --

    def output_shape(self, args: Arrays, kwargs: Options, shape: Sequence[int]) -> Sequence[int]:
        """The shape that the caller sees of a result to which the C++ kernel gave `shape`."""
        return shape

    def forward(self, args: Arrays, kwargs: Options, cfg: Any, residuals: bool = False) -> tuple[Any, list[Any]]:
        """The result, and with `residuals` what the gradient needs besides the arguments."""
        arrays, options, results = self._arranged(args, kwargs)
        out, *kept = _ffi.call(self.op_id, arrays, options, cfg, results if residuals else results[:1])
        return out.reshape(self.output_shape(args, kwargs, out.shape)), kept

    def fwd_with_residuals(self, *args: Any, cfg: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.forward(args, kwargs, cfg, residuals=True)

    def vjp(self, residuals: Any, y: Any, dy: Any, *args: Any, cfg: Any, **kwargs: Any) -> tuple[Any, ...]:
        if self.described["result_is_first"]:
            args = (y, *args[1:])
        arrays, options, results = self._arranged(args, kwargs)
        shape, _ = results[0]
        more = [y.reshape(shape)] if self.described["takes_result"] else []
        more += [*residuals, dy.reshape(shape)]
        wanted = args[: self.described["gradients"]]
        types = [(a.shape, a.dtype) for a in arrays[: len(args_there(wanted))]]
        found = iter(_ffi.call(self.op_id, [*arrays, *more], options, cfg, types, pull=True))
        gradients = [None if a is None else next(found).reshape(a.shape) for a in wanted]
        return (*gradients, *(None for _ in args[len(wanted) :]))

    def _arranged(self, args: Arrays, kwargs: Options) -> tuple[list[Any], Options, Results]:
        """Arrays and options as C++ takes them, and (shape, dtype) of what it gives."""
        shapes, options = self.native(*args, **kwargs)
        arrays = [a.reshape(shape) for a, shape in zip(args_there(args), shapes)]
        described = [(a.dtype.name, list(a.shape)) for a in arrays]
        return arrays, options, _core.op_results(self.op_id, described, options)


def args_there(args: Iterable[Any]) -> list[Any]:
    return [a for a in args if a is not None]


def _dtype_name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _rows(x: Any) -> tuple[int, int]:
    return math.prod(x.shape[:-1]), x.shape[-1]


def _is_line(vector: Any, x: Any) -> bool:
    return vector is None or tuple(vector.shape) == (x.shape[-1],)


def _int32(numbers: Any) -> Any:
    if numbers is None or "int32" in str(numbers.dtype) and "uint" not in str(numbers.dtype):
        return numbers
    if not hasattr(numbers, "astype"):  # as those of PyTorch
        import numpy

        numbers = numpy.from_dlpack(numbers)
    return numbers.astype("int32")


def _named(dtype: Any) -> str | None:
    if dtype is None or isinstance(dtype, str):
        return dtype
    import numpy

    return str(numpy.dtype(dtype).name)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _real(value: Any) -> float | None:
    return None if value is None else float(value)


def _reader(kind: str, default: Any) -> Callable[[Any], Any]:
    if kind == "number":
        return _real if default is None else float
    readers: dict[str, Callable[[Any], Any]] = {"flag": bool, "whole_number": _whole, "dtype": _named}
    return readers[kind]


class _OverRows(NativeKernel):
    """Over the last axis of the first array."""

    def shapes(self, arrays: Arrays, options: Options) -> Shapes:
        return [_rows(arrays[0]), *(a.shape for a in arrays[1:])]

    def output_shape(self, args: Arrays, kwargs: Options, shape: Sequence[int]) -> Sequence[int]:
        found: Sequence[int] = args[0].shape
        return found


class Softmax(_OverRows):
    """softmax(scale x) over the last axis."""

    op_id = "softmax"
    plain = staticmethod(_plain.softmax)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        self.check(arrays[0].ndim >= 1, arrays, "x with at least one axis")
        return arrays, self.options_of(*given)


class RmsNorm(_OverRows):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""

    op_id = "rms_norm"
    plain = staticmethod(_plain.rms_norm)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        x, weight = arrays
        self.check(x.ndim >= 1 and _is_line(weight, x), arrays, "x[..., n] and weight[n]")
        return arrays, self.options_of(*given)


class LayerNorm(_OverRows):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis."""

    op_id = "layer_norm"
    plain = staticmethod(_plain.layer_norm)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        x, weight, bias = arrays
        fits = x.ndim >= 1 and _is_line(weight, x) and _is_line(bias, x)
        self.check(fits, arrays, "x[..., n], weight[n] and bias[n]")
        return arrays, self.options_of(*given)


class Matmul(NativeKernel):
    """a b + bias. a and b are [..., m, k] and [..., k, n], with the same leading axes or none in b."""

    op_id = "matmul"
    plain = staticmethod(_plain.matmul)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        a, b, bias = arrays
        transpose_a, transpose_b, _ = given
        fits = a.ndim >= 2 and b.ndim >= 2 and (b.ndim == 2 or a.shape[:-2] == b.shape[:-2])
        fits = fits and a.shape[-2 if transpose_a else -1] == b.shape[-1 if transpose_b else -2]
        fits = fits and (bias is None or tuple(bias.shape) == (b.shape[-2 if transpose_b else -1],))
        needed = "a[..., m, k], b[k, n] or b[..., k, n] with the leading axes of a, and bias[n]"
        self.check(fits, arrays, needed)
        return arrays, self.options_of(*given)

    def shapes(self, arrays: Arrays, options: Options) -> Shapes:
        a, b, *bias = arrays
        lead = math.prod(a.shape[:-2])
        if b.ndim == 2 and not options["transpose_a"]:  # one product with more rows
            shape_a = (1, lead * a.shape[-2], a.shape[-1])
        else:
            shape_a = (lead, *a.shape[-2:])
        return [shape_a, (math.prod(b.shape[:-2]), *b.shape[-2:]), *(c.shape for c in bias)]

    def output_shape(self, args: Arrays, kwargs: Options, shape: Sequence[int]) -> Sequence[int]:
        a, b = args[:2]
        rows = a.shape[-1] if kwargs.get("transpose_a") else a.shape[-2]
        lead = a.shape[:-2] if a.ndim >= b.ndim else b.shape[:-2]
        return (*lead, rows, shape[-1])


class GroupedMatmul(NativeKernel):
    """Rows that are sorted by group, each group with a matrix of its own."""

    op_id = "grouped_matmul"
    plain = staticmethod(_plain.grouped_matmul)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        a, b, group_sizes = arrays
        fits = a.ndim == 2 and b.ndim == 3 and group_sizes.ndim == 1
        fits = fits and a.shape[1] == b.shape[1] and group_sizes.shape[0] == b.shape[0]
        self.check(fits, arrays, "a[rows, k], b[groups, k, n] and group_sizes[groups]")
        return (a, b, _int32(group_sizes)), self.options_of(*given)


class FlashAttention(NativeKernel):
    """softmax(scale q k^T) v, in blocks; [batch, sequence, heads, dim] as in JAX."""

    op_id = "flash_attention"
    plain = staticmethod(_plain.flash_attention)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        query, key, value, *lengths = arrays
        causal, window, softcap, scale = given
        fits = all(a.ndim == 4 for a in arrays[:3]) and tuple(key.shape) == tuple(value.shape)
        fits = fits and query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3]
        fits = fits and (query.shape[2] % key.shape[2] == 0 if key.shape[2] else query.shape[2] == 0)
        self.check(fits, arrays[:3], "[batch, sequence, heads, dim], heads of query a multiple of key's")
        fits = all(a is None or tuple(a.shape) == (query.shape[0],) for a in lengths)
        self.check(fits, lengths, f"a length for each of the {query.shape[0]} batch elements")
        left, right = window if isinstance(window, (tuple, list)) else (window, window)
        return (query, key, value, *map(_int32, lengths)), self.options_of(causal, left, right, softcap, scale)


class DecodeAttention(NativeKernel):
    """One query per sequence against a cache of keys and values."""

    op_id = "decode_attention"
    plain = staticmethod(_plain.decode_attention)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        query, key, value, lengths = arrays
        self.check_cache(query, key, value, lengths, query.ndim == 3 and query.shape[:1] == key.shape[:1])
        return (query, key, value, _int32(lengths)), self.options_of(*given)

    def check_cache(self, query: Any, key: Any, value: Any, lengths: Any, fits: bool) -> None:
        """Raises `ValueError` unless query, keys, values and lengths belong together."""
        fits = fits and query.ndim == 3 and key.ndim == 4 and tuple(key.shape) == tuple(value.shape)
        fits = fits and query.shape[2] == key.shape[3]
        fits = fits and (query.shape[1] % key.shape[2] == 0 if key.shape[2] else query.shape[1] == 0)
        needed = "query[batch, heads, dim], key and value [batch, positions, kv_heads, dim], heads a multiple of kv_heads"
        self.check(fits, (query, key, value), needed)
        fits = lengths is None or tuple(lengths.shape) == (query.shape[0],)
        self.check(fits, (lengths,), f"a length for each of the {query.shape[0]} sequences")


class PagedDecodeAttention(DecodeAttention):
    """The same where the cache is in pages, found through a block table."""

    op_id = "paged_decode_attention"
    plain = staticmethod(_plain.paged_decode_attention)

    def checked(self, arrays: Arrays, given: tuple[Any, ...]) -> tuple[Arrays, Options]:
        query, key, value, table, lengths = arrays
        self.check_cache(query, key, value, lengths, True)
        fits = lengths is not None and table.ndim == 2 and table.shape[0] == query.shape[0]
        self.check(fits, (table, lengths), "block_table[batch, pages] and lengths[batch]")
        return (query, key, value, _int32(table), _int32(lengths)), self.options_of(*given)
