# SPDX-License-Identifier: Apache-2.0
"""Tuners and caches of a program's own in the chain: they are asked and told, whatever they are made of."""

import dataclasses
import json
import threading

import numpy as np
import pytest
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
    overlay_cache,
)


@dataclasses.dataclass(frozen=True)
class Config:
    block: int


class Scale(Kernel[Config, np.ndarray]):
    op_id, version = "own.scale", "1"

    def run(self, x, *, cfg):
        return x + 0 * cfg.block

    def heuristic_cfg(self, inv):
        return Config(1)

    def candidate_cfgs(self, inv):
        return [Config(1), Config(2), Config(3)]


X = np.zeros(3)
KERNEL = Scale()
INV = Invocation(kernel=KERNEL, args=(X,))
PLACE = (device_fingerprint(), "own.scale@v1", INV.call_key)


class Fixed(Tuner):
    """Its stopwatch says what it wants."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.ran = seconds, 0

    def measure(self, fn, *args, **kwargs):
        fn(*args, **kwargs)
        seconds = self.seconds[self.ran]
        self.ran += 1
        if seconds is None:
            raise RuntimeError("cannot be measured")
        return seconds


# ---- tuners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds, best", [([3, 1, 2], 2), ([1, 2, 3], 1), ([None, 5, None], 2), ([2, 1, 1], 2)])
def test_a_tuner_with_a_measure_of_its_own_decides(seconds, best):
    tuner = Fixed(seconds)
    executor = Executor(ConfigSelectorChain(tuner=tuner))
    assert executor.choose_config(KERNEL, X) == Config(best)
    assert tuner.ran == 3
    executor(KERNEL, X)
    assert tuner.ran == 3  # it is remembered


def test_a_measure_that_is_set_on_one_tuner_decides():
    tuner, seconds = Tuner(), iter([3, 1, 2])
    tuner.measure = lambda fn, *args, **kwargs: next(seconds)
    assert ConfigSelectorChain(tuner=tuner).choose(INV, KERNEL) == Config(2)


def test_a_tuner_whose_measures_all_fail_leaves_the_heuristic():
    tuner = Fixed([None, None, None])
    assert ConfigSelectorChain(tuner=tuner).choose_with_origin(INV, KERNEL) == (Config(1), "heuristics")
    assert tuner.ran == 3
    with pytest.raises(RuntimeError, match="cannot be measured"):
        Fixed([None]).autotune(lambda cfg: lambda x: x, (X,), {}, [Config(1)])


def test_a_measure_that_is_set_later_decides(monkeypatch):
    selector, seconds = ConfigSelectorChain(), iter([3, 1, 2])
    monkeypatch.setattr(Tuner, "measure", lambda self, fn, *args, **kwargs: next(seconds))
    assert selector.choose(INV, KERNEL) == Config(2)


def test_a_tuner_that_is_set_later_decides():
    selector = ConfigSelectorChain()
    selector.tuner = Fixed([3, 2, 1])
    assert selector.choose(INV, KERNEL) == Config(3)


def test_a_tuner_that_gives_nothing_leaves_the_heuristic():
    class Nothing:
        def autotune(self, make_fn, args, kwargs, candidates):
            return None

    assert ConfigSelectorChain(tuner=Nothing()).choose_with_origin(INV, KERNEL) == (Config(1), "heuristics")


# ---- caches -------------------------------------------------------------------------------------


class Log:
    """Notes what is called, in order."""

    def __init__(self):
        self.calls, self.held = [], {}

    def get(self, *where):
        self.calls.append(("get", *where))
        return self.held.get(where)

    def put(self, *where_and_config):
        self.calls.append(("put", *where_and_config))
        self.held[where_and_config[:-1]] = where_and_config[-1]


class OwnMemory(ConfigCache):
    def __init__(self):
        super().__init__()
        self.log = Log()

    def get(self, dev, op_id, call_key):
        self.log.get(dev, op_id, call_key)
        return super().get(dev, op_id, call_key)

    def put(self, dev, op_id, call_key, cfg):
        self.log.put(dev, op_id, call_key, cfg)
        super().put(dev, op_id, call_key, cfg)


class OwnDisk(PersistentCache):
    def __init__(self, path):
        super().__init__("own", path=path)
        self.log = Log()

    def get(self, device, op_id, call_key):
        self.log.get(device, op_id, call_key)
        return super().get(device, op_id, call_key)

    def put(self, device, op_id, call_key, cfg):
        self.log.put(device, op_id, call_key, cfg)
        super().put(device, op_id, call_key, cfg)


def log_of(cache):
    return getattr(cache, "log", cache)


@pytest.fixture(params=["object", "subclass"])
def memory(request):
    return Log() if request.param == "object" else OwnMemory()


@pytest.fixture(params=["object", "subclass"])
def disk(request, tmp_path):
    return Log() if request.param == "object" else OwnDisk(tmp_path / "own")


def tuning_to(block, **parts):
    return ConfigSelectorChain(tuner=Fixed([3 - (i == block) for i in (1, 2, 3)]), **parts)


def test_a_cache_of_ones_own_is_asked_once_and_told_what_was_tuned(memory):
    selector = tuning_to(2, cache=memory)
    assert selector.choose_with_origin(INV, KERNEL) == (Config(2), "autotune")
    assert log_of(memory).calls == [("get", *PLACE), ("put", *PLACE, Config(2))]
    del log_of(memory).calls[:]
    assert selector.choose_with_origin(INV, KERNEL) == (Config(2), "memory")
    assert log_of(memory).calls == [("get", *PLACE)]


def test_every_call_asks_a_cache_of_ones_own(memory):
    executor = Executor(tuning_to(2, cache=memory))
    for _ in range(3):
        executor(KERNEL, X)
    assert [call[0] for call in log_of(memory).calls] == ["get", "put", "get", "get"]
    memory.put(*PLACE, Config(3))
    assert executor.choose_config(KERNEL, X) == Config(3)


def test_a_cache_of_ones_own_is_told_of_a_heuristic(memory):
    selector = ConfigSelectorChain(memory, AutotunePolicy(allow_autotune=False))
    assert selector.choose(INV, KERNEL) == Config(1)
    assert log_of(memory).calls == [("get", *PLACE), ("put", *PLACE, Config(1))]


def test_tiers_before_memory_do_not_ask_it(memory):
    selector = ConfigSelectorChain(memory)
    given = Invocation(kernel=KERNEL, args=(X,), override_cfg=Config(7))
    assert selector.choose(given, KERNEL) == Config(7)
    with overlay_cache({PLACE: Config(8)}):
        assert selector.choose(INV, KERNEL) == Config(8)
    assert log_of(memory).calls == []


def test_a_store_of_ones_own_is_asked_once_and_told_what_was_tuned(disk):
    assert tuning_to(2, persistent=disk).choose_with_origin(INV, KERNEL) == (Config(2), "autotune")
    assert log_of(disk).calls == [("get", *PLACE), ("put", *PLACE, Config(2))]
    del log_of(disk).calls[:]
    selector = tuning_to(3, persistent=disk)
    assert selector.choose_with_origin(INV, KERNEL) == (Config(2), "persistent")
    assert selector.choose_with_origin(INV, KERNEL) == (Config(2), "memory")
    assert log_of(disk).calls == [("get", *PLACE)]


def test_a_store_of_ones_own_is_not_told_what_shall_not_be_kept(disk):
    assert tuning_to(2, persistent=disk, persist_autotune=False).choose(INV, KERNEL) == Config(2)
    untuned = ConfigSelectorChain(policy=AutotunePolicy(allow_autotune=False), persistent=disk)
    assert untuned.choose(INV, KERNEL) == Config(1)
    assert [call[0] for call in log_of(disk).calls] == ["get", "get"]


def test_both_of_ones_own_are_asked_in_order(memory, disk):
    disk.put(*PLACE, Config(3))
    del log_of(disk).calls[:]
    selector = tuning_to(2, cache=memory, persistent=disk)
    assert selector.choose_with_origin(INV, KERNEL) == (Config(3), "persistent")
    assert log_of(memory).calls == [("get", *PLACE), ("put", *PLACE, Config(3))]
    assert log_of(disk).calls == [("get", *PLACE)]
    assert selector.choose_with_origin(INV, KERNEL) == (Config(3), "memory")


def test_a_tuning_by_hand_tells_both(memory, disk):
    selector = tuning_to(2, cache=memory, persistent=disk)
    assert selector.tune(INV, KERNEL)[0] == Config(2)
    assert ("put", *PLACE, Config(2)) in log_of(memory).calls
    assert ("put", *PLACE, Config(2)) in log_of(disk).calls


def test_a_cache_of_your_own_may_give_any_object():
    class Opaque:
        block = 5

    memory, disk, found = Log(), Log(), Opaque()
    disk.held[PLACE] = found
    selector = ConfigSelectorChain(memory, persistent=disk)
    assert selector.choose(INV, KERNEL) is found
    assert memory.held[PLACE] is found
    assert selector.choose(INV, KERNEL) is found


def test_an_error_of_a_cache_of_your_own_is_raised(memory, disk):
    class Broken(Exception):
        pass

    def get(*where):
        raise Broken("no connection")

    for tier, cache in (("cache", memory), ("persistent", disk)):
        cache.get, was = get, cache.get
        with pytest.raises(Broken, match="no connection"):
            ConfigSelectorChain(**{tier: cache}).choose(INV, KERNEL)
        cache.get = was


def test_a_put_may_call_the_selector_again():
    class Again(Log):
        def put(self, *where_and_config):
            super().put(*where_and_config)
            assert self.selector.choose(INV, KERNEL) == where_and_config[-1]

    for tier in ("cache", "persistent"):
        cache = Again()
        cache.selector = tuning_to(2, **{tier: cache})
        assert cache.selector.choose(INV, KERNEL) == Config(2)


def test_a_config_that_cannot_run_the_call_is_passed_over():
    class Picky(Scale):
        def is_valid(self, cfg, inv):
            return cfg.block < 3

    kernel = Picky()
    memory = Log()
    memory.held[PLACE] = Config(9)
    assert tuning_to(2, cache=memory).choose(Invocation(kernel=kernel, args=(X,)), kernel) == Config(2)


def test_explain_names_what_ones_own_hold_and_tells_them_nothing(memory, disk):
    disk.put(*PLACE, Config(3))
    selector = ConfigSelectorChain(memory, persistent=disk)
    assert "Config" in selector.explain(INV, KERNEL) and "persistent" in selector.explain(INV, KERNEL)
    assert [call for call in log_of(memory).calls if call[0] == "put"] == []


def test_events_tell_which_of_ones_own_answered(memory, disk):
    events = []
    disk.put(*PLACE, Config(3))
    selector = ConfigSelectorChain(memory, persistent=disk, on_event=lambda e, **data: events.append((e, data)))
    for _ in range(2):
        selector.choose(INV, KERNEL)
    assert [(e, d["level"], d["cfg"]) for e, d in events] == [
        ("cache_hit", "persistent", Config(3)),
        ("cache_hit", "memory", Config(3)),
    ]


def test_threads_that_miss_together_tune_once(memory):
    tuner = Fixed([3, 1, 2])
    selector = ConfigSelectorChain(memory, tuner=tuner)
    found = []
    threads = [threading.Thread(target=lambda: found.append(selector.choose(INV, KERNEL))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Config(2)] * 4 and tuner.ran == 3


def test_caches_that_are_set_later_are_asked(memory, disk):
    selector = ConfigSelectorChain(policy=AutotunePolicy(allow_autotune=False))
    executor = Executor(selector)
    executor(KERNEL, X)
    selector.cache, selector.persistent = memory, disk
    executor(KERNEL, X)
    assert [call[0] for call in log_of(memory).calls] == ["get", "put"]
    assert [call[0] for call in log_of(disk).calls] == ["get"]


def test_a_chain_with_a_choose_of_its_own_is_asked_in_every_call():
    import jax.numpy as jnp

    class Counting(ConfigSelectorChain):
        asked = 0

        def choose(self, inv, kernel):
            self.asked += 1
            return super().choose(inv, kernel)

    first, second, kernel, x = Counting(), Counting(), Scale(), jnp.zeros(3)
    executor = Executor(first)
    for _ in range(3):
        executor(kernel, x)
    assert first.asked == 3
    executor.chooser = second
    executor(kernel, x)
    assert (first.asked, second.asked) == (3, 1)


def test_an_executor_forgets_what_an_earlier_chooser_chose():
    import jax.numpy as jnp

    class Report(Scale):
        def run(self, x, *, cfg):
            return x + cfg.block

    class Always:
        def choose(self, inv, kernel):
            return Config(9)

    executor, kernel, x = Executor(tuning_to(2)), Report(), jnp.zeros(3)
    for _ in range(3):
        assert executor(kernel, x)[0] == 2
    executor.chooser = Always()
    assert executor(kernel, x)[0] == 9


def test_a_listener_that_is_set_later_hears_of_calls_that_were_warm():
    import jax.numpy as jnp

    heard, selector = [], tuning_to(2)
    executor, kernel, x = Executor(selector), Scale(), jnp.zeros(3)
    for _ in range(3):
        executor(kernel, x)
    selector.on_event = lambda event, **data: heard.append((event, data["level"]))
    executor(kernel, x)
    assert heard == [("cache_hit", "memory")]


def test_a_tuning_that_failed_is_not_tried_again_for_a_listener():
    class Failing(Scale):
        ran = 0

        def run(self, x, *, cfg):
            type(self).ran += 1
            if cfg.block > 1:
                raise ValueError("cannot run")
            return x

        def candidate_cfgs(self, inv):
            return [Config(2), Config(3)]

    selector, kernel = ConfigSelectorChain(), Failing()
    inv = Invocation(kernel=kernel, args=(X,))
    selector.choose(inv, kernel)
    before = Failing.ran
    selector.on_event = lambda event, **data: None
    selector.choose(inv, kernel)
    assert 0 < before == Failing.ran


@pytest.mark.parametrize("part", ["cache", "persistent"])
@pytest.mark.parametrize("wrong", [{}, 3, "path"], ids=str)
def test_a_cache_that_cannot_be_asked_is_an_error(part, wrong):
    with pytest.raises(TypeError, match=rf"\[ConfigSelectorChain\] got {part}=.*; expected an object with get"):
        ConfigSelectorChain(**{part: wrong})


def test_an_overlay_with_a_get_of_its_own_is_asked():
    memory = OwnMemory()
    memory.put(*PLACE, Config(6))
    with overlay_cache(memory):
        assert ConfigSelectorChain().choose(INV, KERNEL) == Config(6)
    assert ("get", *PLACE) in memory.log.calls


# ---- loader and dumper --------------------------------------------------------------------------


def test_loader_and_dumper_of_a_store_are_called(tmp_path):
    seen = []

    def dumper(config):
        seen.append(("dumped", config))
        return {"b": config.block}

    def loader(kept):
        seen.append(("loaded", kept))
        return Config(kept["b"])

    def store():
        return PersistentCache("own", path=tmp_path / "s", loader=loader, dumper=dumper)

    assert tuning_to(2, persistent=store()).choose(INV, KERNEL) == Config(2)
    assert tuning_to(3, persistent=store()).choose_with_origin(INV, KERNEL) == (Config(2), "persistent")
    assert seen == [("dumped", Config(2)), ("loaded", {"b": 2})]


def test_a_loader_alone_is_given_plain_data(tmp_path):
    def store():
        return PersistentCache("own", path=tmp_path / "s", loader=lambda kept: Config(kept["block"] + 10))

    assert tuning_to(2, persistent=store()).choose(INV, KERNEL) == Config(2)
    assert tuning_to(3, persistent=store()).choose_with_origin(INV, KERNEL) == (Config(12), "persistent")


def test_a_loader_reads_a_file_of_ejkernel(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"|".join(PLACE): [4]}))
    store = PersistentCache("own", path=path, loader=lambda kept: Config(kept[0]))
    assert tuning_to(3, persistent=store).choose_with_origin(INV, KERNEL) == (Config(4), "persistent")
