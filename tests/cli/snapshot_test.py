# SPDX-License-Identifier: Apache-2.0
"""Snapshots as an operator meets them."""

import hashlib

from tool import KEY, SHIFTED, entry, measured, record

VARIABLE = "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT"


def test_a_snapshot_is_a_single_file_named_by_its_bytes(ejk, store, device):
    made = ejk("snapshot", "publish", "--json").json
    (file,) = (store / "snapshots").iterdir()
    assert file.name == f"{made['snapshot']}.jsonl" and made["choices"] == 2
    assert hashlib.sha256(file.read_bytes()).hexdigest() == made["snapshot"]
    assert made["bytes"] == file.stat().st_size < 4000  # without candidates
    assert ejk("snapshot", "publish").stdout.splitlines()[0] == made["snapshot"]  # the same again
    (listed,) = ejk("snapshot", "show", "--json").json["snapshots"]
    assert listed["snapshot"] == made["snapshot"] and listed["bytes"] == made["bytes"]
    shown = ejk("snapshot", "show", made["snapshot"], "--json").json
    assert [(e["op"], e["config"]) for e in shown["choices"]] == [
        ("gemm@v1", {"block": 64, "threads": 1}), ("norm@v2", {"block": 64, "threads": 1})
    ]  # fmt: skip
    assert shown["choices"][0]["device"] == device["fingerprint"]
    assert "gemm@v1" in ejk("snapshot", "show", file).stdout


def test_only_what_is_asked_for_and_answers_is_published(ejk, store, device, tmp_path):
    other = {**device["environment"], "cores": 1024}
    measured(store, entry(device, environment=other, config={"block": 8}, samples=900))
    measured(store, entry(device, op="bad@v1", outcome="failed", config=None))
    file = tmp_path / "choices"
    made = ejk("snapshot", "publish", file, "--op", "gemm", "--device", "this", "--json").json
    assert made["choices"] == 1 and made["where"] == str(file) and not (store / "snapshots").exists()
    (choice,) = ejk("snapshot", "show", file, "--json").json["choices"]
    assert choice["op"] == "gemm@v1" and choice["config"] == {"block": 64, "threads": 1}
    ejk("snapshot", "publish", "--op", "bad", expect=3)
    ejk("snapshot", "publish", "--device", "nowhere", expect=3)


def test_fetch_checks_what_it_brings(ejk, store, tmp_path):
    name = ejk("snapshot", "publish", "--json").json["snapshot"]
    text = (store / "snapshots" / f"{name}.jsonl").read_text()
    file = tmp_path / "choices"
    ejk("snapshot", "fetch", name, file)
    assert file.read_text() == text == ejk("snapshot", "fetch", f"sha256:{name}", "-").stdout
    elsewhere = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "other")}
    assert "there is no snapshot" in ejk("snapshot", "fetch", name, expect=1, env=elsewhere).stderr
    ejk("snapshot", "fetch", f"{file}#{name}", env=elsewhere)
    assert ejk("snapshot", "fetch", name, "-", env=elsewhere).stdout == text
    assert ejk("snapshot", "fetch", name, "-", "--store", store, env={"HOME": str(tmp_path)}).stdout == text
    file.write_text(text.replace("64", "65"))
    assert f"expected {name}" in ejk("snapshot", "fetch", f"{file}#{name}", "-", expect=1).stderr
    assert "64 hex digits" in ejk("snapshot", "fetch", "latest", expect=2).stderr


def test_the_tool_answers_from_the_snapshot_of_a_launch(ejk, plugin, shifted, device, tmp_path):
    """And from nothing else, whatever the store says meanwhile."""
    first = tmp_path / "first"
    name = ejk("snapshot", "publish", tmp_path / "choices", "--store", first, "--json").json["snapshot"]
    launch = {VARIABLE: f"{tmp_path / 'choices'}#{name}"}
    record(tmp_path / "store/recorded", device, shifted)
    (call,) = ejk("explain", "plugin.shifted:", *plugin, "--json", env=launch).json["calls"]
    assert call["origin"] == "persistent" and call["config"] == shifted["config"]
    assert f"snapshot {name} has a config" in ejk("explain", "plugin.shifted:", *plugin, env=launch).stdout
    coverage = ejk("what-if", *plugin, "--json", env=launch).json["coverage"]
    assert coverage["calls"] == 1
    assert "nothing is tuned beside a snapshot" in ejk("tune", *SHIFTED, *plugin, expect=2, env=launch).stderr

    # A call without a known kernel: the store has it, the snapshot does not.
    measured(tmp_path / "store", entry(device))
    assert "neither the store" in ejk("explain", f"gemm:{KEY}", expect=3, env=launch).stderr
    (tmp_path / "choices").unlink()
    for verb in (("explain", "plugin.shifted:"), ("tune", *SHIFTED), ("what-if",)):
        assert f"{VARIABLE}: there is no snapshot" in ejk(*verb, *plugin, expect=1, env=launch).stderr
