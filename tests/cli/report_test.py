# SPDX-License-Identifier: Apache-2.0
"""The page for a browser."""

import html.parser
import json
import os
import shutil
import subprocess

import pytest
from tool import entry, exported, record


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


@pytest.fixture
def browser(tmp_path):
    """Shows a file: what the page became, and what was said."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if not chromium:
        pytest.skip("no Chromium is installed")

    def show(file):
        return subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--enable-logging=stderr", f"--user-data-dir={tmp_path}/profile", "--window-size=390,800",
             "--dump-dom", f"file://{tmp_path}/{file}"],
            capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip

    (tmp_path / "plain.html").write_text("<p>plain</p>")
    try:
        plain = show("plain.html")
    except subprocess.TimeoutExpired:
        pytest.skip("Chromium does not come to an end here")
    if "<p>plain</p>" not in plain.stdout:
        pytest.skip("Chromium shows nothing here: " + plain.stderr[-300:])
    return show


def test_a_browser_shows_the_report_without_a_word_of_complaint(ejk, store, browser):
    document = ejk("report", "r.html", "--json").json
    shown = browser("r.html")
    assert "CONSOLE" not in shown.stderr
    page = Page()
    page.feed(shown.stdout)
    assert page.tags.count("section") == len(document["entries"]) == 2
    for i, e in enumerate(document["entries"]):
        assert page.figures[f"entry-{i}", "speedup"] == [e["speedup"]]
