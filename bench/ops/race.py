# SPDX-License-Identifier: Apache-2.0
"""Cases of bench/ops, and how they are measured: one sample of every entry per round, shuffled."""

import dataclasses
import math
import random
import statistics

from peers import say

SAMPLE_SECONDS = 0.02  # a sample is as many calls as take about so long


@dataclasses.dataclass
class Case:
    """Entries by column: the process that is asked (peers.Sides) and the words that set the case up.

    Ours are "tuned", "again" (the same: the A/A control) and whatever else there is. `threads` is 1
    (CPU time counts) or 0 (all of them, wall time counts).
    """

    name: str
    entries: dict
    threads: int = 1


@dataclasses.dataclass
class Result:
    case: Case
    samples: dict  # column: seconds per call, round by round
    missing: dict  # column: why
    notes: dict  # column: what its side says about it

    def seconds(self, column):
        return statistics.median(self.samples[column]) if column in self.samples else None

    def ratio(self, peer, ours="tuned"):
        """How many times as fast as the peer: the median over rounds. None if one is missing."""
        if peer not in self.samples or ours not in self.samples:
            return None
        return statistics.median(p / o for p, o in zip(self.samples[peer], self.samples[ours]))


def geomean(ratios):
    return round(math.exp(statistics.fmean(map(math.log, ratios))), 3)


def measure(case, sides, rounds):
    ids, missing, notes, calls = {}, {}, {}, {}
    clock = 0 if case.threads == 1 else 1
    for number, (column, (process, words)) in enumerate(case.entries.items()):
        try:
            reply = sides.ask(process, f"set {number} {words}")
            if not reply.startswith("ok"):
                raise RuntimeError(reply)
            notes[column] = reply[3:]
            reply = sides.ask(process, f"run {number} 1")
            if reply.startswith("no "):
                raise RuntimeError(reply)
            once = float(reply.split()[clock])
        except (OSError, RuntimeError) as problem:
            missing[column] = str(problem)
            continue
        ids[column] = (process, number)
        calls[column] = max(1, min(100_000, round(SAMPLE_SECONDS / max(once, 1e-7))))
    samples = {column: [] for column in ids}
    for _ in range(rounds):
        for column in random.sample(list(ids), len(ids)):
            process, number = ids[column]
            taken = sides.ask(process, f"run {number} {calls[column]}").split()[clock]
            samples[column].append(float(taken) / calls[column])
    sides.clear()
    for column, why in missing.items():
        say(f"{case.name}: no {column}: {why}")
    return Result(case, samples, missing, notes)


def readable(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def print_result(result):
    """One line per case: our time, the A/A control, then each other column as time over ours."""
    ours = result.seconds("tuned")
    if ours is None:
        print(f"{result.case.name:28} not measured")
        return
    parts = [f"{column} {result.ratio(column):.3f}" for column in result.samples if column != "tuned"]
    clock = "" if result.case.threads == 1 else " (wall)"
    print(f"{result.case.name:28}{clock} {readable(ours):>9}  {'  '.join(parts)}", flush=True)
