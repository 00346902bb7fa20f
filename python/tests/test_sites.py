# SPDX-License-Identifier: Apache-2.0
"""A call is for the device of its arrays, of jax.default_device or of for_device, whatever JAX's first device is.

There is one kind of device here: tests that need two take some of JAX's CPU devices for GPUs.
"""

import importlib.util
import re
import threading

import ejk.modules
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program
from ejk import _jax, _sites
from ejk.ops import (
    AutotunePolicy,
    ConfigCache,
    ConfigSelectorChain,
    Executor,
    Invocation,
    Kernel,
    PersistentCache,
    device_fingerprint,
    device_kind,
    find_labels_in_lowered,
    for_device,
    get_device_platform,
    overlay_cache,
)
from kernels import without_tuning

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Ways(Kernel):
    """Each platform's way multiplies by another number, the config by another."""

    op_id, version = "ways", "1"

    def run(self, x, *, cfg):
        return x * (1 * cfg)

    def run_triton(self, x, *, cfg):
        return x * (10 * cfg)

    def run_pallas(self, x, *, cfg):
        return x * (100 * cfg)

    def heuristic_cfg(self, inv):
        return 1

    def heuristic_cfg_pallas(self, inv):
        return 3


@pytest.fixture
def gpu(monkeypatch):
    """One of those of JAX's devices that are taken for GPUs."""
    devices = jax.devices()
    if len(devices) < 4:
        pytest.skip("there are not four devices")
    described = _sites.described

    def with_gpus(device):
        return ("gpu", "Some GPU", {}) if device in devices[2:] else described(device)

    monkeypatch.setattr(_sites, "described", with_gpus)
    monkeypatch.setattr(_sites, "_known", {})
    monkeypatch.setattr(_sites, "_only", [])
    return devices[2]


@pytest.fixture
def untuned():
    return without_tuning()


# ---- who decides ---------------------------------------------------------------------------------


def test_arrays_that_are_committed_decide(gpu, untuned):
    x, there = jnp.asarray(X), jax.device_put(X, gpu)
    for _ in range(3):  # cold, then warm
        np.testing.assert_array_equal(untuned(Ways(), x), X)
        np.testing.assert_array_equal(untuned(Ways(), there), 10 * X)
        np.testing.assert_array_equal(untuned(Ways(), jax.device_put(X, jax.devices()[1])), X)
    assert untuned(Ways(), there).devices() == {gpu}


def test_calls_on_two_kinds_of_devices_are_warm_side_by_side(gpu, untuned):
    asked = []

    class Asked(Ways):
        def heuristic_cfg(self, inv):
            asked.append(inv.device_fingerprint)
            return 1

    kernel, x, there = Asked(), jnp.asarray(X), jax.device_put(X, gpu)
    for _ in range(4):
        untuned(kernel, x), untuned(kernel, there)
    assert untuned._warm_entries == 2
    assert [name.partition("|")[0] for name in asked] == ["cpu", "gpu"]


def test_devices_of_one_kind_share_what_is_warm(untuned):
    x = jnp.asarray(X)
    for device in jax.devices():
        np.testing.assert_array_equal(untuned(Ways(), jax.device_put(x, device)), X)
    assert untuned._warm_entries == 1


def test_the_default_device_decides_for_arrays_that_may_be_anywhere(gpu, untuned):
    x, there, here = jnp.asarray(X), jax.device_put(X, gpu), jax.device_put(X, jax.devices()[0])
    for _ in range(3):
        np.testing.assert_array_equal(untuned(Ways(), x), X)
        with jax.default_device(gpu):
            np.testing.assert_array_equal(untuned(Ways(), x), 10 * X)
            np.testing.assert_array_equal(untuned(Ways(), here), X)
            np.testing.assert_array_equal(jax.jit(lambda x: untuned(Ways(), x))(x), 10 * X)
            assert (device_kind(), get_device_platform()) == ("gpu", "triton")
        np.testing.assert_array_equal(untuned(Ways(), there), 10 * X)


def test_a_gradient_outside_of_jit_is_that_of_the_arrays_device(gpu, untuned):
    there = jax.device_put(X, gpu)
    gradient = jax.grad(lambda x: untuned(Ways(), x).sum())
    np.testing.assert_array_equal(gradient(there), np.full_like(X, 10))
    np.testing.assert_array_equal(gradient(jnp.asarray(X)), np.ones_like(X))


def test_arrays_on_two_kinds_of_devices_are_refused_by_name(gpu, untuned):
    class Add(Kernel):
        op_id = "add"

        def run(self, a, b, *, cfg):
            return a + b

        def heuristic_cfg(self, inv):
            return 1

    here, there = jax.device_put(X, jax.devices()[0]), jax.device_put(X, gpu)
    message = r"\[add\] got arrays on cpu and on Some GPU; expected all on one kind of device; move them"
    with pytest.raises(ValueError, match=message):
        untuned(Add(), here, there)
    np.testing.assert_array_equal(untuned(Add(), jnp.asarray(X), there), 2 * X)
    with pytest.raises(ValueError, match=r"\[matmul\] got arrays on "):
        ejk.modules.matmul(here, jax.device_put(X.T, gpu))


def test_the_mesh_of_a_call_decides(gpu, untuned):
    devices = jax.devices()
    for chosen, factor in ((devices[:2], 1), (devices[2:4], 10)):
        over = {"mesh": jax.sharding.Mesh(np.array(chosen), "i"), "in_specs": jax.P("i"), "out_specs": jax.P("i")}
        out = untuned(Ways(), jnp.asarray(X), method="shard_map", **over)
        np.testing.assert_array_equal(out, factor * X)
        assert out.devices() == set(chosen)


def test_types_of_arrays_may_say_where_they_will_be(gpu, untuned):
    sharding = jax.sharding.SingleDeviceSharding(gpu)
    inv = Invocation(kernel=Ways(), args=(jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=sharding),))
    assert inv.device_fingerprint == device_fingerprint(gpu) != device_fingerprint()


# ---- for_device ----------------------------------------------------------------------------------


def lowered(executor, *platforms):
    traced = jax.jit(lambda x: executor(Ways(), x)).trace(jnp.asarray(X))
    return traced.lower(lowering_platforms=platforms).as_text()


def test_a_scope_decides_what_is_traced(untuned):
    assert "3.000000e+02" not in lowered(untuned, "cpu")
    with for_device("tpu"):
        assert "3.000000e+02" in lowered(untuned, "tpu"), "the TPU's way with the TPU's guess"
        assert (device_kind(), get_device_platform()) == ("tpu", "pallas")
        with for_device("cpu"):
            assert get_device_platform() == "xla"
            np.testing.assert_array_equal(untuned(Ways(), jnp.asarray(X)), X)
    assert get_device_platform() == "xla"


def test_jitted_functions_are_traced_again_inside_and_are_what_they_were_outside(untuned):
    function, traces = jax.jit(lambda x: traces.append(1) or untuned(Ways(), x)), []
    x = jnp.asarray(X)
    np.testing.assert_array_equal(function(x), X)
    with for_device("gpu"):
        assert "1.000000e+01" in function.trace(x).lower(lowering_platforms=("cuda",)).as_text()
        with overlay_cache({untuned.label(Ways(), x): 7}):
            assert "7.000000e+01" in function.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    np.testing.assert_array_equal(function(x), X)
    assert len(traces) == 3


def test_threads_that_enter_their_first_scopes_at_once_leave_them_too(untuned, monkeypatch):
    both_make, both_are_inside, first_has_traced = threading.Barrier(2), threading.Barrier(2), threading.Event()
    functions = [jax.jit(lambda x: untuned(Ways(), x)) for _ in range(2)]
    x, results, make = jnp.asarray(X), {}, jax.make_user_context

    def one_after_the_other(*default):
        made, is_second = make(*default), both_make.wait() == 1
        if is_second:
            first_has_traced.wait()
        return made

    def enter_and_leave(function):
        with for_device("tpu"):
            function.trace(x)
            first_has_traced.set()
            both_are_inside.wait()
        results[function] = function(x)

    monkeypatch.setattr(_jax, "_scopes_in_traces", {})
    monkeypatch.setattr(jax, "make_user_context", one_after_the_other)
    threads = [threading.Thread(target=enter_and_leave, args=(function,)) for function in functions]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    for function in functions:
        np.testing.assert_array_equal(results[function], X)


def test_an_export_for_another_device_is_traced_for_it(untuned):
    def exported(platform):
        return jax.export.export(function, platforms=[platform])(jnp.asarray(X)).mlir_module()

    function = jax.jit(lambda x: untuned(Ways(), x))
    assert "3.000000e+02" not in exported("cpu")
    with for_device("tpu"):
        assert "3.000000e+02" in exported("tpu")
    assert "3.000000e+02" not in exported("cpu")


def test_a_scope_of_a_device_that_is_here_goes_before_the_arrays(gpu, untuned):
    x = jnp.asarray(X)
    with for_device(gpu):
        assert "1.000000e+01" in jax.jit(lambda x: untuned(Ways(), x)).lower(x).as_text()
        np.testing.assert_array_equal(untuned(Ways(), jax.device_put(x, gpu)), 10 * X)
        assert Invocation(kernel=Ways(), args=(x,)).device_fingerprint == device_fingerprint(gpu)


def test_a_call_for_another_device_does_not_compute_here(untuned):
    x = jnp.asarray(X)
    message = r"\[ways\] got a call for tpu to compute on cpu; expected arrays on tpu, or a function that is traced; move"
    with for_device("tpu"):
        with pytest.raises(ValueError, match=message):
            untuned(Ways(), x)
        with pytest.raises(ValueError, match=message):
            untuned(Ways(), X)
        with pytest.raises(ValueError, match=message):
            jax.grad(lambda x: untuned(Ways(), x).sum())(x)
        assert "3.000000e+02" in jax.jit(jax.grad(lambda x: untuned(Ways(), x).sum())).lower(x).as_text()
        compiled = untuned.compile(Ways(), x)
    with pytest.raises(ValueError, match=message):
        compiled(x)
    assert compiled.config == 3
    assert "3.000000e+02" in compiled.lower(x).as_text()


def test_labels_and_configs_are_those_of_the_device(untuned):
    x = jnp.asarray(X)
    with for_device("tpu"):
        text = untuned.label(Ways(), x)
        untuned.chooser.cache.put(text, 5)
        assert untuned.choose_config(Ways(), x) == 5
        traced = jax.jit(lambda x: untuned(Ways(), x)).trace(x).lower(lowering_platforms=("tpu",))
        assert find_labels_in_lowered(traced) == [text] and "5.000000e+02" in traced.as_text()
    assert untuned.choose_config(Ways(), x) == 1 and text == untuned.label(Ways(), x)


@pytest.mark.parametrize("given", [None, 3, "M1", "TPU v1"])
def test_an_object_that_is_not_a_device_is_refused(given):
    with pytest.raises((TypeError, ValueError), match=r"got .*; expected .*; pass one"):
        for_device(given)


def test_an_unknown_name_is_answered_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"got 'metal'; expected a platform \(cpu, gpu, cuda, rocm, tpu\), A100, .*v6e,"):
        for_device("metal")


@pytest.mark.skipif(importlib.util.find_spec("jax_plugins") is not None, reason="a plugin is installed")
def test_half_of_a_compiler_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "jax_cuda13_plugin.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    wanted = f'pip install "jax[cuda13-local]=={jax.__version__}"'
    with pytest.raises(RuntimeError, match=rf"expected jax-cuda13-plugin and jax-cuda13-pjrt, .*{re.escape(wanted)}$"):
        for_device("A100")


def test_a_scope_needs_no_arrays_of_jax():
    code = """
        import numpy
        from ejk.ops import Executor, Kernel, device_kind, for_device
        class K(Kernel):
            op_id = "k"
            def run(self, x, *, cfg): return x + cfg
            def heuristic_cfg(self, inv): return 1
        with for_device("cpu"):
            print(Executor()(K(), numpy.zeros(1)), device_kind())
    """
    assert run_program(code, EJKERNEL_AUTOTUNE_POLICY="heuristics").stdout == "[1.] cpu\n"


# ---- inside of a call ----------------------------------------------------------------------------


def test_hooks_and_methods_are_told_the_device_of_their_call(gpu):
    told = []

    class Tells(Ways):
        op_id = "tells"

        def run_triton(self, x, *, cfg):
            told.append(("run", get_device_platform()))
            return inner(Ways(), x)

        def heuristic_cfg(self, inv):
            told.append(("heuristic_cfg", get_device_platform()))
            return 1

        def fwd_with_residuals(self, x, *, cfg):
            told.append(("fwd", get_device_platform()))
            return self.run_triton(x, cfg=cfg), ()

        def vjp(self, residuals, y, dy, x, *, cfg):
            told.append(("vjp", get_device_platform()))
            return (inner(Ways(), dy),)

    executor, inner, there = without_tuning(), without_tuning(), jax.device_put(X, gpu)
    np.testing.assert_array_equal(executor(Tells(), there), 10 * X)
    gradient = jax.jit(jax.grad(lambda x: executor(Tells(), x).sum()))
    with jax.default_device(gpu):
        np.testing.assert_array_equal(gradient(there), np.full_like(X, 10))
    assert {hook for hook, _ in told} == {"run", "heuristic_cfg", "fwd", "vjp"}
    assert {platform for _, platform in told} == {"triton"}
    assert get_device_platform() == "xla"


def test_candidates_run_on_the_device_of_the_call(gpu):
    seen = set()

    class Sees(Kernel):
        op_id = "sees"

        def run(self, x, *, cfg):
            np.asarray(x)  # so that it is not traced
            seen.update(x.devices())
            return x

        def heuristic_cfg(self, inv):
            return 1

        def candidate_cfgs(self, inv):
            return [1, 2]

    def executor():
        return Executor(ConfigSelectorChain(ConfigCache(), AutotunePolicy(budget_seconds=0.2)))

    executor().choose_config(Sees(), jax.device_put(X, gpu))
    assert seen == {gpu}
    seen.clear()
    with for_device(gpu):
        jax.eval_shape(lambda x: executor().choose_config(Sees(), x) * x, X)
    assert seen == {gpu}, "numbers for a traced call are made there"


# ---- what is not here ----------------------------------------------------------------------------


class Tunable(Ways):
    op_id = "tunable"

    def candidate_cfgs(self, inv):
        return [1, 2]


def test_nothing_is_tuned_for_a_device_that_is_not_here(caplog, monkeypatch):
    monkeypatch.setattr("ejk._log._said", set())  # another test may have been told
    selector = ConfigSelectorChain(ConfigCache(), AutotunePolicy(budget_seconds=0.2))
    x, executor = jnp.asarray(X), Executor(selector)
    with for_device("rocm"):
        assert selector.choose_with_origin(Invocation(kernel=Tunable(), args=(x,)), Tunable()) == (1, "heuristics")
        executor.choose_config(Tunable(), x[:1])
        message = r"\[tunable@v1\] got a call for gpu to tune; expected a device that is here, .*; tune where it is"
        with pytest.raises(RuntimeError, match=message):
            selector.tune(Invocation(kernel=Tunable(), args=(x,)), Tunable())
    said = [r.getMessage() for r in caplog.records if "nothing is tuned" in r.getMessage()]
    assert said == ["ejk: nothing is tuned for gpu, which is not here: stored configs and heuristics answer"]


def test_stored_configs_of_the_device_are_used(tmp_path):
    store, x = PersistentCache(path=tmp_path / "store"), jnp.asarray(X)
    selector = ConfigSelectorChain(ConfigCache(), persistent=store)
    inv = Invocation(kernel=Tunable(), args=(x,))
    with for_device("tpu"):
        store.put(inv.device_fingerprint, "tunable@v1", inv.make_key(), 2)
        assert selector.choose_with_origin(inv, Tunable()) == (2, "persistent")
    with for_device("gpu"):
        assert selector.choose_with_origin(inv, Tunable()) == (1, "heuristics")


# ---- operations ----------------------------------------------------------------------------------


def test_operations_are_plain_jax_where_the_arrays_are_elsewhere(gpu, no_tuning):
    def text(device):
        sharded = jax.device_put(X, device)
        with jax.default_device(device):
            return jax.jit(ejk.modules.softmax).lower(sharded).as_text()

    assert "ejk_call" in text(jax.devices()[0]) and "ejk_call" not in text(gpu)
    np.testing.assert_allclose(ejk.modules.softmax(jax.device_put(X, gpu)).sum(-1), 1, rtol=1e-6)
    with for_device("tpu"):
        traced = jax.jit(ejk.modules.softmax).trace(X).lower(lowering_platforms=("tpu",))
    assert "ejk_call" not in traced.as_text()
