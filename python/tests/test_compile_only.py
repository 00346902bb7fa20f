# SPDX-License-Identifier: Apache-2.0
"""What a device's compiler takes: `python -m ejk tune --compile-only`, where it may end its process, and
`compile_candidates`."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ejk.ops import Kernel, compile_candidates, for_device

KERNELS = """
import os, signal, time
import jax.numpy as jnp
from ejk.ops import Executor, Kernel

class Scaled(Kernel):
    op_id, version = "scaled", "1"
    def run(self, x, *, cfg):
        print("what a kernel prints is no answer")
        if cfg == 2:
            self.act()
        return x * cfg
    def act(self):
        raise ValueError("Shared memory size limit exceeded: requested 4096, available: 1024")
    def heuristic_cfg(self, inv):
        return 1
    def candidate_cfgs(self, inv):
        return [1, 2, 3]

class Aborts(Scaled):
    op_id = "aborts"
    def act(self):
        os.kill(os.getpid(), signal.SIGABRT)

class Hangs(Scaled):
    op_id = "hangs"
    def act(self):
        if "HANGS" in os.environ:
            open(os.environ["HANGS"], "w").close()
        time.sleep(1e6)
    def candidate_cfgs(self, inv):
        return [2]

class Guesses(Scaled):
    op_id = "guesses"
    def candidate_cfgs(self, inv):
        raise LookupError("no candidates today")

def call(*kernels):
    for kernel in kernels:
        Executor()(kernel(), jnp.ones((4, 2)))
"""


@pytest.fixture
def prune(tmp_path, monkeypatch):
    """Records calls of kernels above, and prunes their spaces."""
    (tmp_path / "scaled_kernels.py").write_text(KERNELS)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *(p for p in sys.path if p)]))
    monkeypatch.setenv("EJKERNEL_OPS_RECORD_DIR", str(tmp_path / "recorded"))
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics")

    def python(*words, **environment):
        environment = {**os.environ, **environment}
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, env=environment)

    def record(*names):
        code = f"import scaled_kernels as k; k.call({', '.join('k.' + name for name in names)})"
        done = python("-c", code, EJKERNEL_OPS_RECORD="1")
        assert done.returncode == 0, done.stderr

    def run(names, *words, device="cpu"):
        if names:
            record(*names)
        return python(*run.words, "--device", device, *words)

    run.record, run.words = record, ["-m", "ejk", "tune", "--compile-only", "--import", "scaled_kernels"]
    return run


def test_it_says_what_is_dropped_and_why(prune):
    done = prune(["Scaled"])
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("scaled@v1 ") and first.endswith(": 2 of 3 configs compile for cpu")
    assert second == (
        "  dropped 2: it needs 4096 bytes, 1024 are there: Shared memory size limit exceeded: requested 4096, "
        "available: 1024"
    )


def test_a_config_that_ends_the_compiler_is_dropped_and_the_others_are_not(prune):
    done = prune(["Scaled", "Aborts"], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    aborts, scaled = found["calls"]
    assert (aborts["op"], scaled["op"], found["device"], found["skipped"]) == ("aborts@v1", "scaled@v1", "cpu", [])
    assert [(c["config"], c["fits"]) for c in aborts["configs"]] == [("1", True), ("2", False), ("3", True)]
    assert aborts["configs"][1]["why"] == "the process that compiles ended with signal 6"
    assert [c["fits"] for c in scaled["configs"]] == [True, False, True]


def test_a_config_that_takes_too_long_is_dropped(prune):
    done = prune(["Hangs"], "--deadline", "1")
    assert done.returncode == 1, "nothing is left"
    assert done.stdout.splitlines()[1] == "  dropped 2: it took more than 1 s"


def test_results_until_an_interrupt_are_printed(prune, start, tmp_path):
    prune.record("Aborts", "Hangs", "Scaled")
    os.mkfifo(tmp_path / "hangs")
    # Programs that a shell starts in the background ignore it.
    heeding = ["env", "--default-signal=INT"]
    env = {**os.environ, "HANGS": str(tmp_path / "hangs")}
    process = start([*heeding, sys.executable, *prune.words, "--device", "cpu"], env=env, start_new_session=True)
    (tmp_path / "hangs").read_text()  # it hangs now
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=300)
    assert (process.returncode, "Traceback" in err) == (130, False), err
    first, dropped, last = out.splitlines()
    assert first.startswith("aborts@v1 ") and "2 of 3 configs compile for cpu" in first and "signal 6" in dropped
    assert last.startswith("hangs@v1 ") and last.endswith(" was left out: interrupted")


def test_a_call_that_has_no_candidates_is_left_out(prune):
    done = prune(["Guesses", "Scaled"])
    assert done.returncode == 1
    assert "guesses@v1" in done.stdout and "was left out: LookupError: no candidates today" in done.stdout
    assert "2 of 3 configs compile" in done.stdout


def test_ops_may_be_chosen(prune):
    done = prune(["Scaled", "Aborts"], "--op", "scaled")
    assert done.stdout.count("configs compile") == 1


def test_nothing_recorded_is_said(prune):
    done = prune([])
    assert (done.returncode, done.stdout.strip()) == (3, "") and "nothing is recorded" in done.stderr


def test_a_device_is_needed(prune):
    command = [sys.executable, "-m", "ejk", "tune", "--compile-only"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--compile-only and --device go together" in done.stderr
    done = prune([], device="Z80")
    assert done.returncode == 1 and "got 'Z80'; expected a platform" in done.stderr


def test_a_platform_without_a_compiler_is_refused(prune):
    done = prune(["Scaled"], device="tpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert "got tpu, of which no compiler is here; expected a model" in done.stderr


def test_a_lowered_computation_is_not_looked_at(prune):
    done = prune([], "--lowered", "dump.txt")
    assert done.returncode == 2 and "--compile-only and --lowered do not go together" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="it is installed")
def test_a_missing_compiler_is_named(prune):
    done = prune([], device="v5e")
    assert done.returncode == 1
    assert f'expected libtpu, in the version that belongs to it; pip install "jax[tpu]=={jax.__version__}"' in done.stderr


# ---- in this process ------------------------------------------------------------------------------


def test_candidates_are_compiled_and_not_run():
    class Some(Kernel):
        op_id = "some"

        def candidate_cfgs(self, inv):
            return [1, 2, 3]

        def is_valid(self, cfg, inv):
            return cfg != 3

        def run(self, x, *, cfg):
            if cfg == 2:
                raise RuntimeError(
                    "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 262144, available: 166912"
                )
            return x * cfg

    first, second, third = compile_candidates(Some(), jax.ShapeDtypeStruct((4, 2), jnp.bfloat16))
    assert (first.cfg, first.fits, first.why, first.needed) == (1, True, "", None) and first.seconds > 0
    assert (second.cfg, second.fits, second.needed, second.limit) == (2, False, 262144, 166912)
    assert "Shared memory size limit exceeded" in second.why
    assert (third.cfg, third.fits, third.why) == (3, False, "is_valid refuses it")
    assert [c.cfg for c in compile_candidates(Some(), np.ones((2, 3), np.float32), configs=[1])] == [1]


def test_nothing_is_said_to_compile_where_there_is_no_compiler():
    class Some(Kernel):
        op_id = "some"

        def run(self, x, *, cfg):
            return x

    message = r"\[some\] got tpu, of which no compiler is here; expected a model, or a device of JAX; pass one, as"
    with for_device("tpu"), pytest.raises(RuntimeError, match=message):
        compile_candidates(Some(), np.ones(3, np.float32), configs=[1])


@pytest.mark.parametrize(
    "said, needed, limit",
    [
        ("Scoped allocation with size 34.00M and limit 16.00M exceeded scoped vmem limit by 18.00M.", 34 << 20, 16 << 20),
        ("Scoped allocation with size 17825792 and limit 512.0K exceeded scoped vmem limit", 17825792, 512 << 10),
        ("Ran out of memory in memory space vmem. Used 24.50M of 16.00M vmem.", 49 << 19, 16 << 20),
        ("Mosaic GPU kernel exceeds available shared memory: smem_bytes=262152 > max_smem_bytes=232448", 262152, 232448),
        ("something else of size 3 and limit 2", None, None),
    ],
)
def test_messages_of_compilers_about_memory_are_understood(said, needed, limit):
    class Says(Kernel):
        op_id = "says"

        def run(self, x, *, cfg):
            raise RuntimeError(said)

    (found,) = compile_candidates(Says(), np.ones(3, np.float32), configs=[1])
    assert (found.fits, found.why, found.needed, found.limit) == (False, said, needed, limit)
