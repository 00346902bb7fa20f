# SPDX-License-Identifier: Apache-2.0
"""Every test has a store of its own; none touches the user's. JAX stays on the CPU."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.extend([str(ROOT / "examples/python"), str(ROOT / "tests")])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
for name in ("EJKERNEL_OPS_STAMP", "EJKERNEL_OPS_RECORD", "EJKERNEL_AUTOTUNE_POLICY", "EJKERNEL_OPS_PREFIX"):
    os.environ.pop(name, None)

import pytest


def run_program(code, **environment):
    """A program in a process of its own, which must end well; gives its stdout and stderr.

    Whether a call says that it waits for its tuning depends on how busy the machine is: that is left out.
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = "".join(line for line in lines if "a call waits for its tuning" not in line)
    return done


@pytest.fixture
def start():
    """Starts a process, with pipes for what it says. It ends with the test at the latest."""
    with contextlib.ExitStack() as ends:

        def call(command, **how):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = ends.enter_context(subprocess.Popen(command, text=True, **{**pipes, **how}))
            ends.callback(process.kill)
            return process

        yield call


@pytest.fixture
def executor():
    from kernels import without_tuning

    return without_tuning()


@pytest.fixture
def no_tuning():
    from ejk.ops import policy_override

    with policy_override(allow_autotune=False):
        yield


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    import ejk.ops.execution.executor as executor

    monkeypatch.setattr(executor, "_default", None)
    yield
    from ejk.ops import clear_invocations

    clear_invocations()


def pytest_terminal_summary(terminalreporter):
    """How many examples of the documents passed, each a test with their number in its name."""
    ran = {
        outcome: [r for r in terminalreporter.stats.get(outcome, ()) if re.search(r"::test_\d{3}_\d{2}_", r.nodeid)]
        for outcome in ("passed", "failed")
    }
    if count := sum(map(len, ran.values())):
        terminalreporter.write_line(f"examples of the documents: {len(ran['passed'])} of {count} passed")
