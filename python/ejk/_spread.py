# SPDX-License-Identifier: Apache-2.0
"""Which host tunes which recorded call, and what came of each.

Hosts come and go and calls end workers; every call ends tuned or reported. There is no clock and no network
here: who drives it says what the time is and what happened. docs/fleet.md has the rules.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_TRIES = 3  # of a call, on different hosts if there are so many
MAX_ATTEMPTS = 5  # of a call on one host, while the configs that end its workers are known (docs/reference/worker.md)
MAX_FAILURES = 3  # of a host without an answer in between
START = 60.0  # seconds for a process on a host, beside those for its worker


@dataclass(eq=False)
class Call:
    device: str
    op: str
    key: str
    record: str
    ended: list[str] = field(default_factory=list)  # the hosts that had it and were lost, or their workers were


class State(enum.Enum):
    STARTING = enum.auto()
    IDLE = enum.auto()
    BUSY = enum.auto()
    RESTING = enum.auto()  # it failed and is started again
    GIVEN_UP = enum.auto()


@dataclass
class _Host:
    state: State = State.STARTING
    until: float = 0.0  # when its answer is overdue, or its rest is over
    since: float = 0.0  # when it got its call
    device: str | None = None  # None: it has not said it yet
    call: Call | None = None
    attempts: int = 0  # at this call
    failures: int = 0

    @property
    def is_there(self) -> bool:
        return self.state in (State.IDLE, State.BUSY)


class Spread:
    """`patience`: seconds for a worker to start, and for an answer after its budget. `rest`: for a host that failed.

    `tell(event, **members)` hears what happens.
    """

    def __init__(
        self, calls: Iterable[Call], budget: float, patience: float, rest: float, tell: Callable[..., None]
    ) -> None:
        self.budget, self.patience, self.rest, self._tell = budget, patience, rest, tell
        self._queues: dict[str, deque[Call]] = {}
        for call in calls:
            self._queues.setdefault(call.device, deque()).append(call)
        self._hosts: dict[str, _Host] = {}
        self.total = self._queued()
        self.done = 0
        self._answers, self._seconds = 0, 0.0  # calls that were answered, and how long they took together

    # ---- hosts

    def start(self, there: Iterable[str], now: float) -> list[str]:
        """The hosts to start, of all that there are now."""
        there = set(there)
        for name in sorted(set(self._hosts) - there):
            self._tell("host_lost", host=name, why="it left the cluster", again=False)
            self._take_back(name, "its host left the cluster")
            del self._hosts[name]
        due = sorted(n for n in there if n not in self._hosts or self._is_rested(self._hosts[n], now))
        for name in due:
            host = self._hosts.setdefault(name, _Host())
            host.state, host.until = State.STARTING, now + START + self.patience
        return due

    def ready(self, name: str, device: str) -> None:
        host = self._hosts[name]
        host.state, host.device = State.IDLE, device
        self._tell("host", host=name, device=device)

    def refused(self, name: str, why: str) -> None:
        """There is no use in asking it again. Its call, if it has one, is not to blame."""
        host = self._hosts[name]
        host.state = State.GIVEN_UP
        self._tell("host_lost", host=name, why=why, again=False)
        if host.call is not None:
            self._queues[host.call.device].appendleft(host.call)
            host.call = None

    def lost(self, name: str, why: str, now: float) -> None:
        """It gave no answer, or its process is gone."""
        host = self._hosts[name]
        host.failures += 1
        again = host.failures < MAX_FAILURES
        host.state, host.until = State.RESTING if again else State.GIVEN_UP, now + self.rest
        self._tell("host_lost", host=name, why=why, again=again)
        self._take_back(name, f"its host was lost: {why}")

    def overdue(self, now: float) -> list[str]:
        waiting = (State.STARTING, State.BUSY)
        return [name for name, host in self._hosts.items() if host.state in waiting and now >= host.until]

    # ---- calls

    def hand_out(self, now: float) -> list[tuple[str, Call]]:
        """Who tunes what from now on, until `answered`, `lost` or `refused`. Says which devices no host has."""
        out = []
        for name, host in self._hosts.items():
            if host.state is not State.IDLE:
                continue
            if host.call is None:
                host.call, host.since, host.attempts = self._next_for(name, host), now, 0
            if host.call is not None:
                host.state, host.attempts = State.BUSY, host.attempts + 1
                host.until = now + self.budget + 2 * self.patience  # a fresh worker may have to start
                out.append((name, host.call))
        self._leave_out_what_nobody_has()
        return out

    def answered(self, name: str, kind: str, text: str, now: float) -> None:
        """What HostWorker.tune gave."""
        host = self._hosts[name]
        call = host.call
        assert call is not None
        host.state, host.failures = State.IDLE, 0
        if kind == "suspect" and host.attempts < MAX_ATTEMPTS:
            self._tell("again", host=name, op=call.op, key=call.key, why=text)
            return  # it goes on with its call
        if kind in ("suspect", "lost"):
            self._take_back(name, text)
            return
        host.call = None
        self._answers, self._seconds = self._answers + 1, self._seconds + now - host.since
        if kind == "tuned":
            self.done += 1
            self._tell("tuned", host=name, device=call.device, op=call.op, key=call.key, entry=text)
        else:
            self._report(call, text, lost=False)

    def give_up(self, why: str, also_busy: bool = False) -> None:
        """Reports the calls that no host has begun, or is tuning."""
        for queue in self._queues.values():
            while queue:
                self._report(queue.popleft(), why, lost=False)
        for host in self._hosts.values():
            if also_busy and host.call is not None:
                self._report(host.call, why, lost=False)
                host.call, host.state = None, State.IDLE

    @property
    def is_over(self) -> bool:
        return self.done == self.total

    def progress(self, elapsed: float) -> dict[str, Any]:
        """`elapsed`: since the first call was handed out."""
        hosts = sum(host.is_there for host in self._hosts.values())
        rate = self._answers / elapsed * 60 if elapsed > 0 else 0.0
        return {
            "done": self.done, "total": self.total, "hosts": hosts,
            "calls_per_minute": rate, "seconds_left": self._seconds_left(),
        }  # fmt: skip

    # ---- inside

    def _queued(self) -> int:
        return sum(map(len, self._queues.values()))

    def _is_rested(self, host: _Host, now: float) -> bool:
        return host.state is State.RESTING and now >= host.until

    def _next_for(self, name: str, host: _Host) -> Call | None:
        """The first that may go there. One that was lost there goes elsewhere, if there is such a place."""
        queue = self._queues.get(host.device or "", ())
        others = {n for n, h in self._hosts.items() if h.device == host.device and h.state is not State.GIVEN_UP}
        for call in queue:
            if name not in call.ended or others <= set(call.ended):
                self._queues[call.device].remove(call)
                return call
        return None

    def _take_back(self, name: str, why: str) -> None:
        host = self._hosts[name]
        call, host.call = host.call, None
        if call is None:
            return
        call.ended.append(name)
        if len(call.ended) == MAX_TRIES:
            self._report(call, f"{why} (given up after {MAX_TRIES} times, on {', '.join(call.ended)})", lost=True)
        else:
            self._queues[call.device].appendleft(call)
            self._tell("elsewhere", host=name, op=call.op, key=call.key, why=why)

    def _report(self, call: Call, why: str, lost: bool) -> None:
        self.done += 1
        self._tell("failed", device=call.device, op=call.op, key=call.key, why=why, lost=lost)

    def _leave_out_what_nobody_has(self) -> None:
        hosts = [host for host in self._hosts.values() if host.state is not State.GIVEN_UP]
        if any(host.device is None for host in hosts):
            return  # it may be that one
        for device, queue in self._queues.items():
            if queue and not any(host.device == device for host in hosts):
                calls = [{"op": call.op, "key": call.key} for call in queue]
                queue.clear()
                self.done += len(calls)
                self._tell("left_out", device=device, calls=calls)

    def _seconds_left(self) -> float | None:
        """Hosts of one device do not help with calls of another: the slowest device decides."""
        longest = 0.0
        for device, queue in self._queues.items():
            hosts = [host for host in self._hosts.values() if host.device == device and host.is_there]
            calls = len(queue) + sum(host.call is not None for host in hosts)
            if calls and (not hosts or not self._answers):
                return None
            if calls:
                longest = max(longest, calls / len(hosts) * self._seconds / self._answers)
        return longest
