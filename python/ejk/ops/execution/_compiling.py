# SPDX-License-Identifier: Apache-2.0
"""Which configs a device's compiler takes, without running them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ejk import _jax, _sites
from ejk.ops.core._call import KernelCall
from ejk.ops.core._function import Given, function_of, site_of_call
from ejk.ops.core._lowering import lowered_for
from ejk.ops.core._mesh import over_mesh_of
from ejk.ops.core.kernel import Invocation
from ejk.ops.execution.executor import _prepared


@dataclass(frozen=True)
class CompiledCandidate:
    """What a compiler said to one config."""

    cfg: Any  #: the config that was compiled
    fits: bool  #: whether the compiler accepts it
    why: str = ""
    """The compiler's own words, if it does not."""
    needed: int | None = None
    """Bytes of fast memory (shared memory, VMEM) that it needs, if it needs more than the device has."""
    limit: int | None = None
    """Bytes of fast memory that the device has; set if `needed` is."""
    seconds: float = 0.0
    """Lowering and compiling took so long."""


def compile_candidates(
    kernel: Any, /, *args: Any, configs: Iterable[Any] | None = None, **kwargs: Any
) -> list[CompiledCandidate]:
    """Compiles a call with each of the kernel's candidates, or of `configs`, and runs none.

    For the device of the scope `for_device`, which need not be here. Arrays may be jax.ShapeDtypeStruct. Raises
    RuntimeError if there is no compiler for it.
    """
    args, kwargs = _prepared(kernel, args, kwargs)
    return list(compile_each(Invocation(kernel=kernel, args=args, kwargs=kwargs), configs))


def compile_each(inv: Invocation[Any, Any], configs: Iterable[Any] | None = None) -> Iterator[CompiledCandidate]:
    """The same, one after the other."""
    call = KernelCall(inv.kernel, inv, site_of_call(inv))
    expect_compiler(inv.op_id, call.site)
    form = Given(_hollow(inv.args), _hollow(dict(inv.kwargs)))
    for config in candidates_of(call) if configs is None else configs:
        begin = time.perf_counter()
        why = _why_not(call, form, config)
        yield CompiledCandidate(config, not why, why, *_bytes_in(why), seconds=time.perf_counter() - begin)


def expect_compiler(who: str, site: _sites.Site) -> None:
    if site.device is None:
        raise RuntimeError(
            f"[{who}] got {site.name}, of which no compiler is here; expected a model, or a device of JAX; pass one, as "
            '"H100"'
        )


def candidates_of(call: KernelCall) -> list[Any]:
    with _sites.running_at(call.site):
        found = call.candidate_cfgs()
        return found if found is not None else [config for config in call.heuristic_cfg() or ()]


def _why_not(call: KernelCall, form: Given, config: Any) -> str:
    """Empty if it compiles."""
    mesh = over_mesh_of(call.inv)
    try:
        with _sites.running_at(call.site):
            if not call.is_valid(config):
                return "is_valid refuses it"
            function = function_of(call.kernel, form, call.fit(config), call.site, call.method, mesh=mesh)
            lowered_for(call.site, function, form.arrays, over_mesh=mesh is not None).compile()
    except Exception as error:  # of the kernel, of JAX or of a compiler: this config cannot run
        return str(error).strip() or type(error).__name__
    return ""


def _hollow(tree: Any) -> Any:
    """With arrays that take no memory in place of those that have only a type and a shape."""
    jax = _jax.required()
    import numpy

    def leaf(x: Any) -> Any:
        return numpy.broadcast_to(numpy.zeros((), x.dtype), x.shape) if isinstance(x, jax.ShapeDtypeStruct) else x

    return jax.tree_util.tree_map(leaf, tree)


_SIZE = r"([\d.]+)([KMG]?)"
_SAID = [  # by Triton's compiler, by Mosaic's for GPUs, by that of Pallas and by XLA's for TPUs
    re.compile(rf"[Ss]hared memory size limit exceeded: requested {_SIZE}, available: {_SIZE}"),
    re.compile(rf"smem_bytes={_SIZE} > max_smem_bytes={_SIZE}"),
    re.compile(rf"size {_SIZE} and limit {_SIZE} exceeded scoped vmem limit"),
    re.compile(rf"Used {_SIZE} of {_SIZE} vmem"),
]
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _bytes_in(why: str) -> tuple[int | None, int | None]:
    """How much memory a compiler says that is needed, and there is."""
    for words in _SAID:
        if found := words.search(why):
            needed, unit, limit, unit_of_limit = found.groups()
            return round(float(needed) * _UNITS[unit]), round(float(limit) * _UNITS[unit_of_limit])
    return None, None


__all__ = ["CompiledCandidate", "compile_candidates"]
