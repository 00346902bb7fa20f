# SPDX-License-Identifier: Apache-2.0
"""Calls over a mesh: method="shard_map", with the kernel's own way there or the usual one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program
from ejk.ops import (
    AutotunePolicy,
    ConfigSelectorChain,
    Executor,
    Invocation,
    Kernel,
    Tuner,
    autotune_recorded,
)

P = jax.P


@dataclasses.dataclass(frozen=True)
class Config:
    block: int


class Meshed(Kernel[Config, jax.Array]):
    """Sums the rows of all shards: it runs nowhere but on a mesh with an axis "x"."""

    op_id, version = "meshed.sum", "1"

    def run(self, x, *, cfg, scale=1.0):
        return jax.lax.psum(x.sum(0) * scale, "x") + 0 * cfg.block

    def heuristic_cfg(self, inv):
        return Config(2)

    def candidate_cfgs(self, inv):
        return [Config(2), Config(3)]


class OwnWay(Meshed):
    """Goes over the mesh itself, with the signature that ejkernel's executor calls."""

    op_id = "meshed.own_way"

    def create_shard_map_wrapper(self, x, *, mesh, in_specs, out_specs, check_vma, cfg, scale=1.0):
        def on_a_shard(x):
            return self.run(x, cfg=cfg, scale=scale)

        over = jax.shard_map(on_a_shard, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)
        return over, (x,)


class WithCallback(OwnWay):
    op_id = "meshed.callback"

    def create_shard_map_wrapper(self, *args, **kwargs):
        def callback(outs, *, cfg):
            return {"sum": outs, "block": jnp.full((), cfg.block)}

        return (*super().create_shard_map_wrapper(*args, **kwargs), callback)


class Doubled(Meshed):
    """A gradient of its own, twice the true one, that needs the mesh as the forward pass does."""

    op_id = "meshed.doubled"

    def fwd_with_residuals(self, x, *, cfg, scale=1.0):
        return self.run(x, cfg=cfg, scale=scale), None

    def vjp(self, residuals, y, dy, x, *, cfg, scale=1.0):
        return (jnp.broadcast_to(2 * scale * jax.lax.psum(dy, "x"), x.shape),)


class OwnWayWithGradient(OwnWay, Doubled):
    op_id = "meshed.own_way_with_gradient"


X = jnp.arange(24.0).reshape(8, 3)


@pytest.fixture
def over():
    if len(jax.devices()) < 4:
        pytest.skip("there are not four devices")
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return dict(method="shard_map", mesh=mesh, in_specs=(P("x"),), out_specs=P())


@pytest.fixture
def untuned():
    return Executor(ConfigSelectorChain(policy=AutotunePolicy(allow_autotune=False)))


@pytest.fixture(params=[Meshed, OwnWay], ids=["usual_way", "own_way"])
def kernel(request):
    return request.param()


def test_a_call_runs_over_the_mesh_in_every_trace(untuned, over, kernel):
    def call(x, scale=1.0):
        return untuned(kernel, x, scale=scale, **over)

    for _ in range(3):
        np.testing.assert_array_equal(call(X), X.sum(0))
    np.testing.assert_array_equal(jax.jit(call)(X), X.sum(0))
    np.testing.assert_array_equal(call(X, 2.0), 2 * X.sum(0))
    np.testing.assert_array_equal(jax.grad(lambda x: call(x, 2.0).sum())(X), jnp.full_like(X, 2))
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: call(x).sum()))(X), jnp.ones_like(X))


class OfTree(Kernel[Config, jax.Array]):
    op_id = "meshed.of_tree"

    def run(self, tree, *, cfg):
        return {"b": tree["a"] * jax.lax.axis_size("x")}

    def heuristic_cfg(self, inv):
        return Config(2)


def test_specs_that_are_dicts_do_not_hide_the_devices(untuned, over):
    devices = np.array(jax.devices()[:4])
    specs = dict(method="shard_map", in_specs=({"a": P("x")},), out_specs={"b": P("x")})
    for _ in range(2):
        for chosen in (devices[:2], devices[2:]):
            mesh = jax.sharding.Mesh(chosen, ("x",))
            out = untuned(OfTree(), {"a": X[:, 0]}, mesh=mesh, **specs)["b"]
            assert out.sharding.device_set == set(chosen)
            np.testing.assert_array_equal(out, X[:, 0] * len(chosen))


def test_the_third_result_of_a_way_over_the_mesh_is_called_with_what_came_out(untuned, over):
    got = untuned(WithCallback(), X, _cfg=Config(7), **over)
    np.testing.assert_array_equal(got["sum"], X.sum(0))
    assert got["block"] == 7


@pytest.mark.parametrize("given", [(), (len,), (len, (), None, None), None, 3], ids=str)
def test_a_way_over_the_mesh_that_is_no_pair_is_an_error(untuned, over, given):
    class Wrong(Meshed):
        def create_shard_map_wrapper(self, *args, **kwargs):
            return given

    with pytest.raises(TypeError, match=r"\[meshed.sum\] create_shard_map_wrapper returned"):
        untuned(Wrong(), X, **over)


def test_a_gradient_of_ones_own_is_that_of_a_shard(untuned, over):
    gradient = jax.grad(lambda x: untuned(Doubled(), x, **over).sum())(X)
    np.testing.assert_array_equal(gradient, jnp.full_like(X, 2))


def test_jax_differentiates_a_kernels_own_way_over_the_mesh(untuned, over):
    gradient = jax.grad(lambda x: untuned(OwnWayWithGradient(), x, **over).sum())(X)
    np.testing.assert_array_equal(gradient, jnp.ones_like(X))


def test_compile_gives_a_function_over_the_mesh(untuned, over):
    compiled = untuned.compile(OwnWay(), X, scale=3.0, **over)
    np.testing.assert_array_equal(compiled(X + 1), 3 * (X + 1).sum(0))
    assert "all_reduce" in compiled.lower(X).as_text()


@pytest.mark.parametrize("missing", ["mesh", "in_specs", "out_specs"])
def test_a_call_over_no_mesh_is_an_error(untuned, over, missing):
    del over[missing]
    for call in (untuned, untuned.compile):
        with pytest.raises(ValueError, match=rf"\[meshed.sum\] got method='shard_map' without {missing};"):
            call(Meshed(), X, **over)
    assert untuned.choose_config(Meshed(), X, **over) == Config(2)


class Plain(Kernel[Config, jax.Array]):
    op_id = "meshed.plain"

    def run(self, x, *, cfg, **named):
        assert not named
        return x * 2

    def heuristic_cfg(self, inv):
        return Config(2)


class NamesMesh(Plain):
    """Takes a mesh for itself."""

    op_id = "meshed.names_mesh"

    def run(self, x, *, cfg, mesh=None):
        return x * (2 if mesh is None else mesh.size)


class InRing(Plain):
    op_id = "meshed.in_ring"

    def run_ring(self, x, *, cfg):
        return x * 3


@pytest.mark.parametrize("method", ["bogus", "shardmap", "", 3], ids=repr)
def test_an_unknown_context_is_an_error(untuned, method):
    for call in (untuned, untuned.compile):
        with pytest.raises(ValueError, match=rf"\[meshed.plain\] got method={method!r}; expected"):
            call(Plain(), X, method=method)


@pytest.mark.parametrize("method", ["batch", "pmap", "vmap"])
def test_contexts_that_are_known_run(untuned, method):
    np.testing.assert_array_equal(untuned(Plain(), X, method=method), X * 2)
    np.testing.assert_array_equal(untuned.compile(Plain(), X, method=method)(X), X * 2)


def test_contexts_that_a_kernel_has_methods_for_run(untuned):
    np.testing.assert_array_equal(untuned(InRing(), X, method="ring"), X * 3)


@pytest.mark.parametrize("given", [("mesh",), ("in_specs",), ("out_specs",), ("mesh", "in_specs", "out_specs")], ids=str)
@pytest.mark.parametrize("method", [None, "pmap"])
def test_a_mesh_without_shard_map_is_an_error(untuned, over, given, method):
    named = {name: over[name] for name in given}
    for call in (untuned, untuned.compile):
        with pytest.raises(ValueError, match=rf"\[meshed.plain\] got {', '.join(given)} with method={method!r}; expected"):
            call(Plain(), X, method=method, **named)


def test_a_mesh_that_run_takes_itself_is_passed_on(untuned, over):
    for _ in range(2):
        np.testing.assert_array_equal(untuned(NamesMesh(), X, mesh=over["mesh"]), X * 4)
        np.testing.assert_array_equal(untuned(NamesMesh(), X, mesh=None), X * 2)
    compiled = untuned.compile(NamesMesh(), X, mesh=over["mesh"])
    np.testing.assert_array_equal(compiled(X), X * 4)
    with pytest.raises(ValueError, match=r"\[meshed.names_mesh\] got in_specs with method=None"):
        untuned(NamesMesh(), X, mesh=over["mesh"], in_specs=P())


# ---- tuning -------------------------------------------------------------------------------------


def shapes_seen(kernel):
    """A kernel of that class which notes the shapes that its run sees."""

    class Noting(type(kernel)):
        def __init__(self):
            super().__init__()
            object.__setattr__(self, "shapes", [])

        def run(self, x, *, cfg, scale=1.0):
            self.shapes.append(x.shape)
            return super().run(x, cfg=cfg, scale=scale)

    return Noting()


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_tuning_measures_through_the_mesh_on_local_shapes(over, kernel, traced):
    events = []
    selector = ConfigSelectorChain(on_event=lambda event, **data: events.append(event))
    executor, noting = Executor(selector), shapes_seen(kernel)

    def call(x):
        return executor(noting, x, **over)

    np.testing.assert_array_equal((jax.jit(call) if traced else call)(X), X.sum(0))
    assert events[:2] == ["autotune_start", "autotune_finish"]
    assert set(noting.shapes) == {(2, 3)}


def test_a_wrong_result_does_not_win_over_the_mesh(over):
    class Wrong(OwnWay):
        def run(self, x, *, cfg, scale=1.0):
            return super().run(x, cfg=cfg, scale=scale) + (cfg.block == 3)

    executor = Executor(ConfigSelectorChain())
    np.testing.assert_array_equal(executor(Wrong(), X, **over), X.sum(0))


def test_a_tuner_of_ones_own_measures_through_the_mesh(over, kernel):
    class Fixed(Tuner):
        seconds = iter([3, 1])

        def measure(self, fn, *args, **kwargs):
            assert fn._ejk_method == "shard_map"
            np.testing.assert_array_equal(fn(*args, **kwargs), X.sum(0))
            return next(self.seconds)

    noting = shapes_seen(kernel)
    assert Executor(ConfigSelectorChain(tuner=Fixed())).choose_config(noting, X, **over) == Config(3)
    assert set(noting.shapes) == {(2, 3)}


@pytest.mark.parametrize("supported", [False, True])
def test_backward_is_measured_over_the_mesh_where_the_kernel_says_so(over, supported):
    class Backward(OwnWay):
        supports_grad_validation = supported

        def __init__(self):
            super().__init__()
            object.__setattr__(self, "differentiated", [])

        def run(self, x, *, cfg, scale=1.0):
            @jax.custom_vjp
            def same(x):
                return x

            same.defvjp(lambda x: (x, None), lambda _, dy: (self.differentiated.append(1) or dy,))
            return super().run(same(x), cfg=cfg, scale=scale)

    kernel = Backward()
    policy = AutotunePolicy(validate_backward=True)
    assert Executor(ConfigSelectorChain(policy=policy)).choose_config(kernel, X, **over) in (Config(2), Config(3))
    assert bool(kernel.differentiated) is supported


def test_an_invocation_is_tuned_over_its_mesh_or_not_at_all(over):
    noting = shapes_seen(Meshed())
    inv = Invocation(kernel=noting, args=(X,), **over)
    result = autotune_recorded([inv])
    assert [entry.call_key for entry in result.entries] == [inv.call_key] and set(noting.shapes) == {(2, 3)}
    skipped = autotune_recorded([dataclasses.replace(inv, mesh=None)]).skipped
    assert len(skipped) == 1 and "got method='shard_map' without mesh" in skipped[0][1]


def test_a_program_tunes_over_four_devices():
    done = run_program(
        """
        import jax, jax.numpy as jnp
        from ejk.ops import ConfigSelectorChain, Executor, Kernel

        class Gathered(Kernel):
            op_id, version = "gathered", "1"

            def run(self, x, y, *, cfg):
                x = jax.lax.all_gather(x, "tp", tiled=True)
                return sum(x[:, i::cfg] @ y[i::cfg] for i in range(cfg))

            def create_shard_map_wrapper(self, x, y, *, mesh, in_specs, out_specs, check_vma, cfg):
                run = lambda x, y: self.run(x, y, cfg=cfg)
                return jax.shard_map(run, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma), (x, y)

            def heuristic_cfg(self, inv):
                return 1

            def candidate_cfgs(self, inv):
                return [1, 2, 4]

        P = jax.P
        mesh = jax.make_mesh((4,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
        over = dict(method="shard_map", mesh=mesh, in_specs=(P("tp"), P(None, "tp")), out_specs=P(None, "tp"))
        x, y = jnp.ones((8, 16)), jnp.ones((16, 8))
        selector = ConfigSelectorChain()
        inv = dict(args=(x, y), **over)
        executor = Executor(selector)
        assert (executor(Gathered(), x, y, **over) == x @ y).all()
        from ejk.ops import Invocation
        _, entry = selector.tune(Invocation(kernel=Gathered(), **inv), Gathered())
        print(len(jax.devices()), sorted(c["status"] in ("ok", "tied", "slower") for c in entry["candidates"]))
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert done.stdout.split("\n")[0] == "4 [True, True, True]"
