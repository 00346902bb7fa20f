# SPDX-License-Identifier: Apache-2.0
"""What a store for many machines costs: a database on loopback with TLS, and a cluster of Ray.

The programs bench/fleet_*.cpp print their tables here, and the figures of their last lines are merged into the one below.

ray_overhead_ms_per_call  from one answer of a host to the next, over the same worker without Ray: one host of a
                          cluster on this machine (python/tests/fleet/hosts.py), and a worker that answers at once
ray_calls_per_second      what one driver hands out to and takes back from three such hosts

`make bench-fleet` builds and runs this. Ray gets an environment of its own, that of `./test fleet`. Where there can be no
hosts (only root has namespaces), its two figures are left out.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-fleet"
CALLS = 150
BARS = {
    "get_us": 200,
    "get_over_libpq": 1.5,
    "prefetch_500_ms": 20,
    "warm_call_over_without_store": 1.02,
    "absent_server_first_call_over_local": 1.3,
    "agree_500_keys_ms": 400,
    "ray_overhead_ms_per_call": 20,
    "lost_puts": 0,
}

# The kernel is tuned once; then every call gets that answer.
KERNEL = """
import numpy
from ejk.ops import ConfigSelectorChain, Executor, Kernel

class Touch(Kernel):
    op_id, version = "touch", "1"
    def run(self, x, *, cfg):
        return x + 1
    def heuristic_cfg(self, inv):
        return 1
    def candidate_cfgs(self, inv):
        return [1, 2]

def call(sizes):
    for size in sizes:
        Executor(ConfigSelectorChain(autotune=False))(Touch(), numpy.ones(size, numpy.float32))
"""
WORKER = """
import json, os, pathlib, sys
entry = json.loads(pathlib.Path(sys.argv[1]).read_text())
print(json.dumps({"event": "ready", "protocol": 1, "device": sys.argv[2], "process": os.getpid()}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    entry |= {member: request["record"][member] for member in ("op", "key", "spec")}
    print(json.dumps({"event": "tuned", "request": request["request"], "entry": entry}), flush=True)
"""


def enter_venv():
    """Goes on as this script in an environment that has Ray."""
    if pathlib.Path(sys.prefix) != VENV:
        subprocess.run(["sh", "-c", ". cmake/setup.sh && make_fleet_venv"], cwd=ROOT, check=True)
        python = VENV / "bin/python"
        os.execv(python, [python, __file__])


def programs():
    """What the programs found, one after the other."""
    figures = {}
    for source in sorted((ROOT / "bench").glob("fleet_*.cpp")):
        program = ROOT / "build/release/bench" / source.stem
        if not program.exists():
            sys.exit(f"{program.relative_to(ROOT)} is not built: run this as `make bench-fleet`")
        with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as running:
            lines = []
            for line in running.stdout:
                lines.append(line)
                if not line.startswith("{"):
                    print(line, end="", flush=True)
        if running.returncode != 0 or not lines:
            sys.exit(f"{program.name} ended with {running.returncode}")
        figures |= json.loads(lines[-1])
    return figures


class Campaign:
    """Recorded calls, and a worker that answers each of them at once."""

    def __init__(self, place):
        self.place = place
        (place / "touch_kernel.py").write_text(KERNEL)
        (place / "worker.py").write_text(WORKER)
        record = ["-c", f"import touch_kernel; touch_kernel.call(range(1, {CALLS + 1}))"]
        self._python(*record, EJKERNEL_OPS_RECORD="1")
        self.records = [path.read_text() for path in (place / "recorded").rglob("*.json")]
        device = json.loads(self.records[0])["device"]
        once = ["-m", "ejk", "tune", "--import", "touch_kernel", "--budget-per-call", "1", "--budget", "0.1", "--json"]
        (place / "entry.json").write_text(json.dumps(json.loads(self._python(*once))["tuned"][0]))
        self.worker = f"exec '{sys.executable}' '{place}/worker.py' '{place}/entry.json' '{device}'"

    def _places(self, store):
        return {
            "EJKERNEL_PERSISTENT_CACHE_DIR": str(self.place / store),
            "EJKERNEL_OPS_RECORD_DIR": str(self.place / "recorded"),
            "PYTHONPATH": str(self.place),
        }

    def _python(self, *words, **environment):
        environment = os.environ | self._places("first") | environment
        return subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.PIPE, text=True).stdout

    def alone(self):
        """When each answer came, with the worker and the store in this process."""
        from ejk import _core

        store = _core.PersistentCache(str(self.place / "alone"))
        worker = _core.HostWorker(["/bin/sh", "-c", self.worker], str(self.place / "alone"), 60.0, False)
        worker.device()
        times = []
        for record in self.records:
            kind, entry = worker.tune(record, 10.0)
            if kind != "tuned" or not _core.keep_entry(store, entry):
                sys.exit(f"the worker said {kind}: {entry}")
            times.append(time.perf_counter())
        return times

    def on_ray(self, cluster, store):
        """When each answer came."""
        driver = cluster.head.start(
            sys.executable, "-m", "ejk", "tune", "--on", "ray", "--address", cluster.address,
            "--worker", self.worker, "--json",
            environment=self._places(store), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        times = [time.perf_counter() for line in driver.stdout if json.loads(line)["event"] == "tuned"]
        if driver.wait() != 0 or len(times) != CALLS:
            sys.exit(f"{len(times)} of {CALLS} calls came back, and the driver ended with {driver.returncode}")
        return times


def between(times):
    return statistics.median(after - before for before, after in zip(times, times[1:]))


def ray_figures():
    sys.path.append(str(ROOT / "python/tests/fleet"))
    import hosts

    if why := hosts.why_not():
        print(f"nothing of Ray was measured: {why}")
        return {}
    with tempfile.TemporaryDirectory(prefix="fleet.", dir=ROOT / "build") as place, hosts.Cluster() as cluster:
        campaign = Campaign(pathlib.Path(place))
        alone = between(campaign.alone())
        cluster.add()
        with_ray = between(campaign.on_ray(cluster, "one"))
        cluster.add(), cluster.add()
        times = campaign.on_ray(cluster, "three")
        rate = (len(times) - 1) / (times[-1] - times[0])
    print(f"{'a call that takes no time, alone':52} {alone * 1e3:7.1f} ms")
    print(f"{'the same on a host of Ray':52} {with_ray * 1e3:7.1f} ms")
    print(f"{'such calls in a second, on three hosts':52} {rate:7.0f}")
    return {"ray_overhead_ms_per_call": (with_ray - alone) * 1e3, "ray_calls_per_second": rate}


def main():
    enter_venv()
    figures = programs() | ray_figures()
    for name, most in BARS.items():
        if figures.get(name, most) > most:
            print(f"{name} is {figures[name]:.3g}; it should be at most {most}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
