# SPDX-License-Identifier: Apache-2.0
"""`python -m ejk worker`: tunes recorded calls of Python kernels, one after the other, for another process.

docs/reference/worker.md specifies what is read from standard input and written to standard output.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from ejk import _core

if TYPE_CHECKING:
    from ejk.ops.config.selection import ConfigSelectorChain
    from ejk.ops.core.kernel import Invocation

PROTOCOL = 1


def serve(modules: list[str]) -> int:
    """Imports the modules, whose kernels are then known, and answers until standard input ends."""
    _die_with_parent()
    answers = own_standard_output()
    faulthandler.enable()

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        for module in modules:
            _remember_kernels_of(importlib.import_module(module))
    except Exception as error:  # a module may fail in any way; who started this is told
        say(event="refused", message=f"cannot import {module}: {type(error).__name__}: {error}")
        return 1
    from ejk.ops.utils.fingerprint import device_fingerprint

    stop = _Stop()
    say(
        event="ready", protocol=PROTOCOL, device=device_fingerprint(), process=os.getpid(),
        understands=["numerics"], library=_core.__version__,
    )  # fmt: skip
    for line in sys.stdin.buffer:
        try:
            say(**_answer(line, stop, say))
        except BrokenPipeError:
            return 1
        if stop.told:
            break
    return 0


def _remember_kernels_of(module: ModuleType) -> None:
    """Those that are not subclasses of Kernel; the others are known already."""
    from ejk.ops.core.kernel import remember_class

    for cls in vars(module).values():
        if isinstance(cls, type) and cls.__module__ == module.__name__ and hasattr(cls, "run"):
            if any(hasattr(cls, hook) for hook in ("heuristic_cfg", "candidate_cfgs", "config_space")):
                remember_class(cls)


class _Stop:
    """SIGINT: the tuning ends with what it has, and then the worker."""

    def __init__(self) -> None:
        self.told = False
        self.selector: ConfigSelectorChain | None = None
        signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: Any) -> None:
        self.told = True
        if self.selector is not None:
            self.selector._core.stop()


def _answer(line: bytes, stop: _Stop, say: Callable[..., None]) -> dict[str, Any]:
    number: dict[str, Any] = {}
    try:
        request = json.loads(line)
        if isinstance(request, dict) and "request" in request:
            number = {"request": request["request"]}
        entry = _tune(request, stop, lambda progress: say(**progress, **number))
        answer = {"event": "tuned", "entry": {name: value for name, value in entry.items() if name != "candidates"}}
    except (ValueError, TypeError, KeyError) as error:
        answer = _failed("invalid_argument", error)
    except ImportError as error:
        answer = _failed("io", error)
    except RuntimeError as error:
        answer = _failed("no_configuration", error)
    except Exception as error:  # of a hook of the kernel: it costs this call, not the worker
        answer = _failed("other", error)
    return answer | number


def _failed(kind: str, error: Exception) -> dict[str, Any]:
    known = isinstance(error, (ValueError, RuntimeError))
    return {"event": "failed", "kind": kind, "message": str(error) if known else f"{type(error).__name__}: {error}"}


def _tune(request: dict[str, Any], stop: _Stop, hears: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    from ejk.ops.config.persistent import PersistentCache
    from ejk.ops.config.selection import AutotunePolicy, ConfigSelectorChain
    from ejk.ops.core.kernel import describe

    record = request["record"]
    inv = _rebuilt(record)
    call = describe(inv, inv.kernel, "recorded sketch")
    if (call.op, call.spec, call.device) != (record["op"], record["spec"], record["device"]):
        raise ValueError(
            f"[{record['op']}] the recorded call {record['key']} cannot be made: the kernel or the device is another "
            f"one since it was recorded: {call.op} {call.spec} on {call.device}, recorded was {record['spec']} "
            f"on {record['device']}"
        )
    policy = AutotunePolicy(
        budget_seconds=float(request["budget_seconds"]),
        validate_backward=bool(request.get("validate_backward", False)),
        numerics=request.get("numerics", "any"),
    )
    stop.selector = ConfigSelectorChain(policy=policy, persistent=PersistentCache(path=request["store"] or None))
    stop.selector._core.tell(hears)
    if stop.told:
        stop.selector._core.stop()
    retune = request.get("retune", False)
    # The host looks under the key of the record, which is not that of such a call.
    own_key = policy.validate_backward or policy.numerics == "same"
    try:
        tuned = stop.selector._stored_tuning(inv, inv.kernel) if own_key and not retune else None
        return tuned or stop.selector._tuned(inv, inv.kernel, resume=not retune)[1]
    finally:
        stop.selector = None


def _rebuilt(record: dict[str, Any]) -> Invocation:
    from ejk._known import NotKnown
    from ejk.modules._kernels import NativeKernel
    from ejk.modules._libraries import CppKernel
    from ejk.ops.core.kernel import Invocation, class_named
    from ejk.ops.registry import call_from, is_sketch, with_data

    def refuse(why: object) -> NoReturn:
        raise ValueError(f"[{record['op']}] the recorded call {record['key']} cannot be made: {why}")

    sketches = record["arguments"]
    if not is_sketch(sketches):
        refuse("it is not a call of a Python kernel, or its arguments have no written form")
    if record["context"]:
        refuse(f"it was made inside {record['context']}, whose mesh is not recorded")
    try:
        cls = class_named(sketches[0]["python"])
    except ValueError as error:
        refuse(f"{error} (--import {str(sketches[0]['python']).partition(':')[0][:100]})")
    _import_what_makes_arrays(sketches[0], with_jax=issubclass(cls, (NativeKernel, CppKernel)))
    try:
        kernel, args, kwargs = call_from(sketches[0])
    except NotKnown as error:
        refuse(f"{error}: annotate it in run or __init__")
    except ValueError as error:
        refuse(error)
    return Invocation(kernel=kernel, args=with_data(args), kwargs=with_data(kwargs, 1000))


def _import_what_makes_arrays(sketch: dict[str, Any], with_jax: bool) -> None:
    """A record cannot import anything; that its arrays need JAX or NumPy is known here."""
    from ejk import _jax

    arrays = list(_arrays_in(sketch))
    if with_jax or not all(array.get("numpy") for array in arrays):
        _jax.required()
    elif arrays:
        importlib.import_module("numpy")


def _arrays_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "$array" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _arrays_in(item)


def own_standard_output() -> IO[str]:
    """Standard output for answers alone: what others print there goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers


def _die_with_parent() -> None:
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
