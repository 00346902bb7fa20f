# SPDX-License-Identifier: Apache-2.0
"""A product of matrices in tiles, for GPUs and for TPUs; elsewhere XLA's own.

The tiles are what there is to choose: large ones read less, too large ones do not fit into the memory beside the
units that multiply. Which of them fit can be asked of a compiler, which is fastest only where the device is.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
from ejk.ops import Kernel
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton


@dataclasses.dataclass(frozen=True)
class Tile:
    """So many rows, columns and products of a sum are worked on at a time."""

    m: int
    n: int
    k: int


@dataclasses.dataclass(frozen=True)
class GpuTile(Tile):
    warps: int
    stages: int  # tiles that are loaded ahead, plus one


class TiledMatmul(Kernel):
    op_id, version = "tiled_matmul", "1"

    def run(self, a, b, *, cfg):
        return jnp.dot(a, b, preferred_element_type=jnp.float32).astype(a.dtype)

    def heuristic_cfg(self, inv):
        return Tile(128, 128, 128)  # where XLA decides by itself

    def custom_vjp(self, primals, cfg, kwargs, cotangents):
        (a, b), (dy,) = primals, cotangents
        return self(dy, b.T), self(a.T, dy)  # calls of their own, with configs of their own

    # ---- GPUs: a program has a tile of the result and walks along k --------------------------------

    def run_triton(self, a, b, *, cfg, interpret=False):
        a, b, cut = _in_tiles(a, b, cfg)
        (m, k), n = a.shape, b.shape[1]
        return cut(
            pl.pallas_call(
                functools.partial(_add_along_k, k=cfg.k),
                grid=(m // cfg.m, n // cfg.n),
                in_specs=[pl.BlockSpec((cfg.m, k), lambda i, j: (i, 0)), pl.BlockSpec((k, cfg.n), lambda i, j: (0, j))],
                out_specs=pl.BlockSpec((cfg.m, cfg.n), lambda i, j: (i, j)),
                out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
                compiler_params=triton.CompilerParams(num_warps=cfg.warps, num_stages=cfg.stages),
                interpret=interpret,
                name="tiled_matmul",
            )(a, b)
        )

    def heuristic_cfg_triton(self, inv):
        return GpuTile(128, 128, 64, warps=4, stages=4)

    def candidate_cfgs_triton(self, inv):
        tiles = ((64, 128, 4), (128, 128, 4), (128, 256, 8))
        return [GpuTile(m, n, k, w, s) for (m, n, w), k, s in itertools.product(tiles, (64, 128), (2, 4))]

    # ---- TPUs: the grid walks along k, VMEM keeps the sums ------------------------------------------

    def run_pallas(self, a, b, *, cfg, interpret=False):
        a, b, cut = _in_tiles(a, b, cfg)
        (m, k), n = a.shape, b.shape[1]
        return cut(
            pl.pallas_call(
                _add_tile,
                grid=(m // cfg.m, n // cfg.n, k // cfg.k),
                in_specs=[
                    pl.BlockSpec((cfg.m, cfg.k), lambda i, j, p: (i, p)),
                    pl.BlockSpec((cfg.k, cfg.n), lambda i, j, p: (p, j)),
                ],
                out_specs=pl.BlockSpec((cfg.m, cfg.n), lambda i, j, p: (i, j)),
                out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
                scratch_shapes=[pltpu.VMEM((cfg.m, cfg.n), jnp.float32)],
                compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
                interpret=interpret,
                name="tiled_matmul",
            )(a, b)
        )

    def heuristic_cfg_pallas(self, inv):
        return Tile(512, 512, 512)

    def candidate_cfgs_pallas(self, inv):
        return [Tile(m, n, k) for m, n, k in itertools.product((256, 512, 1024), (512, 1024), (512, 1024))]


def _add_along_k(a, b, out, *, k):
    def add(step, total):
        part = pl.ds(step * k, k)
        return total + jnp.dot(a[:, part], b[part, :], preferred_element_type=jnp.float32)

    out[...] = jax.lax.fori_loop(0, a.shape[1] // k, add, jnp.zeros(out.shape, jnp.float32)).astype(out.dtype)


def _add_tile(a, b, out, total):
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _begin():
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

    @pl.when(step == pl.num_programs(2) - 1)
    def _end():
        out[...] = total[...].astype(out.dtype)


def _in_tiles(a, b, tile):
    """Both with zeros at their ends, and what cuts the result to size."""
    m, n = a.shape[0], b.shape[1]
    return _filled(a, tile.m, tile.k), _filled(b, tile.k, tile.n), lambda out: out[:m, :n]


def _filled(x, rows, columns):
    return jnp.pad(x, [(0, -x.shape[0] % rows), (0, -x.shape[1] % columns)])
