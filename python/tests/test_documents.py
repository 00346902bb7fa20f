# SPDX-License-Identifier: Apache-2.0
"""Everything that documents of ejkernel.ops show, called as they show it, under the original's name.

One test for each thing shown; what an example takes for granted (a kernel, arrays) is made here.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejk.as_ejkernel  # noqa: F401  the name ejkernel, for the imports below


@dataclasses.dataclass(frozen=True)
class MyConfig:
    block_size: int = 128
    num_warps: int = 4
    algorithm: str = "default"


def make_kernel(**methods):
    from ejkernel.ops import Kernel

    class MyKernel(Kernel[MyConfig, jnp.ndarray]):
        def __init__(self):
            super().__init__(name="my_kernel")

        def run(self, a, b, *, cfg: MyConfig, **kwargs) -> jnp.ndarray:
            return jnp.dot(a, b)

        def heuristic_cfg(self, inv) -> MyConfig:
            return MyConfig(block_size=128 if inv.args[0].shape[0] >= 128 else 64)

        def config_space(self, inv) -> list:
            return [MyConfig(64, 2), MyConfig(128, 4), MyConfig(256, 8)]

    for name, method in methods.items():
        setattr(MyKernel, name, method)
    return MyKernel()


@pytest.fixture
def kernel():
    return make_kernel()


@pytest.fixture
def executor():
    from ejkernel.ops import ConfigCache, ConfigSelectorChain, Executor

    return Executor(ConfigSelectorChain(cache=ConfigCache()))


a = jnp.ones((16, 16))
b = jnp.ones((16, 16))


# ---- kernels and invocations --------------------------------------------------------------------


def test_a_basic_kernel(kernel, executor):
    assert kernel.op_id == "my_kernel"
    assert (executor(kernel, a, b) == 16).all()


def test_a_kernel_by_platform(executor):
    from ejkernel.ops import Kernel

    class Attention(Kernel[MyConfig, jnp.ndarray]):
        def run_triton(self, q, k, v, *, cfg, **kwargs):
            raise AssertionError("there is no GPU")

        def run_pallas(self, q, k, v, *, cfg, **kwargs):
            raise AssertionError("there is no TPU")

        def run_xla(self, q, k, v, *, cfg, **kwargs):
            return jax.nn.softmax(q @ k.T) @ v

        def run(self, q, k, v, *, cfg, **kwargs):
            return self.run_xla(q, k, v, cfg=cfg, **kwargs)

        def heuristic_cfg(self, inv):
            return MyConfig()

    np.testing.assert_allclose(executor(Attention(), a, b, a), jnp.ones((16, 16)), rtol=1e-5)


def test_a_kernel_with_gradients_in_one_function(executor):
    def custom_vjp(self, primals, cfg, kwargs, cotangents):
        a, b = primals
        ct = cotangents[0]
        return (ct @ b.T * 3, a.T @ ct)

    kernel = make_kernel(custom_vjp=custom_vjp)
    got = jax.grad(lambda a: executor(kernel, a, b).sum())(a)
    np.testing.assert_allclose(got, jnp.full((16, 16), 48.0))


def test_an_invocation(kernel):
    from ejkernel.ops import Invocation

    inv = Invocation(kernel=kernel, args=(a, b), kwargs={"scale": 1.0}, metadata={"note": "x"})
    assert inv.abstract_args == (jax.ShapeDtypeStruct((16, 16), jnp.float32),) * 2
    assert inv.device_fingerprint
    assert kernel.heuristic_cfg(inv) == MyConfig(block_size=64)


def test_an_explicit_config(kernel, executor):
    assert (executor(kernel, a, b, cfg=MyConfig(32)) == 16).all()


# ---- caches and selection -----------------------------------------------------------------------


def test_a_config_cache(kernel):
    from ejkernel.ops import ConfigCache, default_key_builder_with_sharding

    cache = ConfigCache()
    key = default_key_builder_with_sharding(kernel, (a, b), {})
    assert cache.get(key) is None
    cache.put(key, MyConfig(7))
    assert cache.get(key) == MyConfig(7)
    assert key in cache


def test_a_persistent_cache(tmp_path, monkeypatch):
    from ejkernel.ops import PersistentCache

    monkeypatch.setenv("HOME", str(tmp_path))
    persistent = PersistentCache(path="~/.cache/ejkernel/configs")
    persistent.put("key", MyConfig(9))
    assert persistent.get("key") == MyConfig(9)
    assert (tmp_path / ".cache/ejkernel/configs").is_dir()


def test_a_selector_chain(kernel):
    from ejkernel.ops import ConfigCache, ConfigSelectorChain, Executor, PersistentCache

    selector = ConfigSelectorChain(cache=ConfigCache(), persistent=PersistentCache(), autotune=True)
    assert Executor(selector).choose_config(kernel, a, b) in kernel.config_space(None)
    assert len(selector.persistent.keys()) == 1


def test_overrides_for_a_while(kernel, executor):
    from ejkernel.ops import ConfigCache, overlay_cache, policy_override

    mine = ConfigCache()
    with overlay_cache(mine):
        executor(kernel, a, b)
    with policy_override(autotune=False):
        assert executor(kernel, jnp.ones((4, 16)), b).shape == (4, 16)
        assert executor.choose_config(kernel, jnp.ones((4, 16)), b) == MyConfig(64)


def test_choosing_with_a_policy(kernel):
    from ejkernel.ops import AutotunePolicy, ConfigCache, Invocation
    from ejkernel.ops.config.selection import ConfigSelectorChain, forward_autotune_only, policy_override

    cache = ConfigCache()
    policy = AutotunePolicy(allow_autotune=True)
    selector = ConfigSelectorChain(cache, policy)
    inv = Invocation(kernel=kernel, args=(a, b), kwargs={})
    assert selector.choose(inv, kernel) in kernel.config_space(inv)
    other = Invocation(kernel=kernel, args=(a, jnp.ones((16, 8))))
    with policy_override(selector, allow_autotune=False):
        assert selector.choose(other, kernel) == MyConfig(64)
    with policy_override(selector, cache_miss_fallback="heuristics"):
        assert selector.choose(other, kernel) == MyConfig(64)
    with forward_autotune_only():
        assert selector.choose(other, kernel) in kernel.config_space(inv)


# ---- tuning -------------------------------------------------------------------------------------


def test_tuning_by_hand(kernel):
    from ejkernel.ops import Invocation, autotune, benchmark

    inv = Invocation(kernel=kernel, args=(a, b))
    best = autotune(kernel, a, b, configs=kernel.config_space(inv), num_warmup=3, num_iters=10)
    assert best in kernel.config_space(inv)
    assert benchmark(lambda: kernel(a, b), num_iters=20) > 0


def test_tuning_recorded_calls(kernel):
    from ejkernel.ops import Invocation, autotune_recorded, get_invocations, record_invocation

    record_invocation(kernel, Invocation(kernel=kernel, args=(a, b)))
    invocations = get_invocations()
    assert len(autotune_recorded(invocations).entries) == 1


def test_tuning_a_lowered_computation(kernel, executor, monkeypatch):
    from ejkernel.ops.execution.offline import autotune_lowered

    monkeypatch.setenv("EJKERNEL_OPS_RECORD", "1")

    def my_function(x):
        return executor(kernel, x, b)

    lowered = jax.jit(my_function).lower(a)
    result = autotune_lowered(executor.chooser, lowered)
    assert [e.op_id_v for e in result.entries] == ["my_kernel@v0"]
    with result:
        assert (jax.jit(my_function)(a) == 16).all()


def test_a_tuner(kernel):
    from ejkernel.ops import Tuner

    tuner = Tuner(warmup=1, iters=3)
    best = tuner.autotune(lambda cfg: lambda a, b: kernel.run(a, b, cfg=cfg), (a, b), {}, kernel.config_space(None))
    assert best in kernel.config_space(None)


# ---- running ------------------------------------------------------------------------------------


def test_compiling(kernel, executor):
    compiled = executor.compile(kernel, a, b)
    assert (compiled(2 * a, b) == 32).all()


def test_batches(kernel):
    from ejkernel.ops import vmap_with_config

    batched = vmap_with_config(kernel, in_axes=(0, 0))(jnp.stack([a, a]), jnp.stack([b, b]))
    assert batched.shape == (2, 16, 16)


def test_devices_in_parallel(kernel):
    from ejkernel.ops import pmap_with_config

    count = jax.device_count()
    spread = pmap_with_config(kernel, axis_name="devices")(jnp.stack([a] * count), jnp.stack([b] * count))
    assert spread.shape == (count, 16, 16)


def test_the_profiler(kernel, executor, tmp_path):
    with jax.profiler.trace(str(tmp_path / "jax-trace")):
        executor(kernel, a, b)
    assert any((tmp_path / "jax-trace").rglob("*"))


# ---- parameters and utilities -------------------------------------------------------------------


def test_parameter_containers():
    from ejkernel.ops import BwdParams, FwdParams

    fwd = FwdParams(q_blocksize=128, kv_blocksize=256, num_warps=4, num_stages=2)
    bwd = BwdParams(q_blocksize=64, kv_blocksize=128)
    assert (fwd.kv_blocksize, bwd.num_warps) == (256, None)


def test_device_detection():
    from ejkernel.ops import device_fingerprint, device_kind, get_device_platform

    assert device_kind() in ("gpu", "tpu", "cpu")
    assert get_device_platform() in ("triton", "pallas", "xla")
    assert isinstance(device_fingerprint(), str)


def test_sharding(kernel):
    from ejkernel.ops import default_key_builder_with_sharding, sharding_fingerprint

    assert sharding_fingerprint(a)
    assert default_key_builder_with_sharding(kernel, (a, b), {}) == default_key_builder_with_sharding(
        kernel, (2 * a, b), {}
    )


def test_serialization():
    from ejkernel.ops import from_json, stable_json, to_json

    config = MyConfig(32)
    assert from_json(to_json(config), MyConfig) == config
    assert json.loads(stable_json(config)) == dataclasses.asdict(config)


def test_labels_in_hlo(kernel, executor):
    from ejkernel.ops import extract_labels_from_hlo_text, find_labels_in_lowered, label, labels_to_configs

    lowered = jax.jit(lambda a: executor(kernel, a, b)).lower(a)
    labels = find_labels_in_lowered(lowered)
    assert labels == [executor.label(kernel, a, b)]
    assert set(extract_labels_from_hlo_text(lowered.compile().as_text())) == set(labels)
    configs = labels_to_configs(labels)
    assert [name for name, _ in configs] == labels

    @label("my_attention")
    def my_attention(q, k, v):
        return jax.nn.softmax(q @ k.T) @ v

    assert len(find_labels_in_lowered(jax.jit(my_attention).lower(a, b, a))) == 1


def test_the_readme():
    import pathlib
    import re

    text = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    for block in blocks:
        names = {}
        exec(block, names)
        np.testing.assert_allclose(names["y"], np.cumsum(np.arange(4096.0)), rtol=1e-5)
        np.testing.assert_allclose(names["g"], names["y"], rtol=1e-5)
