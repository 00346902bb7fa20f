# SPDX-License-Identifier: Apache-2.0
"""Export, import and merge."""

import json

import pytest
from tool import KEY, ROOT, entry, exported, measured


def test_export_and_import_keep_everything_but_who_measured(ejk, store, tmp_path):
    ejk("export", "all.jsonl")
    ejk("import", "--store", tmp_path / "copy", "all.jsonl")
    again = ejk("export", "--store", tmp_path / "copy").stdout
    assert again == (tmp_path / "all.jsonl").read_text().replace('"provenance": "measured"', '"provenance": "imported"')
    ejk("import", "--store", tmp_path / "third", "-", input=again)
    files = lambda root: {str(p.relative_to(root)): p.read_text() for p in (root / "v2").rglob("*.json")}  # noqa: E731
    assert files(tmp_path / "third") == files(tmp_path / "copy") and files(store).keys() == files(tmp_path / "copy").keys()
    assert ejk("export").stdout == (tmp_path / "all.jsonl").read_text()
    assert len(ejk("export", "--op", "norm").stdout.splitlines()) == 2
    assert [e["op"] for e in ejk("export", "--json").json["entries"]] == ["gemm@v1", "norm@v2"]
    lean = ejk("export", "--without-candidates", "--key", KEY).stdout.splitlines()[1]
    assert json.loads(lean)["candidates"] == []
    assert "no such entries" in ejk("export", "--op", "nothing", expect=3).stderr


def test_import_reads_standard_input(ejk, store, tmp_path):
    text = ejk("export").stdout
    assert ejk("import", "-", "--store", tmp_path / "b", "--json", input=text).json["added"] == 2


def test_better_evidence_stays(ejk, device, tmp_path):
    weak = exported(tmp_path / "weak", entry(device, samples=5, config={"block": 5}))
    strong = exported(tmp_path / "strong", entry(device, samples=500, config={"block": 500}))
    block = lambda: ejk("ls", "--json").json["entries"][0]["config"]["block"]  # noqa: E731
    assert ejk("import", weak, "--dry-run", "--json").json["added"] == 1
    assert not (tmp_path / "store").exists()
    assert ejk("import", weak, "--json").json["added"] == 1 and block() == 5
    assert ejk("import", strong, "--json").json["replaced"] == 1 and block() == 500
    again = ejk("import", weak, strong, "--json").json
    assert (again["kept"], again["replaced"], block()) == (2, 0, 500)
    assert ejk("import", weak, "--replace", "--json").json["replaced"] == 1 and block() == 5


def test_merge_is_the_same_whatever_the_order(ejk, device, tmp_path):
    far = {**device, "environment": {"cores": 999}}
    entries = [entry(device, samples=5, config={"block": 5}), entry(far, samples=900, config={"block": 9}),
               entry(device, samples=50, config={"block": 50})]  # fmt: skip
    for i, e in enumerate(entries):
        exported(tmp_path / f"{i}.jsonl", e)
        ejk("import", "--store", tmp_path / f"s{i}", tmp_path / f"{i}.jsonl")
    winners = set()
    for order in [(0, 1, 2), (2, 1, 0), (1, 2, 0)]:
        into = tmp_path / f"into{order}"
        ejk("merge", into, *(tmp_path / f"s{i}" for i in order))
        winners.add(ejk("ls", "--store", into, "--json").json["entries"][0]["config"]["block"])
    assert winners == {50}  # measured in this environment, and most often


@pytest.mark.parametrize("verb", ["import", "merge"])
@pytest.mark.parametrize("source", ["export", "store", "entry"])
def test_an_entry_that_a_store_measured_stays_after_every_import(ejk, device, tmp_path, verb, source):
    into, lies = tmp_path / "store", entry(device, samples=2147483647, config={"block": 0}, speedup=1e300, time="9999-12-31T23:59:59Z")
    measured(into, entry(device, samples=1, complete=False, config={"block": 1}))
    came = {"export": lambda: exported(tmp_path / "lies", lies), "store": lambda: measured(tmp_path / "lies", lies) and tmp_path / "lies",
            "entry": lambda: measured(tmp_path / "lies", lies)}[source]()  # fmt: skip
    told = ejk(*((verb, came) if verb == "import" else (verb, into, came)), "--json").json
    assert (told["replaced"], told["kept"]) == (0, 1)
    (kept,) = ejk("ls", "--json").json["entries"]
    assert (kept["config"], kept["provenance"]) == ({"block": 1}, "measured")
    assert ejk("import", came, "--replace", "--json").json["replaced"] == 1
    (taken,) = ejk("ls", "--json").json["entries"]
    assert (taken["config"], taken["provenance"], taken["samples"]) == ({"block": 0}, "imported", 1_000_000)
    assert "tuned, imported" in ejk("ls").stdout


def test_evidence_that_cannot_be_measured_is_damage(ejk, device, tmp_path):
    lines = [entry(device, **{name: value}) for name, value in
             [("seconds", -1), ("speedup", float("nan")), ("noise", float("inf")), ("samples", -5), ("seconds_low", "1")]]  # fmt: skip
    told = ejk("import", exported(tmp_path / "e", *lines), "--json", expect=1).json
    assert (told["damaged"], told["added"]) == (5, 0)
    assert 'member "seconds": got -1; expected a number >= 0' in told["problems"][0]


def test_as_device_files_entries_under_this_one(ejk, device, tmp_path):
    foreign = {**device, "fingerprint": "cpu|Other|0123456789abcdef"}
    exported(tmp_path / "e", entry(foreign))
    told = ejk("import", tmp_path / "e", "--json").json
    assert told["other_devices"] == {"cpu|Other|0123456789abcdef": 1}
    ejk("import", tmp_path / "e", "--as-device", "this")
    (here,) = ejk("ls", "--device", "this", "--json").json["entries"]
    assert here["device"] == device["fingerprint"] and here["provenance"] == "transferred"


def test_caches_of_ejkernel_are_imported(ejk, device, tmp_path):
    plain = {
        "cpu|cpu|add@v0|5feceb66ffc86f38": {"a": 0, "b": 0.5, "c": [1, 2], "d": {"z": 1, "a": None}},
        "NVIDIA H100 80GB HBM3|PJRT C API\ncuda 12090|flash_attention@v2|6b86b273ff34fce1": {"num_warps": 4},
        "TPU v4||flash_attention@v2|d4735e3a265e16ee": {"num_warps": None},
        "d|o@v0|k1": 3,
        "d|x|o|y@v0|k6": 1,
        "cpu|cpu|none@v0|4e07408562bedb8b": None,
    }
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    assert ejk("import", tmp_path / "plain.json", "--json").json["added"] == 5
    ids = {(e["device"], e["op"], e["key"]): e for e in ejk("ls", "--json").json["entries"]}
    assert set(ids) == {
        ("cpu|cpu", "add@v0", "5feceb66ffc86f38"),
        ("NVIDIA H100 80GB HBM3|PJRT C API\ncuda 12090", "flash_attention@v2", "6b86b273ff34fce1"),
        ("TPU v4|", "flash_attention@v2", "d4735e3a265e16ee"),
        ("d", "o@v0", "k1"),
        ("d|x", "o|y@v0", "k6"),
    }
    add = ids["cpu|cpu", "add@v0", "5feceb66ffc86f38"]
    assert add["provenance"] == "imported" and not add["complete"] and add["config"]["c"] == [1, 2]
    ejk("import", tmp_path / "plain.json", "--as-device", "this")
    here = ejk("ls", "--device", "this", "--json").json["entries"]
    assert len(here) == 5


def test_caches_that_ejkernel_wrote_are_read_as_it_reads_them(ejk, tmp_path):
    vectors = json.loads((ROOT / "tests/data/keys.json").read_text())
    for i, case in enumerate(vectors["persistent"]):
        (tmp_path / "c.json").write_text(case["text"])
        ejk("import", tmp_path / "c.json", "--store", tmp_path / f"s{i}")
        listed = ejk("ls", "--store", tmp_path / f"s{i}", "--json").json["entries"]
        assert sorted((e["device"], e["op"], e["key"]) for e in listed) == sorted(
            (get["dev"], get["op"], get["key"]) for get in case["gets"]
        )
        configs = json.loads(case["text"])
        assert all(configs["|".join((e["device"], e["op"], e["key"]))] == e["config"] for e in listed)
    for case in vectors["persistent_real_ops"]:
        (tmp_path / "c.json").write_text(case["text"])
        count = len(json.loads(case["text"]))
        assert ejk("import", tmp_path / "c.json", "--as-device", "this", "--json").json["added"] == count > 0


def test_caches_of_ejkernel_that_keep_provenance_are_imported_without_heuristics(ejk, tmp_path):
    folder = tmp_path / "ejkernel-cache"
    folder.mkdir()
    (folder / "ops.json").write_text(json.dumps({
        "cpu|cpu|add@v0|5feceb66ffc86f38": {"config": {"a": 1}, "provenance": "autotune"},
        "cpu|cpu|add@v0|6b86b273ff34fce1": {"config": {"a": 2}, "provenance": "heuristics"},
        "cpu|cpu|add@v0|d4735e3a265e16ee": {"config": {"a": 3}, "other": 1},
        "cpu|cpu|add@v0|4e07408562bedb8b": {"cfg": {"a": 4}, "__ejk_provenance__": "autotune"},
    }))  # fmt: skip
    told = ejk("import", folder, "--json").json
    assert (told["added"], told["heuristics"]) == (3, 1)
    configs = {e["key"][:4]: e["config"] for e in ejk("ls", "--json").json["entries"]}
    assert configs == {"5fec": {"a": 1}, "4e07": {"a": 4}, "d473": {"config": {"a": 3}, "other": 1}}
    assert ejk("import", folder, "--with-heuristics", "--json").json["added"] == 1


def test_a_measurement_takes_the_place_of_an_import(ejk, device, tmp_path):
    key = KEY
    (tmp_path / "c.json").write_text(json.dumps({f"cpu|cpu|gemm@v1|{key}": {"block": 1, "threads": 1}}))
    ejk("import", "--as-device", "this", tmp_path / "c.json")
    measured(tmp_path / "store", entry(device))
    blocks = {e["config"]["block"] for e in ejk("ls", "--json").json["entries"]}
    assert 64 in blocks
    assert ejk("explain", f"gemm:{key}", "--json").json["stored"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"a": 1}', '{"ejk_export": 99}\n', "\x00\xff", '{"schema": 1, "op": "x"}', "[" * 10000],
)
def test_a_file_that_is_not_a_cache_is_refused(ejk, tmp_path, content):
    (tmp_path / "f").write_bytes(content.encode("latin-1"))
    result = ejk("import", "f", expect=1)
    assert "cannot read entries from f" in result.stderr
    assert not (tmp_path / "store").exists()


def test_damaged_lines_of_an_export_are_told_and_the_rest_is_taken(ejk, device, tmp_path):
    good = json.dumps(entry(device))
    (tmp_path / "f").write_text('{"ejk_export": 1}\nnonsense\n' + good + '\n{"schema": 1}\n\n' + good[: len(good) // 2])
    told = ejk("import", "f", "--json", expect=1)
    assert told.json["added"] == 1 and told.json["damaged"] == 3
    assert "line 2" in told.stderr and "line 4" in told.stderr


def test_missing_sources_are_named(ejk, tmp_path):
    assert "nothing.json" in ejk("import", "nothing.json", expect=3).stderr
    (tmp_path / "empty").mkdir()
    assert "not a store" in ejk("import", "empty", expect=3).stderr
    assert "empty" in ejk("merge", "into", "empty", expect=3).stderr


def test_an_export_without_candidates_does_not_take_the_measurements_away(ejk, store):
    ejk("export", "lean.jsonl", "--without-candidates")
    told = ejk("import", "lean.jsonl", "--json").json
    assert (told["replaced"], told["kept"]) == (0, 2)
    assert all(e["candidates"] for e in ejk("show", KEY, "--json").json["entries"])


def test_all_stores_keep_the_same_one_of_two_equal_entries(ejk, device, tmp_path):
    files = [exported(tmp_path / f"{i}", entry(device, config={"block": i})) for i in (1, 2)]
    kept = set()
    for store, order in [("a", (0, 1, 0, 1)), ("b", (1, 0, 1, 0))]:
        for i in order:
            told = ejk("import", "--store", tmp_path / store, files[i], "--json").json
        assert told["replaced"] == 0
        kept.add(ejk("ls", "--store", tmp_path / store, "--json").json["entries"][0]["config"]["block"])
    assert len(kept) == 1


def test_an_entry_of_another_device_does_not_replace_one_measured_here(ejk, device, tmp_path):
    foreign = {**device, "fingerprint": "cpu|Other|0123456789abcdef"}
    ejk("import", exported(tmp_path / "own", entry(device, samples=40, config={"block": 1})))
    far = exported(tmp_path / "far", entry(foreign, samples=50, config={"block": 2}))
    assert ejk("import", far, "--as-device", "this", "--json").json["replaced"] == 0
    assert [e["config"] for e in ejk("ls", "--json").json["entries"]] == [{"block": 1}]
    assert [e["config"]["block"] for e in ejk("ls", "--all", "--json").json["entries"]] == [1, 2]


def test_an_entry_under_a_wrong_key_replaces_no_other(ejk, device, store, tmp_path):
    wrong = {**entry(device), "key": "0" * 16}
    told = ejk("import", exported(tmp_path / "wrong", wrong), "--json", expect=1).json
    assert told["damaged"] == 1 and "0" * 16 in told["problems"][0]
    assert KEY in [e["key"] for e in ejk("ls", "--json").json["entries"]]
    assert not list(store.rglob("*.bad"))
