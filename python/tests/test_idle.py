# SPDX-License-Identifier: Apache-2.0
"""Calls under the fallback "background": the heuristic answers, and `idle` tunes them."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import run_program
from ejk.ops import (
    AutotunePolicy,
    ConfigSelectorChain,
    Executor,
    Kernel,
    PersistentCache,
    policy_override,
)


class Sleeper(Kernel):
    """The fast config does not pause."""

    op_id, version = "idle_sleeper", "1"
    configs = ("slow", "fast")

    def __init__(self):
        super().__init__()
        self.log, self.given = [], []

    def run(self, x, *, cfg):
        self.log.append(cfg)
        self.given.append((type(x), x.shape, x.dtype))
        if cfg != "fast":
            time.sleep(0.002)
        return x + 1

    def heuristic_cfg(self, inv):
        return "slow"

    def candidate_cfgs(self, inv):
        return list(self.configs)


def executor_with(budget_seconds=1000.0, **options):
    policy = AutotunePolicy(cache_miss_fallback="background", budget_seconds=budget_seconds)
    return Executor(ConfigSelectorChain(policy=policy, **options))


X = np.arange(3.0, dtype=np.float32)


def test_a_call_is_answered_with_the_heuristic_and_tuned_in_idle():
    executor, kernel = executor_with(), Sleeper()
    assert (executor(kernel, X) == X + 1).all()
    assert kernel.log == ["slow"]
    assert executor.chooser.idle(1000) == 0
    del kernel.log[:]
    executor(kernel, X)
    assert kernel.log == ["fast"]
    assert set(kernel.given) == {(np.ndarray, (3,), np.dtype(np.float32))}


def test_without_time_nothing_is_tuned():
    executor, kernel = executor_with(), Sleeper()
    assert executor.chooser.idle(1000) == 0
    for _ in range(2):
        executor(kernel, X)
    executor(kernel, np.zeros(4, np.float32))
    assert [executor.chooser.idle(seconds) for seconds in (0, -1, float("nan"))] == [2, 2, 2]
    assert set(kernel.log) == {"slow"}


def test_arrays_of_a_waiting_call_are_not_kept():
    executor, array = executor_with(), np.zeros(5)
    executor(Sleeper(), array)
    there = weakref.ref(array)
    del array
    gc.collect()
    assert there() is None
    assert executor.chooser.idle(1000) == 0


def test_policies_that_do_not_say_background_let_no_call_wait():
    executor = Executor(ConfigSelectorChain(policy=AutotunePolicy(cache_miss_fallback="heuristics")))
    executor(Sleeper(), X)
    with policy_override(cache_miss_fallback="background", allow_autotune=False):
        executor(Sleeper(), np.zeros(4))
    assert executor.chooser.idle(0) == 0
    with policy_override(cache_miss_fallback="background"):
        executor(Sleeper(), np.zeros(5))
    assert executor.chooser.idle(0) == 1


def test_scopes_around_idle_are_for_other_calls():
    executor, kernel = executor_with(), Sleeper()
    executor(kernel, X)
    with policy_override(allow_autotune=False):
        assert executor.chooser.idle(1000) == 0
    assert executor.choose_config(kernel, X) == "fast"


def test_a_result_of_another_program_is_used(tmp_path):
    executors = [executor_with(persistent=PersistentCache(tmp_path / "shared")) for _ in range(2)]
    kernel = Sleeper()
    for executor in executors:
        executor(kernel, X)
    assert executors[0].chooser.idle(1000) == 0
    del kernel.log[:]
    assert executors[1].chooser.idle(1000) == 0 and kernel.log == []
    assert executors[1].choose_config(kernel, X) == "fast"


def test_a_tuning_that_was_cut_goes_on(tmp_path):
    class Large(Sleeper):
        op_id = "idle_large"
        configs = ("slow", *(f"slow {i}" for i in range(40)), "fast")

    store = PersistentCache(tmp_path / "own")
    executor, kernel = executor_with(persistent=store), Large()
    executor(kernel, X)
    assert executor.chooser.idle(0.05) == 1
    ((device, op, key),) = store.keys()
    first = store.entry(device, op, key)
    assert not first["evidence"]["complete"]
    assert executor.chooser.idle(1000) == 0
    whole = store.entry(device, op, key)
    assert whole["evidence"]["complete"] and whole["evidence"]["data"] == "seeded normal numbers"
    assert executor.choose_config(kernel, X) == "fast"


def test_a_call_without_a_right_candidate_is_tuned_once():
    class Broken(Sleeper):
        op_id = "idle_broken"
        configs = ("bad",)

        def run(self, x, *, cfg):
            if cfg == "bad":
                raise ArithmeticError
            return super().run(x, cfg=cfg)

    executor, kernel = executor_with(), Broken()
    executor(kernel, X)
    assert executor.chooser.idle(1000) == 0
    executor(kernel, X)
    assert executor.chooser.idle(0) == 0
    assert executor.choose_config(kernel, X) == "slow"


def test_ctrl_c_leaves_the_call_waiting():
    class Interrupted(Sleeper):
        op_id = "idle_interrupted"
        interrupt = False

        def run(self, x, *, cfg):
            if self.interrupt:
                raise KeyboardInterrupt
            return super().run(x, cfg=cfg)

    executor, kernel = executor_with(), Interrupted()
    executor(kernel, X)
    kernel.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        executor.chooser.idle(1000)
    kernel.interrupt = False
    assert executor.chooser.idle(0) == 1
    assert executor.chooser.idle(1000) == 0
    assert executor.choose_config(kernel, X) == "fast"


def test_threads_share_the_work():
    begun = []
    executor, kernel = executor_with(on_event=lambda event, **data: begun.append(data["call_key"]) if event == "autotune_start" else None), Sleeper()  # fmt: skip
    for n in range(1, 7):
        executor(kernel, np.zeros(n))
    threads = [threading.Thread(target=executor.chooser.idle, args=(1000,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert executor.chooser.idle(0) == 0
    assert len(begun) == len(set(begun)) == 6


def test_the_default_executor_is_asked_by_name(monkeypatch):
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", "background")
    from ejk.ops import idle

    kernel = Sleeper()
    kernel(X)
    assert set(kernel.log) == {"slow"} and idle(0) == 1
    assert idle(1000) == 0
    del kernel.log[:]
    kernel(X)
    assert kernel.log == ["fast"]


def test_functions_of_jax_get_it_when_they_are_traced_again():
    run_program(
        """
        import jax, jax.numpy as jnp
        from ejk.ops import AutotunePolicy, ConfigSelectorChain, Executor, Kernel

        traced = []

        class Sum(Kernel):
            op_id, version = "idle_sum", "1"
            def run(self, x, y, *, cfg):
                traced.append(cfg)
                if cfg == "slow":
                    return jax.lax.fori_loop(0, 2000, lambda i, z: z + 0.0 * i, x + y)
                return x + y
            def heuristic_cfg(self, inv):
                return "slow"
            def candidate_cfgs(self, inv):
                return ["slow", "fast"]

        executor = Executor(ConfigSelectorChain(policy=AutotunePolicy(cache_miss_fallback="background")))
        kernel, x = Sum(), jnp.ones((50, 50))
        jitted = jax.jit(lambda x: executor(kernel, x, x))
        assert jitted(x)[0, 0] == 2 and executor(kernel, x[:20], x[:20])[0, 0] == 2
        assert set(traced) == {"slow"}, traced
        assert executor.chooser.idle(0) == 2
        assert jitted.lower(x) is not None and executor.chooser.idle(1000) == 0
        del traced[:]
        assert jitted(x)[0, 0] == 2 and traced == []
        assert executor(kernel, x[:20], x[:20])[0, 0] == 2
        jax.clear_caches()
        assert jitted(x)[0, 0] == 2 and executor(kernel, x[:20], x[:20])[0, 0] == 2
        assert "slow" not in traced, traced
        assert executor.choose_config(kernel, x, x) == executor.choose_config(kernel, x[:20], x[:20]) == "fast"
        """
    )
