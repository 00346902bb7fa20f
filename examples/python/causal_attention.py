# SPDX-License-Identifier: Apache-2.0
"""Attention in which a query sees the keys up to its own, in blocks, for GPUs and for TPUs; elsewhere plain JAX.

No row of weights is ever whole: a block of queries goes along the blocks of keys and keeps, of the weights so far,
the largest exponent, their sum, and the weighted values. The blocks are what there is to choose.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
from ejk.ops import Kernel
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton


@dataclasses.dataclass(frozen=True)
class Blocks:
    """So many queries and keys are worked on at a time."""

    queries: int
    keys: int


@dataclasses.dataclass(frozen=True)
class GpuBlocks(Blocks):
    warps: int
    stages: int  # blocks of keys that are loaded ahead, plus one


class CausalAttention(Kernel):
    """Of q, k and v with axes head, position, feature."""

    op_id, version = "causal_attention", "1"

    def run(self, q, k, v, *, cfg):
        logits = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
        seen = jnp.tril(jnp.ones(logits.shape[1:], bool))
        weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1).astype(v.dtype)
        return jnp.einsum("hqk,hkd->hqd", weights, v, preferred_element_type=jnp.float32).astype(q.dtype)

    def heuristic_cfg(self, inv):
        return Blocks(128, 128)  # where XLA decides by itself

    # ---- GPUs: a program has a block of queries and walks along the keys ----------------------------

    def run_triton(self, q, k, v, *, cfg, interpret=False):
        q, k, v, cut = _in_blocks(q, k, v, cfg)
        heads, length, features = q.shape
        queries = pl.BlockSpec((None, cfg.queries, features), lambda h, i: (h, i, 0))
        keys = pl.BlockSpec((None, length, features), lambda h, i: (h, 0, 0))
        return cut(
            pl.pallas_call(
                functools.partial(_attend_along_keys, block=cfg.keys),
                grid=(heads, length // cfg.queries),
                in_specs=[queries, keys, keys],
                out_specs=queries,
                out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
                compiler_params=triton.CompilerParams(num_warps=cfg.warps, num_stages=cfg.stages),
                interpret=interpret,
                name="causal_attention",
            )(q, k, v)
        )

    def heuristic_cfg_triton(self, inv):
        return GpuBlocks(64, 64, warps=4, stages=2)

    def candidate_cfgs_triton(self, inv):
        blocks = itertools.product(((64, 4), (128, 8)), (64, 128), (2, 4))
        return [GpuBlocks(queries, keys, warps, stages) for (queries, warps), keys, stages in blocks]

    # ---- TPUs: the grid walks along the keys, VMEM keeps what was seen ------------------------------

    def run_pallas(self, q, k, v, *, cfg, interpret=False):
        q, k, v, cut = _in_blocks(q, k, v, cfg)
        heads, length, features = q.shape
        queries = pl.BlockSpec((None, cfg.queries, features), lambda h, i, j: (h, i, 0))
        keys = pl.BlockSpec((None, cfg.keys, features), lambda h, i, j: (h, j, 0))
        return cut(
            pl.pallas_call(
                _attend_to_block,
                grid=(heads, length // cfg.queries, length // cfg.keys),
                in_specs=[queries, keys, keys],
                out_specs=queries,
                out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
                scratch_shapes=[pltpu.VMEM((cfg.queries, width), jnp.float32) for width in (1, 1, features)],
                compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
                interpret=interpret,
                name="causal_attention",
            )(q, k, v)
        )

    def heuristic_cfg_pallas(self, inv):
        return Blocks(512, 512)

    def candidate_cfgs_pallas(self, inv):
        return [Blocks(*sizes) for sizes in itertools.product((256, 512, 2048), (256, 512, 1024))]


def _attend_along_keys(q, k, v, out, *, block):
    first = pl.program_id(1) * q.shape[0]
    queries = q[...]

    def attend(step, seen):
        part = pl.ds(step * block, block)
        return _attended(queries, k[part, :], v[part, :], first, step * block, seen)

    rows = q.shape[0]
    nothing = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1)), jnp.zeros(q.shape, jnp.float32)
    _, total, weighted = jax.lax.fori_loop(0, pl.cdiv(first + rows, block), attend, nothing)
    out[...] = (weighted / total).astype(out.dtype)


def _attend_to_block(q, k, v, out, top, total, weighted):
    step, last = pl.program_id(2), pl.num_programs(2) - 1
    first_query, first_key = pl.program_id(1) * q.shape[0], step * k.shape[0]

    @pl.when(step == 0)
    def _begin():
        top[...] = jnp.full_like(top, -jnp.inf)
        total[...] = jnp.zeros_like(total)
        weighted[...] = jnp.zeros_like(weighted)

    @pl.when(first_key < first_query + q.shape[0])
    def _attend():
        seen = top[...], total[...], weighted[...]
        top[...], total[...], weighted[...] = _attended(q[...], k[...], v[...], first_query, first_key, seen)

    @pl.when(step == last)
    def _end():
        out[...] = (weighted[...] / total[...]).astype(out.dtype)


def _attended(q, k, v, first_query, first_key, seen):
    """What was seen, with one more block of keys, of which each query sees at least one here or before."""
    top, total, weighted = seen
    logits = jnp.dot(q, k.T, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    rows = first_query + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0)
    columns = first_key + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    logits = jnp.where(columns <= rows, logits, -jnp.inf)
    higher = jnp.maximum(top, logits.max(axis=-1, keepdims=True))
    kept, weights = jnp.exp(top - higher), jnp.exp(logits - higher)
    values = jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return higher, kept * total + weights.sum(axis=-1, keepdims=True), kept * weighted + values


def _in_blocks(q, k, v, blocks):
    """All with zeros behind the last position, which no query sees, and what cuts the result to size."""
    length = q.shape[1]
    behind = -length % math.lcm(blocks.queries, blocks.keys)
    filled = [jnp.pad(x, [(0, 0), (0, behind), (0, 0)]) for x in (q, k, v)]
    return *filled, lambda out: out[:, :length]
