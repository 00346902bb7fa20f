# SPDX-License-Identifier: Apache-2.0
"""Measures the claims of speed and writes docs/results.md: `make results`, or `make results NAMES='dispatch store'`.

A benchmark runs unless build/results/NAME.json is younger than a day, so that a run that was interrupted goes on, and
so that figures of another machine can be put there. What was measured is copied to docs/results, and the page is made
of what is there: nothing on it is written by hand. NAMES=none only makes the page. Titles and the meaning of figures
are in claims.toml.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RECENT = datetime.timedelta(days=1)


# ---- what there is ---------------------------------------------------------------------------------------------------


def claims(root=ROOT):
    return tomllib.loads((root / "docs/site/claims.toml").read_text())


def benchmarks(root=ROOT):
    """Names for `make bench-NAME`, in the order of the claims. What a claim calls `parts` belongs to it."""
    known = claims(root)
    parts = {part for claim in known.values() for part in claim.get("parts", [])}
    names = {path.stem for pattern in ("*.cpp", "*.py") for path in (root / "bench").glob(pattern)} - parts
    return [*(name for name in known if name in names), *sorted(names - set(known))]


# ---- measuring -------------------------------------------------------------------------------------------------------


def machine():
    """What a reader must know of it; nothing that names its owner."""
    cpu = re.search(r"(?m)^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True)
    return {
        "cpu": cpu[1] if cpu else os.uname().machine,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20) if memory else None,
        "system": f"{os.uname().sysname} {os.uname().release}",
        "compiler": compiler.stdout.splitlines()[0] if compiler.returncode == 0 else None,
    }


def commit(root):
    told = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return told.stdout.strip() or "not a checkout"


def is_recent(path):
    try:
        date = datetime.datetime.fromisoformat(json.loads(path.read_text())["date"])
    except (OSError, ValueError, KeyError):
        return False
    return datetime.datetime.now(datetime.UTC) - date < RECENT


def measure(name, root):
    """Runs it; gives what is kept of it, or raises RuntimeError with what went wrong."""
    command = f"make bench-{name}"
    load = os.getloadavg()[0]
    started = datetime.datetime.now(datetime.UTC)
    with subprocess.Popen(command.split(), cwd=root, stdout=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line.rstrip("\n"))
    if process.returncode != 0:
        raise RuntimeError(f"{command} ended with status {process.returncode}")
    try:
        figures = json.loads(lines[-1])
        assert isinstance(figures, dict)
    except (IndexError, ValueError, AssertionError):
        last = lines[-1] if lines else "nothing"
        raise RuntimeError(f"{command} printed {last!r} last; expected a JSON object") from None
    return {
        "benchmark": name,
        "command": command,
        "date": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.datetime.now(datetime.UTC) - started).total_seconds(), 1),
        "commit": commit(root),
        "machine": machine(),
        "load_average_before": round(load, 2),
        "figures": figures,
        "output": [line for line in lines[:-1] if not line.startswith("== [")],
    }


def measure_all(names, root):
    """Those that have no recent result. Gives what failed."""
    failed = []
    for name in names:
        path = root / f"build/results/{name}.json"
        if is_recent(path):
            print(f"{name}: taken from {path.relative_to(root)}; remove it to measure again")
        else:
            try:
                result = measure(name, root)
            except RuntimeError as problem:
                failed.append(str(problem))
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result, indent=1) + "\n")
        published = root / f"docs/results/{name}.json"
        published.parent.mkdir(parents=True, exist_ok=True)
        published.write_text(path.read_text())
    return failed


# ---- the page --------------------------------------------------------------------------------------------------------


def number(value):
    """Four digits that count, without an exponent."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "none" if value is None else str(value)
    text = f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}".replace(",", " ")
    return f"{float(text):f}".rstrip("0").rstrip(".") if "e" in text else text


def escaped(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def meaning(claim, figure):
    for pattern, words in claim.get("figures", {}).items():
        if found := re.fullmatch(pattern, figure):
            return found.expand(words)
    return ""


def bars_of(chart, figures):
    """(label, value, whether it is a peer) of what was measured; the peer of ratios is 1."""
    bars = [(bar["label"], figures.get(bar["figure"]), bar.get("peer", False)) for bar in chart["bars"]]
    bars = [bar for bar in bars if isinstance(bar[1], (int, float))]
    if bars and "one" in chart:
        bars.insert(0, (chart["one"], 1, True))
    return bars


def chart_svg(chart, figures):
    """Horizontal bars from 0, labels above them: readable on a phone. None if nothing was measured."""
    bars = bars_of(chart, figures)
    if not bars:
        return None
    width, left, row, top = 420, 12, 44, 50
    longest = max(value for _, value, _ in bars) or 1
    height = top + row * len(bars) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escaped(chart['title'])}</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff" stroke="#d0d7de"/>',
        f'<text x="{left}" y="20" font-size="14" font-weight="bold" fill="#1f2328">{escaped(chart["title"])}</text>',
        f'<text x="{left}" y="38" fill="#57606a">{escaped(chart["unit"])}</text>',
    ]
    for i, (label, value, is_peer) in enumerate(bars):
        y = top + row * i
        length = max(1.0, (width - 2 * left - 70) * value / longest)
        parts += [
            f'<text x="{left}" y="{y + 14}" fill="#1f2328">{escaped(label)}</text>',
            f'<rect class="{"peer" if is_peer else "ours"}" x="{left}" y="{y + 20}" width="{length:.1f}" height="14" '
            f'rx="2" fill="{"#8c959f" if is_peer else "#0969da"}"/>',
            f'<text x="{left + length + 6:.1f}" y="{y + 32}" fill="#1f2328">{number(value)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def section(name, claim, result):
    """The part of the page for one benchmark, and its charts by file name."""
    m, charts = result["machine"], {}
    memory = f"{m['memory_gib']} GiB" if m["memory_gib"] else None
    about = [f"{m['cpu']}, {m['cores']} cores", memory, m["system"], m["compiler"]]
    lines = [f"## {claim['title']}", "", claim["claim"], ""]
    for i, chart in enumerate(claim.get("charts", [])):
        if svg := chart_svg(chart, result["figures"]):
            file = f"{name}.svg" if i == 0 else f"{name}_{i + 1}.svg"
            charts[file] = svg
            lines += [f"![{chart['title']}](results/{file})", ""]
    lines += ["| figure | value | what it is |", "|---|---|---|"]
    lines += [f"| `{key}` | {number(value)} | {meaning(claim, key)} |" for key, value in result["figures"].items()]
    lines += [
        "",
        f"`{result['command']}`, {result['date'][:10]}, commit `{result['commit']}`, {number(result['seconds'])} s. "
        f"Machine: {', '.join(filter(None, about))}. Load average before: {number(result['load_average_before'])}.",
        "",
    ]
    if result["output"]:
        lines += ["<details><summary>All that it printed</summary>", "", "```text"]
        lines += [*result["output"], "```", "", "</details>", ""]
    return lines, charts


def page(found, known, names):
    """The text of docs/results.md and the charts by file name, of results by benchmark."""
    lines = [
        "# Results",
        "",
        "`make results` measures the claims of speed on your machine and writes this page. `make results NAMES='dispatch store'`",
        "measures only these. Every figure has its JSON file in `docs/results`. Ratios are made within one run, in which both",
        "sides took turns. In charts, gray is the peer and blue is ejk.",
        "",
    ]
    charts = {}
    for name in names:
        if name in found:
            part, drawn = section(name, known[name], found[name])
            lines += part
            charts |= drawn
    missing = [name for name in names if name not in found]
    if missing:
        lines += ["## Not measured yet", "", "| claim | command |", "|---|---|"]
        lines += [f"| {known[name]['title']} | `make bench-{name}` |" for name in missing]
        lines.append("")
    return "\n".join(lines), charts


def write_page(root):
    names, known = benchmarks(root), claims(root)
    folder = root / "docs/results"
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    text, charts = page(found, known, names)
    (root / "docs/results.md").write_text(text)
    for old in folder.glob("*.svg"):
        old.unlink()
    for file, svg in charts.items():
        (folder / file).write_text(svg)


def main(wanted, root=ROOT):
    names, none = benchmarks(root), wanted == ["none"]
    wrong = [] if none else [name for name in wanted if name not in names]
    if wrong:
        print(f"make results: got NAMES={' '.join(wrong)}; expected none, or some of: {' '.join(names)}", file=sys.stderr)
        return 2
    failed = [] if none else measure_all(wanted or names, root)
    write_page(root)
    print("wrote docs/results.md")
    for problem in failed:
        print(f"not measured: {problem}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
