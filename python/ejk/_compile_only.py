# SPDX-License-Identifier: Apache-2.0
"""`python -m ejk tune --compile-only`: which configs of recorded calls a device's compiler takes, where it is not.

Compilers end their process for some inputs. So one process compiles, config by config, and tells another,
which starts it again behind the config at which it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ejk import _configs, _log


@dataclass(frozen=True)
class Wanted:
    """What to compile, and for which device."""

    device: str
    modules: list[str]
    recorded: str
    ops: list[str]


@dataclass
class Found:
    """What came of it."""

    device: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    interrupted: bool = False

    def text(self) -> str:
        lines = []
        for call in self.calls:
            kept = sum(config["fits"] for config in call["configs"])
            lines.append(f"{call['op']} {call['key']}: {kept} of {len(call['configs'])} configs compile for {self.device}")
            lines += [f"  dropped {c['config']}: {_reason(c)}" for c in call["configs"] if not c["fits"]]
        lines += [f"{call['op']} {call['key']} was left out: {call['why']}" for call in self.skipped]
        return "\n".join(lines)


def _reason(config: dict[str, Any]) -> str:
    why = " ".join(config["why"].split())
    why = why if len(why) <= 300 else f"{why[:300]} ..."
    if config["needed"] is None:
        return why
    return f"it needs {config['needed']} bytes, {config['limit']} are there: {why}"


# ---- the process that asks ------------------------------------------------------------------------


class _Lost(Exception):
    """The compiling process is gone, and why."""


def prune(wanted: Wanted, deadline: float) -> Found:
    """Raises RuntimeError if nothing can be compiled. After an interrupt, what was found until then."""
    found, place = Found(), (0, 0)
    while True:
        try:
            for event in _events(wanted, place, deadline):
                if event["event"] == "end":
                    return found
                place = _note(found, event, place)
        except _Lost as lost:
            place = _note_loss(found, place, str(lost))
        except KeyboardInterrupt:
            _note_interrupt(found, place)
            return found


def _note(found: Found, event: dict[str, Any], place: tuple[int, int]) -> tuple[int, int]:
    """Where to go on after this."""
    call, config = place
    if event["event"] == "refused":
        raise RuntimeError(event["message"])
    if event["event"] == "ready":
        found.device = event["device"]
    elif event["event"] == "skipped":
        found.skipped.append({name: event[name] for name in ("op", "key", "why")})
        return call + 1, 0
    elif event["event"] == "call":
        if len(found.calls) + len(found.skipped) == call:
            found.calls.append({"op": event["op"], "key": event["key"], "configs": []})
        return event["call"], config
    elif event["event"] == "begin":
        unknown = {"fits": None, "why": "", "needed": None, "limit": None, "seconds": 0.0}
        found.calls[-1]["configs"].append({"config": event["config"], **unknown})
        return call, config + 1
    elif event["event"] == "compiled":
        found.calls[-1]["configs"][-1].update(event["result"])
    elif event["event"] == "done":
        return call + 1, 0
    return place


def _note_loss(found: Found, place: tuple[int, int], why: str) -> tuple[int, int]:
    """Where to go on: behind the config that was being compiled."""
    last = found.calls[-1]["configs"][-1] if place[1] else {"fits": True}
    if last["fits"] is not None:
        raise RuntimeError(f"[tune] {why}, and not because of a config; its output is above")
    last.update(fits=False, why=why)
    return place


def _note_interrupt(found: Found, place: tuple[int, int]) -> None:
    found.interrupted = True
    if len(found.calls) + len(found.skipped) > place[0]:
        call = found.calls.pop()
        found.skipped.append({"op": call["op"], "key": call["key"], "why": "interrupted"})


def _events(wanted: Wanted, place: tuple[int, int], deadline: float) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "ejk", "compile", "--device", wanted.device, "--recorded-in", wanted.recorded]
    command += ["--from", f"{place[0]}.{place[1]}"]
    for option, values in (("--import", wanted.modules), ("--op", wanted.ops)):
        for value in values:
            command += [option, value]
    # A group of its own: an interrupt is for this process, which ends that one.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            is_compiling = False
            for line in _lines(process, lambda: deadline if is_compiling else None):
                event = json.loads(line)
                is_compiling = event["event"] == "begin"
                yield event
            status = process.wait()
        finally:
            process.kill()
    raise _Lost(f"the process that compiles ended with {f'signal {-status}' if status < 0 else f'status {status}'}")


def _lines(process: subprocess.Popen[bytes], deadline: Callable[[], float | None]) -> Iterator[bytes]:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        rest = b""
        while True:
            seconds = deadline()
            if not selector.select(seconds):
                raise _Lost(f"it took more than {seconds:g} s")
            read = os.read(process.stdout.fileno(), 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            yield from lines


# ---- the process that compiles --------------------------------------------------------------------


def serve(wanted: Wanted, place: tuple[int, int]) -> int:
    """Compiles from this call and config on, and says on standard output what comes of each."""
    from ejk import _worker

    _worker._die_with_parent()
    answers = _worker.own_standard_output()

    def say(event: str, **members: Any) -> None:
        answers.write(json.dumps({"event": event, **members}) + "\n")
        answers.flush()

    from ejk.ops import for_device
    from ejk.ops.execution._compiling import expect_compiler

    try:
        for module in wanted.modules:
            _worker._remember_kernels_of(importlib.import_module(module))
        here = for_device(wanted.device)
        expect_compiler("tune", here.site)
    except Exception as error:  # a module may fail in any way; who started this is told
        say("refused", message=f"{type(error).__name__}: {error}")
        return 1
    say("ready", device=here.site.name)
    for number, (op, key, call) in enumerate(_recorded(wanted, here)):
        if number >= place[0]:
            with here:
                _compile(op, key, call, number, place[1] if number == place[0] else 0, say)
    say("end")
    return 0


def _recorded(wanted: Wanted, here: Any) -> list[tuple[str, str, Any]]:
    """Calls that were recorded on that device or on this one."""
    from ejk.ops.registry import read_recorded
    from ejk.ops.utils.fingerprint import device_fingerprint

    found: dict[tuple[str, str], Any] = {}
    for device in (device_fingerprint(), here.site.core.fingerprint):
        for op, calls in read_recorded(device, wanted.recorded).items():
            found |= {(op, key): call for key, call in calls.items()}
    chosen = sorted((op, key) for op, key in found if not wanted.ops or {op, op.partition("@v")[0]} & set(wanted.ops))
    return [(op, key, found[op, key]) for op, key in chosen]


def _compile(op: str, key: str, recorded: Any, number: int, first: int, say: Callable[..., None]) -> None:
    from ejk.ops.core._call import KernelCall
    from ejk.ops.core._function import site_of_call
    from ejk.ops.core.kernel import Invocation, describe
    from ejk.ops.execution._compiling import candidates_of, compile_each

    kernel, args, kwargs = recorded
    inv = Invocation(kernel=kernel, args=args, kwargs=kwargs)
    try:
        if describe(inv, kernel).key != key:
            raise ValueError("it was made inside of shard_map, or its key is another one now")
        configs = candidates_of(KernelCall(kernel, inv, site_of_call(inv)))
    except Exception as error:  # of a hook of the kernel
        say("skipped", op=op, key=key, why=f"{type(error).__name__}: {error}")
        return
    say("call", op=op, key=key, call=number)
    for config in configs[first:]:
        say("begin", config=_shown(config))
        (result,) = compile_each(inv, [config])
        members = ("fits", "why", "needed", "limit", "seconds")
        say("compiled", result={name: getattr(result, name) for name in members})
    say("done")


def _shown(config: Any) -> str:
    plain = _configs.encode(config)
    if isinstance(plain, dict):
        plain = {name: value for name, value in plain.items() if name != "$type"}
    return _log.printable(json.dumps(plain, default=repr))
