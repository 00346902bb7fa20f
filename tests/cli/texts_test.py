# SPDX-License-Identifier: Apache-2.0
"""What the tool says: each thing once, in one form, and with what to do."""

import os
import re

import pytest
from tool import KEY, SHIFTED, entry, exported, of_op, record


def test_a_crash_is_named_once(ejk, bad, device, tmp_path):
    arguments = ["--arg", "f32[16]", "--arg", "f32[16]"]
    ejk("tune", "bad.always", *arguments, *bad)
    (shown,) = ejk("show", "bad.always:", "--json").json["entries"]
    (crashed,) = [c for c in shown["candidates"] if c["status"] == "rejected"]
    assert crashed["config"] == {"block": 2} and not crashed["why"].startswith(crashed["kind"])
    text = ejk("show", "bad.always:").stdout
    assert f"{crashed['kind']}: {crashed['why']}" in text and "crashed: crashed" not in text


def test_a_crash_that_an_earlier_version_kept_is_named_once_too(ejk, device, tmp_path):
    old = entry(device)
    old["candidates"][3]["why"] = "crashed: SIGSEGV"
    ejk("import", exported(tmp_path / "e", old))
    ejk("report", tmp_path / "r.html")
    for text in [ejk("show", KEY).stdout, (tmp_path / "r.html").read_text()]:
        assert text.count("crashed: SIGSEGV") == 1 and "crashed: crashed" not in text


def test_a_rejection_says_its_kind(ejk, plugin):
    line = ["plugin.row_sums", "--arg", "i32[101]:0..800", "--arg", "f32[800]", "--arg", "f32[100]", *plugin]
    assert '{"block":2}: threw: these are no offsets of rows' in ejk("tune", *line, expect=1).stdout


def test_why_a_call_is_not_tuned_is_said_once(ejk, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    record(tmp_path / "store/recorded", device, of_op(shifted, "softmax@v1"))
    lines = [line.strip() for line in ejk("tune", "--recorded", expect=1).stdout.splitlines() if line.strip()]
    assert len(lines) == len(set(lines))
    assert sum("no kernel of that op" in line for line in lines) == 1
    assert sum("Softmax<float>: " in line for line in lines) == 1


def test_calls_are_named_as_show_takes_them(ejk, plugin, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    name = f"plugin.shifted@v1:{shifted['key']}"
    assert f"not tuned: {name}: " in ejk("tune", "--recorded", expect=1).stdout
    ejk("tune", "--recorded", *plugin)
    assert ejk("show", name, "--json").json["entries"][0]["key"] == shifted["key"]
    stored = ejk("explain", name, "--recorded-in", tmp_path / "home").stdout
    assert stored.startswith(name + "  ")


@pytest.mark.parametrize("form", ["plugin.shifted", "plugin.shifted:", "plugin.shifted@v1", "plugin.shifted@v1:"])
def test_an_op_may_be_named_with_its_colon_wherever_one_is_asked_for(ejk, plugin, shifted, device, tmp_path, form):
    record(tmp_path / "store/recorded", device, shifted)
    (tuned,) = ejk("tune", form, *SHIFTED[1:], *plugin, "--json").json["tuned"]
    assert ejk("tune", "--recorded", "--op", form, *plugin, "--json").json["tuned"][0]["already"]
    assert len(ejk("ls", form, "--json").json["entries"]) == 1
    assert len(ejk("report", "r.html", "--op", form, "--json").json["entries"]) == 1
    assert ejk("what-if", "--op", form, "--json").json["shapes"] == 1
    assert ejk("quarantine", "ls", form, "--json").json["quarantined"] == []
    assert "note" in ejk("bench", form, *plugin, "--seconds", "0.1", "--json").json["benchmarks"][0]


def test_bench_takes_keys_as_show_does(ejk, plugin, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    for form in [f"plugin.shifted:{shifted['key'][:6]}", f"ejkernel_ops#plugin.shifted@v1:{shifted['key']}"]:
        told = ejk("bench", form, *plugin, "--store", tmp_path / "first", "--recorded-in", tmp_path / "store/recorded",
                   "--seconds", "0.1", "--json")  # fmt: skip
        assert [row["key"] for row in told.json["benchmarks"]] == [shifted["key"]]
    assert "--recorded-in" in ejk("bench", "plugin.shifted:0000", *plugin, expect=3).stderr


@pytest.mark.parametrize(
    "policy, origin, says",
    [
        ("autotune", "autotune", "it would be tuned"),
        ("heuristics", "heuristics", "it would run with the heuristic"),
        ("frozen", "error", "EJKERNEL_AUTOTUNE_POLICY=frozen makes that an error"),
    ],
)
def test_explain_knows_the_policy(ejk, plugin, shifted, device, tmp_path, policy, origin, says):
    record(tmp_path / "store/recorded", device, shifted)
    env = {"EJKERNEL_AUTOTUNE_POLICY": policy}
    (told,) = ejk("explain", shifted["key"], *plugin, "--json", env=env).json["calls"]
    assert told["origin"] == origin
    ejk("import", exported(tmp_path / "e", entry(device, op="bad@v1", outcome="failed", config=None)))
    stored = ejk("explain", "bad:", env=env).stdout
    assert "rejected every candidate" in stored and says in stored
    assert policy != "frozen" or "heuristic" not in stored


def test_an_op_where_a_key_belongs_is_put_right(ejk, store):
    for verb in ["show", "explain"]:
        assert "gemm: names all of an op gemm" in ejk(verb, "gemm", expect=3).stderr
        assert "the op nobody" in ejk(verb, "nobody:", expect=3).stderr


@pytest.mark.parametrize("line", ["show abc", "explain abc", "bench", "labels f", "what-if", "export", "report", "prune --all", "quarantine ls"])
def test_a_store_that_is_not_there_is_told_with_what_makes_one(ejk, tmp_path, line):
    (tmp_path / "f").write_text("nothing")
    said = ejk(*line.split(), "--store", tmp_path / "nothing", expect=3).stderr
    assert f"there is no store at {tmp_path}/nothing" in said and "ejk tune" in said


def test_an_empty_store_says_what_fills_it(ejk, tmp_path):
    (tmp_path / "store").mkdir()
    assert "ejk tune" in ejk("ls").stdout
    for line in ["export", "report"]:
        said = ejk(line, expect=3).stderr
        assert f"{tmp_path}/store" in said and "ejk ls" in said


def test_a_filter_that_leaves_nothing_says_so(ejk, store):
    assert "2 entries; none matches the given op and device" in ejk("ls", "nobody", expect=3).stdout
    assert "2 entries; none matches the given op and device" in ejk("ls", "--device", "gpu").stdout
    assert "nothing of nobody is quarantined" in ejk("quarantine", "clear", "nobody", expect=3).stdout


def test_a_single_item_is_not_a_plural(ejk, device, tmp_path):
    ejk("import", exported(tmp_path / "e", entry(device)))
    assert re.search(r": 1 entry\b", ejk("doctor", "--seconds", "0", "--wide", expect=None).stdout)
    assert "report of 1 entry written" in ejk("report", "r.html").stdout
    assert "removed 1 entry and 0 damaged files" in ejk("prune", "--all").stdout


def test_a_folder_that_cannot_be_written_is_told_with_another_way(ejk, device, plugin, tmp_path):
    if os.geteuid() == 0:
        closed = "/proc/store"  # where not even root can write
    else:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o555)
    told = ejk("tune", *SHIFTED, *plugin, "--store", closed, expect=1)
    assert str(closed) in told.stderr and "not kept" in told.stdout and "--store DIR" in told.stdout
