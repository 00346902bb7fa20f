# SPDX-License-Identifier: Apache-2.0
"""`python -m ejk tune --on ray` on a real cluster whose workers, hosts and driver die: every call is tuned once or
reported. `./test fleet` runs it."""

import collections
import json
import subprocess
import sys
import time

import hosts
import pytest
from ejk.ops import PersistentCache

# A held host is busy with a call for ever, which is when something happens to it. The others do not finish before: on a
# busy machine it may be the last one to have its worker.
KERNELS = """
import os, pathlib, signal, time
import numpy
from ejk.ops import ConfigSelectorChain, Executor, Kernel

PLACE = pathlib.Path(os.environ["EJK_TEST_PLACE"])

class Good(Kernel):
    op_id, version = "good", "1"
    def run(self, x, *, cfg):
        return x + 1
    def heuristic_cfg(self, inv):
        return 1
    def candidate_cfgs(self, inv):
        host = os.environ["EJK_TEST_HOST"]
        if (PLACE / f"hold_{host}").exists():
            (PLACE / f"held_{host}").touch()
            signal.pause()
        while any(not file.with_name(file.name.replace("hold_", "held_")).exists() for file in PLACE.glob("hold_*")):
            time.sleep(0.05)
        return [1, 2, 3]

class Crashes(Good):
    op_id = "crashes"
    def run(self, x, *, cfg):
        if cfg == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        return x + 1

class Hopeless(Good):
    op_id = "hopeless"
    def candidate_cfgs(self, inv):
        os._exit(4)

def call(kernel, sizes):
    for size in sizes:
        Executor(ConfigSelectorChain(autotune=False))(kernel(), numpy.ones(size, numpy.float32))
"""

# Seconds for a worker or a tuning, however busy the machine is.
ANY_TIME = "600"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where kernels are found, and the files by which tests talk with them."""
    made = tmp_path_factory.mktemp("place")
    (made / "some_kernels.py").write_text(KERNELS)
    return made


@pytest.fixture(scope="module")
def cluster(place):
    if why := hosts.why_not():
        pytest.skip(why)
    path = ":".join([str(place), *(p for p in sys.path if p)])
    with hosts.Cluster(EJK_TEST_PLACE=str(place), PYTHONPATH=path) as started:
        yield started


@pytest.fixture
def three_hosts(cluster):
    """That are alive, also after a test that ended some."""
    while len(working := [host for name, host in cluster.hosts.items() if name.startswith("host")]) < 3:
        cluster.add()
    return working


class Run:
    """The driver, on the head of the cluster, and what it told until now."""

    def __init__(self, cluster, place, budget, deadline, environment):
        with open(place / "driver.log", "w") as log:
            self.process = cluster.head.start(
                sys.executable, "-m", "ejk", "tune", "--on", "ray", "--address", cluster.address,
                "--import", "some_kernels", "--json", "--budget-per-call", budget, "--deadline", deadline,
                environment=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.events, self._log = [], place / "driver.log"

    def _step(self):
        """One more event; False at the end."""
        line = self.process.stdout.readline()
        if line:
            self.events.append(json.loads(line))
        return bool(line)

    def until(self, event, times):
        while len(self.of(event)) < times:
            assert self._step(), self.told()

    def end(self):
        while self._step():
            pass
        return self.process.wait()

    def of(self, event):
        return [told for told in self.events if told["event"] == event]

    def keys(self, event):
        return [told["key"] for told in self.of(event)]

    def told(self):
        events = [str(told) for told in self.events if told["event"] != "progress"]
        return "\n".join(events) + self._log.read_text()


class Campaign:
    """Calls that were recorded where the driver is. Hosts have stores of their own."""

    def __init__(self, cluster, place):
        self._cluster, self._place = cluster, place
        self._own = place / f"campaign_{len(list(place.glob('campaign_*')))}"
        self._own.mkdir()
        self._where = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(self._own)}

    def record(self, kernel, sizes):
        code = f"import some_kernels as k; k.call(k.{kernel}, {list(sizes)})"
        environment = self._cluster.head.environment | self._where | {"EJKERNEL_OPS_RECORD": "1"}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)

    def start(self, budget="1", deadline=ANY_TIME):
        return Run(self._cluster, self._place, budget, deadline, self._where)

    def stored(self):
        return sorted(key for _, _, key in PersistentCache(path=str(self._own)).keys())


@pytest.fixture
def campaign(cluster, three_hosts, place):
    yield Campaign(cluster, place)
    for file in [*place.glob("hold_*"), *place.glob("held_*")]:
        file.unlink()


def hold(place, host, run):
    """Until the host is busy with a call, which it will not answer."""
    held = place / f"held_{host.name}"
    patience = time.monotonic() + 300
    while not held.exists():
        assert run.process.poll() is None and time.monotonic() < patience, run.told()
        time.sleep(0.05)


def test_configs_and_calls_that_end_workers_cost_only_themselves(campaign):
    campaign.record("Good", range(1, 7))
    campaign.record("Crashes", [3])
    campaign.record("Hopeless", [3])
    run = campaign.start()
    assert run.end() == 1, run.told()
    tuned = collections.Counter(told["op"] for told in run.of("tuned"))
    assert tuned == {"good@v1": 6, "crashes@v1": 1}, run.told()
    assert all(told["kept"] for told in run.of("tuned"))
    (crashes,) = (told for told in run.of("tuned") if told["op"] == "crashes@v1")
    assert crashes["entry"]["config"] != 2 and run.of("again"), run.told()
    (failed,) = run.of("failed")
    assert failed["op"] == "hopeless@v1" and failed["lost"] and "exit code 4" in failed["why"]


def test_a_driver_that_is_killed_goes_on_where_it_was_when_it_is_started_again(campaign):
    campaign.record("Good", range(11, 23))
    first = campaign.start(budget=ANY_TIME)  # a tuning that is cut short would be gone on with
    first.until("tuned", 4)
    first.process.kill()
    first.end()
    before = first.keys("tuned")
    assert 4 <= len(before) < 12
    second = campaign.start(budget=ANY_TIME)
    assert second.end() == 0, second.told()
    after = second.keys("tuned")
    assert len(set(before + after)) == len(before + after), (first.told(), second.told())
    # One more may have been kept before it could be told.
    assert set(before + after) <= set(campaign.stored()) and len(campaign.stored()) == 12
    assert second.of("plan")[0]["tuned"] == 12 - len(after)


def test_the_call_of_a_host_that_is_killed_is_tuned_elsewhere(cluster, three_hosts, campaign, place):
    campaign.record("Good", range(31, 41))
    victim = three_hosts[1]
    (place / f"hold_{victim.name}").touch()
    run = campaign.start()
    hold(place, victim, run)
    cluster.kill(victim)
    assert run.end() == 0, run.told()
    assert len(run.keys("tuned")) == 10 and sorted(run.keys("tuned")) == campaign.stored(), run.told()
    assert any(told["host"].startswith(victim.name) for told in run.of("host_lost")), run.told()
    assert not any(told["host"].startswith(victim.name) for told in run.of("tuned"))


# The last one: for Ray itself the host stays alive for minutes, also after the driver has given it up.
def test_the_call_of_a_host_that_falls_silent_is_tuned_elsewhere(cluster, three_hosts, campaign, place):
    campaign.record("Good", range(41, 51))
    victim = three_hosts[2]
    (place / f"hold_{victim.name}").touch()
    run = campaign.start(deadline="60")
    hold(place, victim, run)
    cluster.cut(victim)
    assert run.end() == 0, run.told()
    assert len(run.keys("tuned")) == 10 and sorted(run.keys("tuned")) == campaign.stored(), run.told()
    (elsewhere,) = run.of("elsewhere")
    assert elsewhere["host"].startswith(victim.name) and "did not answer in time" in elsewhere["why"], run.told()
