# SPDX-License-Identifier: Apache-2.0
"""The original (PyPI: ejkernel) beside this library for the same two calls, in one interleaved run.

choose  a warm choose_config for two float32 arrays of (128, 128) and a scalar
put     one more entry in a persistent cache that holds 10 000

`make bench-vs_ejkernel` builds our side and runs this. The original gets an environment of its own, the one
of the tests (python/tests/ejkernel_venv.py). Ours is build/release/bench/vs_ejkernel_ours, which
answers each line "choose N" or "put N" on its input with the nanoseconds that N calls took.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python/tests"))
import ejkernel_venv

OURS = ROOT / "build/release/bench/vs_ejkernel_ours"

ENTRIES = 10_000
# Calls per sample: enough for about ten milliseconds on either side. A put of the original is slow
# by itself.
ROUNDS = {"choose": 40, "put": 15}
CALLS = {"choose": {"original": 100, "ours": 200_000}, "put": {"original": 1, "ours": 20}}


def enter_venv(script=__file__):
    """Goes on as this script in an environment that has the original."""
    if pathlib.Path(sys.prefix) == ejkernel_venv.VENV:
        return
    python = ejkernel_venv.python()
    os.execve(python, [python, script], {**os.environ, "JAX_PLATFORMS": "cpu"})


class Original:
    """The two calls as a user of the original makes them."""

    def __init__(self, directory):
        import dataclasses

        import jax.numpy as jnp
        from ejkernel.ops import ConfigCache, ConfigSelectorChain, Executor, Kernel, PersistentCache

        @dataclasses.dataclass(frozen=True)
        class Config:
            block: int = 128
            threads: int = 1

        class Axpy(Kernel):
            op_id, version = "axpy", "1"

            def __init__(self):
                super().__init__(op_id="axpy")

            def run(self, alpha, x, y, *, cfg):
                return alpha * x + y

            def heuristic_cfg(self, inv):
                return Config()

            def candidate_cfgs(self, inv):
                return [Config()]

        self.kernel = Axpy()
        self.config = Config()
        self.executor = Executor(ConfigSelectorChain(ConfigCache()))
        self.arguments = 2.0, jnp.ones((128, 128), jnp.float32), jnp.ones((128, 128), jnp.float32)
        self.executor.choose_config(self.kernel, *self.arguments)

        path = directory / "original.json"
        entry = dataclasses.asdict(self.config)
        path.write_text(json.dumps({f"cpu|cpu|axpy@v1|{i:016x}": entry for i in range(ENTRIES)}))
        self.cache = PersistentCache("axpy", path=str(path))
        self.entries = ENTRIES

    def choose(self, calls):
        choose, kernel, arguments = self.executor.choose_config, self.kernel, self.arguments
        start = time.perf_counter_ns()
        for _ in range(calls):
            choose(kernel, *arguments)
        return time.perf_counter_ns() - start

    def put(self, calls):
        keys = [f"{self.entries + i:016x}" for i in range(calls)]
        self.entries += calls
        start = time.perf_counter_ns()
        for key in keys:
            self.cache.put("cpu|cpu", "axpy@v1", key, self.config)
        return time.perf_counter_ns() - start


class Ours:
    """The same two calls of the C++ library, through a program that waits for its turn."""

    def __init__(self, directory):
        if not OURS.exists():
            sys.exit(f"{OURS.relative_to(ROOT)} is not built: run this as `make bench-vs_ejkernel`")
        self.process = subprocess.Popen(
            [str(OURS), str(directory / "ours"), str(ENTRIES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self.process.stdout.readline().strip() == "ready"

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{OURS.name} ended with {self.process.wait()} at '{line}'")
        return int(answer)

    def choose(self, calls):
        return self.ask(f"choose {calls}")

    def put(self, calls):
        return self.ask(f"put {calls}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def race(what, sides):
    """Nanoseconds per call of each side, one sample of each per round, the first in turn."""
    samples = {name: [] for name in sides}
    for side_name, side in sides.items():  # warm up
        getattr(side, what)(CALLS[what][side_name])
    for round_number in range(ROUNDS[what]):
        order = list(sides) if round_number % 2 == 0 else list(sides)[::-1]
        for name in order:
            calls = CALLS[what][name]
            samples[name].append(getattr(sides[name], what)(calls) / calls)
    return samples


def readable(nanoseconds):
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.1f} {unit}"
    return f"{nanoseconds:.1f} ns"


def main():
    enter_venv()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vs_ejkernel.", dir=build))  # a disk, not /tmp
    ours = None
    try:
        sides = {"original": Original(directory), "ours": (ours := Ours(directory))}
        print(f"{'call':8} {'original':>12} {'ours':>12} {'ratio':>10}   (medians of paired rounds)")
        figures = {}
        for what in ("choose", "put"):
            samples = race(what, sides)
            ratio = statistics.median(a / b for a, b in zip(samples["original"], samples["ours"]))
            medians = [readable(statistics.median(samples[name])) for name in ("original", "ours")]
            print(f"{what:8} {medians[0]:>12} {medians[1]:>12} {ratio:>10.1f}")
            figures[f"{what}_ratio"] = round(ratio, 1)
            for name in sides:
                figures[f"{what}_{name}_ns"] = round(statistics.median(samples[name]), 1)
        print(json.dumps(figures))
    finally:
        if ours:
            ours.close()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
