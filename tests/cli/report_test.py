# SPDX-License-Identifier: Apache-2.0
"""The page for a browser."""

import html.parser
import json
import os
import select
import shutil
import subprocess

import pytest
from tool import SPEC, entry, exported, measured, record


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


class Browser:
    """Chromium with one page, driven through its debugging pipe."""

    def __init__(self, folder):
        chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        if not chromium:
            pytest.skip("no Chromium is installed")
        to_read, self.to = os.pipe()
        self.answers, to_write = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                   f"--user-data-dir={folder}/profile", "about:blank"]  # fmt: skip
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", chromium, *options],
            pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self.folder, self.said, self.rest, self.last, self.session = folder, [], b"", 0, None
        target = self.ask("Target.getTargets")["targetInfos"][0]["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Log", "Runtime"]:
            self.ask(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.rest:
            if not select.select([self.answers], [], [], 60)[0]:
                pytest.skip("Chromium does not answer here")
            more = os.read(self.answers, 65536)
            if not more:
                pytest.skip("Chromium does not start here")
            self.rest += more
        text, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(text)
        if message.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.said.append(message["params"])
        return message

    def ask(self, method, **params):
        self.last += 1
        line = {"id": self.last, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(line).encode() + b"\0")
        while (answer := self.message()).get("id") != self.last:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def show(self, file, width, touch=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=touch)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.ask("Page.navigate", url=f"file://{self.folder}/{file}")
        while self.message().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=f"JSON.stringify({expression})")["result"]
        assert result["type"] == "string", result
        return json.loads(result["value"])

    def middle(self, selector):
        """Where the first such element is, scrolled to."""
        return self.value(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center", behavior: "instant"}});
            const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"""
        )

    def tap(self, selector):
        x, y = self.middle(selector)
        self.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def point_at(self, selector):
        x, y = self.middle(selector)
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def end(self):
        os.close(self.to)
        self.process.wait(timeout=60)
        os.close(self.answers)


@pytest.fixture
def browser(tmp_path):
    browser = Browser(tmp_path)
    yield browser
    browser.end()


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
