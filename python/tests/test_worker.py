# SPDX-License-Identifier: Apache-2.0
"""`python -m ejk tune`: recorded calls are tuned in processes of their own, which kernels may end."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from ejk import _core

KERNELS = """
import enum, os, signal, sys, time
import numpy
from ejk.ops import ConfigSelectorChain, Executor, Kernel

class Good(Kernel):
    op_id, version = "good", "1"
    def run(self, x, *, cfg, scale=1):
        print("what a kernel prints is no answer")
        return x * scale
    def heuristic_cfg(self, inv):
        return 1
    def candidate_cfgs(self, inv):
        return [1, 2, 3]

class Bad(Good):
    def run(self, x, *, cfg, scale=1):
        if cfg == 2:
            self.act()
        return super().run(x, cfg=cfg, scale=scale)

class Crashes(Bad):
    op_id = "crashes"
    def act(self):
        os.kill(os.getpid(), signal.SIGSEGV)

class Exits(Bad):
    op_id = "exits"
    def act(self):
        os._exit(3)

class Leaves(Bad):
    op_id = "leaves"
    def act(self):
        sys.exit(5)

class Hangs(Bad):
    op_id = "hangs"
    def act(self):
        time.sleep(1e6)

class Hopeless(Good):
    op_id = "hopeless"
    def candidate_cfgs(self, inv):
        os._exit(4)

class Raises(Good):
    op_id = "raises"
    def candidate_cfgs(self, inv):
        raise LookupError("no candidates today")

class OwnKey(Good):
    op_id = "own_key"
    def key_builder(self, inv):
        return f"rows{inv.args[0].shape[0]}"

class Parity(Good):
    op_id = "parity"
    def candidate_cfgs(self, inv):
        return [2, 3, 4]
    def numerics(self, cfg, inv):
        return cfg % 2

class Slow(Good):
    op_id = "slow"
    def candidate_cfgs(self, inv):
        return list(range(1, 101))
    def run(self, x, *, cfg, scale=1):
        time.sleep(0.03)
        with open("slow_ran", "a") as file:
            file.write(f"{cfg} ")
        return x

class Plain:
    op_id, version = "plain", "1"
    run, heuristic_cfg, candidate_cfgs = Good.run, Good.heuristic_cfg, Good.candidate_cfgs

class Scale(enum.IntEnum):
    two = 2

def call(*kernels):
    for kernel in kernels:
        call_with(kernel, numpy.ones((4, 2), numpy.float32), scale=2)

def call_with(kernel, *args, **kwargs):
    Executor(ConfigSelectorChain(autotune=False))(kernel(), *args, **kwargs)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Runs Python where the kernels above are the module some_kernels; gives what it printed."""
    (tmp_path / "some_kernels.py").write_text(KERNELS)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *(p for p in sys.path if p)]))
    monkeypatch.setenv("EJKERNEL_OPS_RECORD_DIR", str(tmp_path / "recorded"))
    monkeypatch.chdir(tmp_path)

    def run(*words, expect=0, **environment):
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
        )
        assert done.returncode == expect, (words, done.returncode, done.stdout, done.stderr)
        return done

    return run


@pytest.fixture
def record(program):
    def run(*names):
        code = f"import some_kernels as k; k.call({', '.join('k.' + name for name in names)})"
        program("-c", code, EJKERNEL_OPS_RECORD="1")

    return run


def tuned(done):
    found = json.loads(done.stdout)
    return {entry["op"]: entry for entry in found["tuned"]}, {skip["op"]: skip for skip in found["skipped"]}


TUNE = ["-m", "ejk", "tune", "--import", "some_kernels"]


def test_help_says_what_to_do(program):
    text = program("-m", "ejk", "--help").stdout
    assert "EJKERNEL_OPS_RECORD=1" in text and "tune" in text and "130" in text
    assert "--budget-per-call" in program("-m", "ejk", "tune", "--help").stdout
    assert "VERB" in program("-m", "ejk", expect=2).stderr
    assert program("-m", "ejk", "--version").stdout.startswith("ejk ")


def test_recorded_calls_are_tuned_once_and_used(program, record, tmp_path):
    record("Good", "OwnKey")
    entries, skipped = tuned(program(*TUNE, "--json"))
    assert set(entries) == {"good@v1", "own_key@v1"} and skipped == {}
    assert entries["own_key@v1"]["key"] == "rows4"
    assert all(e["kept"] and not e["already"] and e["evidence"]["data"] == "recorded sketch" for e in entries.values())
    again, _ = tuned(program(*TUNE, "--json"))
    assert all(e["already"] for e in again.values())
    assert "tuned before" in program(*TUNE, "--recorded").stdout
    use = """
import some_kernels as k, numpy
from ejk.ops import *
origins = []
selector = ConfigSelectorChain(persistent=PersistentCache(), on_event=lambda event, **d: origins.append(d.get("level")))
for kernel in (k.Good(), k.OwnKey()):
    Executor(selector)(kernel, numpy.ones((4, 2), numpy.float32), scale=2)
assert origins == ["persistent", "persistent"], origins
"""
    program("-c", use)


def test_recorded_calls_are_tuned_for_programs_that_want_the_same_numerics(program, record):
    record("Parity")
    anyhow = tuned(program(*TUNE, "--json"))[0]["parity@v1"]
    entry = tuned(program(*TUNE, "--numerics", "same", "--json"))[0]["parity@v1"]
    assert entry["numerics"] == 1 and entry["config"] % 2 == 1 and entry["kept"]
    assert entry["key"] != anyhow["key"]
    again = tuned(program(*TUNE, "--numerics", "same", "--json"))[0]["parity@v1"]
    assert {**again, "already": False} == entry, "it is not tuned again"
    use = """
import some_kernels as k, numpy
from ejk.ops import *
origins = []
policy = AutotunePolicy(numerics="same", allow_autotune=False)
note = lambda event, **d: origins.append(d.get("level"))
selector = ConfigSelectorChain(policy=policy, persistent=PersistentCache(), on_event=note)
Executor(selector)(k.Parity(), numpy.ones((4, 2), numpy.float32), scale=2)
assert origins == ["persistent"], origins
"""
    program("-c", use)


def test_configs_that_end_their_process_are_left_out(program, record, tmp_path):
    record("Crashes", "Exits", "Leaves", "Good")
    entries, skipped = tuned(program(*TUNE, "--json"))
    assert set(entries) == {"crashes@v1", "exits@v1", "leaves@v1", "good@v1"} and skipped == {}
    assert all(entries[op]["config"] in (1, 3) for op in ("crashes@v1", "exits@v1", "leaves@v1"))
    why = """
from ejk.ops import *
store = PersistentCache()
for device, op, key in store.keys():
    for c in store.entry(device, op, key)["candidates"]:
        print(op, c["config"], c["status"], c.get("why", ""))
"""
    told = program("-c", why).stdout
    assert "crashes@v1 2 untried 2 processes died" in told and "exits@v1 2 untried 2 processes died" in told
    assert "leaves@v1 2 rejected" in told and "end the process with 5" in told


def test_a_config_that_hangs_is_left_out(program, record):
    record("Hangs", "Good")
    entries, skipped = tuned(program(*TUNE, "--deadline", "8", "--budget-per-call", "1", "--json"))
    assert set(entries) == {"hangs@v1", "good@v1"} and entries["hangs@v1"]["config"] in (1, 3)


def test_a_call_that_cannot_be_tuned_is_reported_and_costs_no_other(program, record):
    record("Hopeless", "Raises", "Good")
    entries, skipped = tuned(program(*TUNE, "--json", expect=1))
    assert set(entries) == {"good@v1"}
    assert "exit code 4" in skipped["hopeless@v1"]["why"] and skipped["hopeless@v1"]["lost"]
    assert "no candidates today" in skipped["raises@v1"]["why"] and not skipped["raises@v1"]["lost"]
    assert "exit code 4" in program(*TUNE, "--op", "hopeless", expect=1).stdout


def test_modules_that_are_missing_are_named(program, record):
    record("Good")
    assert "cannot import nowhere" in program("-m", "ejk", "tune", "--import", "nowhere", expect=1).stderr
    told = program("-m", "ejk", "tune", expect=1).stdout
    assert "some_kernels:Good is not known" in told and "--import some_kernels" in told


def test_a_store_that_is_given_has_its_own_recorded_calls(program, record, tmp_path):
    record("Good")
    (tmp_path / "mine").mkdir()
    (tmp_path / "recorded").rename(tmp_path / "mine/recorded")
    record("OwnKey")
    entries, _ = tuned(program(*TUNE, "--json", "--store", "mine"))
    assert set(entries) == {"good@v1"}
    entries, _ = tuned(program(*TUNE, "--json", "--store", "mine", "--recorded-in", "recorded"))
    assert set(entries) == {"own_key@v1"}


def test_nothing_recorded_or_labelled_is_said(program, tmp_path):
    assert "nothing was tuned" in program(*TUNE, expect=3).stdout
    (tmp_path / "empty.mlir").write_text("module {}")
    assert "no label" in program(*TUNE, "--lowered", "empty.mlir", expect=3).stdout
    assert "missing.mlir" in program(*TUNE, "--lowered", "missing.mlir", expect=3).stderr


def test_ctrl_c_keeps_what_is_measured(start, record, tmp_path):
    record("Slow")
    ran = tmp_path / "slow_ran"
    ran.unlink()
    command = [sys.executable, *TUNE, "--budget-per-call", "100", "--json"]
    tool = start(command)
    assert "slow@v1" in tool.stderr.readline()
    patience = time.monotonic() + 60
    while not (ran.exists() and len(set(ran.read_text().split())) > 5) and time.monotonic() < patience:
        time.sleep(0.05)
    tool.send_signal(signal.SIGINT)
    out, err = tool.communicate(timeout=60)
    assert tool.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"] and [e["kept"] for e in found["tuned"]] == [True], found
    assert not found["tuned"][0]["evidence"]["complete"]
    assert list(tmp_path.rglob("*.intent")) == []


def test_a_worker_does_not_import_jax_by_itself(program, record):
    (pathlib.Path.cwd() / "jax.py").write_text("raise RuntimeError('nobody asked for it')")
    record("Good")
    entries, _ = tuned(program(*TUNE, "--json"))
    assert "good@v1" in entries


def test_calls_of_jax_kernels_are_tuned_by_their_labels(program, tmp_path):
    (tmp_path / "jax_kernels.py").write_text(
        """
import jax, jax.numpy as jnp
from ejk.ops import ConfigSelectorChain, Executor, Kernel

class Scaled(Kernel):
    op_id = "scaled"
    def run(self, x, *, cfg):
        return x * 2
    def heuristic_cfg(self, inv):
        return 1
    def candidate_cfgs(self, inv):
        return [1, 2]

def text(shape):
    executor = Executor(ConfigSelectorChain(autotune=False))
    return jax.jit(lambda x: executor(Scaled(), x)).lower(jnp.ones(shape)).as_text()
"""
    )
    code = "import jax_kernels as k; k.text((3,)); print(k.text((5,)))"
    (tmp_path / "five.mlir").write_text(program("-c", code, EJKERNEL_OPS_RECORD="1").stdout)
    words = ["-m", "ejk", "tune", "--import", "jax_kernels", "--json"]
    entries, _ = tuned(program(*words, "--lowered", "five.mlir"))
    assert entries["scaled@v0"]["spec"]["args_spec"][0]["shape"] == [5]
    assert len(json.loads(program(*words, "--recorded").stdout)["tuned"]) == 2


def test_kernels_of_this_package_are_known_without_an_import(program):
    pytest.importorskip("ejk.modules")
    code = "import jax.numpy as jnp; from ejk.modules import softmax; softmax(jnp.ones((64, 32)))"
    program("-c", code, EJKERNEL_OPS_RECORD="1", EJKERNEL_AUTOTUNE_POLICY="heuristics")
    entries, skipped = tuned(program("-m", "ejk", "tune", "--json"))
    assert [op.split("@")[0] for op in entries] == ["softmax"] and skipped == {}


def test_the_tool_tunes_python_kernels_with_a_worker(program, record, tmp_path):
    build = pathlib.Path(os.environ.get("EJK_BUILD_DIR", pathlib.Path(__file__).parents[2] / "build/dev"))
    if not (build / "cli/ejk").exists():
        pytest.skip("the tool is not built")
    record("Crashes", "Good", "Hopeless")
    worker = f"{sys.executable} -m ejk worker --import some_kernels"
    done = subprocess.run(
        [build / "cli/ejk", "tune", "--recorded", "--worker", worker, "--json"], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    entries, skipped = tuned(done)
    assert set(entries) == {"crashes@v1", "good@v1"} and entries["crashes@v1"]["config"] in (1, 3)
    assert "exit code 4" in skipped["hopeless@v1"]["why"] and skipped["hopeless@v1"]["lost"]


def record_in(tmp_path):
    (path,) = (tmp_path / "recorded").rglob("*.json")
    return json.loads(path.read_text())


def worker_says(*lines):
    command = [sys.executable, "-m", "ejk", "worker", "--import", "some_kernels"]
    asked = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = subprocess.run(command, input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_worker_answers_requests_line_by_line(record, tmp_path):
    record("Good")
    document = record_in(tmp_path)
    store = str(tmp_path / "elsewhere")
    good = {"protocol": 1, "record": document, "store": store, "budget_seconds": 1.0, "plugins": []}
    changed = {**document, "spec": "{}", "key": hashlib.sha256(b"{}").hexdigest()[:16]}
    foreign = {**document, "arguments": [{"dtype": "float32"}]}
    told = worker_says(good, {**good, "record": changed}, {**good, "record": foreign}, {}, "no JSON")
    progress = [t for t in told if t["event"] == "progress"]
    told = [t for t in told if t["event"] != "progress"]
    assert [t["event"] for t in told] == ["ready", "tuned", "failed", "failed", "failed", "failed"]
    assert told[0]["protocol"] == 1 and told[0]["device"] == document["device"]
    assert told[1]["entry"]["key"] == document["key"] and list(pathlib.Path(store).rglob("*.json"))
    assert {p["config"] for p in progress if p["kind"] == "candidate"} == {1, 2, 3}
    assert {p["config"] for p in progress if p["kind"] == "measured" and p["seconds"] > 0} == {1, 2, 3}
    assert "another one since" in told[2]["message"] and "not a call of a Python kernel" in told[3]["message"]


def test_a_worker_goes_on_with_a_tuning_that_was_cut_short_unless_it_is_to_measure_again(record, tmp_path):
    record("Good")
    store = tmp_path / "elsewhere"
    request = {"protocol": 1, "record": record_in(tmp_path), "store": str(store), "budget_seconds": 1.0}
    worker_says(request)
    (path,) = (store / "v2").rglob("*.json")
    cut, end = json.JSONDecoder().raw_decode(path.read_text())
    cut["candidates"] = json.loads(path.read_text()[end:])["candidates"]
    del cut["checksum"]
    cut["evidence"]["complete"] = False
    bad = next(c for c in cut["candidates"] if c["config"] not in (1, cut["config"]))  # 1: the heuristic's
    bad |= {"status": "rejected", "kind": "wrong"}
    for retune in (False, True):
        path.write_text(json.dumps(cut))
        told = worker_says({**request, "retune": retune})
        assert told[-1]["event"] == "tuned", told
        assert (bad["config"] in [t.get("config") for t in told if t.get("kind") == "measured"]) == retune


def test_a_record_that_a_host_cannot_read_is_a_failed_call(record, tmp_path):
    record("Good")
    command = [sys.executable, "-m", "ejk", "worker", "--import", "some_kernels"]
    host = _core.HostWorker(command, str(tmp_path / "elsewhere"), 60.0, False)
    for unreadable in ("no JSON", "{}", json.dumps({**record_in(tmp_path), "schema": 99})):
        kind, why = host.tune(unreadable, 1.0)
        assert kind == "failed" and why, unreadable
    assert host.tune(json.dumps(record_in(tmp_path)), 1.0)[0] == "tuned"


def test_a_worker_does_not_tune_a_kernel_under_the_name_of_another(record, tmp_path):
    record("Good")
    document = record_in(tmp_path)
    (sketch,) = document["arguments"]
    document |= {"op": "slow@v1", "arguments": [sketch | {"kernel": {"op_id": "slow"}}]}
    request = {"protocol": 1, "record": document, "store": str(tmp_path / "elsewhere"), "budget_seconds": 1.0}
    told = worker_says(request)[1]
    assert told["event"] == "failed" and "goes by" in told["message"], told
    assert not (tmp_path / "elsewhere").exists()


def test_names_of_records_are_printed_escaped(program):
    code = r"import some_kernels as k; k.call(lambda: k.Good('\x1b[2J\u202egood'))"
    program("-c", code, EJKERNEL_OPS_RECORD="1")
    done = program(*TUNE, expect=1)
    for said in (done.stdout, done.stderr):
        assert "x1b[2J" in said and "u202e" in said
        assert all(line.isprintable() for line in said.split("\n")), said
    asked = program("-m", "ejk", "tune", "--import", "\x1b[2J", expect=1).stderr
    assert "x1b[2J" in asked and all(line.isprintable() for line in asked.split("\n")), asked
    missing = program("-m", "ejk", "tune", "--lowered", "\x1b[2J", expect=3).stderr
    assert "x1b[2J" in missing and missing.rstrip().isprintable()


def test_a_worker_imports_jax_for_records_with_its_arrays(program, record):
    code = "import some_kernels as k, jax.numpy as jnp; k.call_with(k.Good, jnp.ones(3))"
    program("-c", code, EJKERNEL_OPS_RECORD="1")
    entries, skipped = tuned(program(*TUNE, "--json"))
    assert "good@v1" in entries and skipped == {}, skipped


def test_kernels_that_are_no_subclasses_are_known_by_their_module(program):
    program("-c", "import some_kernels as k; k.call(k.Plain)", EJKERNEL_OPS_RECORD="1")
    entries, skipped = tuned(program(*TUNE, "--json"))
    assert "plain@v1" in entries and skipped == {}, skipped


def test_a_type_that_a_kernel_does_not_name_is_told_with_what_to_do(program):
    code = "import some_kernels as k; k.call_with(k.Good, k.numpy.ones(3), scale=k.Scale.two)"
    program("-c", code, EJKERNEL_OPS_RECORD="1")
    told = program(*TUNE, expect=1).stdout
    assert "some_kernels:Scale is not known" in told and "annotate it in run or __init__" in told
    assert "--import" not in told
