# SPDX-License-Identifier: Apache-2.0
"""Code written for ejkernel: what it passes, overrides and subclasses is used, or is an error, never nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from ejk.ops import (
    AutotunePolicy,
    ConfigCache,
    ConfigSelectorChain,
    Executor,
    Invocation,
    Kernel,
    PersistentCache,
    autotune_recorded,
    device_fingerprint,
    find_labels_in_lowered,
    policy_override,
    record_invocation,
    vmap_with_config,
)
from ejk.ops.config import log_autotune_progress, set_autotune_progress


@dataclasses.dataclass(frozen=True)
class Config:
    block: int


class Scale(Kernel[Config, jax.Array]):
    """The result says which config ran."""

    op_id, version = "compat.scale", "1"

    def run(self, x, *, cfg):
        return x * cfg.block

    def heuristic_cfg(self, inv):
        return Config(2)

    def candidate_cfgs(self, inv):
        return [Config(2)]


class Scale2(Scale):
    """Takes whatever it is given by name."""

    def run(self, x, *, cfg, **kwargs):
        assert not kwargs
        return x * cfg.block


X = jnp.arange(4.0)


@pytest.fixture(params=[Scale, Scale2], ids=["strict", "with_kwargs"])
def kernel(request):
    return request.param()


# ---- _cfg= is cfg= ------------------------------------------------------------------------------


def test_a_call_runs_with_the_config_named_with_an_underscore(kernel):
    executor = Executor()
    assert (executor(kernel, X, _cfg=Config(5)) == X * 5).all()
    assert (jax.jit(lambda x: executor(kernel, x, _cfg=Config(7)))(X) == X * 7).all()
    assert (executor(kernel, X) == X * 2).all()


def test_none_with_an_underscore_counts_as_no_config(kernel):
    executor = Executor()
    for _ in range(3):
        assert (executor(kernel, X, _cfg=None) == X * 2).all()
    assert (executor(kernel, X, cfg=Config(5), _cfg=None) == X * 5).all()


def test_everything_that_takes_a_config_takes_it_with_an_underscore(kernel):
    executor = Executor()
    assert executor.choose_config(kernel, X, _cfg=Config(5)) == Config(5)
    assert executor.choose_config(kernel, X, _cfg=None) == Config(2)
    compiled = executor.compile(kernel, X, _cfg=Config(5))
    assert compiled.config == Config(5) and (compiled(X) == X * 5).all()
    assert executor.explain(kernel, X, _cfg=Config(5)) == executor.explain(kernel, X, cfg=Config(5))
    assert executor.label(kernel, X, _cfg=Config(5)) == executor.label(kernel, X)
    assert (vmap_with_config(executor, kernel)(X, _cfg=Config(5)) == X * 5).all()


def test_two_different_configs_for_one_call_are_an_error():
    executor, kernel = Executor(), Scale()
    with pytest.raises(TypeError, match=r"\[compat.scale\] got cfg=Config\(block=5\) and _cfg=Config\(block=6\)"):
        executor(kernel, X, cfg=Config(5), _cfg=Config(6))
    assert (executor(kernel, X, cfg=Config(5), _cfg=Config(5)) == X * 5).all()


def test_options_that_say_nothing_leave_a_call_warm():
    executor, kernel = Executor(ConfigSelectorChain()), Scale()
    options = dict(_cfg=None, method=None, mesh=None, in_specs=None, out_specs=None, stamp=True, check_vma=False)
    for _ in range(3):
        assert (executor(kernel, X, **options) == X * 2).all()
    assert executor._warm_entries == 1
    executor._call = None  # a warm call does not come here
    assert (executor(kernel, X, **options) == X * 2).all()


def test_a_choice_is_made_for_the_context_that_the_call_has():
    class Meshed(Scale):
        def heuristic_cfg_shard_map(self, inv):
            return Config(inv.mesh.size + 2)

    executor, kernel = Executor(), Meshed()
    over = dict(method="shard_map", mesh=jax.make_mesh((1,), ("x",)), in_specs=(jax.P(),), out_specs=jax.P())
    with policy_override(allow_autotune=False):
        assert executor.choose_config(kernel, X, **over) == Config(3)
        assert executor.compile(kernel, X, **over).config == Config(3)
        assert "heuristics" in executor.explain(kernel, X, **over)
    inv = Invocation(kernel=kernel, args=(X,), method="shard_map")
    assert executor.label(kernel, X, **over).endswith(inv.call_key)


# ---- events -------------------------------------------------------------------------------------


class Failing(Scale):
    op_id = "compat.failing"

    def run(self, x, *, cfg):
        if cfg.block != 1:
            raise ValueError("cannot run")
        return x

    def heuristic_cfg(self, inv):
        return Config(1)

    def candidate_cfgs(self, inv):
        return [Config(2), Config(3)]


def events_of(call, **parts):
    """What `on_event` hears, without what differs between machines."""
    heard = []

    def on_event(event, **data):
        assert {"device", "op_id", "call_key"} <= set(data)
        heard.append((event, {name: data[name] for name in data if name in EVENT_DATA}))

    call(ConfigSelectorChain(on_event=on_event, **parts))
    return heard


EVENT_DATA = ("candidates", "platform", "method", "cfg", "level")
HERE = {"platform": "xla", "method": None}


def test_events_say_how_many_candidates_there_are_where_and_in_which_context():
    inv = Invocation(kernel=Scale(), args=(X,))
    found = {"cfg": Config(2), **HERE}
    assert events_of(lambda selector: selector.choose(inv, inv.kernel)) == [
        ("autotune_start", {"candidates": 1, **HERE}),
        ("autotune_finish", found),
    ]
    assert events_of(lambda selector: selector.tune(inv, inv.kernel, [Config(2), Config(3)]))[0] == (
        "autotune_start",
        {"candidates": 2, **HERE},
    )
    with policy_override(allow_autotune=False):
        assert events_of(lambda selector: selector.choose(inv, inv.kernel)) == [("heuristics", found)]


def test_a_tuning_that_found_nothing_does_not_finish():
    inv = Invocation(kernel=Failing(), args=(X,))
    assert events_of(lambda selector: selector.choose(inv, inv.kernel)) == [
        ("autotune_start", {"candidates": 2, **HERE}),
        ("heuristics", {"cfg": Config(1), **HERE}),
    ]


def test_candidates_are_asked_for_once():
    class Counting(Scale):
        asked = 0

        def candidate_cfgs(self, inv):
            type(self).asked += 1
            return [Config(2)]

    inv = Invocation(kernel=Counting(), args=(X,))
    events_of(lambda selector: selector.choose(inv, inv.kernel))
    assert Counting.asked == 1


# ---- labels -------------------------------------------------------------------------------------


def test_labels_are_as_the_environment_says_when_the_call_is_made(monkeypatch):
    executor, kernel = Executor(), Scale()

    def labels(x):
        return find_labels_in_lowered(jax.jit(lambda x: executor(kernel, x)).lower(x))

    assert labels(X) == [executor.label(kernel, X)]
    monkeypatch.setenv("EJKERNEL_OPS_STAMP", "none")
    assert labels(X) == []
    monkeypatch.setenv("EJKERNEL_OPS_STAMP", "loud")
    with pytest.raises(ValueError, match=r"\[EJKERNEL_OPS_STAMP\] got 'loud'; expected"):
        labels(jnp.ones(5))
    assert (executor(kernel, X, stamp=False) == X * 2).all()


# ---- invocations and policies -------------------------------------------------------------------


def test_an_invocation_is_a_dataclass():
    inv = Invocation(kernel=Scale(), args=(X,), kwargs={"scale": 2.0})
    other = dataclasses.replace(inv, kwargs={"scale": 3.0}, method="shard_map")
    assert (other.op_id, other.args, other.kwargs) == ("compat.scale", inv.args, {"scale": 3.0})
    assert other.kernel is inv.kernel and other.call_key != inv.call_key
    assert inv == inv and inv == dataclasses.replace(inv) and inv != other
    assert len({inv, dataclasses.replace(inv)}) == 1
    assert [f.name for f in dataclasses.fields(inv)][:3] == ["op_id", "args", "kwargs"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        inv.args = ()


@pytest.mark.parametrize("make", [ConfigCache, PersistentCache])
@pytest.mark.parametrize("device", ["dev", "device"])
def test_caches_take_their_arguments_by_name(make, device):
    cache = make()
    cache.put(**{device: "d"}, op_id="op@v1", call_key="k", cfg=Config(4))
    assert cache.get(**{device: "d"}, op_id="op@v1", call_key="k") == Config(4) == cache.get("d", "op@v1", call_key="k")
    cache.put("d", "op@v1", call_key="k", config=Config(5))
    assert cache.get("d", "op@v1", "k") == Config(5)
    cache.put("mine", cfg=Config(6))
    assert cache.get(key="mine") == Config(6)
    cache.erase("d", op_id="op@v1", call_key="k")
    assert cache.get("d", "op@v1", "k") is None


@pytest.mark.parametrize("make", [ConfigCache, PersistentCache])
def test_caches_refuse_unknown_arguments(make):
    for given, named in [((), {}), (("d", "o"), {}), (("d",), {"call_key": "k"}), ((), {"dev": 1, "op": 2, "call_key": 3})]:
        with pytest.raises(TypeError, match=rf"\[{make.__name__}.get\] got .*; expected \(key\) or \(device, op_id"):
            make().get(*given, **named)
    with pytest.raises(TypeError, match=rf"\[{make.__name__}.put\] got .*; expected \(key, cfg\) or"):
        make().put("d", "o", call_key="k")


def test_recorded_calls_are_given_and_tuned_by_name():
    kernel = Scale()
    inv = Invocation(kernel=kernel, args=(X,))
    place = dict(dev=device_fingerprint(), op_id_v="compat.scale@v1", call_key=inv.call_key)
    record_invocation(**place, kernel=kernel, args=(X,), kwargs={})
    record_invocation(kernel=kernel, inv=inv)
    result = autotune_recorded(hyperparameter_selector=ConfigSelectorChain())
    assert [(entry.call_key, entry.cfg) for entry in result.entries] == [(inv.call_key, Config(2))]
    for given, named in [((), {}), ((kernel,), {}), ((), {**place, "kernel": kernel}), ((1, 2, 3), {"inv": inv})]:
        with pytest.raises(TypeError, match=r"\[record_invocation\] got"):
            record_invocation(*given, **named)


def test_policies_take_numbers_for_yes_and_no():
    policy = AutotunePolicy(allow_autotune=1, allow_heuristics=0, validate_backward=0.0)
    assert (policy.allow_autotune, policy.allow_heuristics, policy.validate_backward) == (1, 0, 0)
    assert ConfigSelectorChain(policy=policy).choose(Invocation(kernel=Scale(), args=(X,)), Scale()) == Config(2)
    with policy_override(allow_autotune=0):
        with pytest.raises(RuntimeError, match="no configuration"):
            ConfigSelectorChain(policy=policy).choose(Invocation(kernel=Scale(), args=(X,)), Scale())
    for wrong in ("false", 2, None, []):
        with pytest.raises(TypeError, match="allow_autotune"):
            AutotunePolicy(allow_autotune=wrong)


# ---- progress -----------------------------------------------------------------------------------


def test_tunings_are_shown_while_that_is_wanted(capfd, monkeypatch):
    sizes = iter(range(1, 9))
    selector = ConfigSelectorChain()

    def shown():
        selector.choose(Invocation(kernel=Scale(), args=(jnp.ones(next(sizes)),)), Scale())
        return "compat.scale@v1" in capfd.readouterr().err

    assert not shown()
    with log_autotune_progress():
        assert shown()
        with log_autotune_progress():
            pass
        assert shown()
    assert not shown()
    set_autotune_progress()
    assert shown()
    set_autotune_progress(False)
    assert not shown()
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_PROGRESS", "1")
    assert shown()
