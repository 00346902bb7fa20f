# SPDX-License-Identifier: Apache-2.0
"""Several JAX processes that run one program."""

import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("jax")

PROGRAM = """
import sys
import jax

# The ranks only trace. Gloo would look up this host's name, which not every host can.
jax.config.update("jax_cpu_collectives_implementation", None)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import jax.numpy as jnp
from ejk.ops import ConfigSelectorChain, Executor, Kernel, PersistentCache

class Scaled(Kernel):
    op_id = "scaled"
    def run(self, x, *, cfg):
        return x * cfg
    def heuristic_cfg(self, inv):
        return 2
    def candidate_cfgs(self, inv):
        return [1, 2, 3]
    def reference(self, x):
        return x * int(sys.argv[2])  # would make the two ranks tune to different configs

events = []
selector = ConfigSelectorChain(
    persistent=PersistentCache(path=sys.argv[3]), on_event=lambda event, **data: events.append(event)
)
executor = Executor(selector)
x = jnp.ones(4)
assert jax.process_count() == 2
lowered = jax.jit(lambda x: executor(Scaled(), x)).lower(x)
print(jax.process_index(), events, "2.0" in lowered.as_text(), len(selector.persistent.keys()))
"""


def test_ranks_trace_one_program_with_the_heuristic_and_tune_nothing(tmp_path):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(p for p in sys.path if p)}
    env["XLA_FLAGS"] = ""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address, str(rank), str(tmp_path / "shared")],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        told = [rank.communicate(timeout=180) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number, (rank, (out, err)) in enumerate(zip(ranks, told)):
        assert rank.returncode == 0, err
        assert out.split("\n")[0] == f"{number} ['heuristics'] True 0", (out, err)
        assert "nothing is tuned while several JAX processes trace" in err
