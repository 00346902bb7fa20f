# SPDX-License-Identifier: Apache-2.0
"""Every public name of ejkernel.ops is here and takes what it takes there, and what its documents say."""

import ast
import importlib
import inspect
import pathlib

import ejk.ops as ops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program

NAMES = """
AutotuneData AutotunePolicy Autotuner AutotuningResult BwdParams Cfg ConfigCache ConfigChooser ConfigSelectorChain
Entry Executor FNAutotuner FwdParams Invocation Kernel Measurement Out PersistentCache Tuner abstractify autotune
autotune_recorded benchmark default_key_builder_with_sharding device_fingerprint device_kind
extract_labels_from_hlo_text find_labels_in_lowered forward_autotune_only from_json get_device_platform
get_invocations label labels_to_configs overlay_cache pmap_with_config policy_override record_invocation
sharding_fingerprint short_hash stable_json to_json vmap_with_config
""".split()

MODULES = """
core core.kernel core.types config config.cache config.persistent config.selection execution execution.executor
execution.batch execution.tuning execution.offline execution.profiler registry utils utils.fingerprint utils.meta utils.serialize
utils.datacarrier
""".split()


def test_every_public_name_is_there():
    assert len(NAMES) == 43
    assert [name for name in NAMES if name not in ops.__all__ or not hasattr(ops, name)] == []


MORE_NAMES = """
execution.Tuner config.log_autotune_progress config.set_autotune_progress utils.datacarrier.hash_fn utils.datacarrier.get_safe_hash_int utils.meta.LABEL_PREFIXES
core.kernel.Kernel.run_shard_map core.kernel.Kernel.fwd_with_residuals_shard_map core.kernel.Kernel.vjp_shard_map
core.kernel.Kernel.run_shard_map_gpu core.kernel.Kernel.fwd_with_residuals_shard_map_gpu
core.kernel.Kernel.vjp_shard_map_gpu
""".split()


@pytest.mark.parametrize("path", MORE_NAMES)
def test_names_that_its_modules_have_beside_are_there(path):
    thing = ops
    for part in path.split("."):
        thing = getattr(thing, part)
    assert thing


def test_variants_for_shard_map_raise_until_a_kernel_has_them():
    with pytest.raises(NotImplementedError, match=r"\[add\] Add has no vjp_shard_map_gpu"):
        Add().vjp_shard_map_gpu(None, None)


def test_the_tuner_of_execution_gives_all_measurements():
    assert ops.execution.Tuner is ops.Autotuner and ops.Tuner is ops.config.Tuner is not ops.Autotuner


def test_hashes_are_those_of_ejkernel():
    from ejk.ops.utils.datacarrier import get_safe_hash_int, hash_fn

    class Holder:
        def __init__(self):
            self.a, self.b, self.c, self.d, self.e = 1, "x", None, [1, 2], True

    assert get_safe_hash_int("test") == 12707736894140473154801792860916528374
    assert get_safe_hash_int(3, "sha1") == 684329801336223661356952546078269889038938702779
    assert hash_fn(Holder()) == 187838994019645589279373086069850885902
    assert hash(ops.FwdParams(blocksize_m=64, num_warps=4)) == 1856369955452620234
    with pytest.raises(ValueError, match=r"\[get_safe_hash_int\] got algorithm='nope'; expected"):
        get_safe_hash_int("x", "nope")


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_there_and_says_what_it_is(name):
    assert importlib.import_module(f"ejk.ops.{name}").__doc__


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("Cfg", "Out")])
def test_everything_public_has_a_docstring(name):
    assert inspect.getdoc(getattr(ops, name))


SIGNATURES = {
    ops.AutotunePolicy: "allow_autotune allow_heuristics cache_miss_fallback validate_backward",
    ops.ConfigSelectorChain: "cache policy tuner persistent persist_autotune on_event forbid_reautotune",
    ops.ConfigSelectorChain.choose: "self inv kernel",
    ops.Tuner: "warmup iters",
    ops.Tuner.autotune: "self make_fn args kwargs candidates",
    ops.Tuner.measure: "self fn args kwargs",
    ops.Autotuner: "warmup iters",
    ops.Executor: "chooser stamp_prefix",
    ops.PersistentCache: "opname path loader dumper cfg_type",
    ops.policy_override: "selector updates",
    ops.AutotuningResult: "device entries",
    ops.Entry: "op_id_v call_key cfg",
    ops.Measurement: "cfg seconds",
    ops.Invocation: "op_id args kwargs batch_axes override_cfg stamp method mesh in_specs out_specs check_vma",
    ops.Kernel: "op_id",
    ops.vmap_with_config: "executor kernel in_axes",
    ops.pmap_with_config: "executor kernel in_axes axis_name",
    ops.label: "op_id call_hash prefix",
}


@pytest.mark.parametrize("thing", SIGNATURES, ids=lambda t: t.__qualname__)
def test_parameters_have_their_names_and_order(thing):
    wanted = SIGNATURES[thing].split()
    assert list(inspect.signature(thing).parameters)[: len(wanted)] == wanted


def test_the_original_name_can_be_used_where_it_is_free():
    code = """
import ejk.as_ejkernel, sys
from ejkernel.ops import Kernel, Executor
from ejkernel.ops.config.selection import ConfigSelectorChain
import ejkernel.ops.execution.offline as offline
import ejk.ops, ejk.ops.execution.offline
assert Kernel is ejk.ops.Kernel and offline is ejk.ops.execution.offline
assert ConfigSelectorChain is ejk.ops.ConfigSelectorChain
assert ejk.ops.__name__ == "ejk.ops" and ejk.ops.__spec__.name == "ejk.ops", ejk.ops.__spec__
try:
    import ejkernel.nothing
except ModuleNotFoundError:
    pass
else:
    raise AssertionError
"""
    run_program(code)


class Add(ops.Kernel[dict, jax.Array]):
    op_id = "add"

    def run(self, a, b, *, cfg, **kwargs):
        return a + b

    def heuristic_cfg(self, inv):
        return {"block": 1}

    def candidate_cfgs(self, inv):
        return [{"block": 1}, {"block": 2}]


X = jnp.ones((4, 4))


def test_autotune_takes_a_kernel_or_a_function():
    assert ops.autotune(Add(), X, X, configs=[{"block": 7}], num_warmup=1, num_iters=2) == {"block": 7}
    assert ops.autotune(Add(), X, X) in ({"block": 1}, {"block": 2})

    @ops.autotune(hyperparams={"steps": [1, 40]}, timing_rounds=3)
    def work(x, steps=1):
        for _ in range(steps):
            x = jnp.sin(x) @ x
        return x

    work(jnp.ones((64, 64)))
    assert work.optimal_hyperparams == {"steps": 1}
    tuned = ops.autotune(lambda x, n=1: x * n, hyperparams={"n": [3]})
    assert (tuned(X) == 3).all()
    fn, best, results = ops.FNAutotuner().tune(lambda x, n=1: x, args=(X,), kwargs={}, hyperparams={"n": [1, 2]})
    assert best["n"] in (1, 2) and len(results) == 2 and (fn(X) == X).all()


def test_a_tuned_function_has_the_results_of_its_last_call():
    tuned = ops.autotune(lambda x, n=1, mode="": x * n, hyperparams={"n": 2.0, "mode": "text"})
    assert (tuned.optimal_hyperparams, tuned.timing_results) == ({}, [])
    assert (tuned(X) == 2).all()
    assert tuned.optimal_hyperparams == {"n": 2.0, "mode": "text"}
    ((place, timing),) = tuned.timing_results
    assert place == 0 and timing.hyperparams == tuned.optimal_hyperparams and timing.t_mean > 0

    fn, best, results = ops.FNAutotuner().tune(lambda x, n: x, args=(X,), hyperparams={"n": (1, 2, 3)})
    assert results[0][1].hyperparams == best and len(results) == 3


def test_a_function_is_tuned_on_the_examples_that_are_given():
    seen = set()

    def work(x, n=1):
        seen.add(x.shape)
        return x * n

    tune = ops.FNAutotuner().tune
    tune(work, args=(jax.ShapeDtypeStruct((5,), "float32"),), hyperparams={"n": [1]}, example_args=(jnp.ones(7),))
    assert seen == {(7,)}
    tune(work, args=(X,), hyperparams={"n": [1]}, example_args=(jnp.ones(7),))
    assert seen == {(7,), X.shape}


def test_a_cache_key_does_not_join_calls_of_other_shapes():
    seen = []

    def work(x, n=1):
        seen.append((x.shape, n))
        return x

    tuned = ops.autotune(work, hyperparams={"n": [1, 2]}, cache_key="mine")
    for size in (3, 4):
        tuned(jnp.ones(size))
        assert {((size,), 1), ((size,), 2)} <= set(seen)


def test_a_call_that_cannot_be_tuned_is_an_error():
    with pytest.raises(TypeError, match=r"\[autotune\] got 'text'; expected a function"):
        ops.autotune()("text")
    with pytest.raises(ValueError, match=r"\[autotune\] got hyperparams={'n': \[\]}; expected values"):
        ops.autotune(lambda x, n: x, hyperparams={"n": []})(X)


def test_benchmark_gives_milliseconds_or_seconds():
    import time

    milliseconds = ops.benchmark(lambda: time.sleep(0.02), num_iters=3)
    seconds = ops.benchmark(lambda: time.sleep(0.02), iters=3)
    assert 20 <= milliseconds < 2000 and 0.02 <= seconds < 2
    assert ops.benchmark(lambda a, b: a @ b, X, X, warmup=1, iters=2) > 0


def test_record_invocation_and_get_invocations_in_both_forms():
    kernel = Add()
    ops.record_invocation(kernel, ops.Invocation(kernel=kernel, args=(X, X)))
    (inv,) = ops.get_invocations()
    assert inv.kernel is kernel and isinstance(inv.args[0], jax.ShapeDtypeStruct)
    device = ops.device_fingerprint()
    ops.record_invocation(device, "add@v0", "0123456789abcdef", kernel, (X, X), {})
    calls = ops.get_invocations(device)["add@v0"]
    assert len(calls) == 2 and calls["0123456789abcdef"][0] is kernel
    with pytest.raises(TypeError, match="expected"):
        ops.record_invocation(device, "op")


def test_autotune_recorded_takes_invocations_or_a_selector():
    kernel = Add()
    ops.record_invocation(kernel, ops.Invocation(kernel=kernel, args=(X, X)))
    result = ops.autotune_recorded(ops.get_invocations())
    assert [e.op_id_v for e in result.entries] == ["add@v0"]
    selector = ops.ConfigSelectorChain(ops.ConfigCache())
    result = ops.autotune_recorded(selector, show_progress=False, repetition_count=1)
    assert selector.cache.get(result.device, "add@v0", result.entries[0].call_key) == result.entries[0].cfg
    with result as entered:
        assert entered is result


def test_label_is_a_text_or_a_decorator():
    assert ops.label("matmul@v1", "0123456789abcdef") == "ejkernel_ops#matmul@v1:0123456789abcdef"

    @ops.label("my_attention")
    def attention(q, k):
        return q @ k

    assert (attention(X, X) == X @ X).all()
    (found,) = ops.find_labels_in_lowered(jax.jit(attention).lower(X, X))
    assert found.startswith("ejkernel_ops#my_attention@v0:")


def test_tuners_measure_and_pick():
    tuner = ops.Tuner(warmup=1, iters=2)
    assert tuner.measure(lambda a, mode: a @ a, X, mode="text") > 0

    def tagged(a):
        return jnp.tanh(a)

    tagged._ejk_validate_backward = True
    assert tuner.measure(tagged, X) > 0
    with pytest.raises(RuntimeError, match="no candidates"):
        tuner.autotune(lambda c: None, (X,), {}, [])
    with pytest.raises(RuntimeError, match="every candidate failed.*division"):
        tuner.autotune(lambda c: lambda x: 1 / 0, (X,), {}, [1])

    def make(steps):
        def run(x):
            for _ in range(steps):
                x = jnp.sin(x) @ x
            return x, "a text"  # results are not compared

        return run

    big = jnp.ones((64, 64))
    assert tuner.autotune(make, (big,), {}, [60, 1]) == 1
    data = ops.Autotuner(1, 2).autotune(make, (big,), {}, [60, 1])
    assert data.fastest_config == 1 and len(data.measurements) == 2


def test_measuring_inside_a_trace_uses_zeros_and_leaves_nothing():
    seen = []

    def traced(x):
        seen.append(ops.Tuner().measure(lambda a: jnp.sin(a), x))
        return x + 1

    program = jax.make_jaxpr(traced)(X)
    assert len(program.eqns) == 1 and seen[0] > 0


def test_devices():
    assert ops.device_kind() == "cpu" and ops.get_device_platform() == "xla"
    assert ops.device_fingerprint().startswith("cpu|") and ops.device_fingerprint() != "cpu|cpu"
    assert ops.sharding_fingerprint(X) and ops.sharding_fingerprint(3) is None
    assert ops.abstractify({"x": np.ones(2), "y": 1})["x"].shape == (2,)


def test_a_kernel_can_be_called():
    assert (Add()(X, X) == 2).all()
    assert (Add()(X, X, cfg={"block": 3}) == 2).all()


def test_invocations_do_not_change_and_say_what_they_are():
    inv = ops.Invocation(kernel=Add(), args=(X, 2), kwargs={"scale": 1.0}, metadata={"a": 1})
    assert inv.abstract_args[0].shape == (4, 4) and inv.abstract_args[1] == 2
    assert inv.device_fingerprint == ops.device_fingerprint() and inv.metadata == {"a": 1}
    assert inv.op_id == "add" and inv.make_key(lambda inv: "mine") == "mine"
    with pytest.raises(AttributeError):
        inv.args = ()
    with pytest.raises(TypeError, match="op_id= nor kernel="):
        ops.Invocation()


@pytest.mark.parametrize("module", ["ejk", "ejk.modules", "ejk.ops", "ejk.ops.config", "ejk.ops.execution", "ejk.ops.utils"])
def test_type_checkers_can_read_which_names_are_public(module):
    found = importlib.import_module(module)
    tree = ast.parse(pathlib.Path(found.__file__).read_text())
    (names,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    assert ast.literal_eval(names) == found.__all__ and all(hasattr(found, name) for name in found.__all__)
    assert (pathlib.Path(ops.__file__).parents[1] / "py.typed").exists()
