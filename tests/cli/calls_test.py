# SPDX-License-Identifier: Apache-2.0
"""Recorded, lowered and given calls: tune, bench, explain, what-if."""

import json
import math
import os
import re
import subprocess

import pytest
from tool import BUILD, KEY, PLUGINS, SHIFTED, SPEC, TOOL, entry, exported, of_op, record


def test_tune_a_call_given_on_the_line(ejk, plugin):
    result = ejk("tune", *SHIFTED, *plugin, "--json").json
    (tuned,) = result["tuned"]
    assert tuned["op"] == "plugin.shifted@v1" and tuned["config"]["block"] in (1, 2)
    assert tuned["call"] == "float32[256] -> float32[256]" and not tuned["already"]
    (stored,) = ejk("ls", "--json").json["entries"]
    assert stored["key"] == tuned["key"] and len(tuned["key"]) == 16
    again = ejk("tune", *SHIFTED, *plugin, "--json").json
    assert again["tuned"][0]["already"] and "--retune" in again["note"]
    assert not ejk("tune", *SHIFTED, *plugin, "--retune", "--json").json["tuned"][0]["already"]


def test_calls_are_tuned_for_programs_that_want_the_same_numerics(ejk, plugin, device, tmp_path):
    same = [*plugin, "--numerics", "same", "--json"]
    (anyhow,) = ejk("tune", *SHIFTED, *plugin, "--json").json["tuned"]
    (tuned,) = ejk("tune", *SHIFTED, *same).json["tuned"]
    # The kernel has no hook: every config is a class of its own.
    assert tuned["numerics"] == {"config": {"block": 1}} == {"config": tuned["config"]}
    assert tuned["key"] != anyhow["key"] and tuned["kept"] and not tuned["already"]
    assert ejk("tune", *SHIFTED, *same).json["tuned"][0]["already"]
    assert ejk("tune", *SHIFTED, *same, "--in-process").json["tuned"][0]["already"]
    record(tmp_path / "store/recorded", device, anyhow)
    (of_record,) = ejk("tune", "--recorded", *same).json["tuned"]
    assert of_record["key"] == tuned["key"] and of_record["kept"]
    old = "echo '{\"event\":\"ready\",\"protocol\":1,\"process\":1}'; read request"
    python = [{"python": "my_kernels:Kernel", "kernel": {}, "args": [], "kwargs": {}}]
    record(tmp_path / "other", device, of_op(anyhow, "mine@v1"), arguments=python)
    refused = ejk("tune", "--recorded", "--recorded-in", tmp_path / "other", "--worker", old, *same, expect=1).json
    assert "cannot tune with numerics = same" in refused["skipped"][0]["why"]
    assert "any" in ejk("tune", *SHIFTED, *plugin, "--numerics", "equal", expect=2).stderr


@pytest.mark.parametrize(
    "args, code, says",
    [
        (["nobody", "--arg", "f32[2]"], 3, "plugin.shifted@v1"),
        (["plugin.shifted"], 2, "0 arguments are given and run takes 2"),
        (["plugin.shifted", "--arg", "f99[2]", "--arg", "f32[2]"], 2, "f99"),
        (["plugin.shifted", "--arg", "f32[2,x]", "--arg", "f32[2]"], 2, "not a number"),
        (["plugin.shifted", "--arg", "f32[-2]", "--arg", "f32[2]"], 2, "negative"),
        (["plugin.shifted", "--arg", "f32[2]:5", "--arg", "f32[2]"], 2, "LOW..HIGH"),
        (["plugin.shifted", "--arg", "f32[2]:5..1", "--arg", "f32[2]"], 2, "empty"),
        (["plugin.shifted", "--arg", "i8[2]:0..128", "--arg", "f32[2]"], 2, "int8 goes from -128 to 127"),
        (["plugin.shifted", "--arg", "u8[2]:-1..2", "--arg", "f32[2]"], 2, "uint8 cannot hold negative numbers"),
        (["plugin.shifted", "--arg", "i32[2]:0..99999999999999999999", "--arg", "f32[2]"], 2, "out of range"),
        (["plugin.shifted", "--arg", "f32[2]:0..inf", "--arg", "f32[2]"], 2, "not finite"),
        (["plugin.shifted", "--arg", "int4[2]:0..3", "--arg", "f32[2]"], 2, "int4 take no range"),
        (["plugin.shifted", "--arg", "i32[2]:rising", "--arg", "f32[2]"], 2, "rising needs a range before it"),
        (["plugin.shifted", "--arg", "i32[2]:0..4:", "--arg", "f32[2]"], 2, 'only rising can be'),
        (["plugin.shifted", "--arg", "i32[2]:0..4:falling", "--arg", "f32[2]"], 2, '"falling" behind the range'),
        (["plugin.shifted", "--arg", "i32[2]:0..4:rising:x", "--arg", "f32[2]"], 2, '"rising:x" behind the range'),
        (["plugin.shifted", "--arg", "f32[2]:0..4:rising", "--arg", "f32[2]"], 2, "only integers can rise"),
        (["plugin.shifted", "--arg", "i32[1]:0..4:rising", "--arg", "f32[2]"], 2, "one element cannot rise from 0 to 4"),
        (["plugin.shifted", "--arg", "i32[2]", "--arg", "f32[2]"], 2, "[plugin.shifted@v1] the call cannot be made: argument 0"),
        (["plugin.shifted", "--arg", "f32[999999999999]", "--arg", "f32[2]"], 2, "fit"),
        (["plugin.shifted", "--arg", "f32[2]", "--arg", "7"], 2, "argument 1"),
    ],
)
def test_calls_that_cannot_be_made_are_refused(ejk, plugin, args, code, says):
    result = ejk("tune", *args, *plugin, expect=code)
    assert says in result.stderr and result.stdout == ""


def test_integers_given_on_the_line_can_rise(ejk, plugin):
    rows = ["plugin.row_sums", "--arg", "f32[800]", "--arg", "f32[100]", *plugin, "--json"]
    for offsets in ["i32[101]:0..800:rising", "int32[101]:0..800:rising"]:
        (tuned,) = ejk("tune", rows[0], "--arg", offsets, *rows[1:], "--retune").json["tuned"]
        assert tuned["outcome"] in ("tuned", "unresolved")
        assert tuned["call"] == "int32[101] float32[800] -> float32[100]"
    skipped = ejk("tune", rows[0], "--arg", "i32[101]:0..800", *rows[1:], "--retune", expect=1).json["skipped"]
    assert "no offsets of rows" in skipped[0]["why"]
    for rest in [["i32[1]:0..0:rising", "f32[0]", "f32[0]"], ["i32[3]:0..1:rising", "f32[1]", "f32[2]"]]:
        line = [word for arg in rest for word in ("--arg", arg)]
        assert ejk("tune", "plugin.row_sums", *line, *plugin, "--json").json["tuned"]


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


def test_a_store_that_is_given_has_its_own_recorded_calls(ejk, plugin, shifted, device, tmp_path):
    record(tmp_path / "mine/recorded", device, shifted)
    record(tmp_path / "store/recorded", device, of_op(shifted, "other@v1"))
    record(tmp_path / "elsewhere", device, of_op(shifted, "elsewhere@v1"))
    mine = ["--store", tmp_path / "mine", *plugin, "--json"]
    set_elsewhere = {"EJKERNEL_OPS_RECORD_DIR": str(tmp_path / "elsewhere")}
    for env in [{}, set_elsewhere]:
        (planned,) = ejk("tune", "--recorded", "--dry-run", "--retune", *mine, env=env).json["plan"]
        assert planned["op"] == "plugin.shifted@v1"
    (tuned,) = ejk("tune", "--recorded", *mine).json["tuned"]
    assert tuned["key"] == shifted["key"] and tuned["kept"]
    assert ejk("what-if", *mine).json["coverage"]["calls"] == 1
    (told,) = ejk("explain", "plugin.shifted:", *mine).json["calls"]
    assert told["origin"] == "persistent"
    (row,) = ejk("bench", "--seconds", "0.2", *mine).json["benchmarks"]
    assert row["op"] == "plugin.shifted@v1" and row["seconds"] > 0
    page = ejk("report", tmp_path / "r.html", "--store", tmp_path / "mine", "--json").json
    assert page["recorded"]["shapes"] == 1
    named = ["--recorded-in", tmp_path / "elsewhere"]
    assert ejk("what-if", *mine, *named).json["to_tune"][0]["op"] == "elsewhere@v1"
    assert ejk("what-if", "--json", env=set_elsewhere).json["to_tune"][0]["op"] == "elsewhere@v1"
    assert ejk("what-if", "--json").json["to_tune"][0]["op"] == "other@v1"


@pytest.mark.parametrize("line", ["tune --recorded --dry-run", "tune --recorded", "what-if", "bench"])
def test_where_nothing_is_recorded_the_cure_is_told(ejk, device, tmp_path, line):
    (tmp_path / "empty").mkdir()
    told = ejk(*line.split(), "--store", tmp_path / "empty", expect=3)
    said = told.stdout + told.stderr
    for part in [f"{tmp_path}/empty/recorded", "EJKERNEL_OPS_RECORD=1", "--recorded-in"]:
        assert part in said, (part, said)


def test_recorded_calls_of_unknown_kernels_are_told(ejk, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, shifted)
    result = ejk("tune", "--recorded", "--json", expect=1)
    assert "registered" in result.json["skipped"][0]["why"] and result.json["note"]
    assert "--plugin" in result.json["skipped"][0]["why"]


def test_reasons_of_several_lines_are_lines(ejk, shifted, device, tmp_path):
    record(tmp_path / "store/recorded", device, of_op(shifted, "softmax@v1"))
    told = ejk("tune", "--recorded", expect=1).stdout
    assert re.search(r"(?m)^not tuned: softmax@v1:\w{16}: .*Softmax<float>: ", told)
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
    assert [(label["op"], label["key"], label["count"], label["stored"]) for label in found["labels"]] == [
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


def test_a_long_wait_is_reported(start, tmp_path):
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    tool = start([TOOL, "import", "-"], stdin=subprocess.PIPE, env=env)
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
    assert "nothing is stored for it (ejk tune " in ejk("bench", *plugin, "--seconds", "0.2", expect=1).stdout
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
    assert "left to save by tuning: nothing of 9 s" in ejk("what-if", "--op", "gemm").stdout
    ejk("what-if", "--min-coverage", "74")
    ejk("what-if", "--min-coverage", "76", expect=4)
    assert "no store" in ejk("what-if", "--store", store / "nothing", expect=3).stderr


def test_calls_without_a_recorded_time_must_be_covered_too(ejk, shifted, device, store):
    known = {"op": "gemm@v1", "key": KEY, "spec": json.loads(SPEC)}
    record(store / "recorded", device, known, calls=100, seconds=9.0)
    record(store / "recorded", device, shifted, calls=300, timed_calls=0, timed_seconds=0.0)
    coverage = ejk("what-if", "--min-coverage", "1", "--json", expect=4).json["coverage"]
    assert coverage == {"calls": 0.25, "time": 1, "untimed": {"calls": 300, "covered": 0}}
    assert "300 of the calls have no recorded time; covered of these: 0 %" in ejk("what-if").stdout


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
    assert "the kernel is not known here" in unknown["layers"][0]["why"]


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


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """What `./run` shows, and the folder in which its calls are recorded."""
    folder = tmp_path_factory.mktemp("tour")
    env = {**os.environ, "EJKERNEL_PERSISTENT_CACHE_DIR": str(folder / "program"),
           "EJKERNEL_OPS_RECORD": "1", "EJKERNEL_OPS_RECORD_DIR": str(folder / "recorded")}  # fmt: skip
    shown = subprocess.run([BUILD / "examples/tour"], env=env, check=True, capture_output=True, text=True, timeout=300)
    return shown.stdout, folder / "recorded"


TIME = r"[\d.]+ (?:ns|us|ms|s)"
TUNED_ROW = re.compile(
    rf"^(?P<use>\S.*?) +(?P<op>[a-z_]+) +(?P<shapes>\d[\dx ]*?) +(?P<guess>{TIME}) +(?P<tuned>{TIME}) +"
    r"(?P<speedup>[\d.]+)x \[[\d.]+, [\d.]+\] +(?P<bar>[#.]+)  (?P<rest>.+)$",
    re.MULTILINE,
)
OF_A_LAYER = ["rms_norm", "matmul", "{}_attention", "matmul", "matmul", "matmul", "matmul", "softmax"]
FOUND_ROW = re.compile(rf"^\S.*? +[a-z_]+ +\d[\dx ]*? +(\w+) +{TIME} +{TIME}$", re.MULTILINE)


def gained(row):
    return "the guess is best" not in row["rest"] and "no clear gain" not in row["rest"]


def test_the_tour_shows_what_tuning_is_worth_for_each_call(tour):
    text, _ = tour
    rows = list(TUNED_ROW.finditer(text))
    on_cpu, there = rows[:16], rows[16:]
    layers = [op.format(way) for way in ("flash", "decode") for op in OF_A_LAYER]
    assert [row["op"] for row in on_cpu] == layers
    for row in rows:
        assert len(row["bar"]) == 24 and re.fullmatch(r"#+\.*", row["bar"])
        of_guess = 1 / float(row["speedup"]) if gained(row) else 1
        assert row["bar"].count("#") == pytest.approx(24 * of_guess, abs=1), row[0]
    assert f"Tuning made {sum(map(gained, on_cpu))} of 16 calls faster" in text
    found = FOUND_ROW.findall(text)
    assert found == ["persistent"] * len(rows)

    last = text.splitlines()[-1]
    if "No OpenCL device" in text:
        assert not there and last.startswith("The store is ")
        return
    assert len(there) == 6
    gains = {row["op"]: float(row["speedup"]) for row in there if gained(row)}
    if not gains:
        assert last == "Tuning on OpenCL gained nothing here that could be told from the noise."
        return
    said = re.fullmatch(
        r"The 6 OpenCL kernels run ([\d.]+) times as fast as with the usual guesses, (\w+) ([\d.]+) times: "
        r"\d+ s of tuning, once\.",
        last,
    )
    assert said, last
    assert float(said[1]) == pytest.approx(math.prod(gains.values()) ** (1 / 6), abs=0.1)
    assert gains[said[2]] == max(gains.values()) == pytest.approx(float(said[3]), abs=0.06)


def test_from_recording_to_shipping(ejk, tour, tmp_path):
    """A program is recorded, its calls are tuned elsewhere, and the result is shipped."""
    _, folder = tour
    recorded = ["--recorded-in", folder, "--op", "rms_norm"]

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
        (told,) = ejk("explain", key, "--recorded-in", folder, "--json", env=layers).json["calls"]
        assert told["origin"] == "persistent"  # the user's own store is empty
    assert not list((tmp_path / "user").rglob("*.json"))


def recorded_in(ejk, folder, store, *more, **how):
    return ejk("what-if", "--store", store, "--recorded-in", folder, *more, **how)


@pytest.mark.parametrize("counts", [{"seconds": float("nan")}, {"seconds": -100.0}, {"calls": 2**63}])
def test_a_record_with_impossible_counts_does_not_spoil_the_sums(ejk, device, shifted, tmp_path, counts):
    record(tmp_path / "r", device, shifted, seconds=2.0)
    record(tmp_path / "r", device, of_op(shifted, "b@v1"), **counts)
    told = recorded_in(ejk, tmp_path / "r", tmp_path / "first", "--json").json
    assert (told["seconds"], told["shapes"]) == (2.0, 1) and "make no sense" in told["problems"][0]


def test_29_of_100_seconds_are_29_percent(ejk, device, shifted, tmp_path):
    record(tmp_path / "r", device, shifted, seconds=29.0)
    record(tmp_path / "r", device, of_op(shifted, "b@v1"), seconds=71.0)
    recorded_in(ejk, tmp_path / "r", tmp_path / "first", "--min-coverage", "29")
    recorded_in(ejk, tmp_path / "r", tmp_path / "first", "--min-coverage", "29.1", expect=4)


def test_what_if_is_about_one_device(ejk, device, shifted, tmp_path):
    other = {**device, "fingerprint": "cpu|Other|0123456789abcdef"}
    record(tmp_path / "r", device, shifted, seconds=1.0)
    record(tmp_path / "r", other, of_op(shifted, "b@v1"), seconds=99.0)
    told = recorded_in(ejk, tmp_path / "r", tmp_path / "first", "--json").json
    assert (told["seconds"], told["other_devices"], told["to_tune"]) == (1.0, 1, [])
    told = recorded_in(ejk, tmp_path / "r", tmp_path / "first", "--json", "--device", "cpu|Other").json
    assert told["seconds"] == 99.0 and [c["op"] for c in told["to_tune"]] == ["b@v1"]


def test_explain_knows_that_a_misfit_hides_the_layers_behind_it(ejk, device, plugin, shifted, tmp_path):
    spec = json.dumps(shifted["spec"], sort_keys=True, separators=(",", ":"))
    for name, config in [("front", {"nonsense": 1}), ("behind", {"block": 2})]:
        exported(tmp_path / "e", entry(device, op=shifted["op"], spec=spec, config=config))
        ejk("import", "--store", tmp_path / name, tmp_path / "e")
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "front"), "EJKERNEL_PERSISTENT_CACHE_LAYERS": str(tmp_path / "behind")}
    (told,) = ejk("explain", shifted["op"] + ":", *plugin, "--json", env=env).json["stored"]
    assert told["origin"] == "none" and [layer["answers"] for layer in told["layers"]] == [False, False]
