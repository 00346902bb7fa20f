# SPDX-License-Identifier: Apache-2.0
"""The tool `ejk`, and what stores and records of it look like."""

import hashlib
import json
import os
import pathlib
import pty
import re
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("EJK_BUILD_DIR", ROOT / "build/dev"))
TOOL = BUILD / "cli/ejk"
PLUGINS = BUILD / "tests/plugins"
VERBS = [
    "devices", "ls", "show", "explain", "labels", "what-if", "top", "report", "serve", "doctor", "tune",
    "bench", "fleet status",
    "export", "import", "merge", "prune", "quarantine ls", "quarantine clear", "snapshot publish", "snapshot fetch",
    "snapshot show", "store init", "store check", "store upgrade", "store push",
    "completion", "manual",
]  # fmt: skip
SPEC = '{"args_spec":[{"dtype":"float32","shape":[8,4]}],"batch_axes":null,"kwargs_spec":{},"method":null}'


def entry(device, op="gemm@v1", spec=SPEC, config=None, samples=40, **members):
    key = hashlib.sha256(spec.encode()).hexdigest()[:16]
    candidates = [
        {"config": {"block": 64, "threads": 1}, "status": "ok", "seconds": 1e-3, "ratio": 0.5,
         "ratio_low": 0.49, "ratio_high": 0.52, "samples": 40},
        {"config": {"block": 16, "threads": 1}, "status": "slower", "seconds": 2e-3, "ratio": 1.0,
         "ratio_low": 0.99, "ratio_high": 1.01, "samples": 20},
        {"config": {"block": 64, "threads": 2}, "status": "slower", "seconds": 1.5e-3, "ratio": 0.75,
         "ratio_low": 0.7, "ratio_high": 0.8, "samples": 20},
        {"config": {"block": 7, "threads": 9}, "status": "rejected", "kind": "crashed",
         "why": "SIGSEGV", "seconds": 0, "ratio": 0, "ratio_low": 0, "ratio_high": 0, "samples": 0},
    ]  # fmt: skip
    out = {
        "schema": 1, "op": op, "key": key, "spec": json.loads(spec) if spec.startswith("{") else spec,
        "device": {"fingerprint": device["fingerprint"], "identity": device["identity"]},
        "environment": device["environment"], "outcome": "tuned",
        "config": config or {"block": 64, "threads": 1}, "provenance": "measured",
        "evidence": {
            "seconds": 1e-3, "seconds_low": 0.98e-3, "seconds_high": 1.03e-3, "heuristic_seconds": 2e-3,
            "heuristic_config": {"block": 16, "threads": 1},
            "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "noise": 0.012, "samples": samples,
            "complete": True, "strategy": "race", "clock": "thread_cpu", "cache": "warm",
            "guard": "child", "data": "call", "library": "0.1.0", "time": "2024-05-06T07:08:09Z",
        },
        "candidates": candidates,
    }  # fmt: skip
    for name, value in members.items():
        if name in out["evidence"]:
            out["evidence"][name] = value
        else:
            out[name] = value
    return out


def exported(path, *entries):
    path.write_text("\n".join(json.dumps(line) for line in [{"ejk_export": 1}, *entries]) + "\n")
    return path


KEY = hashlib.sha256(SPEC.encode()).hexdigest()[:16]


SHIFTED = ["plugin.shifted", "--arg", "f32[256]", "--arg", "f32[256]"]


def slug(text):
    """The name of a folder, as docs/reference/store_format.md says."""
    name = re.sub(rb"[^A-Za-z0-9@_+.-]", b"_", text.encode()[:48]).decode()
    return re.sub(r"^\.", "_", name) + "-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def record(folder, device, tuned, calls=100, seconds=2.0, **changes):
    """A recorded call like one that was tuned on the line."""
    spec = json.dumps(tuned["spec"], sort_keys=True, separators=(",", ":"))
    sketch = {"dtype": "float32", "shape": [256]}
    out = {"schema": 1, "op": tuned["op"], "key": tuned["key"], "device": device["fingerprint"],
           "platform": "cpu", "context": "", "spec": spec, "members": None, "batch_axes": None,
           "arguments": [{**sketch, "data": {"mean": 0.0, "deviation": 1.0, "seed": 7}}, sketch],
           "calls": calls, "timed_calls": calls, "timed_seconds": seconds,
           "first": "2024-01-01T00:00:00Z", "last": "2024-01-02T00:00:00Z", **changes}  # fmt: skip
    path = folder / "v1" / slug(out["device"]) / slug(out["op"]) / (hashlib.sha256(out["spec"].encode()).hexdigest()[:32] + ".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(out))
    return out


def digits(value):
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def measured(folder, entry, version=2):
    """An entry in a store as its own tuning would have left it there."""
    call = folder / f"v{version}" / slug(entry["device"]["fingerprint"]) / slug(entry["op"]) / digits(entry["spec"])
    path = call / f"{digits([entry['environment'], False])}.json" if version == 2 else call.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry))
    return path


def of_op(shifted, op):
    """A call like that of the plugin's kernel, of another op."""
    return {"op": op, "key": shifted["key"], "spec": shifted["spec"]}


def wait_for(look, what, seconds=60):
    """Looks until it finds something, and gives that. `what` is waited for."""
    patience = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < patience, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return found


def on_terminal(line, columns, **env):
    """What a command prints on a terminal of so many columns."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", **env})
        os.execv("/bin/sh", ["sh", "-c", f"stty cols {columns}; exec {line}"])
    out = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    os.waitpid(pid, 0)
    os.close(fd)
    return out.decode().replace("\r\n", "\n")
