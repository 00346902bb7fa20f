# SPDX-License-Identifier: Apache-2.0
"""What a newcomer waits for, and how large the sources are.

first_kernel_over_std  compiling examples/01_first_kernel.cpp with -O0, over a file that only includes <vector>,
                       <string>, <functional>, <memory> and <map>; CPU time of the compiler, medians, taking turns
ejk_h_over_std         the same for a file that only includes <ejk/ejk.h>
control                the standard headers against themselves
*_cold_s               seconds of ./run, ./test and ./test fast on a fresh machine, from their logs
                       (of runs that went well):
                       make bench-build ARGS='--run LOG --test LOG --fast LOG'; null without the log
src_lines              lines of src/ and include/
longest_function       lines of the longest function in src/, include/ and cli/, and where it begins
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STANDARD = ("vector", "string", "functional", "memory", "map")
ROUNDS = 9


def cpu_seconds(source):
    before = os.times()
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-std=c++20", "-O0", "-I", ROOT / "include", "-c", source, "-o", "/dev/null"], check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def compile_ratios():
    with tempfile.TemporaryDirectory() as folder:
        standard, control, ejk_h = (pathlib.Path(folder) / f"{name}.cpp" for name in ("std", "control", "ejk"))
        standard.write_text("".join(f"#include <{name}>\n" for name in STANDARD))
        control.write_text(standard.read_text())
        ejk_h.write_text("#include <ejk/ejk.h>\n")
        sources = {
            "control": control,
            "ejk_h_over_std": ejk_h,
            "first_kernel_over_std": ROOT / "examples/01_first_kernel.cpp",
        }
        ratios = {name: [] for name in sources}
        for _ in range(ROUNDS):
            of_standard = cpu_seconds(standard)
            for name, source in sources.items():
                ratios[name].append(cpu_seconds(source) / of_standard)
    return {name: round(statistics.median(values), 2) for name, values in ratios.items()}


def seconds_of(log, end):
    """The seconds in the line with which ./run or ./test ends: "== [ 123 s] all tests passed". A failed run has none."""
    if log is None:
        return None
    stages = re.findall(r"(?m)^== \[ *(\d+) s\] (.*)$", pathlib.Path(log).read_text()) or [(0, "nothing")]
    seconds, last = stages[-1]
    if last != end:
        raise SystemExit(f"{log}: got {last!r} as the last stage; expected {end!r}, the end of a run that went well")
    return int(seconds)


def sources_in(*folders):
    return [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".h", ".cpp")]


NOT_CODE = re.compile(r'//.*|"(\\.|[^"\\])*"|\'(\\.|[^\'\\])*\'')
NOT_A_FUNCTION = "if|for|while|switch|else|do|namespace|struct|class|enum|union|requires|template|concept|constexpr"
OPENING = re.compile(rf"^ *(?!({NOT_A_FUNCTION})\b)\S.*\)[^=]*\{{$")


def functions_of(path):
    """(lines, first line) of each function: from a line that opens one to where its brace closes."""
    lines = [NOT_CODE.sub("", line).rstrip() for line in path.read_text().splitlines()]
    for begin, line in enumerate(lines):
        if OPENING.match(line):
            depth = 0
            for end in range(begin, len(lines)):
                depth += lines[end].count("{") - lines[end].count("}")
                if depth <= 0:
                    yield end - begin + 1, begin + 1
                    break


def longest_function():
    found = [
        (n, f"{p.relative_to(ROOT)}:{at}") for p in sources_in("src", "include", "cli") for n, at in functions_of(p)
    ]
    lines, where = max(found)
    return {"longest_function": lines, "longest_function_at": where}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "test", "fast"):
        parser.add_argument(f"--{name}", metavar="LOG")
    logs = parser.parse_args()
    result = {
        "run_cold_s": seconds_of(logs.run, "done"),
        "test_cold_s": seconds_of(logs.test, "all tests passed"),
        "test_fast_cold_s": seconds_of(logs.fast, "all tests passed"),
        **compile_ratios(),
        "src_lines": sum(len(p.read_text().splitlines()) for p in sources_in("src", "include")),
        **longest_function(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
