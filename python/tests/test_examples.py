# SPDX-License-Identifier: Apache-2.0
"""The kernels of examples/python: what they compute for GPUs and TPUs, interpreted on the CPU, and what they lower to.

`./test devices` compiles them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from causal_attention import Blocks, CausalAttention, GpuBlocks
from ejk.ops import for_device
from kernels import without_tuning
from tiled_matmul import GpuTile, Tile, TiledMatmul

MATMUL, ATTENTION = [(20, 40), (40, 24)], [(2, 40, 8)] * 3
CASES = [
    # blocks that divide the arrays, that do not, and one that is larger than they are
    (TiledMatmul(), "run_triton", GpuTile(4, 8, 8, warps=4, stages=2), MATMUL),
    (TiledMatmul(), "run_triton", GpuTile(16, 16, 16, warps=4, stages=2), MATMUL),
    (TiledMatmul(), "run_triton", GpuTile(64, 64, 64, warps=4, stages=2), MATMUL),
    (TiledMatmul(), "run_pallas", Tile(4, 8, 8), MATMUL),
    (TiledMatmul(), "run_pallas", Tile(16, 16, 16), MATMUL),
    (TiledMatmul(), "run_pallas", Tile(64, 64, 64), MATMUL),
    (CausalAttention(), "run_triton", GpuBlocks(16, 8, warps=4, stages=2), ATTENTION),
    (CausalAttention(), "run_triton", GpuBlocks(8, 16, warps=4, stages=2), ATTENTION),
    (CausalAttention(), "run_triton", GpuBlocks(64, 64, warps=4, stages=2), ATTENTION),
    (CausalAttention(), "run_pallas", Blocks(16, 8), ATTENTION),
    (CausalAttention(), "run_pallas", Blocks(8, 16), ATTENTION),
    (CausalAttention(), "run_pallas", Blocks(64, 64), ATTENTION),
]


def arrays(shapes, dtype):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes]


def of_float64(kernel, given):
    """What it computes, without its code."""
    given = [np.asarray(x, np.float64) for x in given]
    if isinstance(kernel, TiledMatmul):
        return given[0] @ given[1]
    q, k, v = given
    logits = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(-1, keepdims=True)) * np.tri(q.shape[1])
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("kernel, way, cfg, shapes", CASES, ids=lambda x: str(x) if isinstance(x, str) else None)
def test_results_for_a_device_are_right(kernel, way, cfg, shapes):
    given = arrays(shapes, jnp.float32)
    got = getattr(kernel, way)(*given, cfg=cfg, interpret=True)
    assert (got.shape, got.dtype) == (kernel.run(*given, cfg=None).shape, jnp.float32)
    np.testing.assert_allclose(got, of_float64(kernel, given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel, way, cfg, shapes", CASES[1::3], ids=lambda x: str(x) if isinstance(x, str) else None)
def test_sums_of_bfloat16_are_float32(kernel, way, cfg, shapes):
    given = arrays(shapes, jnp.bfloat16)
    got = getattr(kernel, way)(*given, cfg=cfg, interpret=True)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), of_float64(kernel, given), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kernel, shapes", [(TiledMatmul(), MATMUL), (CausalAttention(), ATTENTION)])
def test_here_they_are_plain_jax(kernel, shapes):
    given = arrays(shapes, jnp.float32)
    np.testing.assert_allclose(without_tuning()(kernel, *given), of_float64(kernel, given), rtol=1e-4, atol=1e-4)


def test_the_product_has_gradients():
    a, b = arrays(MATMUL, jnp.float32)
    da, db = jax.grad(lambda a, b: (TiledMatmul()(a, b) ** 2).sum() / 2, (0, 1))(a, b)
    np.testing.assert_allclose(da, (a @ b) @ b.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db, a.T @ (a @ b), rtol=1e-4, atol=1e-4)


CALLS = {"tpu": "tpu_custom_call", "cuda": "__gpu$xla.gpu.triton"}
CALLED = {"tiled_matmul": (TiledMatmul(), [(512, 512)] * 2), "causal_attention": (CausalAttention(), [(2, 512, 64)] * 3)}


@pytest.mark.parametrize("name", CALLED)
@pytest.mark.parametrize("platform", CALLS)
def test_they_lower_to_the_call_of_the_platform(platform, name):
    kernel, shapes = CALLED[name]
    given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    with for_device(platform):
        text = jax.jit(kernel).trace(*given).lower(lowering_platforms=(platform,)).as_text()
    assert text.count(f"@{CALLS[platform]}(") == 1 and f'"{name}"' in text


def test_each_gradient_lowers_to_a_call_of_its_own():
    a = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    with for_device("tpu"):
        both = jax.jit(jax.value_and_grad(lambda a, b: TiledMatmul()(a, b).astype(jnp.float32).sum(), (0, 1)))
        text = both.trace(a, a).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call(") == 3


@pytest.mark.parametrize("name", CALLED)
@pytest.mark.parametrize("platform", CALLS)
def test_the_guess_is_one_of_the_candidates(platform, name):
    kernel, _ = CALLED[name]
    way = {"tpu": "pallas", "cuda": "triton"}[platform]
    candidates = getattr(kernel, f"candidate_cfgs_{way}")(None)
    assert getattr(kernel, f"heuristic_cfg_{way}")(None) in candidates and len(set(candidates)) == len(candidates)
