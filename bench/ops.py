# SPDX-License-Identifier: Apache-2.0
"""The built-in operations beside other libraries, in interleaved runs: `make bench-ops`.

A row is one case: the time of a call with the tuned config, then how many times as long the others
take ("again" is the tuned one once more: how far it is from 1 is what this run cannot resolve;
"heuristic" is ours without tuning). One thread counts by CPU time; rows marked (wall) use all threads.
Other libraries are installed by bench/ops/peers.py; what cannot be is left out and said so.

Families of rows are the modules of bench/ops that FAMILIES names: each has cases(options) and
figures(results). The last line is one JSON object with the figures of all of them.

  --quick               few cases, few rounds
  --only FAMILY         one family: matmul, attention, norms
  --shape FAMILY:SIZES  these sizes only, e.g. matmul:512,512,512; may be given several times
  --target avx2         no better instruction set than that, for all sides
  --rounds N            samples of each entry
  --notes               also print the configs
"""

import argparse
import importlib
import json
import pathlib
import random
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench/ops"))

import peers  # noqa: E402
import race  # noqa: E402

FAMILIES = ["matmul", "attention", "norms"]


def arguments():
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", choices=FAMILIES, default=[])
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--target", choices=["avx2"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--notes", action="store_true")
    options = parser.parse_args()
    by_family = {}
    for text in options.shape:
        family, _, sizes = text.partition(":")
        try:
            by_family.setdefault(family, []).append(tuple(int(size) for size in sizes.split(",")))
        except ValueError:
            parser.error(f"--shape {text}: a family, a colon, then numbers with commas between them")
        if family not in FAMILIES:
            parser.error(f"--shape {text}: no such family, there are {', '.join(FAMILIES)}")
    options.by_family = by_family
    options.only = options.only or list(by_family) or FAMILIES
    options.rounds = options.rounds or (7 if options.quick else 21)
    return options


def main():
    options = arguments()
    peers.set_up()
    random.seed(1)
    cache = tempfile.mkdtemp(prefix="bench-ops.", dir=ROOT / "build")  # tunings of this run only
    sides = {threads: peers.Sides(options.target, threads, cache) for threads in (1, peers.cores())}
    figures = {"target": options.target or "best"}
    try:
        for name in options.only:
            family = importlib.import_module(name)
            options.shapes = options.by_family.get(name, [])
            results = []
            cases = family.cases(options)
            for number, case in enumerate(cases):
                peers.say(f"[{number + 1}/{len(cases)}] {case.name}")
                result = race.measure(case, sides[case.threads or peers.cores()], options.rounds)
                race.print_result(result)
                if options.notes:
                    for column, note in result.notes.items():
                        if note:
                            print(f"  {column}: {note}")
                results.append(result)
            figures |= family.figures(results)
            again = [r.ratio("again") for r in results if r.ratio("again")]
            if again:
                figures[f"{name}_aa_worst"] = round(max(max(a, 1 / a) for a in again), 3)
    finally:
        for processes in sides.values():
            processes.close()
        shutil.rmtree(cache, ignore_errors=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
