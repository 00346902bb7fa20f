# SPDX-License-Identifier: Apache-2.0
"""Verbs that look and change nothing."""

import pathlib
import re
import subprocess

import pytest
from tool import BUILD, KEY, SPEC, TOOL, entry, exported, on_terminal

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202egnp\x7f\r\n\tz"


def test_devices(ejk, device):
    assert device["platform"] == "cpu" and device["fingerprint"].startswith("cpu|")
    assert device["fingerprint"] in ejk("devices").stdout


def test_devices_says_of_every_platform_what_or_why_not(ejk):
    told = ejk("devices", "--json").json
    listed = {d["platform"] for d in told["devices"]}
    assert sorted(listed | set(told["absent"])) == ["cpu", "cuda", "opencl"] and not listed & set(told["absent"])
    without = {"OCL_ICD_VENDORS": "/nowhere"}
    why = ejk("devices", "--json", env=without).json["absent"]["opencl"]
    assert f"no opencl device: {why}" in ejk("devices", env=without).stdout
    found = ejk("doctor", "--seconds", "0", "--json", env=without, expect=None).json["findings"]
    (platform,) = (f for f in found if f["what"] == "platform opencl")
    assert (platform["state"], platform["detail"]) == ("note", f"no device: {why}")


def test_cuda_devices_are_listed_where_there_is_a_driver_and_a_compiler(ejk):
    driver = str(BUILD / "tests/libemulated_cuda.so")
    here = {"EJK_CUDA_LIBRARY": driver, "EJK_NVRTC_LIBRARY": driver, "FAKE_CUDA_DEVICES": "2"}
    told = ejk("devices", "--json", env=here).json
    assert [d["index"] for d in told["devices"] if d["platform"] == "cuda"] == [0, 1]
    for missing in ["EJK_CUDA_LIBRARY", "EJK_NVRTC_LIBRARY"]:
        why = ejk("devices", "--json", env={**here, missing: "/nowhere/a.so"}).json["absent"]["cuda"]
        assert why == f"/nowhere/a.so cannot be loaded; {missing} names another file"


def test_ls_lists_what_is_there(ejk, store, device):
    listed = ejk("ls", "--json").json["entries"]
    assert [e["op"] for e in listed] == ["gemm@v1", "norm@v2"]
    assert listed[0]["key"] == KEY and listed[0]["config"] == {"block": 64, "threads": 1}
    assert pathlib.Path(listed[0]["file"]).exists()
    text = ejk("ls").stdout
    assert "(this machine)" in text and "block=16->64" in text and "float32[8,4]" in text
    assert [e["op"] for e in ejk("ls", "norm", "--json").json["entries"]] == ["norm@v2"]
    assert ejk("ls", "norm@v1", "--json", expect=3).json["entries"] == []
    assert len(ejk("ls", "--device", "this", "--json").json["entries"]) == 2
    assert ejk("ls", "--device", "gpu", "--json").json["entries"] == []


def test_looking_changes_nothing(ejk, store):
    (store / "v2/x/y/z").mkdir(parents=True)
    (store / "v2/x/y/z/broken.json").write_text("{")

    def snapshot():
        return {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file()}

    before = snapshot()
    for line in [["ls"], ["show", KEY], ["explain", KEY], ["export", "-"], ["quarantine", "ls"],
                 ["prune", "--all", "--dry-run"], ["doctor", "--seconds", "0"], ["report", "../r.html"]]:  # fmt: skip
        subprocess.run([TOOL, *line], env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}, capture_output=True, cwd=store)
    assert snapshot() == before


def test_an_empty_home_is_an_empty_store(ejk, tmp_path):
    assert "no entries" in ejk("ls").stdout
    assert ejk("ls", "--json").json["entries"] == []
    assert not (tmp_path / "store").exists()
    nowhere = {"EJKERNEL_PERSISTENT_CACHE_DIR": "", "HOME": "", "XDG_CACHE_HOME": ""}
    assert "--store" in ejk("ls", env=nowhere, expect=1).stderr


def test_a_named_store_must_be_there(ejk, tmp_path):
    assert "no store at" in ejk("ls", "--store", tmp_path / "nothing", expect=3).stderr
    (tmp_path / "file").write_text("")
    assert "not a directory" in ejk("ls", "--store", tmp_path / "file", expect=1).stderr


def test_layers_in_front_hide_those_behind(ejk, store, device, tmp_path):
    exported(tmp_path / "site.jsonl", entry(device, config={"block": 1, "threads": 1}))
    ejk("import", "--store", tmp_path / "site", tmp_path / "site.jsonl")
    env = {"EJKERNEL_PERSISTENT_CACHE_LAYERS": str(tmp_path / "site")}
    assert len(ejk("ls", "--json", env=env).json["entries"]) == 2
    every = ejk("ls", "--all", "--json", env=env).json["entries"]
    assert [(e["config"]["block"], e["hidden"]) for e in every] == [(64, False), (1, True), (64, False)]
    explained = ejk("explain", KEY, "--json", env=env).json["stored"][0]
    assert [layer["answers"] for layer in explained["layers"]] == [True, False]
    assert explained["config"] == {"block": 64, "threads": 1}


@pytest.mark.parametrize("key", [KEY, KEY[:4], f"gemm:{KEY}", f"gemm@v1:{KEY[:5]}", f"ejkernel_ops#gemm@v1:{KEY}"])
def test_show_finds_an_entry_by_key_prefix_op_or_label(ejk, store, key):
    shown = ejk("show", key, "--json").json["entries"]
    assert [e["op"] for e in shown] == ["gemm@v1"]
    assert len(shown[0]["candidates"]) == 4 and shown[0]["evidence"]["speedup"] == 2.0
    text = ejk("show", key).stdout
    for part in ["2x (1.9x to 2.1x)", "crashed: SIGSEGV", "this machine", "float32[8,4]", "+-1.2 %"]:
        assert part in text


def test_show_says_what_programs_of_devices_took_to_compile(ejk, device, tmp_path):
    compiled = entry(device)
    for candidate, seconds in zip(compiled["candidates"], [0.25, 0.125, 0.5, 0], strict=True):
        if seconds > 0:
            candidate["compile_seconds"] = seconds
    exported(tmp_path / "e", compiled, entry(device, op="interpreted@v1"))
    ejk("import", tmp_path / "e")
    text = ejk("show", f"gemm:{KEY}").stdout
    assert re.search(r"(?m)^compiled in +250 ms$", text)
    assert re.search(r"(?m)^STATUS +TIME +COMPILED IN +RATIO", text)
    assert re.search(r"(?m)^ok +1 ms +250 ms +0.500 ", text) and re.search(r"(?m)^slower +2 ms +125 ms +1.000 ", text)
    assert re.search(r"(?m)^rejected +- +- +- ", text)
    assert "compiled in" not in ejk("show", f"interpreted:{KEY}").stdout.lower()


def test_show_limits_candidates_and_knows_what_is_not_there(ejk, store):
    assert "and 3 more" in ejk("show", KEY, "--candidates", "1").stdout
    assert "ejk ls" in ejk("show", "ffffffffffffffff", expect=3).stderr
    assert ejk("explain", "ffffffffffffffff", expect=3).stderr


def test_explain_says_why_a_stored_entry_does_not_answer(ejk, device, tmp_path):
    foreign = {**device, "fingerprint": "cpu|Other|0123456789abcdef"}
    exported(tmp_path / "e", entry(foreign), entry(device, op="bad@v1", outcome="failed", config=None))
    ejk("import", tmp_path / "e")
    assert "another device" in ejk("explain", f"gemm:{KEY}").stdout
    told = ejk("explain", f"bad:{KEY}", "--json").json["stored"][0]
    assert told["origin"] == "none" and "rejected every candidate" in told["layers"][0]["why"]


def test_hostile_text_never_reaches_a_terminal_raw(ejk, device, tmp_path):
    bad = entry(device, op=f"op{HOSTILE}@v1", config={f"n{HOSTILE}": HOSTILE})
    bad["candidates"][3]["why"] = HOSTILE
    bad["provenance"] = HOSTILE
    bad["device"]["fingerprint"] = f"cpu|{HOSTILE}"
    exported(tmp_path / "bad", bad)
    imported = ejk("import", tmp_path / "bad")
    damaged = tmp_path / f"store/v2/a{HOSTILE.replace('/', '')}/b/c"
    damaged.mkdir(parents=True)
    (damaged / f"{HOSTILE}.json").write_text("{")
    results = [imported] + [
        ejk(*line, env={"LC_ALL": "C.UTF-8"})
        for line in (["ls"], ["show", KEY], ["explain", KEY], ["ls", "--json"], ["show", KEY, "--json"],
                     ["prune", "--all", "--dry-run"], ["report", "r.html"])
    ]  # fmt: skip
    for result in results:
        for text in (result.stdout, result.stderr):
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text), text
    assert ejk("show", KEY, "--json").json["entries"][0]["config"] == {f"n{HOSTILE}": HOSTILE}
    assert HOSTILE[1:] not in (tmp_path / "r.html").read_text()
    assert "\x1b" not in ejk("ls", f"--op{HOSTILE}", expect=2).stderr
    assert "\x1b" not in ejk("show", f"dead{HOSTILE}", expect=3).stderr


def test_ls_shows_what_differs_from_the_heuristic(ejk, device, tmp_path):
    guess = {"forward": {"block": 16}, "threads": 2, "gone": "x"}
    nested = entry(device, op="nested@v1", config={"forward": {"block": 64, "unset": None}, "threads": 2, "more": 1})
    nested["evidence"]["heuristic_config"] = guess
    same = entry(device, op="same@v1", config={"block": 16, "threads": 1})
    unknown = entry(device, op="unknown@v1", config={"block": 64, "unset": None}, heuristic_config=None)
    exported(tmp_path / "e", nested, same, unknown)
    ejk("import", tmp_path / "e")
    shown = {line.split()[0]: line for line in ejk("ls", "--wide").stdout.splitlines() if "@v1" in line}
    assert " forward{block=16->64} more=none->1 gone=x->none " in shown["nested@v1"]
    assert " as the heuristic " in shown["same@v1"]
    assert " block=64 " in shown["unknown@v1"] and "->" not in shown["unknown@v1"]
    assert "null" not in "".join(shown.values())
    assert re.search(r"(?m)^differs +forward\{block=16->64\}", ejk("show", "nested:").stdout)
    assert re.search(r"(?m)^config +block=16 threads=1, as the heuristic$", ejk("show", "same:").stdout)
    assert not re.search(r"(?m)^differs ", ejk("show", "same:").stdout)


def test_show_finds_the_heuristic_of_entries_that_do_not_name_it(ejk, device, tmp_path):
    """It is the candidate that took the heuristic's time, if only one did."""
    old = entry(device, op="old@v1")
    unlike = entry(device, op="unlike@v1", heuristic_seconds=3e-3)
    several = entry(device, op="several@v1")
    several["candidates"][2]["seconds"] = 2e-3
    same = entry(device, op="same@v1", config={"block": 16, "threads": 1}, seconds=2e-3, speedup=1.0)
    for each in (old, unlike, several, same):
        del each["evidence"]["heuristic_config"]
    exported(tmp_path / "e", old, unlike, several, same)
    ejk("import", tmp_path / "e")
    assert re.search(r"(?m)^differs +block=16->64$", ejk("show", "old:").stdout)
    for op in ["unlike", "several"]:
        assert not re.search(r"(?m)^differs ", ejk("show", f"{op}:").stdout)
    assert re.search(r"(?m)^config +block=16 threads=1, as the heuristic$", ejk("show", "same:").stdout)
    ls = ejk("ls", "--wide").stdout
    assert "as the heuristic" in ls and "->" not in ls, "of an entry that took the heuristic's time it is said"


def test_ls_reads_choices_only(ejk, device, tmp_path):
    ejk("import", exported(tmp_path / "e", entry(device)))
    path = pathlib.Path(ejk("ls", "--json").json["entries"][0]["file"])
    choice, end, candidates = path.read_text().partition("\n}\n")
    assert "candidates" in candidates
    path.write_text(choice + end + "nobody reads this")
    looked = ejk("ls")
    assert KEY in looked.stdout and looked.stderr == ""
    assert "candidates" in ejk("show", KEY).stderr


def wide_store(ejk, device, tmp_path):
    """Entries of which nothing fits into a line."""
    config = {f"a_parameter_with_a_long_name_{i}": 1000 + i for i in range(9)}
    spec = SPEC.replace("[8,4]", "[" + ",".join(["8"] * 60) + "]")
    unguessed = {"heuristic_seconds": 0.0, "heuristic_config": None}
    exported(tmp_path / "e", entry(device, op="a_long_name_of_an_op@v1", config=config, spec=spec, **unguessed))
    ejk("import", tmp_path / "e")
    return config


def test_tables_fit_80_columns_and_lose_nothing(ejk, device, tmp_path):
    config = wide_store(ejk, device, tmp_path)
    for verb in [["ls"], ["show", "a_long_name_of_an_op:"], ["prune", "--all", "--dry-run"]]:
        lines = ejk(*verb).stdout.splitlines()
        beyond = [line for line in lines if len(line) > 80 and not line.startswith(("cpu|", "would remove"))]
        assert beyond == [], verb
    text = ejk("ls").stdout
    for name, value in config.items():
        assert f"{name}={value}" in text
    (row,) = (line for line in ejk("ls", "--wide").stdout.splitlines() if line.startswith("a_long_name"))
    assert all(f"{name}={value}" in row for name, value in config.items()) and "8,8,8" in row
    assert len(row) > 300


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_terminal_gets_colours_and_lines_that_fit_and_a_pipe_no_colours(ejk, store, columns):
    assert "\x1b" not in ejk("ls").stdout
    here = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}
    seen = on_terminal(f"{TOOL} ls", columns, **here)
    assert "\x1b[1mOP" in seen and re.search(r"\x1b\[32mtuned", seen)
    plain = re.sub(r"\x1b\[\d*m", "", seen)
    rows = [line for line in plain.splitlines() if not line.startswith("cpu|")]
    assert len(rows) > 2 and all(len(row) <= columns for row in rows)
    assert "block=16->64" in plain and "float32[8,4]" in plain
    assert ("call: float32[8,4]" in plain) == (columns < 80)
    for quiet in [{"NO_COLOR": "1"}, {"TERM": "dumb"}]:
        assert on_terminal(f"{TOOL} ls", columns, **here, **quiet) == plain


def test_damaged_files_are_told_and_passed_over(ejk, store):
    (store / "v2/x/y/z").mkdir(parents=True)
    (store / "v2/x/y/z/broken.json").write_text('{"schema": 1,')
    result = ejk("ls", "--json")
    assert len(result.json["entries"]) == 2
    assert any("broken.json" in problem for problem in result.json["problems"])
    assert "broken.json" in result.stderr
