# SPDX-License-Identifier: Apache-2.0
"""The page of results: made of what was measured, and of nothing else."""

import datetime
import json
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs/site"))
import results  # docs/site

SAMPLE = ROOT / "tests/data/results/labels.json"
SVG = "{http://www.w3.org/2000/svg}"


def made_of(*samples):
    found = {sample.stem: json.loads(sample.read_text()) for sample in samples}
    return results.page(found, results.claims(), results.benchmarks())


def test_a_result_is_shown_with_machine_date_commit_command_and_every_figure():
    text, charts = made_of(SAMPLE)
    part = text[text.index("## Finding labels") :]
    for needed in ("make bench-labels", "2001-02-03", "0123abc", "a sample, not a machine, 3 cores", "5 GiB", "Linux 1.2",
                   "c++ 1.2", "12.5 s", "Load average before: 0.07"):  # fmt: skip
        assert needed in part, needed
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", part))
    assert rows == {"seconds": "0.25", "seconds_over_grep": "2", "seconds_over_grep_o": "0.5",
                    "seconds_over_itself": "1.012", "new_figure": "1 234 567"}  # fmt: skip
    assert "| over `grep -c` |" in part and "a table <with> | signs" in part
    assert set(re.findall(r"\(results/(\S+)\)", part)) == set(charts)


def test_a_chart_has_the_peer_and_bars_as_long_as_their_figures():
    _, charts = made_of(SAMPLE)
    root = xml.etree.ElementTree.fromstring(charts["labels.svg"])
    lengths = {}
    for bar in root.iter(f"{SVG}rect"):
        if bar.get("class"):
            lengths.setdefault(bar.get("class"), []).append(float(bar.get("width")))
    assert [round(length / lengths["peer"][0], 2) for length in lengths["ours"]] == [2, 0.5]
    assert "grep" in [text.text for text in root.iter(f"{SVG}text")]


def test_benchmarks_without_a_result_are_named_with_their_command_and_no_figure():
    text, charts = made_of()
    assert not charts
    named = re.findall(r"(?m)^\| .* \| `make bench-(\w+)` \|$", text)
    assert named == results.benchmarks() and "labels" in named


def test_every_benchmark_has_its_claim_and_every_claim_its_benchmark():
    known, names = results.claims(), results.benchmarks()
    assert set(names) <= set(known)
    files = {path.stem for path in (ROOT / "bench").iterdir()}
    for name, claim in known.items():
        assert name in names or files & set(claim["parts"]), name
        assert claim["title"] and claim["claim"] and claim["figures"], name


@pytest.mark.parametrize("name", results.benchmarks())
def test_charts_show_figures_that_the_claim_explains(name):
    claim = results.claims()[name]
    for chart in claim.get("charts", []):
        for bar in chart["bars"]:
            assert results.meaning(claim, bar["figure"]), bar


def test_the_page_of_this_repository_is_made_of_its_results():
    folder = ROOT / "docs/results"
    text, charts = made_of(*sorted(folder.glob("*.json")))
    assert (ROOT / "docs/results.md").read_text() == text, "make results NAMES=none writes the page"
    assert {path.name: path.read_text() for path in folder.glob("*.svg")} == charts


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with two benchmarks, and a make that runs bench/NAME.py with sh."""
    (tmp_path / "docs/site").mkdir(parents=True)
    shutil.copy(ROOT / "docs/site/claims.toml", tmp_path / "docs/site")
    (tmp_path / "bench").mkdir()
    make = tmp_path / "bin/make"
    make.parent.mkdir()
    make.write_text('#!/bin/sh\necho "$1" >>asked\necho "== [   1 s] building"\n. bench/"${1#bench-}".py\n')
    make.chmod(0o755)
    monkeypatch.setenv("PATH", f"{make.parent}:/usr/bin:/bin")
    return tmp_path


def test_a_measurement_is_kept_and_used_again_the_same_day(project):
    (project / "bench/labels.py").write_text("echo a table\necho '{\"seconds\": 0.5}'\n")
    assert results.main([], project) == 0
    kept = json.loads((project / "docs/results/labels.json").read_text())
    assert kept["figures"] == {"seconds": 0.5} and kept["output"] == ["a table"]
    assert kept["machine"]["cores"] > 0 and kept["command"] == "make bench-labels"
    assert "| `seconds` | 0.5 | for 100 MB |" in (project / "docs/results.md").read_text()

    (project / "bench/labels.py").write_text("exit 1\n")  # it is not asked for
    assert results.main(["labels"], project) == 0
    assert (project / "asked").read_text() == "bench-labels\n"

    two_days_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    old = project / "build/results/labels.json"
    old.write_text(json.dumps(kept | {"date": two_days_ago.isoformat()}))
    assert results.main(["labels"], project) == 1
    assert (project / "asked").read_text() == "bench-labels\nbench-labels\n"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "make bench-labels ended with status 3"),
        ("echo no object", "make bench-labels printed 'no object' last; expected a JSON object"),
    ],
)
def test_a_benchmark_that_fails_is_reported_and_the_others_run(project, capfd, script, told):
    (project / "bench/labels.py").write_text(script + "\n")
    (project / "bench/record.py").write_text("echo '{\"not_over_not\": 1}'\n")
    assert results.main([], project) == 1
    assert f"not measured: {told}" in capfd.readouterr().err
    assert not (project / "docs/results/labels.json").exists()
    page = (project / "docs/results.md").read_text()
    assert "| `not_over_not` | 1 |" in page and "`make bench-labels`" in page.partition("## Not measured yet")[2]


def test_an_unknown_name_is_refused_before_anything_runs(project, capfd):
    (project / "bench/labels.py").write_text("exit 1\n")
    assert results.main(["lables"], project) == 2
    assert "got NAMES=lables; expected none, or some of: labels" in capfd.readouterr().err
    assert not (project / "asked").exists()
