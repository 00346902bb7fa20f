# SPDX-License-Identifier: Apache-2.0
"""The tool `ejk` as an operator meets it, every verb as a process of its own."""

import hashlib
import html.parser
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("EJK_BUILD_DIR", ROOT / "build/dev"))
TOOL = BUILD / "cli/ejk"
PLUGINS = BUILD / "tests/plugins"
VERBS = [
    "devices", "ls", "show", "explain", "labels", "what-if", "report", "doctor", "tune", "bench",
    "export", "import", "merge", "prune", "quarantine ls", "quarantine clear", "completion", "manual",
]  # fmt: skip
SPEC = '{"args_spec":[{"dtype":"float32","shape":[8,4]}],"batch_axes":null,"kwargs_spec":{},"method":null}'


@pytest.fixture(scope="session", autouse=True)
def the_tool_is_built():
    assert TOOL.exists(), f"{TOOL} is not there: cmake --preset dev && cmake --build --preset dev"


@pytest.fixture
def ejk(tmp_path):
    """Runs the tool in an empty home; `expect` is the exit code, the result has .json if it parses."""

    def call(*arguments, expect=0, env=None, text=True, **how):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store"),
            **(env or {}),
        }
        result = subprocess.run(
            [TOOL, *map(str, arguments)],
            env=environment, capture_output=True, text=text, timeout=120, **{"cwd": tmp_path, **how},
        )  # fmt: skip
        assert expect is None or result.returncode == expect, (arguments, result.returncode, result.stdout, result.stderr)
        if "--json" in arguments and result.stdout:
            result.json = json.loads(result.stdout, parse_constant=pytest.fail)
        return result

    (tmp_path / "home").mkdir()
    return call


@pytest.fixture
def device(ejk):
    return ejk("devices", "--json").json["devices"][0]


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


@pytest.fixture
def store(ejk, device, tmp_path):
    """The default store with two entries."""
    other = SPEC.replace("8,4", "16,4")
    exported(tmp_path / "two.jsonl", entry(device), entry(device, op="norm@v2", spec=other))
    ejk("import", tmp_path / "two.jsonl")
    return tmp_path / "store"


KEY = hashlib.sha256(SPEC.encode()).hexdigest()[:16]


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(ejk, verb):
    text = ejk(*verb.split(), "--help").stdout
    assert "--json" in text and "Usage" in text


def test_help_names_every_verb_and_the_manual_every_verb_and_option(ejk):
    text = ejk("--help").stdout
    manual = ejk("manual").stdout.replace("\\-", "-")
    for verb in VERBS:
        assert verb.split()[0] in text
        assert f'.SS "ejk {verb}"' in manual
        section = manual.split(f'.SS "ejk {verb}"')[1].split(".SS")[0].split(".SH")[0]
        for option in re.findall(r"(?m)^  (--[\w-]+)", ejk(*verb.split(), "--help").stdout):
            assert option in section, (verb, option)
    for code in ["0", "1", "2", "3", "4", "130", "141"]:
        assert f".B {code}\n" in manual


def test_the_manual_is_good_roff(ejk, tmp_path):
    manual = tmp_path / "ejk.1"
    manual.write_text(ejk("manual").stdout)
    try:
        checked = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", manual], capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("groff is not installed")
    assert checked.returncode == 0 and checked.stderr == ""
    assert "EXIT STATUS" in re.sub(".\x08", "", checked.stdout)


def test_completion_knows_verbs_and_options(ejk, tmp_path):
    script = tmp_path / "ejk.bash"
    script.write_text(ejk("completion", "bash").stdout)

    def complete(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = f". {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _ejk; echo ${{COMPREPLY[@]}}"
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert complete("ejk", "do") == ["doctor"]
    assert set(complete("ejk", "")) >= {verb.split()[0] for verb in VERBS}
    assert complete("ejk", "ls", "--st") == ["--store"]
    assert {"ls", "clear"} <= set(complete("ejk", "quarantine", ""))
    assert "--store" not in complete("ejk", "quarantine", "l")
    assert ejk("completion", "bash", "--json").json["text"] == script.read_text()
    for shell in ["zsh", "fish"]:
        assert "what-if" in ejk("completion", shell).stdout
    assert "tcsh" in ejk("completion", "tcsh", expect=2).stderr


def test_completion_knows_files_ops_keys_and_shells(ejk, store, tmp_path):
    (tmp_path / "ejk").symlink_to(TOOL)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.hlo").write_text("")
    (tmp_path / "ejk.bash").write_text(ejk("completion", "bash").stdout)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}

    def complete(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = f". ./ejk.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _ejk; echo ${{COMPREPLY[@]}}"
        run = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
        assert run.stderr == ""
        return run.stdout.split()

    assert complete("ejk", "ls", "--store", "fo") == ["folder"]
    assert "file.hlo" not in complete("ejk", "ls", "--store", "")
    assert complete("ejk", "labels", "fi") == ["file.hlo"]
    assert complete("ejk", "tune", "--lowered", "fi") == ["file.hlo"]
    assert complete("ejk", "show", KEY[:6]) == [KEY]
    assert complete("ejk", "ls", "--op", "no") == complete("ejk", "ls", "no") == ["norm@v2"]
    assert complete("ejk", "completion", "") [-3:] == ["bash", "zsh", "fish"]
    assert complete("ejk", "tune", "--budget", "") == []


@pytest.mark.parametrize("line, code", [("show abc", 3), ("lss", 2), ("prune", 2), ("ls --budget", 2), ("ls --store /nothing", 3)])
def test_with_json_an_error_is_a_document_too(ejk, line, code):
    result = ejk(*line.split(), "--json", expect=code)
    assert list(result.json) == ["error"] and result.json["error"] in result.stderr


@pytest.mark.parametrize(
    "line, says",
    [
        ("", "a verb is needed"),
        ("lss", "did you mean ls?"),
        ("qqqqqqqq", "no verb"),
        ("ls --no-such-option", "--no-such-option"),
        ("show", "key is required"),
        ("show abc --candidates -1", "--candidates"),
        ("prune", "--older-than"),
        ("prune --older-than soon", "30d"),
        ("quarantine clear", "--all"),
        ("quarantine", "subcommand: ls clear"),
        ("quarantine frob", "subcommand: ls clear"),
        ("tune --recorded --budget -1", "--budget: -1 is no number from 0 on"),
        ("tune --recorded --budget nan", "--budget: nan is no number from 0 on"),
        ("tune --recorded --budget inf", "--budget: inf is no number from 0 on"),
        ("bench --seconds 0", "--seconds: 0 is no number above 0"),
        ("what-if --min-coverage 101", "--min-coverage: 101 is no number from 0 to 100"),
        ("tune --lowered f --dry-run", "--dry-run shows the order of --recorded"),
        ("tune matmul", "0 arguments are given and run takes"),
        ("tune matmul", "--arg f32[512,512]"),
        ("tune softmax --arg f32[4,8] --arg foo --arg f32[4,8]", "Softmax<float>: argument 1, a"),
        ("tune softmax --arg f32[4,8] --arg foo --arg f32[4,8]", "argument 0, a"),
        ("tune softmax --arg f32[4,8 --arg 1 --arg f32[4,8]", "no ']'"),
        ("tune", "--recorded"),
        ("tune --recorded --lowered f", "--recorded"),
        ("tune --arg f32[2] --recorded", "--arg"),
        ("doctor --seconds -1", "--seconds"),
        ("merge a a", "into itself"),
        ("show :", "is no key"),
    ],
)
def test_wrong_command_lines_are_refused_with_a_word(ejk, line, says):
    result = ejk(*line.split(), expect=2)
    assert says in result.stderr and result.stdout == ""


def test_version(ejk):
    assert re.fullmatch(r"ejk \d+\.\d+\.\d+\n", ejk("--version").stdout)


# ---- looking ------------------------------------------------------------------------------------


def test_devices(ejk, device):
    assert device["platform"] == "cpu" and device["fingerprint"].startswith("cpu|")
    assert device["fingerprint"] in ejk("devices").stdout


def test_ls_lists_what_is_there(ejk, store, device):
    listed = ejk("ls", "--json").json["entries"]
    assert [e["op"] for e in listed] == ["gemm@v1", "norm@v2"]
    assert listed[0]["key"] == KEY and listed[0]["config"] == {"block": 64, "threads": 1}
    assert pathlib.Path(listed[0]["file"]).exists()
    text = ejk("ls").stdout
    assert "(this machine)" in text and "block=64 threads=1" in text and "float32[8,4]" in text
    assert [e["op"] for e in ejk("ls", "norm", "--json").json["entries"]] == ["norm@v2"]
    assert ejk("ls", "norm@v1", "--json", expect=3).json["entries"] == []
    assert len(ejk("ls", "--device", "this", "--json").json["entries"]) == 2
    assert ejk("ls", "--device", "gpu", "--json").json["entries"] == []


def test_looking_changes_nothing(ejk, store):
    (store / "v1/x/y").mkdir(parents=True)
    (store / "v1/x/y/broken.json").write_text("{")

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


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202egnp\x7f\r\n\tz"


def test_hostile_text_never_reaches_a_terminal_raw(ejk, device, tmp_path):
    bad = entry(device, op=f"op{HOSTILE}@v1", config={f"n{HOSTILE}": HOSTILE})
    bad["candidates"][3]["why"] = HOSTILE
    bad["provenance"] = HOSTILE
    bad["device"]["fingerprint"] = f"cpu|{HOSTILE}"
    exported(tmp_path / "bad", bad)
    imported = ejk("import", tmp_path / "bad")
    damaged = tmp_path / f"store/v1/a{HOSTILE.replace('/', '')}/b"
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


def test_a_terminal_gets_bold_titles_and_lines_that_fit_and_a_pipe_neither(ejk, store, tmp_path):
    assert "\x1b" not in ejk("ls").stdout

    def on_terminal(**env):
        pid, fd = pty.fork()
        if pid == 0:
            os.environ.update({"EJKERNEL_PERSISTENT_CACHE_DIR": str(store), "TERM": "xterm", **env})
            os.execv("/bin/sh", ["sh", "-c", f"stty cols 40; exec {TOOL} ls"])
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
        return out.decode()

    bold = on_terminal()
    assert "\x1b[1mOP" in bold
    rows = [line for line in re.sub(r"\x1b\[\d*m", "", bold).splitlines() if KEY[:4] in line or "norm@" in line]
    assert rows and all(len(row) <= 40 for row in rows)
    assert "\x1b" not in on_terminal(NO_COLOR="1")


def test_damaged_files_are_told_and_passed_over(ejk, store):
    (store / "v1/x/y").mkdir(parents=True)
    (store / "v1/x/y/broken.json").write_text('{"schema": 1,')
    result = ejk("ls", "--json")
    assert len(result.json["entries"]) == 2
    assert any("broken.json" in problem for problem in result.json["problems"])
    assert "broken.json" in result.stderr


# ---- moving -------------------------------------------------------------------------------------


def test_export_and_import_keep_every_byte(ejk, store, tmp_path):
    ejk("export", "all.jsonl")
    ejk("import", "--store", tmp_path / "copy", "all.jsonl")
    files = lambda root: {str(p.relative_to(root)): p.read_text() for p in (root / "v1").rglob("*.json")}  # noqa: E731
    assert files(tmp_path / "copy") == files(store) and len(files(store)) == 2
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
    }))  # fmt: skip
    told = ejk("import", folder, "--json").json
    assert (told["added"], told["heuristics"]) == (2, 1)
    configs = {e["key"][:4]: e["config"] for e in ejk("ls", "--json").json["entries"]}
    assert configs == {"5fec": {"a": 1}, "d473": {"config": {"a": 3}, "other": 1}}
    assert ejk("import", folder, "--with-heuristics", "--json").json["added"] == 1


def test_a_measurement_takes_the_place_of_an_import(ejk, device, tmp_path):
    key = KEY
    (tmp_path / "c.json").write_text(json.dumps({f"cpu|cpu|gemm@v1|{key}": {"block": 1, "threads": 1}}))
    ejk("import", "--as-device", "this", tmp_path / "c.json")
    exported(tmp_path / "m", entry(device))
    ejk("import", tmp_path / "m")
    blocks = {e["config"]["block"] for e in ejk("ls", "--json").json["entries"]}
    assert 64 in blocks
    assert ejk("explain", f"gemm:{key}", "--json").json["stored"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"a": 1}', '{"ejk_export": 99}\n', "\x00\xff", '{"schema": 1, "op": "x"}', "[" * 10000],
)
def test_what_is_no_cache_is_refused(ejk, tmp_path, content):
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
    assert "no store" in ejk("import", "empty", expect=3).stderr
    assert "empty" in ejk("merge", "into", "empty", expect=3).stderr


# ---- keeping ------------------------------------------------------------------------------------


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
    bad = store / "v1/x/y/z.json.bad"
    bad.parent.mkdir(parents=True)
    bad.write_text("{")
    ejk("prune", "--failed")
    assert bad.exists()
    assert ejk("prune", "--damaged", "--json").json["files"] == [str(bad)]
    assert not bad.exists() and len(ejk("ls", "--json").json["entries"]) == 2


def test_what_doctor_calls_damaged_is_what_prune_removes(ejk, device, shifted, store):
    record(store / "recorded", device, shifted)
    folder = next((store / "v1").glob("*/*"))
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


def test_an_export_without_what_cannot_be_read_is_written_and_fails(ejk, store, tmp_path):
    (next((store / "v1").glob("*/*")) / "broken.json").write_text("{")
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


def quarantine_record(store, device, op="crash@v1"):
    record = {"schema": 1, "op": op, "key": KEY, "spec": SPEC, "device": device["fingerprint"],
              "environment": device["environment"], "config": {"block": 3}, "why": "crashed: SIGSEGV",
              "time": "2024-01-01T00:00:00Z"}  # fmt: skip
    whole = [record[n] for n in ("device", "op", "key", "spec", "environment", "config")]
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    folder = store / "quarantine"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (hashlib.sha256(text.encode()).hexdigest()[:32] + ".json")).write_text(json.dumps(record))


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


# ---- the machine --------------------------------------------------------------------------------


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


# ---- calls and kernels --------------------------------------------------------------------------

SHIFTED = ["plugin.shifted", "--arg", "f32[256]", "--arg", "f32[256]"]


@pytest.fixture
def plugin():
    (library,) = PLUGINS.glob("*kernels.so")
    return ["--plugin", library]


def slug(text):
    """The name of a folder, as docs/store_format.md says."""
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


@pytest.fixture
def shifted(ejk, plugin, tmp_path):
    """The tuned entry of a kernel from a plugin, in a store of its own."""
    (tuned,) = ejk("tune", *SHIFTED, *plugin, "--json", "--store", tmp_path / "first").json["tuned"]
    return tuned


def test_tune_a_call_given_on_the_line(ejk, plugin):
    result = ejk("tune", *SHIFTED, *plugin, "--json").json
    (tuned,) = result["tuned"]
    assert tuned["op"] == "plugin.shifted@v1" and tuned["config"]["block"] in (1, 2)
    assert tuned["call"] == "float32[256]" and not tuned["already"]
    (stored,) = ejk("ls", "--json").json["entries"]
    assert stored["key"] == tuned["key"] and len(tuned["key"]) == 16
    again = ejk("tune", *SHIFTED, *plugin, "--json").json
    assert again["tuned"][0]["already"] and "--retune" in again["note"]
    assert not ejk("tune", *SHIFTED, *plugin, "--retune", "--json").json["tuned"][0]["already"]


@pytest.mark.parametrize(
    "args, code, says",
    [
        (["nobody", "--arg", "f32[2]"], 3, "plugin.shifted@v1"),
        (["plugin.shifted"], 2, "0 arguments are given and run takes 2"),
        (["plugin.shifted", "--arg", "f99[2]", "--arg", "f32[2]"], 2, "f99"),
        (["plugin.shifted", "--arg", "f32[2,x]", "--arg", "f32[2]"], 2, "no number"),
        (["plugin.shifted", "--arg", "f32[-2]", "--arg", "f32[2]"], 2, "negative"),
        (["plugin.shifted", "--arg", "f32[2]:5", "--arg", "f32[2]"], 2, "LOW..HIGH"),
        (["plugin.shifted", "--arg", "f32[2]:5..1", "--arg", "f32[2]"], 2, "empty"),
        (["plugin.shifted", "--arg", "i32[2]", "--arg", "f32[2]"], 2, "[plugin.shifted@v1] the call cannot be made: argument 0"),
        (["plugin.shifted", "--arg", "f32[999999999999]", "--arg", "f32[2]"], 2, "fit"),
        (["plugin.shifted", "--arg", "f32[2]", "--arg", "7"], 2, "argument 1"),
    ],
)
def test_calls_that_cannot_be_made_are_refused(ejk, plugin, args, code, says):
    result = ejk("tune", *args, *plugin, expect=code)
    assert says in result.stderr and result.stdout == ""


def test_a_tuning_that_cannot_be_kept_is_a_failure(ejk, plugin, tmp_path):
    (tmp_path / "file").write_text("")
    result = ejk("tune", *SHIFTED, *plugin, "--json", "--store", tmp_path / "file/store", expect=1)
    assert not result.json["tuned"][0]["kept"] and "file/store" in result.stderr


@pytest.mark.parametrize(
    "library, says",
    [("none", "not a library of kernels"), ("old", "0.0.9"), ("missing", "cannot load"), ("unlinked", "ejk::ejk")],
)
def test_plugins_that_do_not_fit_are_refused(ejk, library, says):
    found = list(PLUGINS.glob(f"*{library}.so")) or [PLUGINS / "missing.so"]
    assert says in ejk("tune", "x", "--plugin", found[0], expect=1).stderr


def test_recorded_calls_are_planned_and_tuned(ejk, plugin, shifted, device, tmp_path):
    folder = tmp_path / "store/recorded"
    record(folder, device, shifted)
    (planned,) = ejk("tune", "--recorded", "--dry-run", *plugin, "--json").json["plan"]
    assert planned["known"] and planned["calls"] == 100 and planned["seconds"] == 2.0
    (tuned,) = ejk("tune", "--recorded", *plugin, "--json").json["tuned"]
    assert tuned["key"] == shifted["key"] and tuned["evidence"]["data"] == "recorded sketch"
    assert ejk("tune", "--recorded", *plugin, "--json").json["tuned"][0]["already"]
    assert ejk("tune", "--recorded", "--dry-run", *plugin, "--json", expect=3).json["plan"] == []


def test_recorded_calls_of_unknown_kernels_are_told(ejk, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    result = ejk("tune", "--recorded", "--json", expect=1)
    assert "registered" in result.json["skipped"][0]["why"] and result.json["note"]
    assert "--plugin" in result.json["skipped"][0]["why"]


def test_reasons_of_several_lines_are_lines(ejk, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, of_op(shifted, "softmax@v1"))
    told = ejk("tune", "--recorded", expect=1).stdout
    assert re.search(r"(?m)^not tuned: softmax@v1 .*Softmax<float>: ", told)
    assert re.search(r"(?m)^  ejk::ops::Softmax<ejk::BFloat16>: ", told) and "\\n" not in told


def test_nothing_recorded_is_said(ejk, tmp_path):
    assert "nothing was tuned" in ejk("tune", "--recorded", expect=3).stdout
    assert "no folder" in ejk("tune", "--recorded", "--recorded-in", tmp_path / "x", expect=3).stderr
    assert "EJKERNEL_OPS_RECORD" in ejk("what-if", expect=3).stderr
    assert ejk("bench", expect=3).stderr


def test_lowered_computations_are_listed_and_tuned(ejk, plugin, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    label = f"ejkernel_ops#{shifted['op']}:{shifted['key']}"
    lowered = tmp_path / "m.mlir"
    lowered.write_text(
        "module @jit_f {\n  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {\n"
        f'    %0 = stablehlo.add %arg0, %arg0 {{mhlo.frontend_attributes = {{ejkernel_label = "{label}"}}}} : tensor<2xf32>\n'
        f'    %1 = stablehlo.add %0, %0 {{mhlo.frontend_attributes = {{ejkernel_label = "{label}"}}}} : tensor<2xf32>\n'
        "    return %1 : tensor<2xf32>\n  }\n}\n"
    )
    (found,) = ejk("labels", lowered, "--json").json["files"]
    assert [(l["op"], l["key"], l["count"], l["stored"]) for l in found["labels"]] == [
        (shifted["op"], shifted["key"], 2, "nothing")
    ]
    (tuned,) = ejk("tune", "--lowered", lowered, *plugin, "--json").json["tuned"]
    assert tuned["key"] == shifted["key"]
    assert re.search(r"(tuned|unresolved): block=\d", ejk("labels", lowered).stdout)
    (tmp_path / "plain").write_text("nothing here")
    nothing = ejk("labels", tmp_path / "plain", expect=3)
    assert nothing.stdout and "no label was found" in nothing.stderr
    cut = lowered.read_text()
    (tmp_path / "cut.mlir").write_text(cut[: cut.index(shifted["key"]) + 4])
    assert "the file was cut off" in ejk("labels", tmp_path / "cut.mlir").stdout
    elsewhere = ["--recorded-in", tmp_path / "nothing"]
    (tmp_path / "nothing").mkdir()
    assert "nothing is recorded" in ejk("tune", "--lowered", lowered, *plugin, *elsewhere, "--retune", expect=3).stdout
    assert "missing.hlo" in ejk("labels", "missing.hlo", expect=3).stderr
    assert "missing.hlo" in ejk("tune", "--lowered", "missing.hlo", expect=3).stderr


def test_what_takes_long_says_so(ejk, tmp_path):
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    tool = subprocess.Popen([TOOL, "import", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert "reading standard input" in tool.stderr.readline()
    tool.communicate("{}", timeout=60)
    assert tool.returncode == 1


def test_explain_a_recorded_call_tier_by_tier(ejk, plugin, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    (told,) = ejk("explain", shifted["key"], *plugin, "--json").json["calls"]
    assert told["origin"] == "autotune"
    ejk("tune", "--recorded", *plugin)
    (told,) = ejk("explain", shifted["key"], *plugin, "--json").json["calls"]
    assert told["origin"] == "persistent"
    assert "persistent" in ejk("explain", shifted["key"], *plugin).stdout


def test_bench_measures_what_is_stored_and_keeps_nothing(ejk, plugin, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    assert "nothing is stored" in ejk("bench", *plugin, "--seconds", "0.2", expect=1).stdout
    ejk("tune", "--recorded", *plugin)
    before = {str(p): p.read_bytes() for p in (tmp_path / "store").rglob("*.json")}
    for line in [["bench"], ["bench", *SHIFTED]]:
        (row,) = ejk(*line, *plugin, "--seconds", "0.3", "--json").json["benchmarks"]
        assert row["seconds"] > 0 and row["heuristic_seconds"] > 0
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    assert {str(p): p.read_bytes() for p in (tmp_path / "store").rglob("*.json")} == before


def test_what_if_counts_coverage_and_regret(ejk, shifted, device, store):
    record(store / "recorded", device, shifted, calls=300, seconds=3.0)
    known = {"op": "gemm@v1", "key": KEY, "spec": json.loads(SPEC)}
    record(store / "recorded", device, known, calls=100, seconds=9.0)
    result = ejk("what-if", "--json").json
    assert result["coverage"] == {"calls": 0.25, "time": 0.75}
    assert (result["calls"], result["seconds"]) == (400, 12.0)
    assert {t["tier"]: t["calls"] for t in result["tiers"] if t["calls"]} == {"measured here": 100, "nothing: heuristic": 300}
    (todo,) = result["to_tune"]
    # Two stored tunings halved their times, so more is expected than of a call of which nothing is known.
    assert 0.15 < todo["expected_gain"] < 0.5
    assert result["expected_regret_seconds"] == pytest.approx(3.0 * todo["expected_gain"])
    assert "75 % of the time" in ejk("what-if").stdout
    ejk("what-if", "--min-coverage", "74")
    ejk("what-if", "--min-coverage", "76", expect=4)
    assert "no store" in ejk("what-if", "--store", store / "nothing", expect=3).stderr


def test_a_config_that_the_kernel_cannot_take_covers_nothing(ejk, plugin, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    (tmp_path / "c.json").write_text(json.dumps({f"cpu|cpu|{shifted['op']}|{shifted['key']}": {"blocks": 1}}))
    ejk("import", "c.json", "--as-device", "this")
    result = ejk("what-if", *plugin, "--json").json
    assert result["coverage"]["calls"] == 0
    assert [t["tier"] for t in result["tiers"] if t["calls"]] == ["does not fit the kernel: heuristic"]
    nowhere = ["--recorded-in", tmp_path / "empty"]
    (tmp_path / "empty").mkdir()
    (stored,) = ejk("explain", shifted["key"], *plugin, *nowhere, "--json").json["stored"]
    assert stored["origin"] == "none" and "does not fit" in stored["layers"][0]["why"]
    (unknown,) = ejk("explain", shifted["key"], *nowhere, "--json").json["stored"]
    assert "cannot be asked here" in unknown["layers"][0]["why"]


def test_few_samples_make_no_interval(ejk, device, tmp_path):
    few = entry(device, samples=1, speedup=1.18, speedup_low=1.18, speedup_high=1.18, noise=0.0)
    few["candidates"] = [{**c, "samples": 1} for c in few["candidates"]]
    ejk("import", exported(tmp_path / "few", few))
    shown = ejk("show", KEY).stdout
    assert re.search(r"(?m)^speedup +1.18x$", shown) and re.search(r"(?m)^noise +-$", shown)
    assert " to " not in shown
    ejk("report", "r.html")
    page = (tmp_path / "r.html").read_text()
    assert not re.search(r"\d \(|\d</data> to |class=\"interval\"", page)


def test_damaged_records_are_told(ejk, shifted, device, store):
    record(store / "recorded", device, shifted)
    (next((store / "recorded/v1").glob("*/*")) / "broken.json").write_text("{")
    result = ejk("what-if", "--json")
    assert result.json["shapes"] == 1 and result.json["problems"]


def test_from_recording_to_shipping(ejk, device, tmp_path):
    """A program is recorded, its calls are tuned elsewhere, and the result is shipped."""
    recorded = ["--recorded-in", tmp_path / "recorded", "--op", "rms_norm"]
    env = {**os.environ, "EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "program"),
           "EJKERNEL_OPS_RECORD": "1", "EJKERNEL_OPS_RECORD_DIR": str(tmp_path / "recorded")}  # fmt: skip
    subprocess.run([BUILD / "examples/tour"], env=env, check=True, capture_output=True, timeout=300)

    before = ejk("what-if", *recorded, "--json").json
    assert before["coverage"] == {"calls": 0, "time": 0} and before["seconds"] > 0
    keys = {call["key"] for call in before["to_tune"]}
    assert len(keys) == 2
    line = ["tune", "--recorded", *recorded, "--budget-per-call", "3", "--json"]
    assert {e["key"] for e in ejk(*line).json["tuned"]} == keys
    assert ejk("what-if", *recorded, "--min-coverage", "100", "--json").json["coverage"]["calls"] == 1

    ejk("export", "tuned.jsonl", "--device", "this")
    ejk("import", "tuned.jsonl", "--store", tmp_path / "shipped")
    layers = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "user"),
              "EJKERNEL_PERSISTENT_CACHE_LAYERS": str(tmp_path / "shipped")}  # fmt: skip
    for key in keys:
        (told,) = ejk("explain", key, "--recorded-in", tmp_path / "recorded", "--json", env=layers).json["calls"]
        assert told["origin"] == "persistent"  # the user's own store is empty
    assert not list((tmp_path / "user").rglob("*.json"))


# ---- the report ---------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Figures by section and class, and everything that could come from elsewhere."""

    def __init__(self):
        super().__init__()
        self.section, self.figures, self.outside, self.tags, self.text = "", {}, [], [], ""

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        if tag in ("section", "div") and "id" in attributes:
            self.section = attributes["id"]
        if tag == "data":
            self.figures.setdefault((self.section, attributes["class"]), []).append(json.loads(attributes["value"]))
        for name in ("src", "href"):
            if not attributes.get(name, "#").startswith(("#", "data:")):
                self.outside.append(attributes[name])

    def handle_data(self, text):
        self.text += text


def test_the_figures_of_the_report_are_those_of_the_json(ejk, store, device, shifted, tmp_path):
    record(store / "recorded", device, shifted)
    document = ejk("report", "r.html", "--json").json
    text = (tmp_path / "r.html").read_text()
    page = Page()
    page.feed(text)
    assert page.outside == [] and "script" not in page.tags and "svg" in page.tags
    assert "viewport" in text and "http://" not in text and "https://" not in text
    for name, value in document["summary"].items():
        assert page.figures["summary", name] == [value]
    assert len(document["entries"]) == 2
    assert page.figures["entries", "speedup"] == [e["speedup"] for e in document["entries"]]
    for i, e in enumerate(document["entries"]):
        for name in ["seconds", "heuristic_seconds", "speedup", "speedup_low", "speedup_high", "noise", "samples"]:
            assert page.figures[f"entry-{i}", name] == [e[name]]
        assert page.figures[f"entry-{i}", "worth"] == [p["worth"] for p in e["parameters"]]
        assert [p["name"] for p in e["parameters"]] == ["block", "threads"]
        assert e["parameters"][0]["worth"] == pytest.approx(0.98)  # 16: 0.99 or more, 64: 0.5
        assert len(e["timed"]) == 3 and len(e["rejected"]) == 1
    assert page.figures["recorded", "expected_regret_seconds"] == [document["recorded"]["expected_regret_seconds"]]
    assert "crashed: SIGSEGV" in page.text
    assert "no such entries" in ejk("report", "x.html", "--op", "none", expect=3).stderr
    assert not (tmp_path / "x.html").exists()


def test_the_report_says_what_parameters_of_nested_configs_are_worth(ejk, device, tmp_path):
    nested = entry(device)
    for candidate in [nested, *nested["candidates"]]:
        candidate["config"] = {"forward": candidate["config"], "unroll": 4}
    ejk("import", exported(tmp_path / "n", nested))
    (told,) = ejk("report", "r.html", "--json").json["entries"]
    assert [p["name"] for p in told["parameters"]] == ["forward.block", "forward.threads"]



def test_a_browser_shows_the_report_without_a_word_of_complaint(ejk, store, tmp_path):
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is not installed")
    document = ejk("report", "r.html", "--json").json
    shown = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path}/profile", "--window-size=390,800", "--dump-dom",
         f"file://{tmp_path}/r.html"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "CONSOLE" not in shown.stderr
    page = Page()
    page.feed(shown.stdout)
    assert page.tags.count("section") == len(document["entries"]) == 2
    for i, e in enumerate(document["entries"]):
        assert page.figures[f"entry-{i}", "speedup"] == [e["speedup"]]


# ---- what happens around it ---------------------------------------------------------------------


def test_a_reader_that_goes_away_ends_it_quietly(ejk, store):
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [TOOL, "ls"], stdout=writer, stderr=subprocess.PIPE, env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}
    )
    os.close(writer)
    assert result.returncode == 141 and result.stderr == b""


def test_a_full_disk_is_a_clear_failure(ejk, store):
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}
    with open("/dev/full", "w") as full:
        result = subprocess.run([TOOL, "ls"], stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert result.returncode == 1 and "No space left" in result.stderr
    assert "No space left" in ejk("export", "/dev/full", expect=1).stderr


def test_closed_standard_files_do_no_harm(ejk, store):
    before = {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file()}
    for closed, code in [(">&-", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1)]:
        result = subprocess.run(
            ["sh", "-c", f"exec {TOOL} ls {closed}"], env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}, capture_output=True
        )
        assert result.returncode == code
    assert {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file()} == before


def test_a_store_that_cannot_be_written_is_a_clear_failure(ejk, device, tmp_path):
    exported(tmp_path / "e", entry(device))
    (tmp_path / "file").write_text("")
    result = ejk("import", tmp_path / "e", "--store", tmp_path / "file/store", "--json", expect=1)
    assert result.json["failed"] == 1 and "file/store" in result.stderr
    assert "this process" not in result.stderr  # which keeps nothing


def test_writing_a_report_or_an_export_keeps_the_old_file_if_it_fails(ejk, store, tmp_path):
    assert "no/such" in ejk("export", "no/such/folder/f", expect=3).stderr
    (tmp_path / "out").write_text("old")
    (tmp_path / "out").chmod(0o644)
    ejk("export", "out", "--op", "none", expect=3)
    assert (tmp_path / "out").read_text() == "old"
    ejk("export", "out")
    assert (tmp_path / "out").read_text().startswith('{"ejk_export"')
    assert [p.name for p in tmp_path.glob("out*")] == ["out"]


def test_ctrl_c_ends_a_tuning_with_what_it_has(ejk, device, tmp_path):
    (library,) = PLUGINS.glob("*slow.so")
    command = [TOOL, "tune", "plugin.slow", "--arg", "f32[64]", "--arg", "f32[64]", "--plugin", library,
               "--budget-per-call", "100", "--json"]  # fmt: skip
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    for line in tool.stderr:  # progress, after the first second
        if "racing" in line or "tried" in line:
            break
    tool.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, _ = tool.communicate(timeout=60)
    assert time.monotonic() - started < 50
    assert tool.returncode == 130
    document = json.loads(out)
    assert document["interrupted"]
    left = [p.name for p in (tmp_path / "store").rglob("*") if p.suffix in (".tmp", ".intent")]
    assert left == []


def test_ctrl_c_ends_an_import_between_two_entries(ejk, tmp_path):
    cache = {f"cpu|cpu|op@v0|{i:016x}": {"block": i} for i in range(20000)}
    (tmp_path / "big.json").write_text(json.dumps(cache))
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    command = [TOOL, "import", tmp_path / "big.json", "--json"]
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert "entries" in tool.stderr.readline()
    tool.send_signal(signal.SIGINT)
    out, _ = tool.communicate(timeout=60)
    assert tool.returncode == 130
    told = json.loads(out)
    assert told["interrupted"] and 0 < told["added"] < 20000
    assert len(ejk("ls", "--json").json["entries"]) == told["added"]


# ---- worker processes ---------------------------------------------------------------------------


def of_op(shifted, op):
    """A call like that of the plugin's kernel, of another op."""
    return {"op": op, "key": shifted["key"], "spec": shifted["spec"]}


@pytest.fixture
def bad(plugin):
    (library,) = PLUGINS.glob("*bad.so")
    return [*plugin, "--plugin", library]


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
    assert re.search(r"not tuned: bad.hook.exit@v1 \w{16}: .*exit code 7", text)


def test_a_call_on_the_line_that_ends_its_worker_is_told(ejk, bad):
    line = ["tune", "bad.hook.exit", "--arg", "f32[8]", "--arg", "f32[8]", *bad]
    assert "exit code 7" in ejk(*line, expect=1).stdout
    ejk(*line, "--in-process", expect=7)


def test_in_this_process_the_same_is_found(ejk, plugin):
    (tuned,) = ejk("tune", *SHIFTED, *plugin, "--in-process", "--json").json["tuned"]
    assert tuned["op"] == "plugin.shifted@v1" and tuned["kept"]
    assert "exclude" in ejk("tune", *SHIFTED, *plugin, "--in-process", "--worker", "x", expect=2).stderr


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_tool(ejk, shifted, device, tmp_path, kill):
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
    env = {"EJK_TEST_MARK": str(tmp_path)}
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    for line in tool.stderr:
        if " of 100 tried" in line:
            break
    assert len(processes_with(str(tmp_path))) >= 2
    tool.send_signal(kill)
    out, _ = tool.communicate(timeout=60)
    patience = time.monotonic() + 20
    while processes_with(str(tmp_path)) and time.monotonic() < patience:
        time.sleep(0.05)
    assert processes_with(str(tmp_path)) == []
    if kill == signal.SIGINT:
        assert tool.returncode == 130
        told = json.loads(out)
        assert told["interrupted"] and [t["kept"] for t in told["tuned"]] == [True]
        assert ["stopped before its turn" in s["why"] for s in told["skipped"]] == [True, True]
        assert list((tmp_path / "slow").rglob("*.intent")) == []


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


def test_kernels_of_other_languages_are_tuned_by_workers_of_theirs(ejk, shifted, device, tmp_path):
    for op, name in [("my.norm@v0", "mine:Norm"), ("my.other@v0", "other:Kernel")]:
        sketch = {"python": name, "kernel": {}, "args": [], "kwargs": {}}
        record(tmp_path / "store/recorded", device, of_op(shifted, op), arguments=[sketch])
    without = ejk("tune", "--recorded", "--json", expect=1).json["skipped"]
    assert "python -m ejk tune --import mine" in without[0]["why"] and "--import other" in without[1]["why"]
    (tmp_path / "speaks.py").write_text(WORKER)
    command = f"{sys.executable} speaks.py {TOOL}"
    result = ejk("tune", "--recorded", "--worker", command, "--store", tmp_path / "kept", "--json").json
    (tuned,) = result["tuned"]
    assert (tuned["op"], tuned["config"], tuned["kept"]) == ("my.norm@v0", {"block": 3}, True)
    assert [(s["op"], s["why"], s["lost"]) for s in result["skipped"]] == [("my.other@v0", "other is not imported", False)]


@pytest.mark.parametrize(
    "command, says",
    [
        ("echo rubbish", "no answer"),
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


# ---- documents ----------------------------------------------------------------------------------


def test_the_examples_of_the_document_run(ejk, plugin, device, tmp_path):
    """Lines of ```sh blocks that begin with `$ ejk`, in order, in one empty home."""
    text = (ROOT / "docs/tool.md").read_text()
    lines = re.findall(r"(?m)^\$ (ejk .*)$", text)
    assert len(lines) > 10
    (tmp_path / "libkernels.so").symlink_to(plugin[1])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ejk").symlink_to(TOOL)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
    for line in lines:
        command, _, code = line.partition("  # exit ")
        result = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
        allowed = [int(c) for c in code.split(" or ")] if code else [0]
        assert result.returncode in allowed, (line, result.stdout, result.stderr)


def test_the_walkthrough_can_be_followed(tmp_path):
    """The files are written and the lines run as the document says, with the installed package."""
    text = (ROOT / "docs/walkthrough.md").read_text()
    sources = re.findall(r"(?ms)^```(?:cpp|cmake)\n(?://|#) ([\w.]+)\n(.*?)^```", text)
    assert [name for name, _ in sources] == ["transpose.h", "app.cpp", "kernels.cpp", "CMakeLists.txt"]
    work, prefix = tmp_path / "work", tmp_path / "prefix"
    work.mkdir()
    for name, source in sources:
        (work / name).write_text(source)
    install = ["cmake", "--install", BUILD, "--prefix", prefix]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    env = {"PATH": f"{prefix}/bin:{os.environ['PATH']}", "HOME": str(tmp_path / "home"), "CMAKE_PREFIX_PATH": str(prefix)}

    def plain(line):
        return re.sub(r"tile \d+", "tile N", " ".join(line.split()))

    steps = re.findall(r"(?m)^\$ (.*)\n((?:[^$`].*\n)*)", "".join(re.findall(r"(?ms)^```console\n(.*?)^```", text)))
    assert len(steps) > 10
    for command, shown in steps:
        result = subprocess.run(["sh", "-c", command], cwd=work, env=env, capture_output=True, text=True, timeout=1200)
        assert result.returncode == 0, (command, result.stdout, result.stderr)
        printed = [plain(line) for line in result.stdout.splitlines()]
        for line in shown.splitlines():
            assert any(plain(line) in there for there in printed), (command, line, result.stdout)
    assert not list((work / "user").rglob("*.json"))


def test_the_document_names_every_verb_and_exit_code():
    text = (ROOT / "docs/tool.md").read_text()
    for verb in VERBS:
        assert f"`{verb.split()[0]}" in text or f"ejk {verb}" in text, verb
    codes = re.findall(r"(?m)^\| `(\d+)` \|", text)
    header = (ROOT / "cli/output.h").read_text()
    assert sorted(map(int, codes)) == sorted(map(int, re.findall(r"exit_\w+ = (\d+)", header)))
