# SPDX-License-Identifier: Apache-2.0
"""Right under JAX: eager, jit, grad, vmap, scan, remat, shard_map, overlays, tuning during a trace."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program
from ejk.ops import (
    ConfigCache,
    ConfigSelectorChain,
    Executor,
    Invocation,
    Kernel,
    autotune_lowered,
    find_labels_in_lowered,
    labels_to_configs,
    overlay_cache,
    pmap_with_config,
    policy_override,
    record_invocation,
    vmap_with_config,
)


@dataclasses.dataclass(frozen=True)
class Config:
    steps: int = 1


class MatMul(Kernel[Config, jax.Array]):
    """More steps compute the same and take longer."""

    op_id = "matmul"
    traced = 0

    def run(self, a, b, *, cfg, scale=1.0, mode="plain"):
        type(self).traced += 1
        y = a @ b * scale
        for _ in range(cfg.steps - 1):
            y = y + 0.0 * (jnp.sin(y) @ jnp.cos(b))
        return y

    def heuristic_cfg(self, inv):
        return Config(2)

    def candidate_cfgs(self, inv):
        return [Config(8), Config(1)]


class Gradient(MatMul):
    """Its gradients are twice what they should be, so that they can be told apart."""

    op_id = "gradient"

    def fwd_with_residuals(self, a, b, *, cfg, scale=1.0, mode="plain"):
        return a @ b * scale, (a, b, "static", scale)

    def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
        a, b, word, scale = residuals
        assert word == "static" and y.shape == dy.shape
        return 2 * scale * dy @ b.T, 2 * scale * a.T @ dy


A = jnp.arange(12, dtype=jnp.float32).reshape(3, 4) / 10
B = jnp.ones((4, 4), jnp.float32)


@pytest.fixture
def executor():
    return Executor(ConfigSelectorChain(ConfigCache()))


def place(kernel, *args, **kwargs):
    from ejk.ops.core.kernel import describe

    call = describe(Invocation(kernel=kernel, args=args, kwargs=kwargs), kernel)
    return call.device, call.op, call.key


def test_eager_calls_tune_once_and_stay_warm(executor):
    kernel = MatMul()
    for _ in range(3):
        np.testing.assert_allclose(executor(kernel, A, B), A @ B, rtol=1e-5)
    assert executor.choose_config(kernel, A, B) == Config(1)
    before = MatMul.traced
    executor(kernel, A + 1, B)
    assert MatMul.traced == before and executor._warm_entries == 1


def test_static_arguments_count_by_value(executor):
    kernel = MatMul()
    for scale in (2.0, 3.0, 2.0, 2, True):
        np.testing.assert_allclose(executor(kernel, A, B, scale=scale, mode="x"), A @ B * scale, rtol=1e-5)
    assert executor._warm_entries == 4
    for scale in (0.0, -0.0):
        assert str(float(executor(kernel, A, B, scale=scale)[0, 0])) == str(float((A @ B * scale)[0, 0]))


def test_tuning_during_a_trace_leaves_nothing_in_the_program(executor):
    kernel = MatMul()
    program = jax.make_jaxpr(lambda a, b: executor(kernel, a, b))(A, B)
    assert executor.choose_config(kernel, A, B) == Config(1)
    assert [e.primitive.name for e in program.eqns] == ["dot_general", "mul"]


def test_a_tuning_in_a_trace_measures_on_real_numbers(executor, tmp_path):
    from ejk.ops import PersistentCache

    store = PersistentCache(path=tmp_path)
    executor = Executor(ConfigSelectorChain(persistent=store))
    jax.jit(lambda a, b: executor(MatMul(), a, b))(A, B)
    evidence = store.entry(*place(MatMul(), A, B))["evidence"]
    assert evidence["data"] == "seeded normal numbers" and evidence["samples"] > 0


@pytest.mark.parametrize("kind", [MatMul, Gradient])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients(executor, kind, wrap):
    kernel = kind()
    factor = 2 if kind is Gradient else 1
    loss = wrap(lambda a, b: executor(kernel, a, b, scale=3.0).sum())
    da, db = jax.grad(loss, (0, 1))(A, B)
    np.testing.assert_allclose(da, factor * 3 * jnp.ones((3, 4)) @ B.T, rtol=1e-5)
    np.testing.assert_allclose(db, factor * 3 * A.T @ jnp.ones((3, 4)), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(jax.grad(loss), (0, None))(jnp.stack([A, A]), B)[1], da, rtol=1e-5)


class Forms:
    """vjp in every documented form."""

    class WithoutOutput(Gradient):
        def vjp(self, residuals, dy, *args, cfg, **kwargs):
            a, b = residuals[:2]
            return dy @ b.T, a.T @ dy

    class NoArguments(Gradient):
        def vjp(self, residuals, y, dy, cfg):
            a, b = residuals[:2]
            return dy @ b.T, a.T @ dy

    class WithArguments(Gradient):
        def vjp(self, residuals, dy, a, b, *, cfg):
            return dy @ b.T, a.T @ dy

    class WithDefaults(Gradient):
        def vjp(self, residuals, y, dy, a, b, bias=None, *, cfg):
            return dy @ b.T, a.T @ dy, None

    class OneFunction(MatMul):
        def custom_vjp(self, primals, cfg, kwargs, cotangents):
            (a, b), ct = primals, cotangents[0]
            return ct @ b.T, a.T @ ct


@pytest.mark.parametrize("name", [n for n in vars(Forms) if n[0] != "_"])
def test_every_form_of_vjp_is_understood(executor, name):
    kernel = getattr(Forms, name)(name)
    da, db = jax.grad(lambda a, b: executor(kernel, a, b).sum(), (0, 1))(A, B)
    np.testing.assert_allclose(da, jnp.ones((3, 4)) @ B.T, rtol=1e-5)
    np.testing.assert_allclose(db, A.T @ jnp.ones((3, 4)), rtol=1e-5)


def test_gradients_with_scalar_none_and_nested_arguments(executor):
    class Nested(Kernel):
        def run(self, x, factor, nothing, weights, *, cfg, bias=None):
            return x * factor * weights["w"][0] + (0 if bias is None else bias)

        def heuristic_cfg(self, inv):
            return None

        def fwd_with_residuals(self, x, factor, nothing, weights, *, cfg, bias=None):
            return self.run(x, factor, nothing, weights, cfg=cfg, bias=bias), (x, factor, weights)

        def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
            x, factor, weights = residuals
            assert isinstance(factor, float)
            return dy * factor * weights["w"][0], None, None, {"w": [dy * x * factor, None]}

    kernel = Nested("nested")
    weights = {"w": [jnp.full(3, 5.0), jnp.arange(3)]}
    x = jnp.arange(3.0)

    def loss(x, w):
        return executor(kernel, x, 2.0, None, {"w": [w, weights["w"][1]]}, bias=jnp.ones(3)).sum()

    dx, dw = jax.grad(loss, (0, 1))(x, weights["w"][0])
    np.testing.assert_allclose(dx, [10, 10, 10])
    np.testing.assert_allclose(dw, 2 * x)


def test_a_vjp_with_the_wrong_number_of_gradients_is_an_error(executor):
    class Short(Gradient):
        def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
            return (dy, dy, dy)

    with pytest.raises(TypeError, match="3 gradients for 2 arguments"):
        jax.grad(lambda a: executor(Short("short"), a, B).sum())(A)


def test_scan_remat_vmap_and_cond(executor):
    kernel = MatMul()

    def step(carry, _):
        return executor(kernel, carry, B) / 4, None

    def program(a):
        a, _ = jax.lax.scan(step, a, None, length=3)
        a = jax.checkpoint(lambda a: executor(kernel, a, B))(a)
        return jax.lax.cond(a.sum() > 0, lambda a: executor(kernel, a, B), lambda a: a, a).sum()

    def plain(a):
        for _ in range(3):
            a = a @ B / 4
        return (a @ B @ B).sum()

    np.testing.assert_allclose(jax.jit(program)(A), plain(A), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(program)(A), jax.grad(plain)(A), rtol=1e-5)
    batch = jnp.stack([A, A + 1])
    np.testing.assert_allclose(jax.vmap(program)(batch), jax.vmap(plain)(batch), rtol=1e-5)


def test_shard_map_outside_and_inside(executor):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.P
    kernel, a = MatMul(), jnp.arange(32.0).reshape(8, 4)
    inside = jax.shard_map(lambda a, b: executor(kernel, a, b), mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    np.testing.assert_allclose(jax.jit(inside)(a, B), a @ B, rtol=1e-5)
    got = executor(kernel, a, B, method="shard_map", mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    np.testing.assert_allclose(got, a @ B, rtol=1e-5)


def test_overlays_make_jitted_functions_retrace_and_revert(executor):
    class Report(Kernel):
        def run(self, x, *, cfg):
            return x + cfg

        def heuristic_cfg(self, inv):
            return 1

    kernel, x = Report("report"), jnp.zeros(3)
    f = jax.jit(lambda x: executor(kernel, x))
    assert f(x)[0] == 1
    overlay = {place(kernel, x): 5}
    for _ in range(2):
        with overlay_cache(overlay):
            assert f(x)[0] == 5
            with overlay_cache({place(kernel, x): 6}):
                assert f(x)[0] == 6
            assert f(x)[0] == 5
            assert executor(kernel, x)[0] == 5
        assert f(x)[0] == 1
        assert executor(kernel, x)[0] == 1
    traces = f._cache_size()
    with policy_override(autotune=False):
        f(x)
    assert f._cache_size() == traces
    with overlay_cache({}) as cache:
        for config in (7, 8):
            cache.put(place(kernel, x), config)
            assert f(x)[0] == config
        cache.erase(place(kernel, x))
        assert f(x)[0] == 1
        cache.put(place(kernel, x), 9)
        cache.clear()
        assert f(x)[0] == 1


def test_a_changed_cache_a_changed_kernel_and_a_changed_policy_count_at_once(executor):
    class Report(Kernel):
        def run(self, x, *, cfg):
            return x + cfg + self.offset

        def heuristic_cfg(self, inv):
            return 1

    kernel, x = Report("report"), jnp.zeros(3)
    kernel.offset = 0
    for _ in range(2):
        assert executor(kernel, x)[0] == 1
    executor.chooser.cache.put(*place(kernel, x), 7)
    for _ in range(2):
        assert executor(kernel, x)[0] == 7
    kernel.offset = 100
    for _ in range(2):
        assert executor(kernel, x)[0] == 107
    assert executor(kernel, x, cfg=2)[0] == 102
    assert executor(kernel, x)[0] == 107


def test_fresh_kernels_share_what_was_compiled(executor):
    executor(MatMul(), A, B)
    before = MatMul.traced
    for _ in range(5):
        executor(MatMul(), A, B)
    assert MatMul.traced == before


def test_kernels_that_look_at_values_run_as_they_are(executor):
    class Looks(Kernel):
        def run(self, x, *, cfg):
            return "many" if float(x.sum()) > 3 else x

        def heuristic_cfg(self, inv):
            return {}

    kernel = Looks("looks")
    for _ in range(2):
        assert executor(kernel, jnp.ones(5)) == "many"
        assert executor(kernel, jnp.zeros(5)).sum() == 0


def test_prepare_is_asked_once_and_its_result_counts(executor):
    class Prepared(MatMul):
        op_id = "prepared"
        asked = 0

        def prepare(self, a, b, **kwargs):
            type(self).asked += 1
            return (a.astype(jnp.float32), b), {"scale": 2.0}

    kernel = Prepared()
    got = executor(kernel, A.astype(jnp.bfloat16), B)
    assert got.dtype == jnp.float32 and Prepared.asked == 1
    compiled = executor.compile(kernel, A.astype(jnp.bfloat16), B)
    np.testing.assert_allclose(compiled(A.astype(jnp.bfloat16), B), got)
    with pytest.raises(TypeError, match="prepare"):

        class Bad(MatMul):
            def prepare(self, a, b):
                return a, b

        executor(Bad("bad"), A, B)


def test_compile_takes_texts_and_uses_platform_and_gradient(executor):
    class Platform(Gradient):
        op_id = "platform"

        def run_cpu(self, a, b, *, cfg, scale=1.0, mode="plain"):
            return a @ b * (3 if mode == "three" else 1)

        def run_xla(self, a, b, *, cfg, scale=1.0, mode="plain"):
            raise AssertionError("run_cpu comes first")

    compiled = executor.compile(Platform(), A, B, mode="three")
    np.testing.assert_allclose(compiled(A, B), 3 * A @ B, rtol=1e-5)
    np.testing.assert_allclose(compiled(A, B, mode="plain"), A @ B, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda a: compiled(a, B).sum())(A), 2 * jnp.ones((3, 4)) @ B.T, rtol=1e-5)


@pytest.mark.parametrize("suffix", ["cpu", "xla", "shard_map"])
def test_the_most_specific_method_runs(executor, suffix):
    kernel = type("Special", (MatMul,), {f"run_{suffix}": lambda self, a, b, *, cfg: a * 0})("special")
    mesh = jax.make_mesh((1,), ("x",))
    over = dict(method="shard_map", mesh=mesh, in_specs=jax.P(), out_specs=jax.P()) if suffix == "shard_map" else {}
    assert executor(kernel, A, B, **over).sum() == 0


def test_warm_calls_take_named_arrays_in_any_order_and_tuples_of_arrays():
    class Minus(Kernel):
        def run(self, pair=(0, 0), *, cfg, a=0, b=0, rest=()):
            return a - 2 * b + 4 * pair[0] - 8 * pair[1] + 16 * sum(rest, 0)

        def heuristic_cfg(self, inv):
            return 1

    one, two, three = jnp.ones(2), jnp.full(2, 2.0), jnp.full(2, 3.0)
    kernel, executor = Minus(), Executor()
    for _ in range(4):
        assert executor(kernel, b=one, a=three)[0] == 1
        assert executor(kernel, a=three, b=one)[0] == 1
        assert executor(kernel, (one, two), b=three)[0] == -18
        assert executor(kernel, rest=(one, 2, two), b=three, a=one)[0] == 75
        assert executor(kernel, rest=(one, two, 2), b=three, a=one)[0] == 75
        assert executor(kernel, rest=(one, two), b=2, a=one)[0] == 45
        assert executor(kernel, rest=((one, two)), b=3, a=one)[0] == 43
    assert executor._warm_entries == 7


def test_backward_is_measured_with_the_kernels_own_vjp():
    class Both(Kernel):
        ran = []

        def run(self, x, *, cfg):
            return x * 2

        def heuristic_cfg(self, inv):
            return 1

        def candidate_cfgs(self, inv):
            return [1, 2]

        def fwd_with_residuals(self, x, *, cfg):
            return x * 2, ()

        def vjp(self, residuals, y, dy, *args, cfg, **kwargs):
            self.ran.append(cfg)
            return (dy * 2,)

    from ejk.ops import AutotunePolicy

    kernel, x = Both("both"), jnp.ones(8)
    selector = ConfigSelectorChain(policy=AutotunePolicy(validate_backward=True))
    executor = Executor(selector)
    executor(kernel, x)
    assert set(kernel.ran) == {1, 2}
    forward = Executor(ConfigSelectorChain(cache=selector.cache, autotune=False))
    assert selector.cache.get(*place(kernel, x)) is None  # kept apart from forward-only results
    assert forward.choose_config(kernel, x) == 1


def test_batches_share_one_config(executor):
    kernel = MatMul()
    batch = jnp.stack([A, A + 1])
    want = jnp.einsum("nij,jk->nik", batch, B)
    for axes in ((0, None), [0, None]):
        got = vmap_with_config(executor, kernel, in_axes=axes)(batch, B, scale=2.0)
        np.testing.assert_allclose(got, 2 * want, rtol=1e-5)
    assert executor.choose_config(kernel, A, B, scale=2.0) == Config(1)
    np.testing.assert_allclose(vmap_with_config(kernel, in_axes=(0, None))(batch, B), want, rtol=1e-5)
    got = pmap_with_config(executor, kernel, in_axes=(0, None))(batch, B)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    class OfTree(MatMul):
        def run(self, tree, x, *, cfg):
            return tree["w"]["in"] @ x + tree["b"]

    tree, x = {"w": {"in": B.T}, "b": jnp.ones((2, 4))}, jnp.ones((2, 4))
    got = vmap_with_config(executor, OfTree("of_tree"), in_axes=({"w": None, "b": 0}, 0))(tree, x)
    np.testing.assert_allclose(got[1], B.sum(0) + 1, rtol=1e-5)
    with pytest.raises(ValueError, match="in_axes has 3 entries for 2"):
        vmap_with_config(executor, kernel, in_axes=(0, None, 0))(batch, B)


# ---- labels -------------------------------------------------------------------------------------


def test_labels_are_in_every_form_of_a_computation(executor):
    kernel = MatMul()
    f = jax.jit(lambda a, b: executor(kernel, a, b) + executor(kernel, a, b))
    lowered = f.lower(A, B)
    label = executor.label(kernel, A, B)
    exported = jax.export.export(f)(A, B)
    for form in (lowered, lowered.compile(), exported, lowered.as_text(), exported.mlir_module_serialized):
        assert find_labels_in_lowered(form) == [label]
    assert labels_to_configs(lowered, executor.chooser) == [(label, Config(1))]
    assert labels_to_configs([label], executor.chooser) == [(label, Config(1))]


@pytest.mark.parametrize("word", ["json", "none"])
def test_stamps_of_other_kinds(word, monkeypatch):
    monkeypatch.setenv("EJKERNEL_OPS_STAMP", word)
    executor, kernel = Executor(ConfigSelectorChain()), MatMul()
    lowered = jax.jit(lambda a, b: executor(kernel, a, b)).lower(A, B)
    assert ('"steps' in lowered.as_text() or "steps" in lowered.as_text()) == (word == "json")


def test_a_lowered_computation_is_tuned_from_recordings(monkeypatch):
    monkeypatch.setenv("EJKERNEL_OPS_RECORD", "1")
    selector = ConfigSelectorChain(autotune=False)
    executor, kernel = Executor(selector), MatMul()
    f = jax.jit(lambda a, b: executor(kernel, a, b))
    lowered = f.lower(A, B)
    assert executor.choose_config(kernel, A, B) == Config(2)
    with policy_override(autotune=True):
        result = autotune_lowered(selector, lowered)
    assert [e.cfg for e in result.entries] == [Config(1)] and result.skipped == ()
    with result:
        assert executor.choose_config(kernel, A, B) == Config(1)
        f(A, B)


def test_labels_without_a_record_are_told(executor):
    lowered = jax.jit(lambda a, b: executor(MatMul(), a, b)).lower(A, B)
    result = autotune_lowered(executor.chooser, lowered)
    assert result.entries == () and "not recorded" in result.skipped[0][1]
    record_invocation(MatMul(), Invocation(kernel=MatMul(), args=(A, B)))
    assert len(autotune_lowered(executor.chooser, lowered).entries) == 1


def test_recorded_calls_are_tuned_in_another_process(tmp_path, monkeypatch):
    import sys

    (tmp_path / "some_kernels.py").write_text(
        """
import jax, jax.numpy as jnp
from ejk.ops import ConfigSelectorChain, Executor, Kernel

class Scaled(Kernel):
    op_id, version = "scaled", "3"
    def __init__(self, power):
        super().__init__()
        self.power = power
    def run(self, x, weights, *, cfg, mode, nothing=None):
        return x * weights["w"][0] ** self.power
    def heuristic_cfg(self, inv):
        return (1, "a")
    def candidate_cfgs(self, inv):
        return [(1, "a"), (2, "b")]

def model(executor):
    return jax.jit(lambda x, w: executor(Scaled(2), x, {"w": [w, 3]}, mode="fast"))

args = (jnp.ones((4, 4)), jnp.ones(4))
"""
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:" + ":".join(p for p in sys.path if p))
    monkeypatch.setenv("EJKERNEL_OPS_RECORD_DIR", str(tmp_path / "recorded"))

    def run(code, **environment):
        return run_program(code, **environment).stdout

    record = """
import some_kernels as s
from ejk.ops import *
text = s.model(Executor(ConfigSelectorChain(autotune=False))).lower(*s.args).as_text()
print(text)
"""
    text = run(record, EJKERNEL_OPS_RECORD="1")
    (tmp_path / "lowered.mlir").write_text(text)
    tune = f"""
import some_kernels
from ejk.ops import *
selector = ConfigSelectorChain(persistent=PersistentCache(path={str(tmp_path / "store")!r}))
result = autotune_lowered(selector, open({str(tmp_path / "lowered.mlir")!r}).read())
assert result.skipped == (), result
print(result.entries)
assert len(selector.persistent.keys()) == 1
"""
    assert "scaled@v3" in run(tune)
    use = f"""
import some_kernels as s
from ejk.ops import *
store = PersistentCache(path={str(tmp_path / "store")!r})
events = []
selector = ConfigSelectorChain(persistent=store, on_event=lambda event, **d: events.append((event, d.get("level"))))
s.model(Executor(selector))(*s.args)
assert events == [("cache_hit", "persistent")], events
"""
    run(use)


def test_threads_call_tune_and_overlay_jitted_functions_at_once(executor):
    import threading

    class Report(Kernel):
        def run(self, x, *, cfg):
            return x * 0 + cfg

        def heuristic_cfg(self, inv):
            return 1

    kernel, failures = Report("report"), []
    jitted = jax.jit(lambda x: executor(kernel, x))
    arrays = [jnp.ones(n) for n in range(1, 6)]

    def work(seed):
        try:
            for i in range(40):
                x = arrays[(seed + i) % 5]
                with overlay_cache({place(kernel, x): seed + 10}):
                    assert jitted(x)[0] == seed + 10 and executor(kernel, x)[0] == seed + 10
                assert jitted(x)[0] == 1 and executor(kernel, x)[0] == 1
                if i % 10 == 0:
                    executor.chooser.cache.clear()
                if i % 15 == 0:
                    kernel.touched = i
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_kernels_made_for_one_call_are_not_held(executor):
    import gc
    import weakref

    made = []
    for _ in range(5):
        kernel = MatMul()
        made.append(weakref.ref(kernel))
        executor(kernel, A, B)
    del kernel
    gc.collect()
    alive = sum(ref() is not None for ref in made)
    assert alive <= 1 and executor._warm_entries == 1  # the first one is part of what was compiled


def test_recorded_calls_are_counted_and_timed(tmp_path, monkeypatch):
    import json

    program = """
import jax, jax.numpy as jnp
from ejk.ops import ConfigSelectorChain, Executor, Kernel
class Twice(Kernel):
    op_id = "twice"
    def run(self, x, *, cfg):
        return 2 * x
    def heuristic_cfg(self, inv):
        return 1
executor, kernel = Executor(), Twice()
for _ in range(10):
    executor(kernel, jnp.ones(4))
executor(kernel, jnp.ones(5))
jax.jit(lambda x: executor(kernel, x))(jnp.ones(6))
"""
    monkeypatch.setenv("EJKERNEL_OPS_RECORD", "1")
    monkeypatch.setenv("EJKERNEL_OPS_RECORD_DIR", str(tmp_path / "recorded"))
    run_program(program)
    records = [json.loads(path.read_text()) for path in (tmp_path / "recorded").rglob("*.json")]
    counts = {str(record): record["calls"] for record in records}
    assert sorted(counts.values()) == [1, 1, 10]
    (often,) = [record for record in records if record["calls"] == 10]
    assert 0 < often["timed_calls"] < 10 and often["timed_seconds"] > 0
