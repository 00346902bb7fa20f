# SPDX-License-Identifier: Apache-2.0
"""Every test has a store of its own; none touches the user's. JAX stays on the CPU."""

import os
import re

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
for name in ("EJKERNEL_OPS_STAMP", "EJKERNEL_OPS_RECORD", "EJKERNEL_AUTOTUNE_POLICY", "EJKERNEL_OPS_PREFIX"):
    os.environ.pop(name, None)

import pytest


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
