# SPDX-License-Identifier: Apache-2.0
"""Which host tunes which call: every call ends tuned or reported, whatever hosts and workers do."""

import itertools
import random

import pytest
from ejk._spread import MAX_ATTEMPTS, START, Call, Spread

BUDGET, PATIENCE, REST = 10.0, 5.0, 7.0


class Told(list):
    def __call__(self, event, **members):
        self.append((event, members))

    def of(self, event):
        return [members for name, members in self if name == event]

    def keys(self, event):
        return [members["key"] for members in self.of(event)]


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def spread_of(told):
    def make(*keys, devices={}):
        calls = [Call(devices.get(key, "cpu"), "op", key, f"record {key}") for key in keys]
        return Spread(calls, BUDGET, PATIENCE, REST, told)

    return make


def up(spread, now=0.0, **devices):
    assert spread.start(devices, now) == sorted(devices)
    for host, device in devices.items():
        spread.ready(host, device)


def given(spread, now=0.0):
    return [(host, call.key) for host, call in spread.hand_out(now)]


def test_each_host_has_one_call_of_its_device_in_the_order_of_the_plan(spread_of, told):
    spread = spread_of("1", "2", "3", "x", devices={"x": "gpu"})
    up(spread, a="cpu", b="cpu", c="gpu")
    assert given(spread) == [("a", "1"), ("b", "2"), ("c", "x")]
    assert given(spread) == []
    spread.answered("b", "tuned", "entry", 4.0)
    assert given(spread, 4.0) == [("b", "3")]
    for host in "abc":
        assert not spread.is_over
        spread.answered(host, "tuned", "entry", 6.0)
    assert spread.is_over and told.keys("tuned") == ["2", "1", "3", "x"]
    assert told.of("tuned")[0] == {"host": "b", "device": "cpu", "op": "op", "key": "2", "entry": "entry"}


def test_an_error_that_a_worker_reports_is_not_tried_again(spread_of, told):
    spread = spread_of("1")
    up(spread, a="cpu", b="cpu")
    assert given(spread) == [("a", "1")]
    spread.answered("a", "failed", "no candidates", 1.0)
    assert spread.is_over
    assert told.of("failed") == [{"device": "cpu", "op": "op", "key": "1", "why": "no candidates", "lost": False}]


def test_a_call_that_ends_workers_goes_elsewhere_three_times_in_all(spread_of, told):
    spread = spread_of("bad", "2", "3", "4")
    up(spread, a="cpu", b="cpu", c="cpu")
    assert given(spread) == [("a", "bad"), ("b", "2"), ("c", "3")]
    spread.answered("a", "lost", "exit code 4", 1.0)
    assert given(spread, 1.0) == [("a", "4")]  # not the one that it was lost with
    spread.answered("b", "tuned", "", 2.0)
    assert given(spread, 2.0) == [("b", "bad")]
    spread.answered("b", "lost", "exit code 4", 3.0)
    spread.answered("a", "tuned", "", 3.0)
    assert given(spread, 3.0) == []  # it waits for c
    spread.answered("c", "tuned", "", 4.0)
    assert given(spread, 4.0) == [("c", "bad")]
    spread.answered("c", "lost", "exit code 4", 5.0)
    assert spread.is_over
    (reported,) = told.of("failed")
    assert reported["lost"] and reported["why"] == "exit code 4 (given up after 3 times, on a, b, c)"
    assert [members["host"] for members in told.of("elsewhere")] == ["a", "b"]


def test_where_there_is_no_other_host_it_is_tried_where_it_was(spread_of, told):
    spread = spread_of("bad")
    up(spread, a="cpu", other="gpu")
    for _ in range(3):
        assert given(spread) == [("a", "bad")]
        spread.answered("a", "lost", "how", 1.0)
    assert spread.is_over and told.keys("failed") == ["bad"]


def test_a_host_goes_on_with_a_call_whose_suspect_it_knows(spread_of, told):
    spread = spread_of("bad", "2")
    up(spread, a="cpu")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert given(spread, float(attempt)) == [("a", "bad")]
        assert spread.overdue(attempt + BUDGET + 2 * PATIENCE - 0.1) == []  # each with a deadline of its own
        spread.answered("a", "suspect", "config 2", float(attempt))
    assert len(told.of("again")) == MAX_ATTEMPTS - 1
    assert told.of("elsewhere") == [{"host": "a", "op": "op", "key": "bad", "why": "config 2"}]


def test_a_host_without_an_answer_is_lost_at_the_deadline_and_rests(spread_of, told):
    spread = spread_of("1")
    up(spread, a="cpu", b="cpu")
    assert given(spread, 100.0) == [("a", "1")]
    deadline = 100.0 + BUDGET + 2 * PATIENCE
    assert spread.overdue(deadline - 0.1) == [] and spread.overdue(deadline) == ["a"]
    spread.lost("a", "silence", deadline)
    assert given(spread, deadline) == [("b", "1")]
    assert spread.start("ab", deadline + REST - 0.1) == []
    assert spread.start("ab", deadline + REST) == ["a"]
    spread.answered("b", "tuned", "", deadline)
    assert spread.is_over and told.keys("tuned") == ["1"]


def test_a_host_that_fails_three_times_without_an_answer_is_given_up(spread_of, told):
    spread = spread_of("1", "2")
    spread.start("a", 0.0)
    assert spread.overdue(START + PATIENCE - 0.1) == [] and spread.overdue(START + PATIENCE) == ["a"]
    for now in (0.0, 10.0, 20.0):
        assert given(spread, now) == [] and told.of("left_out") == []  # it may have the device yet
        spread.lost("a", "silence", now)
        spread.start("a", now + REST)
    assert [lost["again"] for lost in told.of("host_lost")] == [True, True, False]
    assert given(spread) == [] and spread.is_over
    assert told.of("left_out") == [{"device": "cpu", "calls": [{"op": "op", "key": "1"}, {"op": "op", "key": "2"}]}]


def test_an_answer_makes_up_for_failures(spread_of, told):
    spread = spread_of(*map(str, range(9)))
    up(spread, a="cpu")
    for now in range(8):
        given(spread, 100.0 * now)
        if now % 2:
            spread.answered("a", "tuned", "", 0.0)
        else:
            spread.lost("a", "silence", 100.0 * now)
            assert spread.start("a", 100.0 * now + REST) == ["a"]
            spread.ready("a", "cpu")
    assert all(lost["again"] for lost in told.of("host_lost"))


def test_a_host_that_leaves_gives_its_call_back(spread_of, told):
    spread = spread_of("1")
    up(spread, a="cpu")
    assert given(spread) == [("a", "1")]
    assert spread.start("b", 1.0) == ["b"]
    assert given(spread, 1.0) == []
    spread.ready("b", "cpu")
    assert given(spread, 1.0) == [("b", "1")]


def test_a_host_that_refuses_is_not_asked_again_and_its_call_is_not_to_blame(spread_of, told):
    spread = spread_of("1")
    up(spread, a="cpu", b="cpu")
    assert given(spread) == [("a", "1")]
    spread.refused("a", "cannot import nowhere")
    assert spread.start("ab", 1000.0) == []
    ((host, call),) = spread.hand_out(1000.0)
    assert (host, call.key, call.ended) == ("b", "1", [])


def test_a_device_without_a_host_is_reported_when_all_hosts_have_answered(spread_of, told):
    spread = spread_of("1", "x", "y", devices={"x": "gpu", "y": "gpu"})
    assert spread.start("ab", 0.0) == ["a", "b"]
    spread.ready("a", "cpu")
    assert given(spread) == [("a", "1")] and told.of("left_out") == []
    spread.ready("b", "cpu")
    assert given(spread) == []
    assert told.of("left_out") == [{"device": "gpu", "calls": [{"op": "op", "key": "x"}, {"op": "op", "key": "y"}]}]
    spread.answered("a", "tuned", "", 1.0)
    assert spread.is_over


def test_without_hosts_everything_is_left_out(spread_of, told):
    spread = spread_of("1")
    spread.start([], 0.0)
    assert given(spread) == [] and spread.is_over and len(told.of("left_out")) == 1


def test_giving_up_reports_calls_that_no_host_has_begun_or_all(spread_of, told):
    spread = spread_of("1", "2", "3")
    up(spread, a="cpu")
    given(spread)
    spread.give_up("no time")
    assert told.keys("failed") == ["2", "3"] and not spread.is_over
    spread.give_up("interrupted", also_busy=True)
    assert told.keys("failed") == ["2", "3", "1"] and spread.is_over


def test_progress_says_rate_and_time_left_of_the_slowest_device(spread_of):
    spread = spread_of("1", "2", "3", "4", "5", "x", devices={"x": "gpu"})
    assert spread.progress(0.0) == {"done": 0, "total": 6, "hosts": 0, "calls_per_minute": 0.0, "seconds_left": None}
    up(spread, a="cpu", b="cpu", c="gpu")
    given(spread)
    for host in "ab":
        spread.answered(host, "tuned", "", 20.0)
    given(spread, 20.0)
    # Three calls of two hosts, 20 s each.
    assert spread.progress(30.0) == {"done": 2, "total": 6, "hosts": 3, "calls_per_minute": 4.0, "seconds_left": 30.0}


@pytest.mark.parametrize("seed", range(20))
def test_every_call_ends_once_whatever_happens(told, seed):
    chance = random.Random(seed)
    devices = ["cpu", "gpu", "nobody has it"]
    calls = [Call(chance.choice(devices), "op", str(i), "") for i in range(40)]
    of_key = {call.key: call.device for call in calls}
    spread = Spread(calls, BUDGET, PATIENCE, REST, told)
    there = {f"h{i}": devices[i % 2] for i in range(6)}
    names, now, busy = itertools.count(6), 0.0, {}
    while not spread.is_over:
        now += chance.uniform(0, 5)
        assert now < 1e6
        for name in spread.start(there, now):
            if chance.random() < 0.8:
                spread.ready(name, there[name])
        busy = {name: key for name, key in busy.items() if name in there}
        for name, call in spread.hand_out(now):
            assert name not in busy and there[name] == of_key[call.key]
            busy[name] = call.key
        for name in spread.overdue(now):
            busy.pop(name, None)
            spread.lost(name, "silence", now)
        if busy:
            name = chance.choice(sorted(busy))
            kind = chance.choices(["tuned", "failed", "lost", "suspect", "gone", "left", "silent"], [9, 1, 1, 1, 1, 1, 1])[0]
            if kind == "silent":
                continue
            del busy[name]
            if kind == "gone":
                spread.lost(name, "its process is gone", now)
            elif kind == "left":
                device = there.pop(name)
                there[f"h{next(names)}"] = device
            else:
                spread.answered(name, kind, "", now)
    ends = told.keys("tuned") + told.keys("failed") + [c["key"] for left in told.of("left_out") for c in left["calls"]]
    assert sorted(ends) == sorted(of_key)
