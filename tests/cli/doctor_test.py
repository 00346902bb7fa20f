# SPDX-License-Identifier: Apache-2.0
"""What doctor says of a machine."""

import json
import re
import subprocess

from tool import ROOT, TOOL


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
    (store / "v1/x/y").mkdir(parents=True)
    (store / "v1/x/y/broken.json").write_text("{")
    env = {"EJKERNEL_AUTOTUNE_POLYCY": "frozen", "EJKERNEL_AUTOTUNE_POLICY": "sometimes"}
    result = ejk("doctor", "--seconds", "0", "--json", env=env, expect=4)
    details = [f["detail"] for f in result.json["findings"]]
    assert any("EJKERNEL_AUTOTUNE_POLYCY" in d for d in details)
    assert any("sometimes" in d for d in details)
    assert any("broken.json" in d for d in details)


def test_doctor_knows_the_variables_that_the_readme_lists():
    shown = set(re.findall(r"(?m)^\| `(EJKERNEL_\w+)` \|", (ROOT / "README.md").read_text()))
    known = set(re.findall(r'"(EJKERNEL_\w+)"', (ROOT / "cli/doctor.cpp").read_text()))
    assert shown == known
