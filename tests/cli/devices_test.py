# SPDX-License-Identifier: Apache-2.0
"""Devices other than the CPU: named, tuned for, kept apart and asked about like it."""

import json
import shutil

import pytest
from tool import PLUGINS, entry, measured, record

SCALED = ["plugin.scaled", "--arg", "2", "--arg", "f32[300]", "--arg", "f32[300]"]


@pytest.fixture
def on_devices():
    (library,) = PLUGINS.glob("*devices.so")
    return ["--plugin", library]


@pytest.fixture
def opencl(ejk):
    """Two devices of PoCL: what `ejk` with them says, and how it is called."""
    env = {"POCL_DEVICES": "pthread basic"}
    found = [d for d in ejk("devices", "--json", env=env).json["devices"] if d["platform"] == "opencl"]
    if len(found) < 2:
        pytest.skip("there is no PoCL here")
    return env, found


@pytest.fixture
def tuned(ejk, opencl, on_devices):
    env, _ = opencl
    (out,) = ejk("tune", *SCALED, *on_devices, "--device", "opencl:0", "--json", env=env).json["tuned"]
    return out


def test_devices_are_listed_with_the_names_that_verbs_take(ejk, opencl):
    env, found = opencl
    assert [d["name"] for d in found] == ["opencl:0", "opencl:1"]
    lines = ejk("devices", env=env).stdout.splitlines()
    assert [line for line in lines if line.startswith(("cpu:0  ", "opencl:0  ", "opencl:1  "))] == [
        line for line in lines if not line.startswith((" ", "no "))
    ]
    assert f"opencl:1  {found[1]['fingerprint']}" in lines


def test_a_call_is_tuned_on_the_device_that_the_line_names(ejk, opencl, on_devices, tuned):
    env, (first, second) = opencl
    assert tuned["device"]["fingerprint"] == first["fingerprint"] and tuned["environment"] == first["environment"]
    assert set(tuned["config"]) == {"group"} and tuned["kept"] and not tuned["already"]
    (again,) = ejk("tune", *SCALED, *on_devices, "--device", "opencl:0", "--json", env=env).json["tuned"]
    assert again["already"]
    (there,) = ejk("tune", *SCALED, *on_devices, "--device", "opencl:1", "--json", env=env).json["tuned"]
    assert there["device"]["fingerprint"] == second["fingerprint"] and not there["already"]
    (here,) = ejk("tune", *SCALED, *on_devices, "--json", env=env).json["tuned"]
    assert set(here["config"]) == {"block"} and here["device"]["fingerprint"].startswith("cpu|")
    assert len(ejk("ls", "--device", "this", "--json", env=env).json["entries"]) == 3
    (listed,) = ejk("ls", "--device", "opencl:1", "--json", env=env).json["entries"]
    assert listed["device"] == second["fingerprint"]


def test_a_kernel_that_only_devices_run_is_tuned_there_and_refused_elsewhere(ejk, opencl, on_devices):
    env, _ = opencl
    line = ["plugin.counted", "--arg", "i32[100]:0..15", "--arg", "i32[16]", *on_devices]
    (tuned,) = ejk("tune", *line, "--device", "opencl:0", "--json", env=env).json["tuned"]
    assert tuned["config"]["group"] in (1, 4)
    assert "no run for cpu" in ejk("tune", *line, env=env, expect=2).stderr


def test_a_device_that_is_not_there_is_refused_with_why(ejk, on_devices):
    line = ["tune", *SCALED, *on_devices, "--device"]
    absent = {"OCL_ICD_VENDORS": "/nowhere"}
    assert "there is no device opencl:0: " in ejk(*line, "opencl:0", env=absent, expect=3).stderr
    assert "`ejk devices` lists" in ejk(*line, "cpu:7", expect=3).stderr
    assert "`ejk devices` lists" in ejk(*line, "tpu", expect=3).stderr


def test_an_entry_of_a_device_is_measured_explained_and_shown(ejk, opencl, on_devices, tuned):
    env, (first, _) = opencl
    (row,) = ejk("bench", *SCALED, *on_devices, "--device", "opencl:0", "--seconds", "1", "--json", env=env).json["benchmarks"]
    assert row["config"] == tuned["config"] and row["seconds"] > 0 and row["note"] == ""
    (stored,) = ejk("explain", tuned["key"], *on_devices, "--json", env=env).json["stored"]
    assert stored["origin"] == "persistent" and "another environment" not in stored["layers"][0]["why"]
    (elsewhere,) = ejk("explain", tuned["key"], *on_devices, "--json", env={"OCL_ICD_VENDORS": "/nowhere"}).json["stored"]
    assert elsewhere["origin"] == "none" and "another device" in elsewhere["layers"][0]["why"]
    text = " ".join(ejk("show", tuned["key"], env=env).stdout.split())  # a long name wraps
    assert f"{first['fingerprint']} (this machine)" in text and "another one than now" not in text
    page = ejk("report", "r.html", "--json", env=env).json
    assert [e["device"] for e in page["entries"]] == [first["fingerprint"]]


def test_recorded_calls_of_a_device_are_planned_tuned_and_covered(ejk, opencl, on_devices, tuned, tmp_path):
    env, (first, _) = opencl
    store = tmp_path / "fresh"
    sketch = {"dtype": "float32", "shape": [300]}
    call = {"arguments": [2.0, {**sketch, "data": {"mean": 0.0, "deviation": 1.0, "seed": 7}}, sketch]}
    record(store / "recorded", first, tuned, platform="opencl", **call)
    where = ["--store", store, *on_devices, "--json"]
    (planned,) = ejk("tune", "--recorded", "--dry-run", *where, env=env).json["plan"]
    assert planned["op"] == "plugin.scaled@v1"
    (done,) = ejk("tune", "--recorded", *where, env=env).json["tuned"]
    assert done["device"]["fingerprint"] == first["fingerprint"] and done["key"] == tuned["key"]
    # With exact figures: how noisy the machine was is not for this test to say.
    spec = json.dumps(tuned["spec"], sort_keys=True, separators=(",", ":"))
    shutil.rmtree(store / "v2")
    measured(store, entry(first, op=tuned["op"], spec=spec, config=done["config"]))
    told = ejk("what-if", *where, env=env).json
    assert told["coverage"]["calls"] == 1
    assert [t["tier"] for t in told["tiers"] if t["shapes"]] == ["measured here"]


def test_entries_of_a_device_move_and_go_with_it(ejk, opencl, tuned, device, tmp_path):
    env, (first, second) = opencl
    ejk("export", "all.jsonl", "--device", "opencl:0", env=env)
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 2
    ejk("import", "all.jsonl", "--store", "other", "--as-device", "opencl:1", env=env)
    (moved,) = ejk("ls", "--store", "other", "--json", env=env).json["entries"]
    assert moved["device"] == second["fingerprint"]
    exported = json.loads(ejk("export", "--store", "other", env=env).stdout.splitlines()[1])
    assert exported["device"]["identity"] == second["identity"]
    measured(tmp_path / "store", entry({**device, "fingerprint": "opencl|Elsewhere|0123456789abcdef"}))
    ejk("prune", "--other-devices", env=env)
    (left,) = ejk("ls", "--json", env=env).json["entries"]
    assert left["device"] == first["fingerprint"]
