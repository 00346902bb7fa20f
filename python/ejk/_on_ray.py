# SPDX-License-Identifier: Apache-2.0
"""`python -m ejk tune --on ray`: recorded calls are tuned by the hosts of a Ray cluster.

Ray starts a process on each host, which holds a worker (docs/reference/worker.md), and carries calls and answers.
Who tunes what, and for how long, is decided in ejk._spread: Ray itself notices a host that was cut off after
minutes only.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ejk import _core
from ejk._spread import Call, Spread

LOOK_AROUND = 2.0  # seconds between looks at which hosts there are
REST = 10.0  # seconds for a host that failed


class NoCluster(RuntimeError):
    pass


@dataclass(frozen=True)
class Wanted:
    address: str  # "": what RAY_ADDRESS names, else the cluster of this machine
    worker: str  # a command for sh; "": that of Python kernels, with these modules
    modules: list[str]
    store: str
    recorded: str
    ops: list[str]
    budget: float  # for all calls; 0: any time
    budget_per_call: float
    patience: float
    retune: bool
    same_numerics: bool


class HoldsWorker:
    """Lives on a host, in a process that Ray starts there and ends."""

    def __init__(
        self, worker: str, modules: list[str], store: str, patience: float, retune: bool, same_numerics: bool
    ) -> None:
        python = [sys.executable, "-m", "ejk", "worker", *(f"--import={module}" for module in modules)]
        command = ["/bin/sh", "-c", worker] if worker else python
        self._worker = _core.HostWorker(command, store, patience, retune, same_numerics)

    def device(self) -> str:
        return self._worker.device()

    def tune(self, record: str, budget: float) -> tuple[str, str]:
        return self._worker.tune(record, budget)


def tune(wanted: Wanted, tell: Callable[..., None]) -> bool:
    """Whether it came to its end: False after an interrupt. Raises NoCluster, and what plans raise."""
    # Whether a call is tuned with the same numerics, only a host that makes it can tell.
    all_calls = wanted.retune or wanted.same_numerics
    to_tune, tuned, in_vain = _core.plan_for_all_devices(wanted.store, wanted.recorded, wanted.ops, all_calls)
    tell("plan", to_tune=len(to_tune), tuned=tuned)
    for device, op, key in in_vain:
        why = "an earlier tuning rejected every candidate"
        tell("failed", device=device, op=op, key=key, why=why, lost=False)
    if not to_tune:
        return True
    driver = _Driver(_connected(wanted.address), wanted, [Call(*call) for call in to_tune], tell)
    return driver.run()


def _connected(address: str) -> Any:
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise NoCluster(
            f"[tune] got --on ray; expected the package ray ({error}); install it in the version of the cluster: "
            'pip install "ejk[ray]"'
        ) from error
    try:
        # Never one of its own: Ray listens on all interfaces, and anyone who reaches it can run code.
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of Ray, which has many for this
        raise NoCluster(
            f"[tune] got --on ray; expected a cluster at {address or 'RAY_ADDRESS or on this machine'}; start one "
            f"(ray start --head) or name another with --address: {error}"
        ) from error
    return ray


class _Driver:
    def __init__(self, ray: Any, wanted: Wanted, calls: list[Call], tell: Callable[..., None]) -> None:
        self.ray, self.wanted, self.tell = ray, wanted, tell
        self.spread = Spread(calls, wanted.budget_per_call, wanted.patience, REST, self._heard)
        self.store = _core.PersistentCache(wanted.store)
        self.actors: dict[str, Any] = {}
        self.waiting: dict[Any, str] = {}  # what an answer will be, and whose; one for each host
        self.nodes: dict[str, dict[str, Any]] = {}
        self.began = self.looked = self.showed = 0.0

    def run(self) -> bool:
        try:
            self.began = time.monotonic()
            while not self.spread.is_over:
                self._step(time.monotonic())
            return True
        except KeyboardInterrupt:
            self.spread.give_up("it was interrupted", also_busy=True)
            return False
        finally:
            self._show(time.monotonic())
            self.ray.shutdown()  # ends what it started on the hosts

    def _step(self, now: float) -> None:
        if now >= self.looked + LOOK_AROUND or not self.looked:
            self.looked = now
            # One without CPUs is there to direct others, as the head of many clusters.
            nodes = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
            self.nodes = {_name_of(node): node for node in nodes}
            if 0 < self.wanted.budget <= now - self.began:
                self.spread.give_up("the budget was spent before its turn")
        for name in self.spread.start(self.nodes, now):
            self._start(name)
        for name, call in self.spread.hand_out(now):
            self._ask(name, self.actors[name].tune.remote(call.record, self.spread.budget))
        self._forget_who_left()
        if self.waiting:
            done, _ = self.ray.wait(list(self.waiting), timeout=LOOK_AROUND / 4)
            for answer in done:
                self._take(answer, time.monotonic())
        elif not self.spread.is_over:
            time.sleep(LOOK_AROUND / 4)  # all hosts rest
        now = time.monotonic()
        for name in self.spread.overdue(now):
            self.spread.lost(name, "it did not answer in time", now)
            self._forget(name)
        if now >= self.showed + 1:
            self._show(now)

    def _start(self, name: str) -> None:
        """All of the host, so that no other task works there while it measures."""
        node, given = self.nodes[name], self.wanted
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        there = node["Resources"]
        holder = self.ray.remote(HoldsWorker).options(
            num_cpus=there["CPU"],
            num_gpus=there.get("GPU", 0),
            resources={"TPU": there["TPU"]} if "TPU" in there else {},
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        self.actors[name] = holder.remote(
            given.worker, given.modules, given.store, given.patience, given.retune, given.same_numerics
        )
        self._ask(name, self.actors[name].device.remote())

    def _ask(self, name: str, answer: Any) -> None:
        self.waiting[answer] = name

    def _take(self, answer: Any, now: float) -> None:
        name = self.waiting.pop(answer)
        exceptions = self.ray.exceptions
        try:
            said = self.ray.get(answer)
        except exceptions.RayTaskError as error:  # of the holder: there is no worker to be had
            self.spread.refused(name, str(error.cause or error))
            self._forget(name)
        except exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.spread.lost(name, " ... ".join(dict.fromkeys((lines[0].strip(), lines[-1].strip()))), now)
            self._forget(name)
        else:
            if isinstance(said, str):
                self.spread.ready(name, said)
            else:
                kind, text = said
                self.spread.answered(name, kind, text, now)

    def _forget(self, name: str) -> None:
        self.waiting = {answer: whose for answer, whose in self.waiting.items() if whose != name}
        self.ray.kill(self.actors.pop(name))

    def _forget_who_left(self) -> None:
        for name in set(self.actors) - set(self.nodes):
            self._forget(name)

    def _heard(self, event: str, **members: Any) -> None:
        if event == "tuned":
            # Hosts keep what they find where they are; this store shall have all of it.
            members["kept"] = _core.keep_entry(self.store, members["entry"])
            members["entry"] = json.loads(members["entry"])
        self.tell(event, **members)

    def _show(self, now: float) -> None:
        self.showed = now
        self.tell("progress", **self.spread.progress(now - self.began))


def _name_of(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']}/{node['NodeID'][:8]}"
