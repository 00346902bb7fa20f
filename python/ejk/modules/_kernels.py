# SPDX-License-Identifier: Apache-2.0
"""The C++ operations as kernels: the config is chosen while JAX traces, and goes along with the call."""

from __future__ import annotations

import inspect
import math

from ejk import _core
from ejk.modules import _ffi, _plain
from ejk.ops.core.kernel import Kernel


class NativeKernel(Kernel):
    """An operation of the C++ library. Configs are dicts; `help(ejk.modules)` lists the operations."""

    version = "1"

    def __init__(self) -> None:
        super().__init__(self.op_id)

    plain = None  # the same in plain JAX, with the arrays and options of `run`

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        if cls.plain is None:
            return
        _, *parameters = inspect.signature(cls.plain).parameters.values()
        arrays = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        cls._may_miss = [(place, p.name) for place, p in enumerate(arrays) if p.default is None]
        cls._options = [(p.name, _READ[p.annotation], p.default) for p in parameters[len(arrays) :]]

    def checked(self, arrays, given):
        """What a function of ejk.modules was given, in order, as (arrays, options) of `run`. Raises ValueError."""
        raise NotImplementedError

    def options_of(self, *values):
        """The options of `run`, all of them, in order."""
        return {name: read(value) for (name, read, _), value in zip(self._options, values, strict=True)}

    def native(self, *args, **kwargs):
        """(shapes, options): the shapes in which C++ takes the arrays that are there, and the options, among them
        whether arrays that may be missing are there."""
        options = self.options_of(*(kwargs.pop(name, default) for name, _, default in self._options))
        if kwargs:
            raise TypeError(
                f"[{self.op_id}] {', '.join(kwargs)} was given by name: arrays go by place, and options are "
                + ", ".join(options)
            )
        if options.get("result", "") is None:
            options["result"] = _dtype_name(args[0])
        there = {name: place < len(args) and args[place] is not None for place, name in self._may_miss}
        return self.shapes(args_there(args), options), options | there

    def shapes(self, arrays, options):
        return [a.shape for a in arrays]

    def run(self, *args, cfg, **kwargs):
        return self.forward(args, kwargs, cfg)[0]

    def heuristic_cfg(self, inv):
        return _core.op_heuristic(self.op_id, *self._described(inv))

    def candidate_cfgs(self, inv):
        return _core.op_candidates(self.op_id, *self._described(inv), self.tunes_backward)

    def is_valid(self, cfg, inv) -> bool:
        return _core.op_is_valid(self.op_id, cfg, *self._described(inv))

    tunes_backward = False

    def _described(self, inv):
        shapes, options = self.native(*inv.args, **inv.kwargs)
        return [(a.dtype.name, list(shape)) for a, shape in zip(args_there(inv.args), shapes)], options

    def check(self, fits: bool, arrays, needed: str) -> None:
        if not fits:
            given = ", ".join(
                "None" if a is None else f"{_dtype_name(a)}{list(a.shape)}" for a in arrays
            )
            raise ValueError(f"[{self.op_id}] {given} was given: {needed} is needed")

    # -- how --

    def results(self, args, kwargs, shapes, residuals: bool):
        """(shape, dtype) of what C++ writes: the output and, with residuals, what the gradient needs."""
        raise NotImplementedError

    def output_shape(self, args, kwargs, shape):
        return args[0].shape

    def forward(self, args, kwargs, cfg, residuals: bool = False):
        shapes, options = self.native(*args, **kwargs)
        arrays = [a.reshape(shape) for a, shape in zip(args_there(args), shapes)]
        results = self.results(args, kwargs, shapes, residuals)
        out, *rest = _ffi.call(self.op_id, arrays, options, cfg, results)
        return out.reshape(self.output_shape(args, kwargs, out.shape)), *rest

    def backward(self, args, kwargs, cfg, wanted: int, more):
        """Gradients of the first `wanted` arguments, None for those that are not there."""
        shapes, options = self.native(*args, **kwargs)
        arrays = [a.reshape(shape) for a, shape in zip(args_there(args), shapes)]
        results = [(shape, a.dtype) for a, shape in zip(args_there(args[:wanted]), shapes)]
        found = iter(_ffi.call(self.op_id, [*arrays, *more], options, cfg, results, pull=True))
        gradients = [None if a is None else next(found).reshape(a.shape) for a in args[:wanted]]
        return (*gradients, *(None for _ in args[wanted:]))


def args_there(args):
    return [a for a in args if a is not None]


def _dtype_name(array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _rows(x):
    return math.prod(x.shape[:-1]), x.shape[-1]


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


_READ = {"bool": bool, "float": float, "int | None": _whole, "float | None": _real, "str | None": _named}


class _OverRows(NativeKernel):
    """Over the last axis of the first array."""

    def shapes(self, arrays, options):
        return [_rows(arrays[0]), *(a.shape for a in arrays[1:])]


class Softmax(_OverRows):
    """softmax(scale x) over the last axis."""

    op_id = "softmax"
    plain = staticmethod(_plain.softmax)

    def checked(self, arrays, given):
        self.check(arrays[0].ndim >= 1, arrays, "x with at least one axis")
        return arrays, self.options_of(*given)

    def results(self, args, kwargs, shapes, residuals):
        return [(shapes[0], args[0].dtype)]

    def fwd_with_residuals(self, *args, cfg, **kwargs):
        return self.forward(args, kwargs, cfg)[0], ()

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        shapes, options = self.native(*args, **kwargs)
        arrays = [y.reshape(shapes[0]), dy.reshape(shapes[0])]
        (dx,) = _ffi.call(self.op_id, arrays, options, cfg, [(shapes[0], y.dtype)], pull=True)
        return (dx.reshape(y.shape),)


class RmsNorm(_OverRows):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""

    op_id = "rms_norm"
    plain = staticmethod(_plain.rms_norm)

    def checked(self, arrays, given):
        x, weight = arrays
        self.check(x.ndim >= 1 and _is_line(weight, x), arrays, "x[..., n] and weight[n]")
        return arrays, self.options_of(*given)

    def results(self, args, kwargs, shapes, residuals):
        return [(shapes[0], args[0].dtype)] + ([((shapes[0][0],), "float32")] if residuals else [])

    def fwd_with_residuals(self, *args, cfg, **kwargs):
        out, scales = self.forward(args, kwargs, cfg, residuals=True)
        return out, scales

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        return self.backward(args, kwargs, cfg, 2, [residuals, dy.reshape(_rows(y))])


class LayerNorm(_OverRows):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis."""

    op_id = "layer_norm"
    plain = staticmethod(_plain.layer_norm)

    def checked(self, arrays, given):
        x, weight, bias = arrays
        fits = x.ndim >= 1 and _is_line(weight, x) and _is_line(bias, x)
        self.check(fits, arrays, "x[..., n], weight[n] and bias[n]")
        return arrays, self.options_of(*given)

    def results(self, args, kwargs, shapes, residuals):
        return [(shapes[0], args[0].dtype)] + ([((shapes[0][0], 3), "float32")] if residuals else [])

    def fwd_with_residuals(self, *args, cfg, **kwargs):
        out, moments = self.forward(args, kwargs, cfg, residuals=True)
        return out, moments

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        return self.backward(args, kwargs, cfg, 3, [residuals, dy.reshape(_rows(y))])


class Matmul(NativeKernel):
    """a b + bias. a and b are [..., m, k] and [..., k, n], with the same leading axes or none in b."""

    op_id = "matmul"
    plain = staticmethod(_plain.matmul)

    def checked(self, arrays, given):
        a, b, bias = arrays
        transpose_a, transpose_b, _ = given
        fits = a.ndim >= 2 and b.ndim >= 2 and (b.ndim == 2 or a.shape[:-2] == b.shape[:-2])
        fits = fits and a.shape[-2 if transpose_a else -1] == b.shape[-1 if transpose_b else -2]
        fits = fits and (bias is None or tuple(bias.shape) == (b.shape[-2 if transpose_b else -1],))
        needed = "a[..., m, k], b[k, n] or b[..., k, n] with the leading axes of a, and bias[n]"
        self.check(fits, arrays, needed)
        return arrays, self.options_of(*given)

    def shapes(self, arrays, options):
        a, b, *bias = arrays
        lead = math.prod(a.shape[:-2])
        if b.ndim == 2 and not options["transpose_a"]:  # one product with more rows
            shape_a = (1, lead * a.shape[-2], a.shape[-1])
        else:
            shape_a = (lead, *a.shape[-2:])
        return [shape_a, (math.prod(b.shape[:-2]), *b.shape[-2:]), *(c.shape for c in bias)]

    def results(self, args, kwargs, shapes, residuals):
        options = self.native(*args, **kwargs)[1]
        a, b = shapes[:2]
        m = a[2] if options["transpose_a"] else a[1]
        n = b[1] if options["transpose_b"] else b[2]
        return [((max(a[0], b[0]) if a[0] and b[0] else 0, m, n), options["result"])]

    def output_shape(self, args, kwargs, shape):
        a, b = args[:2]
        rows = a.shape[-1] if kwargs.get("transpose_a") else a.shape[-2]
        lead = a.shape[:-2] if a.ndim >= b.ndim else b.shape[:-2]
        return (*lead, rows, shape[-1])

    def fwd_with_residuals(self, *args, cfg, **kwargs):
        return self.forward(args, kwargs, cfg)[0], ()

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        shapes, _ = self.native(*args, **kwargs)
        shape = self.results(args, kwargs, shapes, False)[0][0]
        return self.backward(args, kwargs, cfg, 3, [dy.reshape(shape)])


class GroupedMatmul(NativeKernel):
    """Rows that are sorted by group, each group with a matrix of its own."""

    op_id = "grouped_matmul"
    plain = staticmethod(_plain.grouped_matmul)

    def checked(self, arrays, given):
        a, b, group_sizes = arrays
        fits = a.ndim == 2 and b.ndim == 3 and group_sizes.ndim == 1
        fits = fits and a.shape[1] == b.shape[1] and group_sizes.shape[0] == b.shape[0]
        self.check(fits, arrays, "a[rows, k], b[groups, k, n] and group_sizes[groups]")
        return (a, b, _int32(group_sizes)), self.options_of(*given)

    def results(self, args, kwargs, shapes, residuals):
        return [((shapes[0][0], shapes[1][2]), kwargs.get("result") or args[0].dtype)]

    def output_shape(self, args, kwargs, shape):
        return shape

    def fwd_with_residuals(self, *args, cfg, **kwargs):
        return self.forward(args, kwargs, cfg)[0], ()

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        return self.backward(args, kwargs, cfg, 2, [dy])


class FlashAttention(NativeKernel):
    """softmax(scale q k^T) v, in blocks; [batch, sequence, heads, dim] as in JAX."""

    op_id = "flash_attention"
    plain = staticmethod(_plain.flash_attention)

    def checked(self, arrays, given):
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

    def results(self, args, kwargs, shapes, residuals):
        batch, queries, heads, _ = shapes[0]
        return [(shapes[0], args[0].dtype)] + ([((batch, heads, queries), "float32")] if residuals else [])

    def fwd_with_residuals(self, *args, cfg, **kwargs):
        out, lse = self.forward(args, kwargs, cfg, residuals=True)
        return out, lse

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        return self.backward(args, kwargs, cfg, 3, [y, residuals, dy])


class DecodeAttention(NativeKernel):
    """One query per sequence against a cache of keys and values."""

    op_id = "decode_attention"
    plain = staticmethod(_plain.decode_attention)

    def checked(self, arrays, given):
        query, key, value, lengths = arrays
        self.check_cache(query, key, value, lengths, query.ndim == 3 and query.shape[:1] == key.shape[:1])
        return (query, key, value, _int32(lengths)), self.options_of(*given)

    def check_cache(self, query, key, value, lengths, fits):
        fits = fits and query.ndim == 3 and key.ndim == 4 and tuple(key.shape) == tuple(value.shape)
        fits = fits and query.shape[2] == key.shape[3]
        fits = fits and (query.shape[1] % key.shape[2] == 0 if key.shape[2] else query.shape[1] == 0)
        needed = "query[batch, heads, dim], key and value [batch, positions, kv_heads, dim], heads a multiple of kv_heads"
        self.check(fits, (query, key, value), needed)
        fits = lengths is None or tuple(lengths.shape) == (query.shape[0],)
        self.check(fits, (lengths,), f"a length for each of the {query.shape[0]} sequences")

    def results(self, args, kwargs, shapes, residuals):
        return [(shapes[0], args[0].dtype)]

    def fwd_with_residuals(self, *args, cfg, **kwargs):
        return self.forward(args, kwargs, cfg)[0], ()

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        return self.backward(args, kwargs, cfg, 3, [dy])


class PagedDecodeAttention(DecodeAttention):
    """The same where the cache is in pages, found through a block table."""

    op_id = "paged_decode_attention"
    plain = staticmethod(_plain.paged_decode_attention)

    def checked(self, arrays, given):
        query, key, value, table, lengths = arrays
        self.check_cache(query, key, value, lengths, True)
        fits = lengths is not None and table.ndim == 2 and table.shape[0] == query.shape[0]
        self.check(fits, (table, lengths), "block_table[batch, pages] and lengths[batch]")
        return (query, key, value, _int32(table), _int32(lengths)), self.options_of(*given)
