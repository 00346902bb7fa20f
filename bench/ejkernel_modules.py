# SPDX-License-Identifier: Apache-2.0
"""Eager calls of ejkernel's own modules on our ops, over jax.jit of the same call. `make bench-python` runs it too.

The operations are those that ejkernel jits itself, in sizes of a small model. The sides begin in turn; each time is
wall time until the result is there, in a process that may use one core; a ratio is the median of the rounds' ratios.
"""

import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import vs_ejkernel

vs_ejkernel.enter_venv(__file__)
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before JAX makes its threads
caches = tempfile.TemporaryDirectory()  # before ejkernel opens them
os.environ.update(EJKERNEL_PERSISTENT_CACHE_DIR=caches.name, EJKERNEL_AUTOTUNE_POLICY="heuristics")
import ejk.under_ejkernel  # noqa: F401, I001  before ejkernel
import ejkernel.modules.operations as o
import jax
import jax.numpy as jnp
import numpy
from ejkernel.quantization import prepack_quantized_weights
from ejkernel.types import MaskInfo

ROUNDS, CALLS = 25, 20

_random = numpy.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(_random.standard_normal(shape, dtype=numpy.float32))


def ints(*values):
    return jnp.asarray(values, jnp.int32)


def attention_calls():
    q, k, v = (normal(1, 64, 4, 64) for _ in range(3))
    by_head = [x.swapaxes(1, 2) for x in (q, k, v)]
    mask, bias = jnp.tril(jnp.ones((1, 1, 64, 64), bool)), normal(1, 4, 64, 64)
    latent = normal(1, 64, 4, 32), normal(1, 64, 32), normal(32, 4, 32), normal(32, 4, 32)
    return {
        "flash_attention": (lambda *a: o.flash_attention(*a, causal=True), (q, k, v)),
        "flash_attention, mask": (
            lambda q, k, v, m: o.flash_attention(q, k, v, mask_info=MaskInfo(m)),
            (q, k, v, mask),
        ),
        "flash_attention, bias": (lambda *a: o.flash_attention(*a), (q, k, v, bias)),
        "attention": (lambda *a: o.attention(*a, causal=True, dtype=jnp.float32), (q, k, v)),
        "scaled_dot_product_attention": (lambda *a: o.scaled_dot_product_attention(*a, causal=True), (q, k, v)),
        "blocksparse_attention": (lambda *a: o.blocksparse_attention(*a), by_head),
        "ring_attention": (lambda *a: o.ring_attention(*a, causal=True), (q, k, v)),
        "flash_mla": (lambda *a: o.flash_mla(*a, causal=True), latent),
    }


def matrix_calls():
    groups = normal(128, 64), normal(4, 64, 128), ints(32, 0, 64, 32)
    logits, targets = normal(2, 32, 512), jnp.asarray(_random.integers(0, 512, (2, 32)), jnp.int32)
    packed = prepack_quantized_weights(normal(256, 256), mode="affine", axis="row")
    return {
        "grouped_matmul": (lambda *a: o.grouped_matmul(*a), groups),
        "grouped_matmul, v2": (lambda *a: o.grouped_matmul(*a, use_v2=True), groups),
        "grouped_matmul, v3": (lambda *a: o.grouped_matmul(*a, use_v3=True), groups),
        "quantized_matmul": (lambda *a: o.quantized_matmul(*a, axis="row"), (normal(16, 256), *packed)),
        "mean_pooling": (lambda x: o.mean_pooling(x), (normal(4, 128, 256),)),
        "fused_cross_entropy": (lambda *a: o.fused_cross_entropy(*a), (logits, targets)),
        "fused_kl_divergence": (lambda *a: o.fused_kl_divergence(*a), (logits, normal(2, 32, 512))),
    }


def paged_calls():
    pages, tables, lengths = (normal(8, 16, 4, 64), normal(8, 16, 4, 64)), ints(*range(8)).reshape(2, 4), ints(40, 60)
    tokens, starts = normal(16, 4, 64), ints(0, 6, 16)
    by_head = tuple(p.swapaxes(1, 2) for p in pages)
    return {
        "page_attention": (lambda *a: o.page_attention(*a), (normal(2, 4, 64), *by_head, lengths, tables)),
        "prefill_page_attention": (
            lambda *a: o.prefill_page_attention(*a),
            (normal(16, 4, 64), *(normal(4, 8, 16, 64) for _ in range(2)), ints(60), ints(0, 2, 4, 6)),
        ),
        "ragged_page_attention_v2": (
            lambda *a: o.ragged_page_attention_v2(*a, compute_dtype=jnp.float32),
            (tokens, normal(8, 16, 8, 64), lengths, tables, starts, ints(2)),
        ),
        "unified_attention": (lambda *a: o.unified_attention(*a), (tokens, *pages, lengths, tables, starts)),
        "decode_attention": (
            lambda *a: o.decode_attention(*a),
            (normal(2, 4, 64), normal(128, 4, 64), normal(128, 4, 64), ints(*range(128)).reshape(2, 64), ints(40, 60)),
        ),
    }


def caching_calls():
    """Those that give a changed cache back and take it again: (function of the cache, cache)."""
    tokens, new = normal(16, 4, 64), (normal(16, 4, 64), normal(16, 4, 64))
    packed = ints(40, 60), ints(*range(8)), ints(0, 6, 16), ints(0, 0, 2)
    latent = normal(16, 4, 64), normal(16, 4, 32), normal(16, 64), normal(16, 32)
    return {
        "ragged_page_attention_v3": (
            lambda cache: o.ragged_page_attention_v3(tokens, *new, cache, *packed),
            normal(8, 16, 8, 1, 128),
        ),
        "multi_latent_ragged_page_attention": (
            lambda cache: o.multi_latent_ragged_page_attention(*latent, cache, *packed, softmax_scale=0.1),
            normal(8, 16, 1, 256),
        ),
        "multi_latent_ragged_page_attention_v2": (
            lambda cache: o.multi_latent_ragged_page_attention_v2(*latent, cache, *packed, softmax_scale=0.1),
            normal(8, 16, 1, 256),
        ),
    }


def with_cache(function, cache):
    held = [cache + 0]  # a copy: the call may take it

    def call():
        out, held[0] = function(held[0])
        return out

    return call


def sides():
    """{name: (the eager call, the same jitted)}."""
    found = {}
    for name, (function, arrays) in (attention_calls() | matrix_calls() | paged_calls()).items():
        jitted = jax.jit(function)
        found[name] = (lambda f=function, a=arrays: f(*a)), (lambda f=jitted, a=arrays: f(*a))
    for name, (function, cache) in caching_calls().items():
        found[name] = with_cache(function, cache), with_cache(jax.jit(function), cache)
    return found


def seconds(call):
    begin = time.perf_counter()
    for _ in range(CALLS):
        jax.block_until_ready(call())
    return (time.perf_counter() - begin) / CALLS


def main():
    ratios = []
    for name, (eager, jitted) in sides().items():
        for call in (eager, jitted, eager, jitted):
            seconds(call)
        pairs = []
        for i in range(ROUNDS):
            first = seconds(jitted) if i % 2 else None
            pairs.append((seconds(eager), first or seconds(jitted)))
        ratios.append(statistics.median(a / b for a, b in pairs))
        times = [1e6 * statistics.median(side) for side in zip(*pairs)]
        print(f"{name} of ejkernel, eager: {times[0]:.0f} us, {ratios[-1]:.2f} of {times[1]:.0f} us jitted")
    print(json.dumps({"modules_over_jit": round(statistics.geometric_mean(ratios), 3), "modules": len(ratios)}))


if __name__ == "__main__":
    main()
