# SPDX-License-Identifier: Apache-2.0
"""The page for a browser."""

import json

import pytest
from browser import Page
from tool import SPEC, entry, exported, measured, record


def test_the_figures_of_the_report_are_those_of_the_json(ejk, store, device, shifted, tmp_path):
    record(store / "recorded", device, shifted)
    document = ejk("report", "r.html", "--json").json
    text = (tmp_path / "r.html").read_text()
    page = Page()
    page.feed(text)
    assert page.outside == [] and "script" not in page.tags
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


def test_compile_time_stands_beside_run_time_where_it_is_known(ejk, device, store, tmp_path):
    compiled = entry(device, op="compiled@v1")
    for candidate, seconds in zip(compiled["candidates"], [0.25, 0, 0.5, 1.5], strict=True):
        candidate["compile_seconds"] = seconds
    measured(store, compiled)
    (told,) = [e for e in ejk("report", "r.html", "--json").json["entries"] if e["op"] == "compiled@v1"]
    assert told["compile_seconds"] == 0.25
    assert [m.get("compile_seconds") for m in told["timed"]] == [0.25, 0.5, None]
    page = Page()
    page.feed((tmp_path / "r.html").read_text())
    assert page.figures["entry-0", "compile_seconds"] == [0.25] and ("entry-1", "compile_seconds") not in page.figures
    assert "20 samples, compiled in 500 ms" in page.text and "crashed: SIGSEGV, compiled in 1.5 s" in page.text


def test_a_browser_shows_the_report_without_a_word_of_complaint(ejk, store, browser):
    document = ejk("report", "r.html", "--json").json
    browser.show("r.html", 1200)
    assert browser.said == []
    page = Page()
    page.feed(browser.value("document.documentElement.outerHTML"))
    assert page.tags.count("section") == len(document["entries"]) == 2
    for i, e in enumerate(document["entries"]):
        assert page.figures[f"entry-{i}", "speedup"] == [e["speedup"]]


LONG = "a_parameter_with_a_long_name"


def of_all_widths(device, store):
    """Long names, many candidates, every outcome."""
    config = {LONG: {LONG: 123456789, "unset": None}, "threads": 1}
    many = entry(device, op=f"{LONG}_{LONG}@v1", config=config, spec=SPEC.replace("8,4", "8," * 40 + "4"))
    won = many["candidates"][0]
    many["candidates"] = [
        {**won, "config": {**config, "threads": n}, "status": "slower" if n else "ok", "ratio": 0.5 + n, "ratio_high": 90.0}
        for n in range(30)
    ]
    many["candidates"] += [{**won, "config": config, "status": "rejected", "kind": "wrong", "why": "off by a <lot>", "ratio": 0}]
    measured(store, many)
    measured(store, entry(device, spec=SPEC.replace("8,4", "9,4"), outcome="unresolved", complete=False))
    measured(store, entry(device, spec=SPEC.replace("8,4", "7,4"), outcome="failed", config={}, speedup=0.0))


@pytest.mark.parametrize("width", [390, 1200])
def test_times_speedups_and_states_are_in_sight_on_a_phone_too(ejk, device, store, browser, width):
    of_all_widths(device, store)
    ejk("report", "r.html")
    browser.show("r.html", width, touch=width < 500)
    assert browser.value("[innerWidth, document.documentElement.scrollWidth <= document.documentElement.clientWidth]") == [width, True]
    beyond = """[...document.querySelectorAll("data, .state, code, small, a, ol li")].filter(e => {
        const r = e.getBoundingClientRect(); return r.width > 0 && (r.left < 0 || r.right > innerWidth) &&
        !e.closest(".what"); }).map(e => e.outerHTML)"""
    assert browser.value(beyond) == []
    seen = """[...document.querySelectorAll("#entries .list tbody tr")].map(row => ["seconds", "speedup", "state"].map(
        name => row.querySelector("." + name).checkVisibility()))"""
    assert browser.value(seen) == [[True, True, True]] * 5
    assert "null" not in browser.value("document.body.innerText")


@pytest.mark.parametrize("width", [390, 1200])
def test_a_candidate_tells_all_under_a_pointer_or_a_finger(ejk, device, store, browser, width):
    of_all_widths(device, store)
    document = ejk("report", "r.html", "--json").json
    (place,) = [i for i, e in enumerate(document["entries"]) if len(e["timed"]) == 30]
    browser.show("r.html", width, touch=width < 500)
    reach = browser.tap if width < 500 else browser.point_at
    browser.value(f"document.querySelector('#entry-{place} details').open = true")

    def told(nth, among=""):
        row = f"#entry-{place} {among} li:nth-child({nth})"
        reach(row)
        shown = """(() => { const e = document.querySelector(%s), r = e.getBoundingClientRect();
            return [r.left >= 0 && r.right <= innerWidth && e.scrollWidth <= e.clientWidth && e.checkVisibility(),
            e.innerText.replaceAll("\\n", " ")]; })()"""
        return browser.value(shown % json.dumps(row + " .what"))

    config = f"{LONG}{{{LONG}=123456789}} threads="
    assert told(2) == [True, config + "1 slower, 1 ms; 1.5 (0.49 to 90) of the incumbent's time, 40 samples"]
    assert told(1) == [True, config + "0 chosen, 1 ms; 0.5 (0.49 to 90) of the incumbent's time, 40 samples"]
    assert told(19, "details") == [True, config + "1 rejected: wrong: off by a <lot>"]


def test_the_largest_gains_stand_at_the_top(ejk, device, store, tmp_path):
    """Those that the noise could have made are not among them."""
    gains = [(3.0, 2.9, 0.01), (9.0, 0.9, 0.01), (1.02, 1.01, 0.05), (4.0, 3.9, 0.01), (1.5, 1.4, 0.1), (8.0, 7.0, 0.3)]
    for i, (speedup, low, noise) in enumerate(gains):
        measured(store, entry(device, op=f"op{i}@v1", speedup=speedup, speedup_low=low, noise=noise))
    measured(store, entry(device, op="once@v1", speedup=99.0, speedup_low=98.0, samples=1))
    measured(store, entry(device, op="few@v1", speedup=5.0, speedup_low=4.9, samples=3))
    measured(store, entry(device, op="fewer@v1", speedup=5.0, speedup_low=1.9, samples=3))
    document = ejk("report", "r.html", "--json").json
    assert [g["op"] for g in document["gains"]] == ["op5@v1", "few@v1", "op3@v1", "op0@v1", "gemm@v1"]
    assert document["summary"]["faster"] == 7
    page = Page()
    page.feed((tmp_path / "r.html").read_text())
    assert page.figures["gains", "speedup"] == [8.0, 5.0, 4.0, 3.0, 2.0]
    assert [document["entries"][g["entry"]]["op"] for g in document["gains"]] == [g["op"] for g in document["gains"]]
