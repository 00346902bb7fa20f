# SPDX-License-Identifier: Apache-2.0
"""The kernels of examples/python, compiled for GPUs and TPUs that are not here. `./test devices` runs this: it needs
the packages of requirements-devices.txt."""

import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from causal_attention import CausalAttention
from conftest import run_program
from ejk._models import MODELS, device_of
from ejk.ops import Kernel, compile_candidates, device_fingerprint, for_device
from jax.experimental import pallas as pl
from kernels import without_tuning
from tiled_matmul import TiledMatmul

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = {"tiled_matmul": TiledMatmul(), "causal_attention": CausalAttention()}
SHAPES = {"tiled_matmul": [(2048, 2048)] * 2, "causal_attention": [(8, 2048, 128)] * 3}


def arrays(name, **more):
    return [jax.ShapeDtypeStruct(shape, jnp.bfloat16, **more) for shape in SHAPES[name]]


def documented(model):
    """Of how many candidates how many compile for it, by kernel, and how many bytes there are."""
    table = (ROOT / "docs/how-to/kernels_for_gpus_and_tpus.md").read_text().partition("| compiled for |")[2]
    names = re.findall(r"`(\w+)`", table.partition("\n")[0])
    (row,) = re.findall(rf"(?m)^\| {model} \|(.*)\|$", table)
    *counts, memory = [tuple(map(int, re.findall(r"\d+", cell))) for cell in row.split("|")]
    return dict(zip(names, counts, strict=True)), *memory


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("model", MODELS)
def test_the_config_of_a_model_is_compiled_for_it(model, name):
    device, kernel, executor = device_of(model), KERNELS[name], without_tuning()
    is_gpu = device.platform != "tpu"
    given = arrays(name, sharding=jax.sharding.SingleDeviceSharding(device))
    with for_device(device):
        guess, *others = [executor.choose_config(kernel, *given), *candidates_of(kernel, is_gpu)]
        assert guess in others
        executor.chooser.cache.put(executor.label(kernel, *given), others[0])
        assert executor.choose_config(kernel, *given) == others[0]
        lowered = jax.jit(lambda *given: executor(kernel, *given)).lower(*given)
    text = lowered.as_text()
    assert text.count("@__gpu$xla.gpu.triton(" if is_gpu else "@tpu_custom_call(") == 1
    assert not is_gpu or f"num_warps = {others[0].warps} " in text
    assert lowered.compile().memory_analysis().argument_size_in_bytes == sum(2 * a.size for a in given)


def candidates_of(kernel, is_gpu):
    return (kernel.candidate_cfgs_triton if is_gpu else kernel.candidate_cfgs_pallas)(None)


RECORDED = f"""
    import jax, jax.numpy as jnp
    from causal_attention import CausalAttention
    from tiled_matmul import TiledMatmul
    for kernel in TiledMatmul(), CausalAttention():
        jax.eval_shape(kernel, *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in {SHAPES!r}[kernel.op_id]))
"""


@pytest.fixture
def pruned(tmp_path, monkeypatch):
    """What `python -m ejk tune --compile-only` prints of calls that were recorded here, where nothing computed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("EJKERNEL_OPS_RECORD_DIR", str(tmp_path))
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics")
    run_program(RECORDED, EJKERNEL_OPS_RECORD="1")

    def run(model):
        command = [sys.executable, "-m", "ejk", "tune", "--compile-only", "--json", "--device", model]
        command += ["--deadline", "3600"]  # the machine may be busy
        for name in KERNELS:
            command += ["--import", name]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("model", MODELS)
def test_every_candidate_compiles_or_is_rejected_with_its_bytes(model, pruned):
    found = pruned(model)
    assert (found["device"], found["skipped"]) == (device_of(model).device_kind, [])
    calls = {call["op"].partition("@")[0]: call["configs"] for call in found["calls"]}
    counts, memory = documented(model)
    assert {name: (sum(c["fits"] for c in calls[name]), len(calls[name])) for name in KERNELS} == counts
    for name, kernel in KERNELS.items():
        dropped = {c["config"]: c for c in calls[name] if not c["fits"]}
        assert all(c["needed"] > c["limit"] == memory for c in dropped.values()), dropped
        with for_device(model):
            candidates = [c for c in candidates_of(kernel, model in ("A100", "H100", "B200")) if shown(c) in dropped]
            for candidate in compile_candidates(kernel, *arrays(name), configs=candidates):
                other = dropped.pop(shown(candidate.cfg))
                assert not candidate.fits
                assert (candidate.needed, candidate.limit) == (other["needed"], other["limit"])
        assert not dropped


def shown(config):
    return json.dumps(vars(config))


class ByMosaic(Kernel):
    """Without parameters for Triton, JAX takes Mosaic for GPUs."""

    op_id = "by_mosaic"

    def run_triton(self, x, *, cfg):
        def double(x, out):
            out[...] = 2 * x[...]

        rows = pl.BlockSpec((cfg, x.shape[1]), lambda i: (i, 0))
        return pl.pallas_call(double, grid=len(x) // cfg, in_specs=[rows], out_specs=rows, out_shape=jax.typeof(x))(x)


@pytest.mark.parametrize("model", ["H100", "B200"])
def test_bytes_are_told_of_kernels_by_mosaic_too(model):
    with for_device(model):
        small, large = compile_candidates(ByMosaic(), jax.ShapeDtypeStruct((512, 128), jnp.float32), configs=[64, 256])
    assert small.fits, small.why
    assert (large.fits, large.needed, large.limit) == (False, 262152, 232448)


@pytest.mark.parametrize("before", ["", "jax.devices()"])
@pytest.mark.parametrize("model", ["A100", "v5e"])
def test_jax_finds_out_by_itself_that_there_is_no_such_device(model, before):
    code = f"""
        import jax
        from ejk.ops import for_device
        {before}
        print(for_device({model!r}).site.name)
        print(jax.devices("cpu") == jax.devices())
    """
    assert run_program(code, JAX_PLATFORMS="").stdout.split("\n") == [device_of(model).device_kind, "True", ""]


def test_models_are_told_apart():
    names = set()
    for model in MODELS:
        with for_device(model):
            names.add(device_fingerprint())
    assert len(names) == len(MODELS)
