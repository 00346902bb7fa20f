# SPDX-License-Identifier: Apache-2.0
"""Prune and quarantine."""

import hashlib
import json

import pytest
from tool import KEY, SPEC, entry, exported, measured, record


def quarantine_record(store, device, op="crash@v1"):
    record = {"schema": 1, "op": op, "key": KEY, "spec": SPEC, "device": device["fingerprint"],
              "environment": device["environment"], "config": {"block": 3}, "why": "crashed: SIGSEGV",
              "time": "2024-01-01T00:00:00Z"}  # fmt: skip
    whole = [record[n] for n in ("device", "op", "key", "spec", "environment", "config")]
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    folder = store / "quarantine"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (hashlib.sha256(text.encode()).hexdigest()[:32] + ".json")).write_text(json.dumps(record))


def test_prune(ejk, device, tmp_path):
    old = entry(device, time="2001-01-01T00:00:00Z", op="old@v1")
    failed = entry(device, op="bad@v1", outcome="failed", config=None, time="2999-01-01T00:00:00Z")
    failed["config"] = None
    v9, v10 = (entry(device, op=f"versioned@v{v}", time="2999-01-01T00:00:00Z") for v in (9, 10))
    foreign = entry({**device, "fingerprint": "cpu|Other|0"}, op="far@v1", time="2999-01-01T00:00:00Z")
    exported(tmp_path / "all", old, failed, v9, v10, foreign)
    ejk("import", tmp_path / "all")

    def ops():
        return {e["op"] for e in ejk("ls", "--json").json["entries"]}

    everything = {"old@v1", "bad@v1", "versioned@v9", "versioned@v10", "far@v1"}
    assert [e["op"] for e in ejk("prune", "--older-than", "30d", "--dry-run", "--json").json["removed"]] == ["old@v1"]
    assert ops() == everything
    ejk("prune", "--older-than", "30d")
    ejk("prune", "--failed")
    assert ops() == everything - {"old@v1", "bad@v1"}
    assert [e["op"] for e in ejk("prune", "--old-versions", "--json").json["removed"]] == ["versioned@v9"]
    ejk("prune", "--other-devices")
    assert ops() == {"versioned@v10"}
    assert ejk("prune", "--all", "--op", "other", "--json").json["removed"] == []
    ejk("prune", "--all")
    assert ops() == set()


def test_prune_removes_damaged_files_only_if_told(ejk, store):
    bad = store / "v2/x/y/z/0.json.bad"
    bad.parent.mkdir(parents=True)
    bad.write_text("{")
    ejk("prune", "--failed")
    assert bad.exists()
    assert ejk("prune", "--damaged", "--json").json["files"] == [str(bad)]
    assert not bad.exists() and len(ejk("ls", "--json").json["entries"]) == 2


def test_prune_removes_nothing_through_a_link(ejk, store, tmp_path):
    elsewhere = (store / "v2").rename(tmp_path / "elsewhere")
    (store / "v2").symlink_to(elsewhere)
    bad = elsewhere / "notes.json.bad"
    bad.write_text("not of a store")
    before = sorted(elsewhere.rglob("*"))
    assert ejk("prune", "--damaged", "--all", "--json", expect=None).json["files"] == []
    assert sorted(elsewhere.rglob("*")) == before


def test_prune_removes_the_files_that_doctor_calls_damaged(ejk, device, shifted, store):
    record(store / "recorded", device, shifted)
    folder = next((store / "v2").glob("*/*/*"))
    records = next((store / "recorded/v1").glob("*/*"))
    damaged = sorted([folder / "broken.json", folder / "empty.json", records / "broken.json"])
    for path in damaged:
        path.write_text("{" if path.name == "broken.json" else "")
    newer = [folder / "newer.json", records / "newer.json"]
    for path in newer:
        path.write_text('{"schema": 99, "op": 1}')
    found = ejk("doctor", "--seconds", "0", "--json", env={"EJKERNEL_OPS_RECORD_DIR": ""}, expect=None).json["findings"]
    assert sorted(f["detail"].split(":")[0] for f in found if f["what"] == "damaged file") == [str(p) for p in damaged]
    assert sorted(f["detail"].split(":")[0] for f in found if f["what"] == "newer file") == sorted(map(str, newer))
    for how in (["--dry-run"], []):
        assert sorted(ejk("prune", "--damaged", "--json", *how).json["files"]) == [str(p) for p in damaged]
    assert not any(p.exists() for p in damaged) and all(p.exists() for p in newer)
    assert ejk("prune", "--damaged", "--json").json["files"] == []
    assert len(ejk("ls", "--json").json["entries"]) == 2 and ejk("what-if", "--json").json["shapes"] == 1


def test_a_wrong_checksum_is_said_and_left_to_people(ejk, store):
    edited = sorted((store / "v2").rglob("*.json"))
    for path, schema in zip(edited, [1, 3], strict=True):
        wrong = {"schema": schema, "checksum": "xxh3:0123456789abcdef"}
        path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    found = ejk("doctor", "--seconds", "0", "--json", expect=None).json["findings"]
    altered = [f for f in found if f["what"] == "altered file"]
    assert [f["detail"] for f in altered] == [f"{path}: its checksum is wrong" for path in edited]
    assert all('"checksum"' in f["cure"] for f in altered)
    assert ejk("prune", "--damaged", "--json").json["files"] == []


def test_an_export_without_what_cannot_be_read_is_written_and_fails(ejk, store, tmp_path):
    (next((store / "v2").glob("*/*/*")) / "broken.json").write_text("{")
    result = ejk("export", "out.jsonl", expect=1)
    assert "broken.json" in result.stderr and len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    assert len(ejk("export", expect=1).stdout.splitlines()) == 3


def test_suspects_are_listed_and_cleared_too(ejk, device, tmp_path):
    journal = tmp_path / "store/journal"
    journal.mkdir(parents=True)
    suspects = {"schema": 1, "op": "odd@v1", "device": device["fingerprint"], "suspects": [{"config": {"block": 3}, "times": 2}]}
    (journal / "0123.suspects").write_text(json.dumps(suspects))
    listed = ejk("quarantine", "ls", "--json").json
    assert listed["quarantined"] == []
    assert [(s["op"], s["config"], s["times"]) for s in listed["suspects"]] == [("odd@v1", {"block": 3}, 2)]
    assert "2 processes" in ejk("quarantine", "ls", "odd").stdout
    assert ejk("quarantine", "ls", "other", "--json").json["suspects"] == []
    assert ejk("quarantine", "clear", "other", "--json", expect=3).json["cleared"] == 0
    assert ejk("quarantine", "clear", "odd", "--json").json["cleared"] == 1
    assert ejk("quarantine", "ls", "--json").json["suspects"] == []


def test_quarantine(ejk, device, tmp_path):
    store = tmp_path / "store"
    assert "nothing is quarantined" in ejk("quarantine", "ls").stdout
    quarantine_record(store, device)
    quarantine_record(store, device, "other@v1")
    assert len(ejk("quarantine", "ls", "--json").json["quarantined"]) == 2
    assert "SIGSEGV" in ejk("quarantine", "ls", "crash").stdout
    assert ejk("quarantine", "clear", "nobody", "--json", expect=3).json["cleared"] == 0
    assert ejk("quarantine", "clear", "crash", "--json").json["cleared"] == 1
    (left,) = ejk("quarantine", "ls", "--json").json["quarantined"]
    assert left["op"] == "other@v1"
    assert ejk("quarantine", "clear", "--all", "--json").json["cleared"] == 1


def test_prune_takes_the_very_entry_and_no_other_of_its_key(ejk, device, tmp_path):
    old = {**entry(device, time="2020-01-01T00:00:00Z"), "spec": None}
    ejk("import", exported(tmp_path / "e", old, entry(device, time="2099-01-01T00:00:00Z")))
    assert len(ejk("prune", "--older-than", "90d", "--json").json["removed"]) == 1
    (left,) = ejk("ls", "--json").json["entries"]
    assert left["time"].startswith("2099")


def test_prune_knows_that_1_10_is_newer_than_1_9(ejk, device, tmp_path):
    ejk("import", exported(tmp_path / "e", entry(device, op="gemm@v1.9"), entry(device, op="gemm@v1.10")))
    assert [e["op"] for e in ejk("prune", "--old-versions", "--json").json["removed"]] == ["gemm@v1.9"]


def test_a_file_under_a_wrong_name_is_told(ejk, store):
    file = next((store / "v2").rglob("*.json"))
    file.rename(file.with_name("0" * 32 + ".json"))
    told = ejk("ls", "--json").json
    assert len(told["entries"]) == 1 and "another call" in told["problems"][0]


@pytest.mark.parametrize("given", [True, False])
def test_a_store_of_version_1_is_read_and_upgraded(ejk, device, tmp_path, given):
    store, where = tmp_path / "store", [tmp_path / "store"] if given else []
    entries = [entry(device, op=f"gemm@v{v}", config={"block": v}) for v in range(1, 6)]
    for e in entries:
        measured(store, e, version=1)
    broken = store / "v1/x/y/broken.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    assert [e["config"]["block"] for e in ejk("ls", "--json").json["entries"]] == [1, 2, 3, 4, 5]
    assert "/v1/" in ejk("ls", "--json").json["entries"][0]["file"]
    before = ejk("export", expect=1).stdout
    told = ejk("store", "upgrade", *where, "--json", expect=1).json
    assert (told["moved"], told["left"], told["interrupted"]) == (5, 1, False)
    assert "broken.json" in told["problems"][0] and broken.exists()
    assert [p for p in (store / "v1").rglob("*.json")] == [broken]
    broken.unlink()
    assert ejk("export").stdout == before
    assert ejk("show", KEY, "--json").json["entries"][0]["file"].startswith(str(store / "v2"))
    assert "nothing to do" in ejk("store", "upgrade", *where).stdout
    assert not (store / "v1").exists()
    assert "there is no store" in ejk("store", "upgrade", tmp_path / "nowhere", expect=3).stderr


def test_entries_of_other_environments_are_kept_beside_and_shown_if_asked_for(ejk, device, tmp_path):
    measured(tmp_path / "store", entry(device, config={"block": 1}, samples=1))
    for cores in (998, 999):
        measured(tmp_path / "store", entry({**device, "environment": {"cores": cores}}, config={"block": cores}))
    (shown,) = ejk("ls", "--json").json["entries"]
    assert shown["config"] == {"block": 1}
    everything = ejk("ls", "--all", "--json").json["entries"]
    assert [(e["hidden"], e["other_environment"]) for e in everything] == [(False, False), (True, True), (True, True)]
    assert "of another environment" in ejk("ls", "--all").stdout
    assert len(ejk("show", KEY, "--json").json["entries"]) == 3
    ejk("export", "all.jsonl")
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 4
    assert ejk("import", "all.jsonl", "--store", tmp_path / "copy", "--json").json["added"] == 3
    assert ejk("import", "all.jsonl", "--store", tmp_path / "copy", "--json").json["kept"] == 3
    assert len(ejk("prune", "--all", "--key", KEY, "--json").json["removed"]) == 3
    assert not list((tmp_path / "store/v2").glob("*/*/*"))
