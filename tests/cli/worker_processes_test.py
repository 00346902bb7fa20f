# SPDX-License-Identifier: Apache-2.0
"""Kernels that crash, exit, hang or speak another language."""

import hashlib
import json
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from tool import PLUGINS, SHIFTED, TOOL, of_op, record, wait_for


def processes_with(text):
    """Numbers of the processes in whose environment this stands."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


WORKER = r"""
import json, os, subprocess, sys
print(json.dumps({"event": "ready", "protocol": 1, "device": "any", "process": os.getpid()}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    assert request["protocol"] == 1 and request["budget_seconds"] > 0 and request["store"].endswith("kept")
    record = request["record"]
    print(json.dumps({"event": "progress", "tried": 1, "candidates": 2}), flush=True)
    if record["arguments"][0]["python"] == "other:Kernel":
        answer = {"event": "failed", "kind": "invalid_argument", "message": "other is not imported"}
    else:
        entry = {"schema": 1, "op": record["op"], "key": record["key"], "spec": record["spec"],
                 "device": {"fingerprint": record["device"]}, "outcome": "tuned", "config": {"block": 3}}
        lines = json.dumps({"ejk_export": 1}) + "\n" + json.dumps(entry) + "\n"
        subprocess.run([sys.argv[1], "import", "-", "--store", request["store"]], input=lines, text=True,
                       check=True, stdout=subprocess.DEVNULL)
        answer = {"event": "tuned", "entry": entry}
    print(json.dumps(answer), flush=True)
"""


def test_kernels_that_crash_exit_or_hang_cost_their_own_calls(ejk, bad, shifted, device, tmp_path):
    folder = tmp_path / "store/recorded"
    for seconds, op in enumerate(["plugin.shifted", "bad.crash", "bad.hook.hang", "bad.hook.exit", "bad.hook.crash"], 1):
        record(folder, device, of_op(shifted, op + "@v1"), seconds=float(seconds))
    result = ejk("tune", "--recorded", *bad, "--deadline", "6", "--budget-per-call", "1", "--json", expect=1)
    assert {t["op"] for t in result.json["tuned"]} == {"plugin.shifted@v1", "bad.crash@v1"}
    assert all(t["kept"] for t in result.json["tuned"])
    assert re.search(r'bad.crash@v1\] .*(SIGSEGV|exit code 1) while it ran {"block":2}.*a fresh one goes on', result.stderr)
    why = {s["op"]: s["why"] for s in result.json["skipped"] if s["lost"]}
    # A sanitizer turns the signal into an exit.
    assert re.search(r"(SIGSEGV|exit code 1) .*--in-process", why["bad.hook.crash@v1"])
    assert "exit code 7" in why["bad.hook.exit@v1"]
    assert "did not answer within 7 s" in why["bad.hook.hang@v1"]
    (crashed,) = ejk("show", "bad.crash:", "--json").json["entries"]
    by_block = {c["config"]["block"]: c for c in crashed["candidates"]}
    assert crashed["config"]["block"] != 2 and "processes died" in by_block[2]["why"]
    text = ejk("tune", "--recorded", "--op", "bad.hook.exit", *bad, expect=1).stdout
    assert re.search(r"not tuned: bad.hook.exit@v1:\w{16}: .*exit code 7", text)


def test_a_call_on_the_line_that_ends_its_worker_is_told(ejk, bad):
    line = ["tune", "bad.hook.exit", "--arg", "f32[8]", "--arg", "f32[8]", *bad]
    assert "exit code 7" in ejk(*line, expect=1).stdout
    ejk(*line, "--in-process", expect=7)


def test_in_this_process_the_same_is_found(ejk, plugin):
    (tuned,) = ejk("tune", *SHIFTED, *plugin, "--in-process", "--json").json["tuned"]
    assert tuned["op"] == "plugin.shifted@v1" and tuned["kept"]
    assert "cannot be used together" in ejk("tune", *SHIFTED, *plugin, "--in-process", "--worker", "x", expect=2).stderr


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_tool(ejk, start, shifted, device, tmp_path, kill):
    (library,) = PLUGINS.glob("*slow.so")
    for n in range(3):
        spec = json.loads(json.dumps(shifted["spec"]).replace("256", str(256 + n)))
        text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        sketch = {"dtype": "float32", "shape": [256 + n]}
        record(tmp_path / "recorded", device, {"op": "plugin.slow@v1", "key": key, "spec": spec},
               arguments=[{**sketch, "data": {"seed": 1}}, sketch])  # fmt: skip
    command = [TOOL, "tune", "--recorded", "--recorded-in", tmp_path / "recorded", "--plugin", library,
               "--budget-per-call", "100", "--store", tmp_path / "slow", "--json"]  # fmt: skip
    tool = start(command, env={"EJK_TEST_MARK": str(tmp_path)})
    for line in tool.stderr:
        if " of 100 tried" in line:
            break
    assert len(processes_with(str(tmp_path))) >= 2
    tool.send_signal(kill)
    out, _ = tool.communicate(timeout=60)
    wait_for(lambda: not processes_with(str(tmp_path)), "the end of the workers")
    if kill == signal.SIGINT:
        assert tool.returncode == 130
        told = json.loads(out)
        assert told["interrupted"] and [t["kept"] for t in told["tuned"]] == [True]
        assert ["stopped before its turn" in s["why"] for s in told["skipped"]] == [True, True]
        assert list((tmp_path / "slow").rglob("*.intent")) == []


def test_kernels_of_other_languages_are_tuned_by_workers_of_theirs(ejk, shifted, device, tmp_path):
    for op, name in [("my.norm@v0", "mine:Norm"), ("my.other@v0", "other:Kernel")]:
        sketch = {"python": name, "kernel": {}, "args": [], "kwargs": {}}
        record(tmp_path / "store/recorded", device, of_op(shifted, op), arguments=[sketch])
    without = ejk("tune", "--recorded", "--json", expect=1).json["skipped"]
    assert "python -m ejk tune --import mine" in without[0]["why"] and "--import other" in without[1]["why"]
    (tmp_path / "speaks.py").write_text(WORKER)
    command, records = f"{sys.executable} speaks.py {TOOL}", ["--recorded-in", tmp_path / "store/recorded"]
    result = ejk("tune", "--recorded", "--worker", command, "--store", tmp_path / "kept", *records, "--json").json
    (tuned,) = result["tuned"]
    assert (tuned["op"], tuned["config"], tuned["kept"]) == ("my.norm@v0", {"block": 3}, True)
    assert [(s["op"], s["why"], s["lost"]) for s in result["skipped"]] == [("my.other@v0", "other is not imported", False)]


@pytest.mark.parametrize(
    "command, says",
    [
        ("echo rubbish", "not an answer"),
        ("exit 3", "exit code 3 before it was ready"),
        ("no-such-program-here", "exit code 127 before it was ready"),
        ("""echo '{"event":"ready","protocol":1}'; read request; echo rubbish; sleep 60""", "rubbish"),
    ],
)
def test_workers_that_do_not_work_are_told(ejk, shifted, device, tmp_path, command, says):
    sketch = {"python": "mine:Norm", "kernel": {}, "args": [], "kwargs": {}}
    record(tmp_path / "store/recorded", device, of_op(shifted, "my.norm@v0"), arguments=[sketch])
    assert says in ejk("tune", "--recorded", "--worker", command, expect=1).stdout


def test_waiting_for_a_worker_is_said(ejk, shifted, device, tmp_path):
    sketch = {"python": "mine:Norm", "kernel": {}, "args": [], "kwargs": {}}
    record(tmp_path / "store/recorded", device, of_op(shifted, "my.norm@v0"), arguments=[sketch])
    assert "waiting for the worker" in ejk("tune", "--recorded", "--worker", "sleep 4; exit 3", expect=1).stderr


def test_a_worker_answers_a_request_by_hand(ejk, device):
    request = {"protocol": 1, "record": {"schema": 1}, "store": "", "budget_seconds": 1}
    lines = json.dumps(request) + "\nnonsense\n"
    told = [json.loads(line) for line in ejk("worker", input=lines).stdout.splitlines()]
    assert [t["event"] for t in told] == ["ready", "failed", "failed"]
    assert told[0]["device"] == device["fingerprint"] and told[1]["kind"] == "parse"


def test_ctrl_c_reaches_a_worker_that_never_stops_talking(start, device, shifted, tmp_path):
    (tmp_path / "talker.py").write_text("""
import json, os, signal, sys
def say(**what): os.write(1, (json.dumps(what) + "\\n").encode())  # sys.stdout takes no calls within calls
def stop(*_): say(event="failed", kind="no_configuration", message="heard it"); os._exit(0)
signal.signal(signal.SIGINT, stop)
say(event="ready", protocol=1, device=sys.argv[1], process=os.getpid())
sys.stdin.readline()
open(sys.argv[2], "w").close()
while True: say(event="progress", tried=1, candidates=3)
""")
    record(tmp_path / "r", device, of_op(shifted, "foreign@v1"))
    worker = f"exec {sys.executable} {tmp_path}/talker.py '{device['fingerprint']}' {tmp_path}/talks"
    line = [TOOL, "tune", "--recorded", "--recorded-in", tmp_path / "r", "--worker", worker, "--store", tmp_path / "s",
            "--budget-per-call", "300"]  # fmt: skip
    process = start(line, stderr=subprocess.DEVNULL)
    wait_for((tmp_path / "talks").exists, "the worker's first word")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 130 and "heard it" in said


def test_a_second_answer_is_not_taken_for_that_to_the_next_call(ejk, device, shifted, tmp_path):
    (tmp_path / "twice.py").write_text("""
import json, os, sys
def say(*all): os.write(1, "".join(json.dumps(what) + "\\n" for what in all).encode())
say({"event": "ready", "protocol": 1, "device": sys.argv[1], "process": os.getpid()})
for line in sys.stdin:
    answer = {"event": "failed", "kind": "other", "message": "about " + json.loads(line)["record"]["op"]}
    say(answer, answer)
""")
    for op, seconds in [("a@v1", 3.0), ("b@v1", 2.0), ("c@v1", 1.0)]:
        record(tmp_path / "r", device, of_op(shifted, op), seconds=seconds)
    worker = f"exec {sys.executable} {tmp_path}/twice.py '{device['fingerprint']}'"
    told = ejk("tune", "--recorded", "--recorded-in", tmp_path / "r", "--worker", worker, "--json", expect=1).json
    assert [(s["op"], s["why"]) for s in told["skipped"]] == [(op, "about " + op) for op in ("a@v1", "b@v1", "c@v1")]
