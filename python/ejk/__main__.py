# SPDX-License-Identifier: Apache-2.0
"""`python -m ejk`: tunes recorded calls of Python kernels away from the program that makes them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import IO, TYPE_CHECKING, Any

from ejk import _core, _log

if TYPE_CHECKING:
    from ejk import _compile_only

_ABOUT = """Tunes recorded calls of Python kernels in worker processes, so that a config that crashes,
hangs or exits costs some attempts and nothing else.

  EJKERNEL_OPS_RECORD=1 python program.py         # keeps every distinct call on disk
  python -m ejk tune --import my_kernels          # tunes them and keeps the results in the store
  python program.py                               # runs with them

The tool `ejk` looks at stores, moves and reports them; docs/reference/tool.md."""

_EXITS = """exit codes: 0 done; 1 something could not be done; 2 wrong command line; 3 nothing is recorded or
labelled; 130 interrupted, what was found until then is kept"""


def main(words: list[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(words)
    if given.verb == "worker":
        from ejk import _worker

        return _worker.serve(given.modules)
    if given.verb == "compile":
        from ejk import _compile_only

        return _compile_only.serve(_wanted(given), given.place)
    if given.compile_only != bool(given.device):
        parser.error("--compile-only and --device go together")
    if given.compile_only and given.lowered:
        parser.error("--compile-only and --lowered do not go together")
    if not given.on and (given.address or given.worker):
        parser.error("--address and --worker go with --on ray")
    if given.on and (given.compile_only or given.lowered):
        parser.error("--on ray tunes recorded calls: it goes neither with --compile-only nor with --lowered")
    if given.worker and given.modules:
        parser.error("--worker and --import do not go together")
    if given.compile_only:
        return _prune(given)
    return _tune_on_ray(given) if given.on else _tune(given)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m ejk", description=_ABOUT, epilog=_EXITS, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"ejk {_core.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    tune = verbs.add_parser(
        "tune", help="tune recorded calls, or those of a lowered computation", epilog=_EXITS, formatter_class=raw
    )
    _add_modules(tune)
    which = tune.add_mutually_exclusive_group()
    which.add_argument("--recorded", action="store_true", help="all recorded calls (this is the default)")
    which.add_argument("--lowered", metavar="FILE", default="", help="the labelled calls of this file or dump folder")
    _add_ops(tune)
    tune.add_argument("--store", default="", metavar="DIR", help="default: EJKERNEL_PERSISTENT_CACHE_DIR and its layers")
    tune.add_argument(
        "--recorded-in", default="", metavar="DIR",
        help='default: "recorded" in --store, else EJKERNEL_OPS_RECORD_DIR, else "recorded" in the default store',
    )  # fmt: skip
    tune.add_argument("--budget", type=_seconds, default=0.0, metavar="S", help="for all calls together; 0: any time")
    tune.add_argument("--budget-per-call", type=_seconds, default=10.0, metavar="S", help="for one call, about")
    tune.add_argument(
        "--deadline", type=_seconds, default=60.0, metavar="S",
        help="a worker that has not answered so many seconds after its budget is ended",
    )  # fmt: skip
    tune.add_argument("--retune", action="store_true", help="also calls that are tuned")
    tune.add_argument(
        "--numerics", choices=["any", "same"], default="any",
        help="same: for programs whose policy says so, only configs whose results are bitwise equal to the heuristic's",
    )  # fmt: skip
    tune.add_argument(
        "--compile-only", action="store_true",
        help="run nothing: say which configs the compiler of --device takes, which need not be here",
    )  # fmt: skip
    tune.add_argument(
        "--device", default="", metavar="NAME",
        help="with --compile-only: A100, H100, B200, v4, v5e, v5p, v6e, or a platform that is here",
    )  # fmt: skip
    tune.add_argument("--on", choices=["ray"], default="", help="tune on the hosts of a Ray cluster; docs/fleet.md")
    tune.add_argument(
        "--address", default="", metavar="A",
        help="with --on ray: of the cluster; default: RAY_ADDRESS, else the one that this machine is in",
    )  # fmt: skip
    tune.add_argument(
        "--worker", default="", metavar="COMMAND",
        help="with --on ray: run by sh on each host, for kernels that are not of Python, such as 'ejk worker'",
    )  # fmt: skip
    tune.add_argument(
        "--json", action="store_true", help="one JSON document instead of text; with --on ray, one line for each event"
    )

    worker = verbs.add_parser("worker", help="tune what another process asks for; docs/reference/worker.md says how")
    _add_modules(worker)

    compiler = verbs.add_parser("compile", help="what tune --compile-only starts")
    _add_modules(compiler)
    _add_ops(compiler)
    compiler.add_argument("--device", required=True)
    compiler.add_argument("--recorded-in", default="")
    compiler.add_argument("--from", dest="place", type=_place, default=(0, 0), metavar="CALL.CONFIG")
    return parser


def _add_ops(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--op", dest="ops", action="append", default=[], metavar="OP", help="only this op; repeatable")


def _place(word: str) -> tuple[int, int]:
    call, _, config = word.partition(".")
    return int(call), int(config)


def _add_modules(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--import", dest="modules", action="append", default=[], metavar="MODULE",
        help="a module with kernels, imported by the worker; repeatable",
    )  # fmt: skip


def _seconds(word: str) -> float:
    value = float(word)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not a number of seconds")
    return value


def _tune(given: argparse.Namespace) -> int:
    if given.lowered and not os.path.exists(given.lowered):
        _tell(f"there is no {given.lowered}")
        return 3
    command = [sys.executable, "-m", "ejk", "worker"]
    for module in given.modules:
        command += ["--import", module]

    def on_call(op: str, key: str, message: str) -> None:
        _tell(f"{op} {key}: {message}")

    try:
        text, found = _core.tune_in_workers(
            command=command,
            store=os.path.expanduser(given.store),
            recorded=_recorded_in(given),
            lowered=given.lowered,
            ops=given.ops,
            budget=given.budget,
            budget_per_call=given.budget_per_call,
            patience=given.deadline,
            retune=given.retune,
            same_numerics=given.numerics == "same",
            on_call=on_call,
        )
    except (OSError, RuntimeError, ValueError) as error:
        _tell(str(error))
        return 1
    print(json.dumps(found, indent=1) if given.json else _shown(text))
    if found["interrupted"]:
        return 130
    if not found["tuned"]:
        return 1 if found["skipped"] else 3
    bad = any(not entry["kept"] for entry in found["tuned"]) or any(skip["lost"] for skip in found["skipped"])
    return 1 if bad else 0


def _tune_on_ray(given: argparse.Namespace) -> int:
    from ejk import _on_ray, _worker

    store = given.store if "://" in given.store else given.store and os.path.abspath(os.path.expanduser(given.store))
    wanted = _on_ray.Wanted(
        given.address, given.worker, given.modules, store, _recorded_in(given), given.ops,
        given.budget, given.budget_per_call, given.deadline, given.retune,
        given.numerics == "same",
    )  # fmt: skip
    came_to = _CameTo(given.json, _worker.own_standard_output())  # Ray prints what it pleases
    try:
        is_whole = _on_ray.tune(wanted, came_to)
    except (OSError, RuntimeError, ValueError) as error:
        _tell(str(error))
        return 1
    if not is_whole:
        return 130
    if not came_to.calls:
        _tell("nothing is recorded: run the program with EJKERNEL_OPS_RECORD=1 first")
        return 3
    return 1 if came_to.not_kept else 0


class _CameTo:
    """Shows what happens to calls and hosts: as JSON lines, or results on standard output and the rest beside it."""

    def __init__(self, json_lines: bool, results: IO[str]) -> None:
        self.json_lines, self.results = json_lines, results
        self.calls = self.not_kept = 0

    def __call__(self, event: str, **members: Any) -> None:
        if event == "plan":
            self.calls = members["to_tune"] + members["tuned"]
        self.calls += event == "failed"
        self.not_kept += event in ("failed", "left_out") or (event == "tuned" and not members["kept"])
        if self.json_lines:
            print(json.dumps({"event": event, **members}), file=self.results, flush=True)
        elif event in ("tuned", "failed"):
            print(_shown(_text_of(event, members)), file=self.results, flush=True)
        else:
            _tell(_text_of(event, members))


def _text_of(event: str, of: dict[str, Any]) -> str:
    if event == "plan":
        return f"{of['to_tune']} calls to tune, {of['tuned']} are tuned already"
    if event == "host":
        return f"{of['host']} is ready, it has {of['device']}"
    if event == "host_lost":
        return f"{of['host']} is lost, {'and will be tried again' if of['again'] else 'for good'}: {of['why']}"
    if event == "again":
        return f"[{of['op']}] {of['key']} on {of['host']}: {of['why']}"
    if event == "elsewhere":
        return f"[{of['op']}] {of['key']} was lost on {of['host']} and goes elsewhere: {of['why']}"
    if event == "left_out":
        return f"no host has {of['device']}: {len(of['calls'])} calls are left out"
    if event == "failed":
        return f"[{of['op']}] {of['key']}: not tuned: {of['why']}"
    if event == "tuned":
        speedup = of["entry"]["evidence"].get("speedup", 0)
        faster = f", {speedup:.3g}x the heuristic's speed" if speedup else ""
        kept = "" if of["kept"] else ", but could not be kept"
        return f"[{of['op']}] {of['key']}: {json.dumps(of['entry']['config'])}{faster}, on {of['host']}{kept}"
    left = "" if of["seconds_left"] is None else f", about {of['seconds_left']:.0f} s left"
    return f"{of['done']} of {of['total']} calls, {of['hosts']} hosts, {of['calls_per_minute']:.1f} a minute{left}"


def _recorded_in(given: argparse.Namespace) -> str:
    database = "://" in given.store  # which has recorded calls, too
    beside = given.store if database else given.store and os.path.join(given.store, "recorded")
    return os.path.expanduser(given.recorded_in or beside)


def _wanted(given: argparse.Namespace) -> _compile_only.Wanted:
    from ejk import _compile_only

    return _compile_only.Wanted(given.device, given.modules, os.path.expanduser(given.recorded_in), given.ops)


def _prune(given: argparse.Namespace) -> int:
    from ejk import _compile_only

    given.recorded_in = _recorded_in(given)
    try:
        found = _compile_only.prune(_wanted(given), given.deadline)
    except RuntimeError as error:
        _tell(str(error))
        return 1
    print(json.dumps(dataclasses.asdict(found), indent=1) if given.json else _shown(found.text()))
    if found.interrupted:
        return 130
    if not found.calls and not found.skipped:
        _tell("nothing is recorded: run the program with EJKERNEL_OPS_RECORD=1 first")
        return 3
    usable = all(any(config["fits"] for config in call["configs"]) for call in found.calls)
    return 0 if usable and not found.skipped else 1


def _tell(message: str) -> None:
    print(f"ejk: {_shown(message)}", file=sys.stderr, flush=True)


def _shown(text: str) -> str:
    """It may quote names of records, which others wrote."""
    return "\n".join(map(_log.printable, text.rstrip().split("\n")))


if __name__ == "__main__":
    sys.exit(main())
