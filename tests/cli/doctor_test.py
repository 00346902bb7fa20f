# SPDX-License-Identifier: Apache-2.0
"""What doctor says of a machine."""

import json
import re
import subprocess

import pytest
from tool import BUILD, ROOT, TOOL, digits, entry, measured


def machine(tmp_path, **files):
    root = tmp_path / "root"
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def findings(result):
    return {f["what"]: f for f in result.json["findings"]}


def test_doctor_sees_a_governor_and_a_busy_machine(ejk, tmp_path):
    root = machine(
        tmp_path,
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave",
        sys__devices__system__cpu__online="0-1",
        sys__devices__system__cpu__smt__active="1",
        sys__devices__system__clocksource__clocksource0__current_clocksource="hpet",
        proc__loadavg="900.0 1.0 1.0 1/1 1",
    )
    found = findings(ejk("doctor", "--seconds", "0", "--root", root, "--json", expect=4))
    assert found["governor"]["state"] == "warn" and "powersave" in found["governor"]["detail"]
    assert found["load"]["state"] == "bad" and found["load"]["number"] == 900.0
    assert found["hyper-threads"]["state"] == "note" and found["clock source"]["state"] == "warn"


def test_doctor_is_content_with_a_quiet_machine(ejk, tmp_path):
    root = machine(
        tmp_path,
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="performance",
        proc__loadavg="0.01 1.0 1.0 1/1 1",
    )
    result = ejk("doctor", "--seconds", "0", "--root", root, "--json")
    assert result.json["fit"]
    found = findings(result)
    assert found["governor"]["state"] == "ok" and found["load"]["state"] == "ok"
    assert found["platform cpu"]["state"] == "ok"
    assert {"platform opencl", "platform cuda"} <= set(found)


def test_doctor_measures_the_noise_of_two_equal_runs(ejk, tmp_path):
    root = machine(tmp_path, proc__loadavg="0.01 1.0 1.0 1/1 1")
    result = subprocess.run(
        [TOOL, "doctor", "--seconds", "0.3", "--root", root, "--json"], capture_output=True, text=True,
        env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "s")},
    )  # fmt: skip
    assert result.returncode in (0, 4)  # as noisy as it happens to be
    result.json = json.loads(result.stdout)
    assert findings(result)["noise"]["number"] >= 0
    assert not (tmp_path / "s").exists()


def test_doctor_sees_damage_and_misspelt_variables(ejk, store):
    (store / "v2/x/y/z").mkdir(parents=True)
    (store / "v2/x/y/z/broken.json").write_text("{")
    env = {"EJKERNEL_AUTOTUNE_POLYCY": "frozen", "EJKERNEL_AUTOTUNE_POLICY": "sometimes"}
    result = ejk("doctor", "--seconds", "0", "--json", env=env, expect=4)
    details = [f["detail"] for f in result.json["findings"]]
    assert any("EJKERNEL_AUTOTUNE_POLYCY" in d for d in details)
    assert any("sometimes" in d for d in details)
    assert any("broken.json" in d for d in details)


def test_doctor_knows_the_variables_that_the_documents_list():
    shown = set(re.findall(r"(?m)^\| `(EJKERNEL_\w+)` \|", (ROOT / "docs/reference/environment.md").read_text()))
    known = set(re.findall(r'"(EJKERNEL_\w+)"', (ROOT / "cli/doctor.cpp").read_text()))
    assert shown == known


def drifted(store, of):
    """What a program with drift_watch notes of a call."""
    spec = json.dumps(of["spec"], sort_keys=True, separators=(",", ":"))
    call = [of["device"]["fingerprint"], of["op"], of["key"], spec, of["environment"]]
    note = dict(zip(("device", "op", "key", "spec", "environment"), call, strict=True)) | {
        "schema": 1, "config": of["config"], "tuned": of["evidence"]["time"],
        "evidence_seconds": of["evidence"]["seconds"], "now_seconds": 2.5e-3, "time": "2024-06-07T08:09:10Z",
    }  # fmt: skip
    path = store / "drift" / f"{digits(call)}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(note))
    return path


@pytest.fixture
def doctor(ejk, tmp_path):
    root = machine(tmp_path, proc__loadavg="0.01 1.0 1.0 1/1 1")
    return lambda: findings(ejk("doctor", "--seconds", "0", "--root", root, "--json"))


def test_doctor_lists_calls_that_have_become_slow_until_they_are_tuned_again(doctor, store, device):
    tuned = entry(device)
    measured(store, tuned)
    drifted(store, tuned)
    found = doctor()["slower call"]
    assert found["state"] == "warn" and found["number"] == 2.5
    assert f"gemm@v1:{tuned['key']}" in found["detail"] and "float32[8,4]" in found["detail"]
    assert "1 ms" in found["detail"] and "2.5 ms" in found["detail"]
    assert found["cure"] == "ejk tune --recorded --retune --op gemm@v1"
    measured(store, entry(device, time="2024-06-08T08:09:10Z"))
    assert "slower call" not in doctor()


def test_doctor_lists_no_call_of_another_environment_and_no_file_that_is_no_note(doctor, store, device):
    other = entry(device, environment=device["environment"] | {"compiler": "another one"})
    measured(store, other)
    path = drifted(store, other)
    (path.parent / "note.json").write_text("{")
    assert "slower call" not in doctor()


EMULATED_CUDA = BUILD / "tests/libemulated_cuda.so"
CUDA = {"EJK_CUDA_LIBRARY": str(EMULATED_CUDA), "EJK_NVRTC_LIBRARY": str(EMULATED_CUDA)}
needs_emulated_cuda = pytest.mark.skipif(not EMULATED_CUDA.exists(), reason="built without tests of CUDA")


@needs_emulated_cuda
def test_selftest_runs_every_kernel_for_devices(ejk):
    # The emulated driver compiles every config with g++.
    found = ejk("doctor", "--selftest", "--platform", "cuda", "--json", env=CUDA, timeout=1800).json
    assert found["fit"] and [d["platform"] for d in found["devices"]] == ["cuda"]
    device = found["devices"][0]
    listed = re.findall(r'\{"(\w+)", \w+_cases\}', (ROOT / "src/ops/device_cases.h").read_text())
    assert {c["op"] for c in device["calls"]} == set(listed)
    assert all(c["right"] == c["configs"] >= 2 for c in device["calls"])
    assert device["right"] == sum(c["configs"] for c in device["calls"]) and device["wrong"] == 0


@needs_emulated_cuda
def test_selftest_says_what_fails(ejk):
    env = CUDA | {"FAKE_CUDA_FAIL": "cuLaunchKernel:1:700"}  # and all after it
    found = ejk("doctor", "--selftest", "--platform", "cuda", "--json", env=env, expect=4).json
    assert not found["fit"] and found["devices"][0]["right"] == 0
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in json.dumps(found["devices"][0]["calls"][0]["problems"])


def test_selftest_without_a_device_is_no_success(ejk):
    env = {"OCL_ICD_VENDORS": "/nowhere", "EJK_CUDA_LIBRARY": "/nowhere"}
    found = ejk("doctor", "--selftest", "--json", env=env, expect=4).json
    assert not found["fit"] and found["devices"] == [] and set(found["absent"]) == {"opencl", "cuda"}
    assert "nothing ran" in ejk("doctor", "--selftest", env=env, expect=4).stdout
    ejk("doctor", "--platform", "opencl", expect=2)
