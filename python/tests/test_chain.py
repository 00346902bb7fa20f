# SPDX-License-Identifier: Apache-2.0
"""Python kernels in the chain: tiers, policies, scopes, threads, processes, failures."""

import asyncio
import contextvars
import dataclasses
import re
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from conftest import run_program
from ejk import _core
from ejk.ops import (
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
    overlay_cache,
    policy_override,
)


@dataclasses.dataclass(frozen=True)
class Config:
    pause: float = 0.002
    name: str = "heuristic"


class Sleeper(Kernel[Config, np.ndarray]):
    """The faster config pauses less; without JAX it runs as it is."""

    op_id, version = "sleeper", "1"
    candidates = (Config(0.002, "slow"), Config(0.0, "fast"))

    def __init__(self):
        super().__init__()
        self.log = []

    def run(self, x, *, cfg, **kwargs):
        self.log.append(cfg.name)
        if cfg.pause:
            time.sleep(cfg.pause)
        return x + 1

    def heuristic_cfg(self, inv):
        return Config()

    def candidate_cfgs(self, inv):
        return list(self.candidates)


def place(kernel, *args, **kwargs):
    from ejk.ops.core.kernel import describe

    call = describe(Invocation(kernel=kernel, args=args, kwargs=kwargs), kernel)
    return call.device, call.op, call.key


X = np.zeros(3)


def test_autotune_picks_the_fastest_and_remembers_it():
    selector = ConfigSelectorChain(ConfigCache())
    executor, kernel = Executor(selector), Sleeper()
    assert (executor(kernel, X) == 1).all()
    assert executor.choose_config(kernel, X).name == "fast"
    count = len(kernel.log)
    executor(kernel, X)
    assert kernel.log[count:] == ["fast"]
    assert selector.cache.get(*place(kernel, X)).name == "fast"


def test_autotune_before_heuristics_before_error():
    kernel = Sleeper()
    inv = Invocation(kernel=kernel, args=(X,))
    events = []
    selector = ConfigSelectorChain(on_event=lambda event, **data: events.append((event, data)))
    with policy_override(selector, allow_autotune=False):
        assert selector.choose(inv, kernel) == Config()
    assert selector.choose(inv, kernel).name == "fast"  # a heuristic does not shadow tuning
    with policy_override(selector, allow_autotune=False, allow_heuristics=False):
        assert selector.choose(inv, kernel).name == "fast"
        with pytest.raises(RuntimeError, match="sleeper@v1.*no configuration"):
            selector.choose(Invocation(kernel=kernel, args=(np.zeros(9),)), kernel)
    assert [event for event, _ in events] == [
        "heuristics", "autotune_start", "autotune_finish", "cache_hit", "error",
    ]  # fmt: skip
    assert events[0][1]["cfg"] == Config()
    assert events[2][1]["cfg"].name == "fast"
    assert events[3][1]["level"] == "memory"
    assert events[3][1]["op_id"] == "sleeper@v1"


def test_heuristics_first_if_the_policy_says_so():
    selector = ConfigSelectorChain(policy=AutotunePolicy(cache_miss_fallback="heuristics"))
    kernel = Sleeper()
    assert selector.choose(Invocation(kernel=kernel, args=(X,)), kernel) == Config()
    assert kernel.log == []


def test_an_override_is_used_and_never_kept(tmp_path):
    store = PersistentCache(path=tmp_path)
    selector = ConfigSelectorChain(persistent=store, autotune=False)
    kernel = Sleeper()
    Executor(selector)(kernel, X, cfg=Config(0.0, "given"))
    assert kernel.log == ["given"]
    assert len(selector.cache) == 0 and store.keys() == []
    assert Executor(selector).choose_config(kernel, X) == Config()


def test_another_selector_finds_a_stored_tuning(tmp_path):
    first, second = (ConfigSelectorChain(persistent=PersistentCache(path=tmp_path)) for _ in range(2))
    kernel = Sleeper()
    inv = Invocation(kernel=kernel, args=(X,))
    assert first.choose_with_origin(inv, kernel)[1] == "autotune"
    config, origin = second.choose_with_origin(inv, kernel)
    assert (config, origin) == (Config(0.0, "fast"), "persistent")
    entry = second.persistent.entry(*place(kernel, X))
    assert entry["evidence"]["samples"] > 0
    assert second.persistent.get(*place(kernel, X)) == config


def test_forbid_reautotune_returns_the_earlier_result():
    kernel, selector = Sleeper(), ConfigSelectorChain()
    inv = Invocation(kernel=kernel, args=(X,))
    selector.choose(inv, kernel)
    selector.cache.clear()
    count = len(kernel.log)
    assert selector.choose(inv, kernel).name == "fast"
    assert len(kernel.log) == count


def test_a_wrong_candidate_does_not_win():
    class Wrong(Sleeper):
        op_id = "wrong"

        def run(self, x, *, cfg):
            super().run(x, cfg=cfg)
            return x + (2 if cfg.name == "fast" else 1)

    kernel, selector = Wrong(), ConfigSelectorChain()
    assert selector.choose(Invocation(kernel=kernel, args=(X,)), kernel).name == "slow"


def test_the_reference_decides_what_is_right():
    class Referenced(Sleeper):
        op_id = "referenced"

        def run(self, x, *, cfg, scale=1):
            super().run(x, cfg=cfg)
            return x + (1 if cfg.name == "fast" else 2)

        def reference(self, x, scale=1):
            return x + 1

    kernel, selector = Referenced(), ConfigSelectorChain()
    assert selector.choose(Invocation(kernel=kernel, args=(X,), kwargs={"scale": 1}), kernel).name == "fast"


def test_candidates_that_raise_are_passed_over_and_all_of_them_is_said(caplog):
    class Raising(Sleeper):
        op_id = "raising"

        def run(self, x, *, cfg):
            if cfg.name != "heuristic":
                raise OSError(f"{cfg.name} is broken")
            return x

    kernel, selector = Raising(), ConfigSelectorChain()
    assert selector.choose(Invocation(kernel=kernel, args=(X,)), kernel) == Config()
    assert "fast is broken" in caplog.text


def test_a_number_that_makes_a_key_with_every_value_is_said_and_many_shapes_are_not(caplog):
    class Quick(Sleeper):
        candidates = (Config(0.0, "fast"),)

        def __init__(self, op_id):
            super().__init__()
            self.op_id = op_id

    executor = Executor(ConfigSelectorChain())
    for n in range(1, 20):
        executor(Quick("of_many_shapes"), np.ones(n))
    assert "has made" not in caplog.text
    for n in range(1, 20):
        executor(Quick("of_many_numbers"), X, scale=n / 7)
    assert 'of_many_numbers@v1] argument "scale" has made 16 keys' in caplog.text and "key_builder" in caplog.text


def test_in_place_arguments_are_restored_for_every_candidate_and_the_call_runs_once():
    class InPlace(Sleeper):
        op_id = "in_place"

        def run(self, x, *, cfg):
            super().run(x, cfg=cfg)
            x += 1

    x = np.zeros(4)
    executor = Executor(ConfigSelectorChain())
    executor(InPlace(), x)
    assert (x == 1).all()


def test_is_valid_is_asked():
    class Picky(Sleeper):
        op_id = "picky"

        def is_valid(self, cfg, inv):
            return cfg.name != "fast" or inv.args[0].shape[0] > 5

    kernel, selector = Picky(), ConfigSelectorChain()
    assert selector.choose(Invocation(kernel=kernel, args=(X,)), kernel).name == "slow"
    assert selector.choose(Invocation(kernel=kernel, args=(np.zeros(6),)), kernel).name == "fast"


def test_a_kernel_that_offers_nothing_fails_with_every_reason():
    class Bare(Kernel):
        def run(self, x, *, cfg):
            return x

    with pytest.raises(RuntimeError) as error:
        Executor(ConfigSelectorChain())(Bare("bare"), X)
    for word in ("[bare@v0]", "no candidate_cfgs", "no heuristic_cfg", "args_spec"):
        assert word in str(error.value)


def test_keyboard_interrupt_ends_the_tuning_and_is_raised():
    class Interrupted(Sleeper):
        op_id = "interrupted"
        on = True

        def run(self, x, *, cfg):
            if self.on and cfg.name == "fast":
                raise KeyboardInterrupt
            return super().run(x, cfg=cfg)

    kernel, selector = Interrupted(), ConfigSelectorChain()
    inv = Invocation(kernel=kernel, args=(X,))
    with pytest.raises(KeyboardInterrupt):
        selector.choose(inv, kernel)
    Interrupted.on = False
    assert selector.choose(inv, kernel).name == "fast"  # nothing bad was remembered


def test_frozen_refuses_what_is_not_pinned(monkeypatch):
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", "frozen")
    kernel, selector = Sleeper(), ConfigSelectorChain()
    inv = Invocation(kernel=kernel, args=(X,))
    with pytest.raises(RuntimeError, match="policy does not allow"):
        selector.choose(inv, kernel)
    selector.cache.put(*place(kernel, X), Config(0, "pinned"))
    assert selector.choose(inv, kernel).name == "pinned"


def test_a_tuner_of_ones_own_is_asked():
    class Last(Tuner):
        def autotune(self, make_fn, args, kwargs, candidates):
            make_fn(candidates[-1])(*args, **kwargs)
            return candidates[-1]

    kernel = Sleeper()
    selector = ConfigSelectorChain(tuner=Last())
    assert selector.choose(Invocation(kernel=kernel, args=(X,)), kernel).name == "fast"
    assert kernel.log.count("fast") == 1


def test_explain_says_what_every_tier_held():
    text = Executor(ConfigSelectorChain()).explain(Sleeper(), X)
    assert "would measure 2 candidates" in text and "memory" in text


def test_a_policy_has_every_field_of_the_core_with_its_default():
    assert dataclasses.asdict(AutotunePolicy()) == _core.default_policy()
    assert list(_core.default_policy()) == [field.name for field in dataclasses.fields(AutotunePolicy)]


CHANGED = {
    "allow_autotune": False,
    "allow_heuristics": False,
    "cache_miss_fallback": "heuristics",
    "validate_backward": True,
    "numerics": "same",
    "budget_seconds": 2.5,
    "budget_evaluations": 3,
    "target_seconds": 0.25,
    "guard": True,
    "resume": False,
    "resume_share": 0.5,
    "background_bytes": 1 << 20,
    "background_share": 0.5,
    "drift_watch": True,
}


@pytest.mark.parametrize("name", _core.default_policy())
def test_every_field_of_a_policy_may_be_given_and_overridden(name):
    changed = AutotunePolicy(**{name: CHANGED[name]})
    assert getattr(changed, name) == CHANGED[name] != getattr(AutotunePolicy(), name)
    selector = ConfigSelectorChain(policy=AutotunePolicy())
    with policy_override(selector, **{name: CHANGED[name]}):
        assert selector.policy == changed
    assert selector.policy == AutotunePolicy()


def test_a_tuning_tries_no_more_configs_than_the_policy_says():
    def tried(**policy):
        kernel = Sleeper()
        kernel.candidates = tuple(Config(0.0, f"candidate {i}") for i in range(5))
        ConfigSelectorChain(policy=AutotunePolicy(**policy)).tune(Invocation(kernel=kernel, args=(X,)), kernel)
        return len(set(kernel.log))

    assert (tried(), tried(budget_evaluations=2)) == (6, 2)  # the heuristic is one


def test_a_chain_may_end_while_a_thread_of_it_waits_for_python(tmp_path):
    """Its thread cannot write what is recorded, and says so, while the chain waits for the thread."""
    told = run_program(
        """
        import fcntl, logging, os, pathlib, time
        import numpy as np
        from ejk.ops import AutotunePolicy, ConfigSelectorChain, Executor, Kernel, PersistentCache

        class Later(Kernel):
            def run(self, x, *, cfg):
                return x + cfg
            def heuristic_cfg(self, inv):
                return 1
            def candidate_cfgs(self, inv):
                return [1, 2]

        recorded = pathlib.Path(os.environ["EJK_TEST_PLACE"], "recorded")
        recorded.mkdir(parents=True)
        lock = open(recorded / "lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX)

        class Release(logging.Handler):
            def emit(self, record):
                print(record.getMessage())
                fcntl.flock(lock, fcntl.LOCK_UN)

        logging.getLogger().addHandler(Release())
        chain = ConfigSelectorChain(policy=AutotunePolicy(cache_miss_fallback="background"),
                                    persistent=PersistentCache(path=os.environ["EJK_TEST_PLACE"]))
        Executor(chain)(Later(), np.zeros(3))
        while not (recorded / "tmp").exists():  # then the thread waits for the lock
            time.sleep(0.02)
        del chain
        """,
        EJK_TEST_PLACE=str(tmp_path),
    )
    assert "holds" in told.stdout and len(list(tmp_path.glob("recorded/v1/*/*/*.json"))) == 1


def test_with_a_guard_a_candidate_that_crashes_is_left_out():
    run_program(
        """
        import os
        import numpy as np
        from ejk.ops import AutotunePolicy, ConfigSelectorChain, Invocation, Kernel

        class Crashes(Kernel):
            def run(self, x, *, cfg):
                return x + 1 if cfg == "good" else os.abort()
            def heuristic_cfg(self, inv):
                return "good"
            def candidate_cfgs(self, inv):
                return ["good", "bad"]

        selector = ConfigSelectorChain(policy=AutotunePolicy(guard=True))
        config, entry = selector.tune(Invocation(kernel=Crashes(), args=(np.zeros(3),)), Crashes())
        assert config == "good" and [c["status"] for c in entry["candidates"]] == ["ok", "rejected"], entry
        """
    )


@pytest.mark.parametrize(
    "error, given",
    [
        (ValueError, {"cache_miss_fallback": "never"}),
        (TypeError, {"allow_everything": True}),
        (TypeError, {"allow_autotune": "no"}),
        (TypeError, {"guard": 2}),
        (TypeError, {"budget_seconds": "1"}),
        (ValueError, {"budget_seconds": -1}),
        (ValueError, {"resume_share": float("nan")}),
        (TypeError, {"budget_evaluations": 1.5}),
    ],
    ids=str,
)
def test_bad_policies_are_refused(error, given):
    (name, value) = next(iter(given.items()))
    with pytest.raises(error, match=re.escape(f"[AutotunePolicy] got {name}={value!r}; expected ")):
        policy_override(None, **given)


def test_bad_tuners_are_refused():
    with pytest.raises(ValueError, match="warmup"):
        Tuner(warmup=-1)


# ---- scopes -------------------------------------------------------------------------------------


def test_scopes_nest_and_end_in_any_order():
    selector = ConfigSelectorChain()
    outer, inner = policy_override(selector, allow_autotune=False), policy_override(autotune=True)
    outer.__enter__()
    assert selector.policy.allow_autotune is False
    inner.__enter__()
    assert selector.policy.allow_autotune is True
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert selector.policy == AutotunePolicy()


def test_scopes_of_one_selector_leave_others_alone():
    first, second = ConfigSelectorChain(), ConfigSelectorChain()
    with policy_override(first, validate_backward=True):
        assert first.policy.validate_backward and not second.policy.validate_backward
        with forward_autotune_only():
            assert not first.policy.validate_backward
    assert not first.policy.validate_backward


def test_a_policy_that_is_changed_for_good_counts_at_once():
    selector, kernel = ConfigSelectorChain(), Sleeper()
    selector.policy.allow_autotune = False
    assert selector.choose(Invocation(kernel=kernel, args=(X,)), kernel) == Config()
    selector.policy = AutotunePolicy()
    assert selector.choose(Invocation(kernel=kernel, args=(X,)), kernel).name == "fast"


def test_threads_and_tasks_do_not_see_each_others_scopes():
    selector = ConfigSelectorChain()
    seen = {}

    def look():
        seen["thread"] = selector.policy.allow_autotune

    async def scoped(entered, leave):
        with policy_override(selector, allow_autotune=False):
            entered.set()
            await leave.wait()
            seen["inside"] = selector.policy.allow_autotune

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(scoped(entered, leave))
        await entered.wait()
        seen["task"] = selector.policy.allow_autotune
        leave.set()
        await task

    with policy_override(selector, allow_autotune=False):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        context = contextvars.copy_context()
    asyncio.run(main())
    assert seen == {"thread": True, "task": True, "inside": False}
    assert context.run(lambda: selector.policy.allow_autotune) is False


def test_overlays_come_before_memory_and_go_away():
    selector, kernel = ConfigSelectorChain(autotune=False), Sleeper()
    executor = Executor(selector)
    where = place(kernel, X)
    selector.cache.put(*where, Config(0, "cached"))
    mine = ConfigCache()
    mine.put(*where, Config(0, "mine"))
    for overlay in ({where: Config(0, "mine")}, mine):
        with overlay_cache(overlay):
            assert executor.choose_config(kernel, X).name == "mine"
            with overlay_cache({where: Config(0, "inner")}):
                assert executor.choose_config(kernel, X).name == "inner"
        assert executor.choose_config(kernel, X).name == "cached"
    assert selector.cache.get(*where).name == "cached"


# ---- threads and processes ----------------------------------------------------------------------


def test_threads_that_miss_at_once_tune_once():
    kernel, events = Sleeper(), []
    selector = ConfigSelectorChain(on_event=lambda event, **data: events.append(event))
    executor = Executor(selector)
    threads = [threading.Thread(target=executor, args=(kernel, X)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events.count("autotune_start") == 1
    assert events.count("cache_hit") == 5


def test_threads_call_tune_and_overlay_at_once():
    executor, failures = Executor(ConfigSelectorChain()), []

    class Quick(Kernel):
        def run(self, x, *, cfg):
            return x + cfg

        def heuristic_cfg(self, inv):
            return 0

        def candidate_cfgs(self, inv):
            return [0, 0]

    kernel = Quick("quick")

    def work(seed):
        try:
            for i in range(30):
                x = np.full(1 + (seed + i) % 5, 1.0)
                where = place(kernel, x)
                with overlay_cache({where: 5}):
                    assert (executor(kernel, x) == 6).all()
                with policy_override(allow_autotune=i % 2 == 0):
                    assert (executor(kernel, x) == 1).all()
                if i % 7 == 0:
                    executor.chooser.cache.clear()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_processes_share_a_store(start, tmp_path):
    code = textwrap.dedent(
        """
        import sys
        import numpy as np
        from ejk.ops import ConfigSelectorChain, Executor, Kernel, PersistentCache

        class Quick(Kernel):
            def run(self, x, *, cfg):
                return x + 0 * cfg
            def heuristic_cfg(self, inv):
                return 1
            def candidate_cfgs(self, inv):
                return [1, 2]

        start, end = map(int, sys.argv[2:])
        executor = Executor(ConfigSelectorChain(persistent=PersistentCache(path=sys.argv[1])))
        for n in range(start, end):
            executor(Quick("quick"), np.zeros(n))
        """
    )
    ranges = [("1", "9"), ("5", "13")]
    for process in [start([sys.executable, "-c", code, str(tmp_path), *r]) for r in ranges]:
        err = process.communicate(timeout=120)[1]
        assert process.returncode == 0, err
    keys = PersistentCache(path=tmp_path).keys()
    assert len(keys) == 12 and {device for device, _, _ in keys} == {device_fingerprint()}


def test_an_executor_that_was_not_initialised_says_so():
    class Hasty(Executor):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="super"):
        Hasty()(None)
