# SPDX-License-Identifier: Apache-2.0
"""ejk top: where the time of recorded calls goes."""

import pytest
from tool import entry, measured, of_op, record


def test_top_lists_calls_by_their_time_and_what_tuning_would_save(ejk, store, shifted, device, tmp_path):
    folder = store / "recorded"
    record(folder, device, shifted, calls=100, seconds=2.0)
    record(folder, device, of_op(shifted, "norm@v2"), calls=50, seconds=6.0)
    record(folder, device, of_op(shifted, "rare@v1"), calls=5, timed_calls=0, seconds=0.0)
    told = ejk("top", "--json").json
    assert [call["op"] for call in told["calls"]] == ["norm@v2", "plugin.shifted@v1", "rare@v1"]
    assert [call["share"] for call in told["calls"]] == [0.75, 0.25, 0]
    planned = {p["op"]: p for p in ejk("tune", "--recorded", "--dry-run", "--json").json["plan"]}
    for call in told["calls"]:
        plan = planned[call["op"]]
        assert call["may_save_seconds"] == pytest.approx(call["seconds"] * plan["expected_gain"]) and call["state"] == plan["why"]
    assert told["may_save_seconds"] == pytest.approx(ejk("what-if", "--json").json["expected_regret_seconds"])
    text = ejk("top", "--number", "1").stdout
    assert "norm@v2" in text and "rare@v1" not in text and "and 2 more" in text and "ejk tune --recorded" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(ejk("top", "--op", "rare", "--json").json["calls"]) == 1


def test_top_counts_calls_that_were_not_timed_with_what_their_tuning_measured(ejk, shifted, device, tmp_path):
    store = tmp_path / "store"
    tuned = entry(device, op="gemm@v1", seconds=1e-3, heuristic_seconds=3e-3, speedup=3.0)
    measured(store, tuned)
    call = {"op": "gemm@v1", "key": tuned["key"], "spec": tuned["spec"]}
    record(store / "recorded", device, call, calls=1000, timed_calls=0, seconds=0.0)
    (told,) = ejk("top", "--json").json["calls"]
    assert told["seconds"] == pytest.approx(1.0) and told["saved_seconds"] == pytest.approx(2.0)
    assert told["may_save_seconds"] == 0 and told["state"] == "tuned, 3x the heuristic's speed"
    assert "2 s of the heuristics' time" in ejk("top").stdout


def test_top_without_records_says_how_to_record(ejk):
    assert "EJKERNEL_OPS_RECORD=1" in ejk("top", expect=3).stderr
