# SPDX-License-Identifier: Apache-2.0
"""Every example in the documents of ejkernel.ops, as it is printed there, under the original's name.

    000  ejkernel.ops.config.selection       001  ejkernel.ops.execution.offline
    002  ejkernel.ops.execution.executor     003  ejkernel.ops, the overview
    004  the source of ejkernel.ops.execution.offline

`test_003_07_...` is example 7 of document 003: the example as printed, without its comments, set off by blank lines
from what it takes for granted (a kernel, arrays, a selector) and from what is checked.
`test_003_says_...` is what document 003 says without an example. The last lines of a run tell how many
examples passed.
"""

import dataclasses
import inspect
import json
import pathlib
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejk.as_ejkernel  # noqa: F401  the name ejkernel, for the imports below
from ejkernel.ops import (
    AutotunePolicy,
    ConfigCache,
    ConfigSelectorChain,
    Executor,
    Invocation,
    Kernel,
    PersistentCache,
    Tuner,
    device_fingerprint,
    forward_autotune_only,
    policy_override,
)
from ejkernel.ops.execution.offline import autotune_lowered

EXAMPLES = {"000": 4, "001": 2, "002": 2, "003": 33, "004": 3}


def test_there_is_a_test_for_each_of_the_44_examples():
    found = sorted(m.group(1, 2) for name in globals() if (m := re.match(r"test_(\d{3})_(\d{2})_", name)))
    assert found == [(d, f"{n:02}") for d, count in EXAMPLES.items() for n in range(1, count + 1)]
    assert len(found) == 44


# ---- what the examples take for granted ---------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MyConfig:
    block_size: int = 128
    num_warps: int = 4
    algorithm: str = "default"


FAST, GUESS, SLOW = MyConfig(256, 8), MyConfig(128, 4), MyConfig(64, 2)


class MatMul(Kernel[MyConfig, jax.Array]):
    """Notes what is asked of it. SLOW takes many times as long and gives the same."""

    def __init__(self):
        super().__init__(name="my_kernel")
        self.ran, self.asked_for_candidates, self.went_backward = [], 0, 0

    def run(self, a, b=None, *, cfg: MyConfig, **kwargs):
        self.ran.append(cfg)
        b = a if b is None else b
        c = jax.lax.fori_loop(0, 3000 if cfg == SLOW else 0, lambda i, c: jnp.sin(c), a)
        return jnp.dot(a, b) * kwargs.get("scale", 1.0) + 0 * c.sum()

    def fwd_with_residuals(self, a, b=None, *, cfg, **kwargs):
        return self.run(a, b, cfg=cfg, **kwargs), ()

    def vjp(self, residuals, dy, a, b=None, *, cfg, **kwargs):
        self.went_backward += 1
        return (dy @ b.T, a.T @ dy) if b is not None else (dy @ a.T + a.T @ dy,)

    def heuristic_cfg(self, inv):
        return GUESS

    def config_space(self, inv):
        self.asked_for_candidates += 1
        return [SLOW, FAST]


a, b = jnp.ones((16, 16)), 2 * jnp.ones((16, 16))
q = jnp.asarray(np.random.default_rng(0).standard_normal((1, 24, 2, 16), dtype="float32"))


@pytest.fixture
def kernel():
    return MatMul()


@pytest.fixture
def inv(kernel):
    return Invocation(kernel=kernel, args=(a, b), kwargs={})


@pytest.fixture
def selector():
    return ConfigSelectorChain(ConfigCache())


@pytest.fixture
def executor(selector):
    return Executor(selector)


# ---- 000: ejkernel.ops.config.selection ---------------------------------------------------------


def test_000_01_choosing_a_config(kernel, inv):
    invocation = inv

    cache = ConfigCache()
    policy = AutotunePolicy(allow_autotune=True)
    selector = ConfigSelectorChain(cache, policy)
    config = selector.choose(invocation, kernel)

    assert config == FAST and kernel.asked_for_candidates == 1

    with policy_override(selector, allow_autotune=False):
        config = selector.choose(invocation, kernel)

    assert config == FAST, "what was tuned is found with tuning switched off"
    with policy_override(selector, allow_autotune=False):
        assert selector.choose(Invocation(kernel=kernel, args=(a,)), kernel) == GUESS
        assert selector.policy.allow_autotune is False
    assert selector.policy.allow_autotune is True and kernel.asked_for_candidates == 1


def test_000_02_forward_autotune_only(kernel, inv):
    selector = ConfigSelectorChain(ConfigCache(), AutotunePolicy(validate_backward=True))

    with forward_autotune_only():
        cfg = selector.choose(inv, kernel)

    assert cfg == FAST and kernel.went_backward == 0
    ConfigSelectorChain(ConfigCache(), AutotunePolicy(validate_backward=True)).choose(inv, kernel)
    assert kernel.went_backward > 0


def test_000_03_a_policy_without_tuning(kernel, selector, executor):
    args = (a, b)

    with policy_override(selector, allow_autotune=False):
        result = executor(kernel, *args)

    np.testing.assert_allclose(result, a @ b)
    assert set(kernel.ran) == {GUESS} and kernel.asked_for_candidates == 0


def test_000_04_a_policy_with_heuristics_first(kernel, inv, selector):
    with policy_override(selector, cache_miss_fallback="heuristics"):
        config = selector.choose(inv, kernel)

    assert config == GUESS and selector.policy.cache_miss_fallback == "autotune"
    assert selector.choose(inv, kernel) == FAST, "a guess is not kept"


CHAIN = "cache policy=None tuner=None persistent=None persist_autotune=True on_event=None forbid_reautotune=True"
SIGNATURES = {
    "config.selection.AutotunePolicy": "allow_autotune=True allow_heuristics=True cache_miss_fallback='autotune' "
    "validate_backward=False",
    "config.selection.ConfigSelectorChain": CHAIN,
    "config.selection.ConfigSelectorChain.choose": "self inv kernel",
    "config.selection.Tuner": "warmup=1 iters=3",
    "config.selection.Tuner.autotune": "self make_fn args kwargs candidates",
    "config.selection.Tuner.measure": "self fn *args **kwargs",
    "config.selection.forward_autotune_only": "",
    "config.selection.policy_override": "selector **updates",
    "execution.offline.autotune_lowered": "selector lowered",
    "execution.executor.ConfigChooser": "*args **kwargs",
    "execution.executor.ConfigChooser.choose": "self inv kernel",
    "execution.executor.Executor": "chooser stamp_prefix='ejkernel_ops'",
    "execution.executor.Executor.choose_config": "self kernel *args cfg=None **kwargs",
    "execution.executor.Executor.compile": "self kernel *example_args cfg=None **example_kwargs",
}


@pytest.mark.parametrize("path", SIGNATURES)
def test_000_001_and_002_say_the_signature_of(path):
    import ejkernel.ops as thing

    for part in path.split("."):
        thing = getattr(thing, part)
    wanted = SIGNATURES[path].split()
    shown = [_shown(parameter) for parameter in inspect.signature(thing).parameters.values()]
    # What is required there may be optional here, and there may be more.
    found = [text for text in shown if text in wanted or text.removesuffix("=None") in wanted]
    assert [text if text in wanted else text.removesuffix("=None") for text in found] == wanted, shown


def _shown(parameter):
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return f"{stars}{parameter.name}{default}"


def test_000_says_the_order_of_the_chain(kernel, inv, tmp_path):
    from ejkernel.ops import overlay_cache

    key = device_fingerprint(), "my_kernel@v0", inv.call_key
    memory, persistent, overlay = ConfigCache(), PersistentCache(path=tmp_path / "configs"), ConfigCache()
    selector = ConfigSelectorChain(memory, persistent=persistent, persist_autotune=False)
    tiers = {place: MyConfig(algorithm=place) for place in ("override", "overlay", "memory", "disk")}
    overlay.put(*key, tiers["overlay"])
    memory.put(*key, tiers["memory"])
    persistent.put(*key, tiers["disk"])
    with overlay_cache(overlay):
        overridden = Invocation(kernel=kernel, args=(a, b), override_cfg=tiers["override"])
        assert selector.choose(overridden, kernel) == tiers["override"]
        assert selector.choose(inv, kernel) == tiers["overlay"]
    assert selector.choose(inv, kernel) == tiers["memory"]
    fresh = ConfigSelectorChain(ConfigCache(), persistent=persistent, persist_autotune=False)
    assert fresh.choose(inv, kernel) == tiers["disk"]
    persistent.erase(*key)
    assert ConfigSelectorChain(ConfigCache(), persistent=persistent).choose(inv, kernel) == FAST
    no_tuning = AutotunePolicy(allow_autotune=False)
    assert ConfigSelectorChain(ConfigCache(), no_tuning).choose(inv, kernel) == GUESS
    nothing = AutotunePolicy(allow_autotune=False, allow_heuristics=False)
    with pytest.raises(RuntimeError, match="my_kernel"):
        ConfigSelectorChain(ConfigCache(), nothing).choose(inv, kernel)


def test_000_says_what_a_selector_and_a_tuner_hold(kernel, inv, tmp_path):
    events = []
    cache, policy, tuner = ConfigCache(), AutotunePolicy(), Tuner(warmup=2, iters=4)
    persistent = PersistentCache(path=tmp_path / "configs")
    selector = ConfigSelectorChain[MyConfig, jax.Array](
        cache, policy, tuner, persistent, True, lambda event, **data: events.append(event), True
    )
    assert (selector.cache, selector.policy, selector.tuner) == (cache, policy, tuner)
    assert selector.persistent is persistent and selector.persist_autotune and selector.forbid_reautotune
    assert callable(selector.on_event) and (tuner.warmup, tuner.iters) == (2, 4)
    assert selector.choose(inv, kernel) == FAST and events == ["autotune_start", "autotune_finish"]
    assert persistent.get(device_fingerprint(), "my_kernel@v0", inv.call_key) == FAST


def test_000_says_that_a_tuner_picks_the_fastest(kernel):
    def make_fn(cfg):
        return lambda a, b, scale: kernel.run(a, b, cfg=cfg, scale=scale)

    assert Tuner(warmup=1, iters=3).autotune(make_fn, (a, b), {"scale": 2.0}, iter([SLOW, FAST])) == FAST
    with pytest.raises(RuntimeError, match="no candidates"):
        Tuner().autotune(make_fn, (a, b), {}, [])


def test_000_says_which_arguments_are_dynamic_when_measured():
    seen = {}

    def fn(x, nested, *, dtype, name, flag, f):
        seen.update(x=x, inner=nested["list"][0], n=nested["n"], rest=(dtype, name, flag, f))
        return f(x).astype(dtype) + nested["list"][0]

    seconds = Tuner().measure(
        fn, a, {"list": [b], "n": 3}, dtype=jnp.float32, name="text", flag=True, f=jnp.tanh
    )
    assert isinstance(seconds, float) and 0 < seconds < 60
    assert isinstance(seen["x"], jax.core.Tracer) and isinstance(seen["inner"], jax.core.Tracer)
    assert seen["n"] == 3 and seen["rest"] == (jnp.float32, "text", True, jnp.tanh)


def test_000_says_that_traced_arrays_are_measured_as_zeros():
    seen = []

    def look(x):  # outside of any jit, because it wants values
        seen.append(np.asarray(x))
        return x

    def program(x):
        assert Tuner().measure(look, x) > 0
        return x + 1

    jaxpr = jax.make_jaxpr(program)(a)
    assert len(jaxpr.eqns) == 1 and seen and not seen[-1].any() and seen[-1].shape == a.shape


def test_000_says_what_is_differentiated_when_measured(kernel):
    def tagged(a, b, places, *, cfg):
        return jax.jit(lambda x: x)(Executor().compile(kernel, a, b, cfg=cfg)(a, b))[places]

    Tuner().measure(tagged, a, b, jnp.array([0, 3]), cfg=FAST)
    assert kernel.went_backward == 0
    tagged._ejk_validate_backward = True
    Tuner().measure(tagged, a, b, jnp.array([0, 3]), cfg=FAST)
    assert kernel.went_backward > 0


def test_000_says_how_measuring_falls_back():
    def loop(x):  # has no reverse derivative
        return jax.lax.while_loop(lambda x: x.sum() < 1e6, lambda x: 2 * x, x)

    loop._ejk_validate_backward = True
    assert Tuner().measure(loop, a) > 0
    compiled = jax.jit(jnp.sin).lower(a).compile()  # takes no tracers

    def precompiled(x):
        return compiled(x)

    assert Tuner().measure(precompiled, a) > 0
    precompiled._ejk_validate_backward = True
    assert Tuner().measure(precompiled, a) > 0


# ---- 001: ejkernel.ops.execution.offline --------------------------------------------------------


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setenv("EJKERNEL_OPS_RECORD", "1")


def test_001_01_tuning_a_lowered_function(kernel, recording):
    selector = ConfigSelectorChain(ConfigCache(), AutotunePolicy(cache_miss_fallback="heuristics"))
    executor, example_args, real_args = Executor(selector), a, 3 * a

    def my_function(x):
        return executor(kernel, x, b)

    lowered = jax.jit(my_function).lower(example_args)
    assert kernel.ran == [GUESS]
    result = autotune_lowered(selector, lowered)
    kernel.ran.clear()
    with result:
        output = jax.jit(my_function)(real_args)

    np.testing.assert_allclose(output, real_args @ b)
    assert kernel.ran == [FAST], "inside, functions run with what was tuned"
    assert [(e.op_id_v, e.cfg) for e in result.entries] == [("my_kernel@v0", FAST)]
    assert selector.cache.get(result.device, *dataclasses.astuple(result.entries[0])[:2]) == FAST


def test_001_02_tuning_a_lowered_model(kernel, recording, selector, executor):
    example_input, real_input = a, 3 * a

    def my_model(x):
        return executor(kernel, executor(kernel, x, b), scale=0.5) + executor(kernel, x, b)

    lowered = jax.jit(my_model).lower(example_input)
    result = autotune_lowered(selector, lowered)
    with result:
        output = jax.jit(my_model)(real_input)

    inner = real_input @ b
    np.testing.assert_allclose(output, inner @ inner * 0.5 + inner)
    assert len(result.entries) == 2, "each call once"


def test_001_says_that_only_recorded_calls_are_tuned(kernel, selector, executor):
    lowered = jax.jit(lambda x: executor(kernel, x, b)).lower(a)
    result = autotune_lowered(selector, lowered)
    assert result.entries == () and "EJKERNEL_OPS_RECORD" in result.skipped[0][1]


# ---- 002: ejkernel.ops.execution.executor -------------------------------------------------------


def test_002_01_running_and_compiling(kernel):
    my_kernel, input_data, example_input, actual_input = kernel, a, a, 2 * a

    cache = ConfigCache()
    selector = ConfigSelectorChain(cache)
    executor = Executor(selector)
    result = executor(my_kernel, input_data)

    np.testing.assert_allclose(result, a @ a)

    compiled_fn = executor.compile(my_kernel, example_input)
    result = compiled_fn(actual_input)

    np.testing.assert_allclose(result, 4 * (a @ a))
    assert kernel.asked_for_candidates == 1 and len(cache) == 1


def test_002_02_compiling(kernel, executor):
    matmul_kernel, x_example, y_example, x_actual, y_actual = kernel, a, b, 3 * a, b

    compiled_matmul = executor.compile(matmul_kernel, x_example, y_example)
    result = compiled_matmul(x_actual, y_actual)

    np.testing.assert_allclose(result, 3 * (a @ b))
    kernel.ran.clear()
    assert compiled_matmul(a[:4], b).shape == (4, 16)
    assert kernel.ran == [FAST] and kernel.asked_for_candidates == 1, "nothing is chosen again"
    assert "dot" in compiled_matmul.lower(a, b).as_text()


def test_002_says_that_a_config_can_be_chosen_without_running(kernel, selector):
    with policy_override(selector, autotune=False):
        assert Executor(selector).choose_config(kernel, a, b) == GUESS
        assert Executor(selector).choose_config(kernel, a, b, cfg=SLOW) == SLOW
    assert kernel.ran == []


def test_002_says_that_any_chooser_will_do(kernel):
    from ejkernel.ops.execution.executor import ConfigChooser

    class Mine(ConfigChooser):
        def choose(self, inv, kernel):
            return MyConfig(inv.args[0].shape[0])

    executor = Executor(Mine(), stamp_prefix="mine")
    assert isinstance(executor.chooser, Mine) and executor.stamp_prefix == "mine"
    np.testing.assert_allclose(executor(kernel, a, b), a @ b)
    assert kernel.ran == [MyConfig(16)]
    assert executor.label(kernel, a, b).startswith("mine#my_kernel@v0:")


@pytest.mark.parametrize("word", ["hash", "json", "none"])
def test_002_says_what_calls_are_labelled_with(word, kernel, selector, monkeypatch):
    monkeypatch.setenv("EJKERNEL_OPS_STAMP", word)
    executor = Executor(selector)
    text = jax.jit(lambda x: executor(kernel, x, b)).lower(a).as_text()
    assert ("ejkernel_ops#my_kernel@v0:" in text) == (word == "hash")
    assert ("ejkernel_ops:{" in text) == (word == "json")


# ---- 003: the overview --------------------------------------------------------------------------


def test_003_01_calling_a_kernel(kernel, executor):
    args = a

    assert (kernel(args) == executor(kernel, args)).all()
    np.testing.assert_allclose(kernel(args), a @ a)


def test_003_02_a_basic_kernel():
    from dataclasses import dataclass
    from ejkernel.ops import Kernel
    import jax.numpy as jnp

    @dataclass(frozen=True)
    class MyConfig:
        block_size: int = 128
        num_warps: int = 4
        algorithm: str = "default"

    class MyKernel(Kernel[MyConfig, jnp.ndarray]):
        def __init__(self):
            super().__init__(name="my_kernel")

        def run(self, a, b, *, cfg: MyConfig, **kwargs) -> jnp.ndarray:
            """Default implementation."""
            return jnp.dot(a, b)

        def heuristic_cfg(self, inv: "Invocation") -> MyConfig:
            """Generate config based on input shapes."""
            a = inv.args[0]
            block = 128 if a.shape[0] >= 128 else 64
            return MyConfig(block_size=block)

    my_kernel = MyKernel()
    np.testing.assert_allclose(my_kernel(a, b), a @ b)
    assert my_kernel.op_id == "my_kernel"
    assert Executor().choose_config(my_kernel, a, b) == MyConfig(block_size=64)
    assert Executor().choose_config(my_kernel, jnp.ones((128, 16)), b) == MyConfig(block_size=128)


def test_003_03_a_kernel_by_platform(executor):
    called = []

    def triton_flash_attention(q, k, v, num_warps):
        called.append("triton")

    def pallas_attention(q, k, v, block):
        called.append("pallas")

    def xla_attention(q, k, v):
        called.append("xla")
        return jax.nn.dot_product_attention(q, k, v)

    @dataclasses.dataclass
    class AttentionConfig:
        triton_params: dict = dataclasses.field(default_factory=lambda: {"num_warps": 4})
        pallas_params: dict = dataclasses.field(default_factory=lambda: {"block": 128})

    class AttentionKernel(Kernel[AttentionConfig, jnp.ndarray]):
        def run_triton(self, q, k, v, *, cfg, **kwargs):
            """Triton GPU implementation."""
            return triton_flash_attention(q, k, v, **cfg.triton_params)

        def run_pallas(self, q, k, v, *, cfg, **kwargs):
            """Pallas TPU implementation."""
            return pallas_attention(q, k, v, **cfg.pallas_params)

        def run_xla(self, q, k, v, *, cfg, **kwargs):
            """XLA fallback implementation."""
            return xla_attention(q, k, v)

        def run(self, q, k, v, *, cfg, **kwargs):
            """Default fallback."""
            return self.run_xla(q, k, v, cfg=cfg, **kwargs)

    got = executor(AttentionKernel(), q, q, q, cfg=AttentionConfig())
    np.testing.assert_allclose(got, jax.nn.dot_product_attention(q, q, q), rtol=1e-5)
    assert set(called) == {"xla"}
    from ejkernel.ops.core import _get_platform_method

    for platform in ("triton", "pallas", "xla"):
        called.clear()
        _get_platform_method(AttentionKernel(), "run", platform)(q, q, q, cfg=AttentionConfig())
        assert called == [platform]


def test_003_04_gradients_of_ones_own(executor):
    def custom_forward(a, b, cfg):
        return a @ b

    def custom_grad_a(a, b, ct, cfg):
        return 3 * ct @ b.T  # three times too much, to be seen

    def custom_grad_b(a, b, ct, cfg):
        return a.T @ ct * cfg.num_warps

    class MyKernel(Kernel[MyConfig, jnp.ndarray]):
        def run(self, a, b, *, cfg, **kwargs):
            return custom_forward(a, b, cfg)

        def custom_vjp(self, primals, cfg, kwargs, cotangents):
            """Custom backward pass."""
            a, b = primals
            ct = cotangents[0]
            grad_a = custom_grad_a(a, b, ct, cfg)
            grad_b = custom_grad_b(a, b, ct, cfg)
            return (grad_a, grad_b)

    def loss(a, b):
        return executor(MyKernel(), a, b, cfg=MyConfig(num_warps=5)).sum()

    ct = jnp.ones((16, 16))
    for differentiate in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        grad_a, grad_b = differentiate(a, b)
        np.testing.assert_allclose(grad_a, 3 * ct @ b.T)
        np.testing.assert_allclose(grad_b, 5 * a.T @ ct)
    np.testing.assert_allclose(loss(a, b), (a @ b).sum())


def test_003_05_an_invocation(kernel):
    my_kernel = kernel

    from ejkernel.ops import Invocation

    inv = Invocation(
        kernel=my_kernel,
        args=(a, b),
        kwargs={'scale': 1.0},
        metadata={...}
    )
    abstract = inv.abstract_args
    device = inv.device_fingerprint

    assert abstract == (jax.ShapeDtypeStruct((16, 16), jnp.float32),) * 2
    assert device == device_fingerprint()
    assert inv.metadata == {...} and inv.args == (a, b) and inv.kwargs == {"scale": 1.0}
    assert Invocation(kernel=kernel, metadata={"note": "x"}).metadata == {"note": "x"}


def test_003_06_an_execution_stack(kernel):
    my_kernel = kernel

    from ejkernel.ops import Executor, ConfigSelectorChain, ConfigCache

    cache = ConfigCache()
    selector = ConfigSelectorChain(cache=cache)
    executor = Executor(selector)
    result = executor(my_kernel, a, b)

    np.testing.assert_allclose(result, a @ b)
    kernel.ran.clear()
    executor(my_kernel, a[:8], b, cfg=cache.get(device_fingerprint(), *cache.keys()[0][1:]))
    assert kernel.ran == [FAST] and len(cache) == 1


def test_003_07_an_explicit_config(kernel, executor):
    my_kernel, my_config = kernel, MyConfig(32)

    result = executor(my_kernel, a, b, cfg=my_config)

    np.testing.assert_allclose(result, a @ b)
    assert kernel.ran == [my_config] and len(executor.chooser.cache) == 0


def test_003_08_a_config_cache(kernel):
    key, config = ("my_kernel", (16, 16)), MyConfig(7)

    from ejkernel.ops import ConfigCache

    cache = ConfigCache()
    assert cache.get(key) is None and key not in cache
    cache.put(key, config)
    config = cache.get(key)
    if key in cache:
        ...

    assert config == MyConfig(7) and key in cache and "another" not in cache


def test_003_09_a_persistent_cache():
    key, config = "my_kernel", MyConfig(9)

    from ejkernel.ops import PersistentCache

    persistent = PersistentCache(path="~/.cache/ejkernel/configs")
    assert persistent.get(key) is None
    persistent.put(key, config)
    config = persistent.get(key)

    assert config == MyConfig(9) and key in persistent
    folder = pathlib.Path("~/.cache/ejkernel/configs").expanduser()  # of the test's own home
    assert folder.is_dir() and PersistentCache(path=folder).get(key) == MyConfig(9)


def test_003_10_a_selector_chain(kernel):
    from ejkernel.ops import ConfigSelectorChain, ConfigCache, PersistentCache

    selector = ConfigSelectorChain(
        cache=ConfigCache(),
        persistent=PersistentCache(),
        autotune=True
    )

    assert Executor(selector).choose_config(kernel, a, b) == FAST
    assert len(selector.cache) == 1 and len(selector.persistent.keys()) == 1
    untuned = ConfigSelectorChain(cache=ConfigCache(), autotune=False)
    assert Executor(untuned).choose_config(kernel, a, b) == GUESS


def test_003_11_another_cache_for_a_while(kernel, executor):
    from ejkernel.ops import overlay_cache, policy_override  # noqa: F401

    args, my_custom_cache, mine = a, ConfigCache(), MyConfig(31)
    call = Invocation(kernel=kernel, args=(args,))
    my_custom_cache.put(device_fingerprint(), "my_kernel@v0", call.call_key, mine)

    with overlay_cache(my_custom_cache):
        result = executor(kernel, args)

    np.testing.assert_allclose(result, a @ a)
    assert kernel.ran == [mine]
    assert executor.choose_config(kernel, args) == FAST


def test_003_12_no_tuning_for_a_while(kernel, executor):
    args = a

    with policy_override(autotune=False):
        result = executor(kernel, args)

    np.testing.assert_allclose(result, a @ a)
    assert kernel.ran == [GUESS] and kernel.asked_for_candidates == 0
    assert executor.choose_config(kernel, args) == FAST


def test_003_13_a_config_space(executor, inv):
    class MyKernel(Kernel[MyConfig, jnp.ndarray]):
        def config_space(self, inv: Invocation) -> list[MyConfig]:
            """Return configs to try during autotuning."""
            return [
                MyConfig(block_size=64, num_warps=2),
                MyConfig(block_size=128, num_warps=4),
                MyConfig(block_size=256, num_warps=8),
            ]

    class WithRun(MyKernel):
        def run(self, a, b, *, cfg, **kwargs):
            tried.append(cfg)
            return a @ b

    tried = []
    assert len(MyKernel().config_space(inv)) == 3
    np.testing.assert_allclose(executor(WithRun(), a, b), a @ b)
    assert set(tried) == set(MyKernel().config_space(inv))
    assert executor.choose_config(WithRun(), a, b) in tried


def test_003_14_tuning_by_hand(kernel, inv):
    from ejkernel.ops import autotune, benchmark  # noqa: F401

    best_config = autotune(
        kernel, a, b,
        configs=kernel.config_space(inv),
        num_warmup=3,
        num_iters=10
    )

    assert best_config == FAST
    assert autotune(kernel, a, b, configs=[SLOW]) == SLOW


def test_003_15_benchmark(kernel):
    from ejkernel.ops import benchmark

    time_ms = benchmark(lambda: kernel(a, b), num_iters=100)

    seconds = benchmark(lambda: kernel(a, b), iters=100)
    assert 50 < time_ms / seconds < 20_000, "milliseconds"


def test_003_16_tuning_recorded_calls(kernel, inv, executor, recording):
    from ejkernel.ops import autotune_recorded, record_invocation, get_invocations

    record_invocation(kernel, inv)
    with policy_override(autotune=False):
        executor(kernel, a[:8], b)
        executor(kernel, a[:8], b)
    invocations = get_invocations()
    results = autotune_recorded(invocations)

    assert sorted(i.args[0].shape for i in invocations) == [(8, 16), (16, 16)]
    assert [entry.cfg for entry in results.entries] == [FAST, FAST]
    kernel.ran.clear()
    with results:
        executor(kernel, a[:8], b)
    assert set(kernel.ran) <= {FAST}


def test_003_17_batches(kernel):
    batched_a, batched_b = jnp.stack([a, 2 * a, 3 * a]), jnp.stack([b, b, b])

    from ejkernel.ops import vmap_with_config

    batched_result = vmap_with_config(
        kernel,
        in_axes=(0, 0),
    )(batched_a, batched_b)

    np.testing.assert_allclose(batched_result, batched_a @ batched_b)
    assert kernel.asked_for_candidates == 1 and kernel.ran[-1] == FAST


def test_003_18_devices_in_parallel(kernel):
    count = jax.device_count()
    sharded_a, sharded_b = jnp.stack([a * i for i in range(count)]), jnp.stack([b] * count)

    from ejkernel.ops import pmap_with_config

    parallel_result = pmap_with_config(
        kernel,
        axis_name='devices'
    )(sharded_a, sharded_b)

    np.testing.assert_allclose(parallel_result, sharded_a @ sharded_b)
    assert count > 1 and len(parallel_result.devices()) == count
    assert kernel.asked_for_candidates == 1 and kernel.ran[-1] == FAST


def test_003_19_parameters():
    from ejkernel.ops import FwdParams, BwdParams

    fwd = FwdParams(
        q_blocksize=128,
        kv_blocksize=256,
        num_warps=4,
        num_stages=2,
    )
    bwd = BwdParams(
        q_blocksize=64,
        kv_blocksize=128,
    )

    assert (fwd.q_blocksize, fwd.kv_blocksize, fwd.num_warps, fwd.num_stages) == (128, 256, 4, 2)
    assert (bwd.q_blocksize, bwd.kv_blocksize, bwd.num_warps) == (64, 128, None)
    assert fwd == dataclasses.replace(fwd) and hash(fwd) == hash(dataclasses.replace(fwd))


def test_003_20_the_kind_of_device():
    from ejkernel.ops import device_kind

    assert device_kind() in ("gpu", "tpu", "cpu") and device_kind() == jax.devices()[0].platform


def test_003_21_the_platform_of_a_device():
    from ejkernel.ops import get_device_platform

    assert get_device_platform() == {"gpu": "triton", "tpu": "pallas", "cpu": "xla"}[jax.devices()[0].platform]


def test_003_22_the_fingerprint_of_a_device():
    from ejkernel.ops import device_kind, get_device_platform, device_fingerprint

    fingerprint = device_fingerprint()

    assert fingerprint.startswith(device_kind()) and fingerprint == device_fingerprint()
    assert get_device_platform() == "xla"


def test_003_23_the_fingerprint_of_a_sharding():
    array = jax.device_put(a, _spread_over_devices())

    from ejkernel.ops import sharding_fingerprint

    fingerprint = sharding_fingerprint(array)

    assert fingerprint.startswith("NamedSharding(") and fingerprint != sharding_fingerprint(a)


def test_003_24_a_key_with_sharding(kernel):
    args, kwargs = (a, b), {"scale": 2.0}

    from ejkernel.ops import sharding_fingerprint, default_key_builder_with_sharding  # noqa: F401

    key = default_key_builder_with_sharding(kernel, args, kwargs)

    assert key == default_key_builder_with_sharding(kernel, (5 * a, b), kwargs)
    spread = jax.device_put(a, _spread_over_devices())
    others = [((a[:8], b), kwargs), ((spread, b), kwargs), (args, {"scale": 3.0})]
    keys = {default_key_builder_with_sharding(kernel, *other) for other in others}
    assert len(keys) == 3 and key not in keys
    cache = ConfigCache()
    cache.put(key, FAST)
    assert cache.get(key) == FAST and key in cache


def _spread_over_devices():
    return jax.sharding.NamedSharding(jax.make_mesh((jax.device_count(),), ("x",)), jax.sharding.PartitionSpec("x"))


def test_003_25_json():
    config = MyConfig(32)

    from ejkernel.ops import to_json, from_json, stable_json  # noqa: F401

    json_str = to_json(config)
    config = from_json(json_str, MyConfig)

    assert config == MyConfig(32) and json.loads(json_str) == dataclasses.asdict(config)


def test_003_26_stable_json():
    config = MyConfig(32)

    from ejkernel.ops import stable_json

    stable_str = stable_json(config)

    assert json.loads(stable_str) == dataclasses.asdict(config)
    assert stable_str == stable_json(dict(reversed(dataclasses.asdict(config).items()))), "in one order"


@pytest.fixture
def fn(kernel):
    return lambda x: kernel(x, b)


def test_003_27_labels_of_a_lowered_function(fn, kernel, executor):
    args = a

    from ejkernel.ops import (
        find_labels_in_lowered,
        extract_labels_from_hlo_text,  # noqa: F401
        labels_to_configs,  # noqa: F401
    )

    lowered = jax.jit(fn).lower(args)
    labels = find_labels_in_lowered(lowered)

    assert labels == [executor.label(kernel, a, b)]
    assert labels == find_labels_in_lowered(lowered.compile())
    assert labels == find_labels_in_lowered(lowered.compiler_ir("hlo"))
    assert labels == find_labels_in_lowered(lowered.compiler_ir("stablehlo"))
    assert find_labels_in_lowered(jax.jit(jnp.sin).lower(a)) == []


def test_003_28_labels_in_hlo_text(fn, kernel, executor):
    from ejkernel.ops import extract_labels_from_hlo_text

    lowered = jax.jit(fn).lower(a)
    for hlo_text in (lowered.as_text(), lowered.as_text("hlo"), lowered.compile().as_text()):
        labels = extract_labels_from_hlo_text(hlo_text)
        assert set(labels) == {executor.label(kernel, a, b)}


def test_003_29_configs_of_labels(fn, kernel):
    from ejkernel.ops import find_labels_in_lowered, label, labels_to_configs, overlay_cache

    labels = find_labels_in_lowered(jax.jit(fn).lower(a))
    unknown = label("nothing@v0", "0123456789abcdef")

    configs = labels_to_configs(labels)

    assert configs == [(labels[0], FAST)]
    assert labels_to_configs([unknown]) == [(unknown, None)]
    with overlay_cache(configs), policy_override(autotune=False):
        assert Executor().choose_config(kernel, a, b) == FAST


def test_003_30_a_label_of_ones_own():
    from ejkernel.ops import find_labels_in_lowered

    attention_impl = jax.nn.dot_product_attention

    from ejkernel.ops import label

    @label("my_attention")
    def my_attention(q, k, v):
        return attention_impl(q, k, v)

    np.testing.assert_allclose(my_attention(q, q, q), attention_impl(q, q, q))
    (found,) = find_labels_in_lowered(jax.jit(my_attention).lower(q, q, q))
    assert re.fullmatch("ejkernel_ops#my_attention@v0:[0-9a-f]{16}", found)
    assert my_attention.__name__ == "my_attention"


def test_003_31_flash_attention():
    k = v = q

    from ejkernel.modules import flash_attention

    output = flash_attention(q, k, v, causal=True)

    np.testing.assert_allclose(output, jax.nn.dot_product_attention(q, k, v, is_causal=True), rtol=2e-5, atol=2e-6)


def test_003_32_good_heuristics():
    class Attention(Kernel):
        def heuristic_cfg(self, inv):
            q = inv.args[0]
            batch, seq_len, heads, dim = q.shape
            if seq_len >= 2048:
                block = 256
            elif seq_len >= 512:
                block = 128
            else:
                block = 64
            return MyConfig(block_size=block)

        def run(self, q, *, cfg):
            return q * 2

    for length, block in ((2048, 256), (512, 128), (24, 64)):
        x = jnp.ones((1, length, 2, 4))
        assert Executor().choose_config(Attention(), x) == MyConfig(block_size=block)
        np.testing.assert_array_equal(jax.jit(Executor().compile(Attention(), x))(x), 2 * x)


def test_003_33_the_profiler(kernel, executor, tmp_path):
    args = a

    with jax.profiler.trace(str(tmp_path / "jax-trace")):
        result = executor(kernel, args)

    np.testing.assert_allclose(result, a @ a)
    assert any((tmp_path / "jax-trace").rglob("*.xplane.pb"))


def test_003_says_that_configs_are_kept_in_the_cache_folder_by_default(monkeypatch):
    monkeypatch.delenv("EJKERNEL_PERSISTENT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    persistent = PersistentCache()
    persistent.put("key", FAST)
    assert any(pathlib.Path("~/.cache/ejkernel").expanduser().rglob("*.json"))
    assert PersistentCache(path="~/.cache/ejkernel").get("key") == FAST


def test_003_says_that_shapes_and_dtypes_count_and_values_do_not(kernel):
    def key(*args):
        return Invocation(kernel=kernel, args=args).call_key

    assert key(a, b) == key(7 * a, 0 * b)
    assert len({key(a, b), key(a[:8], b), key(a.astype(jnp.bfloat16), b), key(a, b, b)}) == 4


PLACES = {
    "core.kernel": "Kernel Invocation",
    "core.types": "Cfg Out",
    "config.cache": "ConfigCache overlay_cache",
    "config.persistent": "PersistentCache",
    "config.selection": "ConfigSelectorChain AutotunePolicy Tuner policy_override forward_autotune_only",
    "execution.executor": "Executor ConfigChooser",
    "execution.batch": "vmap_with_config pmap_with_config",
    "execution.tuning": "Autotuner benchmark autotune autotune_recorded",
    "execution.offline": "autotune_lowered",
    "registry": "record_invocation get_invocations",
    "utils": "device_kind stable_json label to_json FwdParams",
}


@pytest.mark.parametrize("module", PLACES)
def test_003_says_where_names_are(module):
    import importlib

    import ejkernel.ops

    found = importlib.import_module(f"ejkernel.ops.{module}")
    for name in PLACES[module].split():
        assert getattr(found, name) is getattr(ejkernel.ops, name)


def test_003_says_that_there_are_type_variables():
    from ejkernel.ops import Cfg, Out

    assert isinstance(Cfg, typing.TypeVar) and isinstance(Out, typing.TypeVar)
    assert Kernel.__parameters__ == (Cfg, Out)


# ---- 004: the source of ejkernel.ops.execution.offline ------------------------------------------


def test_004_01_the_example_of_the_module(kernel, recording, selector, executor):
    example_args, real_args = a, 2 * a

    def my_function(x):
        return executor(kernel, x)

    lowered = jax.jit(my_function).lower(example_args)
    result = autotune_lowered(selector, lowered)
    with result:
        output = jax.jit(my_function)(real_args)

    np.testing.assert_allclose(output, real_args @ real_args)
    assert [entry.cfg for entry in result.entries] == [FAST]


def test_004_02_the_example_of_the_function(kernel, recording, selector, executor):
    example_input, real_input = a, 2 * a
    already_jitted = jax.jit(lambda x: executor(kernel, x))
    with policy_override(autotune=False):
        already_jitted(a)

    def my_model(x):
        return executor(kernel, x)

    lowered = jax.jit(my_model).lower(example_input)
    result = autotune_lowered(selector, lowered)
    with result:
        output = jax.jit(my_model)(real_input)

        kernel.ran.clear()
        already_jitted(a)
        assert set(kernel.ran) <= {FAST}, "what is jitted already runs with it too"
    np.testing.assert_allclose(output, real_input @ real_input)


def test_004_03_the_steps_of_the_source(kernel, recording, selector, executor, tmp_path):
    from ejkernel.ops.config.selection import ConfigSelectorChain  # noqa: F401
    from ejkernel.ops.core import _get_platform_method
    from ejkernel.ops.execution.tuning import AutotuningResult, Entry
    from ejkernel.ops.registry import get_invocations
    from ejkernel.ops.utils.fingerprint import device_fingerprint, get_device_platform
    from ejkernel.ops.utils.meta import LABEL_RE, extract_labels_from_hlo_text

    selector = ConfigSelectorChain(ConfigCache(), persistent=PersistentCache(path=tmp_path / "configs"))
    with policy_override(autotune=False):
        lowered = jax.jit(lambda x: executor(kernel, x, b, scale=2.0)).lower(a)

    pairs = []
    for lab in extract_labels_from_hlo_text(lowered.as_text("hlo")):
        m = LABEL_RE.search(lab)
        pairs.append((m.group("op"), m.group("key")))
    dev = device_fingerprint()
    invs = get_invocations(dev)
    platform = get_device_platform()
    ((op_id_v, call_key),) = set(pairs)
    recorded, args, kwargs = invs[op_id_v][call_key]
    inv_args, inv_kwargs = recorded.prepare(*args, **kwargs)
    tmp_inv = type(
        "Tmp",
        (),
        dict(op_id=recorded.op_id, args=inv_args, kwargs=inv_kwargs, batch_axes=None, override_cfg=None, stamp=False),
    )()
    cand_method = _get_platform_method(recorded, "candidate_cfgs", platform, None) or recorded.candidate_cfgs
    candidates = tuple(cand_method(tmp_inv))
    run_method = _get_platform_method(recorded, "run", platform, None) or recorded.run

    def mk(c, _run=run_method):
        def f(*a, **k):
            return _run(*a, cfg=c, **k)

        return f

    with jax.core.eval_context():
        best = selector.tuner.autotune(mk, inv_args, inv_kwargs, candidates)
    selector.cache.put(dev, op_id_v, call_key, best)
    if selector.persistent is not None and selector.persist_autotune:
        selector.persistent.put(dev, op_id_v, call_key, best)
    result = AutotuningResult(dev, (Entry(op_id_v, call_key, best),))

    assert recorded is kernel and op_id_v == "my_kernel@v0" and best == FAST
    for chain in (selector, ConfigSelectorChain(ConfigCache(), persistent=selector.persistent)):
        assert Executor(chain).choose_config(kernel, a, b, scale=2.0) == FAST
    with result, policy_override(autotune=False):
        assert executor.choose_config(kernel, a, b, scale=2.0) == FAST
    assert selector.choose(tmp_inv, kernel) == FAST, "an invocation may be any object like one"


# ---- the project's own --------------------------------------------------------------------------


def examples_of(document):
    text = (pathlib.Path(__file__).resolve().parents[2] / document).read_text()
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))


def test_the_readme():
    names = {}
    exec(examples_of("README.md"), names)
    np.testing.assert_allclose(names["y"], np.cumsum(np.arange(4096.0)), rtol=1e-5)
    np.testing.assert_allclose(names["g"], names["y"], rtol=1e-5)


def test_the_example_for_devices():
    names = {}
    exec(examples_of("docs/how-to/kernels_for_gpus_and_tpus.md"), names)
    np.testing.assert_allclose(names["twice"], np.full((64, 128), 2.0))
    assert "tpu_custom_call" in names["for_tpu"].as_text() and names["doubled"](names["wide"])[0, 0] == 2


def test_the_tutorial_for_jax(capsys):
    names = {}
    exec(examples_of("docs/tutorials/first_kernel_jax.md"), names)
    executor, kernel, args, config = names["executor"], names["distances"], (names["x"], names["y"]), names["Config"]
    for d in (names["d"], names["fixed"](*args), kernel(*args)):
        np.testing.assert_allclose(d, np.full((256, 100), 8.0), rtol=1e-6)
    np.testing.assert_allclose(names["g"], np.full((256, 8), 200.0), rtol=1e-6)
    assert names["best"] in kernel.candidate_cfgs(None) and names["few"].shape == (10, 100)
    assert "memory      has a config" in capsys.readouterr().out
    assert len(executor.chooser.persistent.keys()) == 1, "the guess for the shorter array is not kept"
    label = executor.label(kernel, *args)
    assert label.startswith("ejkernel_ops#distances@v1:")
    for cache in (executor.chooser.cache, executor.chooser.persistent):
        assert cache.get(label) == names["best"]
    from ejk.ops import overlay_cache

    with overlay_cache({label: config(16)}):
        assert executor.choose_config(kernel, *args) == config(16)
    executor.chooser.cache.put(label, config(1))
    assert executor.choose_config(kernel, *args) == config(1)
