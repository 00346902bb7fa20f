# SPDX-License-Identifier: Apache-2.0
"""Ranks that agree on configs, in JAX's coordination service."""

import os
import socket
import subprocess
import sys
import threading

import pytest

jax = pytest.importorskip("jax")

from ejk import _ranks  # noqa: E402
from ejk.ops import agree  # noqa: E402

PROGRAM = """
import hashlib, json, os, random, signal, sys, time
import jax

address, rank, store, role = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
if role != "improve":
    # The ranks only trace. Gloo would look up this host's name, which not every host can.
    jax.config.update("jax_cpu_collectives_implementation", None)
    jax.distributed.initialize(address, num_processes=4, process_id=rank)
import jax.numpy as jnp
from ejk import _core
from ejk.ops import ConfigSelectorChain, Executor, Kernel, PersistentCache, agree, device_fingerprint

class Scaled(Kernel):
    op_id = "scaled"
    def run(self, x, *, cfg):
        return x * cfg
    def heuristic_cfg(self, inv):
        return 1000 + rank  # ranks that are not alike

kernel = Scaled()
selector = ConfigSelectorChain(persistent=PersistentCache(path=store))
executor = Executor(selector)
arrays = [jnp.ones(n) for n in range(1, 25)]
keys = [_core.parse_label(executor.label(kernel, x))[1:] for x in arrays[:18]]  # the rest is in no store

def step(*arrays):
    return [executor(kernel, x) for x in arrays]

def say(*what):
    print(*what, flush=True)

def improve():
    generation = 0
    while not os.path.exists(store + "/stop"):
        generation += 1
        for op, key in keys:
            selector.persistent.put(device_fingerprint(), op, key, generation)
        if generation == 1:
            say("ready")
    say(generation)

def stored():
    return selector.persistent.get(device_fingerprint(), *keys[0])

def choose():
    patience = time.monotonic() + 300
    while (seen := stored()) % 4 != rank:  # so that they see different states of the store
        assert time.monotonic() < patience, f"rank {rank} sees no state of its own: {seen}"
        time.sleep(0.02)
    order = random.Random(rank).sample(range(len(arrays)), len(arrays))
    if role == "batch":
        say("agreed", agree(step, *arrays))
    else:
        for i in order:
            executor.choose_config(kernel, arrays[i])
            if role == "die" and i == order[5]:
                say("dying")
                os.kill(os.getpid(), signal.SIGKILL)
    configs = [executor.choose_config(kernel, x) for x in arrays]
    lowered = jax.jit(step).lower(*arrays).as_text()
    say(hashlib.sha256(json.dumps(configs).encode()).hexdigest(), hashlib.sha256(lowered.encode()).hexdigest(), seen)

if role == "improve":
    improve()
else:
    if role == "late":
        say("waiting")
        sys.stdin.readline()
    choose()
    sys.stdin.read()
    os._exit(0)  # JAX would wait for the rank that died
"""


class Processes:
    """Of one run; none outlives it, or ten minutes."""

    def __init__(self, store, **variables):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        self.store = store
        self.env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(p for p in sys.path if p)}
        self.env |= {"XLA_FLAGS": "", "EJKERNEL_PERSISTENT_CACHE_PIN": "1", **variables}
        self.all = []
        self.timer = threading.Timer(600, self.end)
        self.timer.daemon = True

    def start(self, rank, role):
        command = [sys.executable, "-c", PROGRAM, self.address, str(rank), str(self.store), role]
        pipe = subprocess.PIPE
        self.all.append(subprocess.Popen(command, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return self.all[-1]

    def end(self):
        for process in self.all:
            process.kill()

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *exc):
        self.timer.cancel()
        self.end()
        for process in self.all:
            process.communicate()


def line_of(process):
    line = process.stdout.readline().split()
    assert line, process.communicate()[1]
    return line


def test_ranks_agree_while_entries_improve_one_dies_and_one_is_late(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    with Processes(store) as run:
        improving = run.start(0, "improve")
        assert line_of(improving) == ["ready"]
        batch, single, late, dying = (run.start(i, role) for i, role in enumerate(("batch", "one", "late", "die")))
        assert line_of(late) == ["waiting"]
        assert line_of(dying) == ["dying"]
        word, count = line_of(batch)
        assert word == "agreed" and 0 <= int(count) <= 24, "what is pinned already is not offered"
        found = [line_of(batch), line_of(single)]
        late.stdin.write("\n")  # the others have all they need
        late.stdin.flush()
        found.append(line_of(late))
        (store / "stop").touch()
        assert int(line_of(improving)[0]) > 1
        assert len({seen for _, _, seen in found}) == 3, "each saw another state of the store"
        assert len({configs for configs, _, _ in found}) == 1
        assert len({lowered for _, lowered, _ in found}) == 1


def test_a_single_process_asks_for_another_place_and_says_which(tmp_path, monkeypatch):
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_PIN", "1")
    monkeypatch.setenv("EJKERNEL_RUN", "mine")
    monkeypatch.delenv("EJKERNEL_PERSISTENT_CACHE_URL", raising=False)
    assert _ranks.service() is None
    executor, x = _executor(tmp_path), jax.numpy.ones(3)
    with pytest.raises(ValueError, match="got no place for pins.*jax.distributed.initialize"):
        executor(_Doubled(), x)
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_PIN", "directory")
    executor = _executor(tmp_path)
    step = jax.jit(lambda x: executor(_Doubled(), x) + executor(_Doubled(), x[1:])[0])
    assert agree(step, x) == 2
    assert agree(step, x) == 0, "all is pinned"
    assert float(step(x)[0]) == 4
    assert [p.name for p in (tmp_path / "pins").glob("*/*")] == ["00000000.json"], "in one question"


def test_without_pins_nothing_is_traced(monkeypatch):
    monkeypatch.delenv("EJKERNEL_PERSISTENT_CACHE_PIN", raising=False)
    assert agree(lambda: pytest.fail("it was traced")) == 0


def test_a_service_of_other_names_is_an_error_that_says_which(monkeypatch):
    monkeypatch.setattr(_ranks._jax, "several_processes", lambda: True)
    monkeypatch.setattr(_ranks, "_client", lambda: object())
    with pytest.raises(RuntimeError, match="has no key_value_set, key_value_try_get, key_value_dir_get; expected"):
        _ranks.service()


def test_this_version_of_jax_has_the_names():
    from jax._src.distributed import global_state
    from jax._src.lib import _jax

    assert global_state.client is None, "this process is not one of several"
    assert all(hasattr(_jax.DistributedRuntimeClient, name) for name in _ranks._USED)


def test_a_service_that_fails_is_an_error_that_says_so():
    class Broken:
        def key_value_set(self, key, value):
            raise RuntimeError("UNAVAILABLE: failed to connect")

        key_value_try_get = key_value_dir_get = lambda self, key: self.key_value_set(key, "")

    service = _ranks.Service(Broken())
    for ask in (lambda: service.add(0, "{}"), lambda: service.texts_from(0), lambda: service.texts_from(1)):
        with pytest.raises(OSError, match="UNAVAILABLE.*ejk snapshot publish"):
            ask()


def _executor(store):
    from ejk.ops import ConfigSelectorChain, Executor, PersistentCache

    return Executor(ConfigSelectorChain(persistent=PersistentCache(path=str(store))))


def _Doubled():
    from ejk.ops import Kernel

    class Doubled(Kernel):
        op_id = "doubled"

        def run(self, x, *, cfg):
            return x * cfg

        def heuristic_cfg(self, inv):
            return 2

    return Doubled()
