# SPDX-License-Identifier: Apache-2.0
"""Operations of an installed ejkernel, each with small arguments: what they give goes to a file.

`python ejkernel_operations.py FILE` runs every case as it is, jitted and differentiated, on the first device or, if its
name says so, on a mesh of four, and pickles {"case/way": arrays or the error's text}. Which `ops` run them is up to the
environment (EJK_UNDER_EJKERNEL).
"""

import pickle
import re
import sys
from typing import NamedTuple

import ejkernel.modules.operations as o
import jax
import jax.numpy as jnp
import numpy
from ejkernel.quantization import prepack_quantized_weights
from ejkernel.types import MaskInfo
from jax.sharding import PartitionSpec as P

WAYS = ("eager", "jit", "grad")


class Case(NamedTuple):
    call: object
    arrays: tuple
    ways: tuple = WAYS


_random = numpy.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(_random.standard_normal(shape, dtype=numpy.float32))


def shares(*shape):
    return jnp.asarray(_random.random(shape, dtype=numpy.float32))


def ints(*values):
    return jnp.asarray(values, jnp.int32)


def dense(batch=1, length=8, heads=2, kv_heads=2, width=16):
    return (
        normal(batch, length, heads, width),
        normal(batch, length, kv_heads, width),
        normal(batch, length, kv_heads, width),
    )


def attention_cases():
    q, k, v = dense()
    q4, k2, v2 = dense(heads=4)
    by_head = [x.swapaxes(1, 2) for x in dense(length=16)]
    mask = jnp.tril(jnp.ones((1, 1, 8, 8), bool))
    rope = dict(softmax_scale=0.2, causal=True)
    latent = (
        normal(1, 8, 2, 16),
        normal(1, 8, 12),
        normal(12, 2, 16),
        normal(12, 2, 16),
        normal(1, 8, 8),
        normal(1, 8, 8),
    )
    index = (normal(1, 8, 2, 8), normal(1, 8, 8), normal(1, 8, 2))
    return {
        "flash_attention": Case(lambda *a: o.flash_attention(*a, causal=True), (q, k, v)),
        "flash_attention, grouped heads, cap": Case(
            lambda *a: o.flash_attention(*a, logits_soft_cap=5.0, sliding_window=(3, 0)), (q4, k2, v2)
        ),
        "flash_attention, mask": Case(
            lambda q, k, v, m: o.flash_attention(q, k, v, mask_info=MaskInfo(m)), (q, k, v, mask)
        ),
        "flash_attention, config": Case(
            lambda *a: o.flash_attention(*a, cfg=o.FlashAttentionConfig(platform="xla", backend="any")), (q, k, v)
        ),
        "attention": Case(lambda *a: o.attention(*a, causal=True, dtype=jnp.float32), (q, k, v)),
        "attention, bias of a function": Case(
            lambda q, k, v, b: o.attention(q, k, v, init_bias=lambda: b, dtype=jnp.float32),
            (q, k, v, normal(1, 2, 8, 8)),
        ),
        "scaled_dot_product_attention": Case(
            lambda *a: o.scaled_dot_product_attention(*a, causal=True, softmax_scale=0.3), (q, k, v)
        ),
        "blocksparse_attention": Case(lambda *a: o.blocksparse_attention(*a), tuple(by_head)),
        "ring_attention": Case(lambda *a: o.ring_attention(*a, causal=True), (q, k, v)),
        "flash_mla": Case(lambda *a: o.flash_mla(*a, causal=True), latent),
        "deepseek_attn": Case(lambda *a: o.deepseek_attn(*a, index_topk=4, **rope), (*latent[:4], *index, *latent[4:])),
        "native_sparse_attention": Case(
            lambda q, k, v, i: o.native_sparse_attention(q, k, v, None, None, i, 2),
            (*dense(length=64, heads=16, kv_heads=1), jnp.zeros((1, 64, 1, 2), jnp.int32)),
        ),
        "fails: flash_attention of another width": Case(lambda *a: o.flash_attention(*a), (q, normal(1, 8, 2, 8), v)),
        "fails: flash_attention on no such platform": Case(
            lambda *a: o.flash_attention(*a, platform="abacus"), (q, k, v)
        ),
        "fails: flash_attention without values": Case(lambda *a: o.flash_attention(*a), (q, k)),
    }


def recurrent_cases():
    q, k, v = dense(length=16)
    beta, decay = shares(1, 16, 2), -shares(1, 16, 2)
    state = normal(1, 2, 16, 16)
    tokens = [x[0] for x in (q, k, v)]
    flat = (normal(1, 8, 16), normal(1, 8, 16))
    return {
        "gla_attention": Case(lambda *a: o.gla_attention(*a), (q, k, v, -shares(1, 16, 2, 16))),
        "recurrent_attention": Case(lambda *a: o.recurrent_attention(*a), (q, k, v, -shares(1, 16, 2, 16))),
        "recurrent_attention, state": Case(
            lambda q, k, v, s: o.recurrent_attention(q, k, v, None, None, None, None, s, return_state=True),
            (q, k, v, state),
        ),
        "lightning_attention": Case(lambda *a: o.lightning_attention(*a, layer_idx=0, num_layers=2), (q, k, v)),
        "gated_delta_rule": Case(lambda *a: o.gated_delta_rule(*a), (q, k, v, beta, decay)),
        "gated_delta_rule, config": Case(
            lambda *a: o.gated_delta_rule(*a, cfg=o.GatedDeltaRuleConfig(chunk_size=8)), (q, k, v, beta, decay)
        ),
        "kernel_delta_attention": Case(
            lambda *a: o.kernel_delta_attention(*a, chunk_size=8, return_state=True), (q, k, v, beta, decay)
        ),
        "ragged_gated_delta_rule": Case(
            lambda *a: o.ragged_gated_delta_rule(*a),
            (*tokens, beta[0], decay[0], normal(3, 2, 16, 16), ints(0, 6, 16), ints(2, 0)),
        ),
        "state_space_v1": Case(
            lambda *a: o.state_space_v1(*a, act_fn=jax.nn.silu),
            (*flat[:1], -shares(16, 4), normal(1, 8, 4), normal(1, 8, 4), normal(16), shares(1, 8, 16), flat[1]),
        ),
        "state_space_v2": Case(
            lambda *a: o.state_space_v2(*a, n_groups=1),
            (normal(1, 8, 2, 8), -shares(2), normal(1, 8, 1, 4), normal(1, 8, 1, 4), normal(2), shares(1, 8, 2)),
        ),
        "rwkv4": Case(lambda *a: o.rwkv4(*a, return_state=True), (normal(16), normal(16), *flat)),
        "rwkv6": Case(lambda *a: o.rwkv6(*a), (*dense(), -shares(1, 8, 2, 16), normal(2, 16))),
        "rwkv7": Case(
            lambda *a: o.rwkv7(*a), (q, -shares(1, 16, 2, 16), k, v, -shares(1, 16, 2, 16), shares(1, 16, 2, 16))
        ),
        "rwkv7_mul": Case(
            lambda *a: o.rwkv7_mul(*a), (q, -shares(1, 16, 2, 16), k, v, shares(1, 16, 2, 16), shares(1, 16, 2, 16))
        ),
        "fails: rwkv6 without u": Case(lambda *a: o.rwkv6(*a), (*dense(), -shares(1, 8, 2, 16))),
    }


def matrix_cases():
    logits, targets = normal(2, 8, 32), jnp.asarray(_random.integers(0, 32, (2, 8)), jnp.int32)
    groups = (normal(12, 8), normal(3, 8, 16), ints(4, 0, 8))
    packed = prepack_quantized_weights(normal(64, 32), mode="affine", axis="row")
    return {
        "grouped_matmul": Case(lambda *a: o.grouped_matmul(*a), groups),
        "grouped_matmul, v2": Case(lambda *a: o.grouped_matmul(*a, use_v2=True), groups),
        "grouped_matmul, v3, transposed": Case(
            lambda x, y, n: o.grouped_matmul(x, y.swapaxes(1, 2), n, transpose_rhs=True, use_v3=True), groups
        ),
        # Not its gradient: the original's differs from process to process, by 3e-4 in one of six.
        "quantized_matmul": Case(lambda x: o.quantized_matmul(x, *packed, axis="row"), (normal(4, 32),), WAYS[:2]),
        "mean_pooling": Case(lambda x: o.mean_pooling(x), (normal(2, 32, 16),)),
        "mean_pooling, lengths": Case(lambda x, n: o.mean_pooling(x, n), (normal(32, 16), ints(0, 10, 32))),
        "fused_cross_entropy": Case(lambda x, t: o.fused_cross_entropy(x, t, label_smoothing=0.1), (logits, targets)),
        "fused_cross_entropy, head": Case(
            lambda h, w, t: o.fused_cross_entropy(targets=t, hidden=h, lm_head_fn=lambda x: x @ w, chunk_size=4),
            (normal(2, 8, 16), normal(16, 32), targets),
        ),
        "fused_kl_divergence": Case(lambda *a: o.fused_kl_divergence(*a, temperature=2.0), (logits, normal(2, 8, 32))),
        "fails: grouped_matmul of another width": Case(lambda *a: o.grouped_matmul(*a), (normal(12, 4), *groups[1:])),
        "fails: grouped_matmul of a misspelt argument": Case(lambda *a: o.grouped_matmul(*a, transposed=True), groups),
    }


def paged_cases():
    """Caches and tables of pages: without gradients."""
    blocks, tables, lengths = (
        (normal(6, 4, 2, 16), normal(6, 4, 2, 16)),
        jnp.arange(6, dtype=jnp.int32).reshape(2, 3),
        ints(5, 9),
    )
    tokens, starts = dense(length=5)[0][0], ints(0, 2, 5)
    new = (normal(5, 2, 16), normal(5, 2, 16))
    by_head = tuple(b.swapaxes(1, 2) for b in blocks)
    packed = (lengths, tables.reshape(-1), starts, ints(0, 0, 2))
    forward = WAYS[:2]
    return {
        "page_attention": Case(lambda *a: o.page_attention(*a), (normal(2, 2, 16), *by_head, lengths, tables), forward),
        "prefill_page_attention": Case(
            lambda *a: o.prefill_page_attention(*a),
            (normal(4, 2, 16), normal(2, 6, 4, 16), normal(2, 6, 4, 16), ints(9), ints(0, 2, 4)),
            forward,
        ),
        "ragged_page_attention_v2": Case(
            lambda *a: o.ragged_page_attention_v2(*a, ints(2), compute_dtype=jnp.float32),
            (tokens, normal(6, 4, 4, 16), lengths, tables, starts),
            forward,
        ),
        "ragged_page_attention_v3": Case(
            lambda q, k, v, cache, *a: o.ragged_page_attention_v3(q, k, v, cache + 0, *a),
            (tokens, *new, normal(6, 4, 4, 1, 128), *packed),
            forward,
        ),
        "unified_attention": Case(
            lambda *a: o.unified_attention(*a), (tokens, *blocks, lengths, tables, starts), forward
        ),
        "decode_attention": Case(
            lambda *a: o.decode_attention(*a, num_kv_splits=2),
            (
                normal(2, 2, 16),
                normal(12, 2, 16),
                normal(12, 2, 16),
                jnp.arange(12, dtype=jnp.int32).reshape(2, 6),
                ints(5, 6),
            ),
            forward,
        ),
        "chunked_prefill_paged_decode": Case(
            lambda *a: o.chunked_prefill_paged_decode(*a), (tokens, *new, *blocks, lengths, tables, starts), forward
        ),
        "ragged_decode_attention": Case(
            lambda *a: o.ragged_decode_attention(*a),
            (normal(2, 2, 16), normal(2, 8, 2, 16), normal(2, 8, 2, 16), ints(0, 1), ints(5, 8)),
            forward,
        ),
        "multi_latent_ragged_page_attention": Case(
            lambda q, p, k, e, cache, *a: o.multi_latent_ragged_page_attention(
                q, p, k, e, cache + 0, *a, softmax_scale=0.2
            ),
            (normal(5, 2, 16), normal(5, 2, 8), normal(5, 16), normal(5, 8), normal(6, 4, 1, 256), *packed),
            forward,
        ),
        "multi_latent_ragged_page_attention_v2": Case(
            lambda q, p, k, e, cache, *a: o.multi_latent_ragged_page_attention_v2(
                q, p, k, e, cache + 0, *a, softmax_scale=0.2
            ),
            (normal(5, 2, 16), normal(5, 2, 8), normal(5, 16), normal(5, 8), normal(6, 4, 1, 256), *packed),
            forward,
        ),
    }


def mesh_cases():
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("x",))
    batch, columns = P("x"), P(None, "x")
    four = dense(batch=4)
    by_head = tuple(x.swapaxes(1, 2) for x in dense(batch=4, length=16))
    logits, targets = normal(4, 8, 32), jnp.asarray(_random.integers(0, 32, (4, 8)), jnp.int32)

    def over(*specs, to, none=0):
        return dict(mesh=mesh, in_specs=specs + (None,) * none, out_specs=to)

    return {
        "mesh: flash_attention": Case(
            lambda *a: o.flash_attention(*a, causal=True, **over(*[batch] * 3, to=batch, none=4)), four
        ),
        "mesh: scaled_dot_product_attention": Case(
            lambda *a: o.scaled_dot_product_attention(*a, causal=True, **over(*[batch] * 3, to=batch, none=3)), four
        ),
        "mesh: blocksparse_attention": Case(
            lambda *a: o.blocksparse_attention(*a, **over(*[batch] * 3, to=batch, none=2)), by_head, WAYS[1:]
        ),
        "mesh: ring_attention": Case(
            lambda *a: o.ring_attention(*a, axis_name="x", **over(*[columns] * 3, to=columns, none=2)), dense(length=16)
        ),
        "mesh: all_gather_matmul": Case(
            lambda *a: o.all_gather_matmul(*a, "x", mesh=mesh), (normal(16, 8), normal(8, 16))
        ),
        "mesh: reduce_scatter_matmul": Case(
            lambda *a: o.reduce_scatter_matmul(*a, "x", mesh=mesh), (normal(16, 32), normal(8, 32))
        ),
        "mesh: grouped_matmul": Case(
            lambda *a: o.grouped_matmul(*a, **over(P(), P(None, None, "x"), P(), to=columns)),
            (normal(12, 8), normal(3, 8, 16), ints(4, 0, 8)),
        ),
        "mesh: decode_attention": Case(
            lambda *a: o.decode_attention(
                *a, **over(P(None, "x"), P(None, "x"), P(None, "x"), P(), P(), to=(columns, columns))
            ),
            (
                normal(2, 4, 16),
                normal(12, 4, 16),
                normal(12, 4, 16),
                jnp.arange(12, dtype=jnp.int32).reshape(2, 6),
                ints(5, 6),
            ),
            WAYS[:2],
        ),
        "mesh: fused_cross_entropy": Case(
            lambda *a: o.fused_cross_entropy(*a, **over(P("x", None, None), to=P())), (logits, targets), WAYS[1:]
        ),
        "fails: mesh: all_gather_matmul of another size": Case(
            lambda *a: o.all_gather_matmul(*a, "x", mesh=mesh, tp_size=3), (normal(16, 8), normal(8, 16))
        ),
    }


def scaled(x):
    """At most 1: the sine of large numbers makes much of how they were rounded."""
    return x / jax.lax.stop_gradient(jnp.maximum(jnp.abs(x).max(initial=0), 1))


def ran(case, way):
    """The arrays that come out of it."""
    if way == "grad":
        places = [i for i, a in enumerate(case.arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]

        def total(*arrays):
            leaves = jax.tree.leaves(case.call(*arrays))
            return sum(jnp.sin(scaled(x)).sum() for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact))

        out = jax.grad(total, places)(*case.arrays)
    elif way == "jit":
        out = jax.jit(case.call)(*case.arrays)
    else:
        if "ejk.ops" in sys.modules:  # the second call is warm
            case.call(*case.arrays)
        out = case.call(*case.arrays)
    return [numpy.asarray(x) for x in jax.tree.leaves(out)]


def told(error) -> str:
    """An error without what differs from run to run."""
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {re.sub(r'0x[0-9a-f]+', '0x', first_line)}"


def outcomes(cases):
    for name, case in cases.items():
        for way in case.ways:
            try:
                yield f"{name}/{way}", ran(case, way)
            except Exception as error:
                yield f"{name}/{way}", told(error)


def all_cases():
    found = {}
    for family in (attention_cases, recurrent_cases, matrix_cases, paged_cases, mesh_cases):
        found |= family()
    return found


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        pickle.dump(dict(outcomes(all_cases())), file)
