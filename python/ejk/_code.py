# SPDX-License-Identifier: Apache-2.0
"""What the code of a function reads besides its arguments, and whether that is all that it does."""

from __future__ import annotations

import dis
import enum
import functools
import types
from collections.abc import Sequence
from typing import Any

_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_DYNAMIC = frozenset("globals eval exec __import__ open input breakpoint".split())
_OF_CLASSES = frozenset("type __class__".split())
_SETTERS = frozenset("setattr delattr".split())
_CHANGERS = frozenset(
    "__delitem__ __setitem__ add append appendleft clear difference_update discard extend extendleft insert "
    "intersection_update move_to_end pop popitem popleft remove reverse rotate setdefault sort "
    "symmetric_difference_update update".split()
)
_MAX = 4096

_known: dict[types.CodeType, Reads] = {}


class Reads:
    """`names`: global name -> the attributes that follow it at once, as (("numpy", "tanh"), ...), () if none do.

    `imports`: modules that it imports itself. `hidden`: it changes variables outside, or looks for some by their name.
    `sets`: attributes that it sets; `sets_of_first`: of its first argument. `changes`: it may change containers.
    `asks_for_class`: it may set attributes of the class of an object.
    """

    __slots__ = ("asks_for_class", "attributes", "changes", "hidden", "imports", "names", "sets", "sets_of_first")

    def __init__(self, code: types.CodeType) -> None:
        self.names: dict[str, Any] = {}  # of sets, until all are found
        self.imports: set[str] = set()
        self.attributes: set[str] = set()
        self.sets: set[str] = set()
        self.sets_of_first: set[str] = set()
        self.hidden = self.changes = False
        self._add(code, frozenset(code.co_freevars))
        self.sets |= _SETTERS & self.names.keys()
        self.changes = self.changes or not _CHANGERS.isdisjoint(self.attributes)
        self.asks_for_class = not _OF_CLASSES.isdisjoint(self.attributes | self.names.keys())
        self.names = {name: tuple(sorted(chains)) for name, chains in sorted(self.names.items())}
        self.hidden = self.hidden or not _DYNAMIC.isdisjoint(self.names)

    def _add(self, code: types.CodeType, outside: frozenset[str]) -> None:
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for place, step in enumerate(steps):
            if step.opname in _GLOBAL:
                self.names.setdefault(step.argval, set()).add(_chain(steps, place + 1))
            elif step.opname in _ATTRIBUTE:
                self.attributes.add(step.argval)
            elif step.opname in ("STORE_ATTR", "DELETE_ATTR"):
                (self.sets_of_first if _is_first_argument(code, steps, place - 1) else self.sets).add(step.argval)
            elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
                self.changes = True
            elif step.opname.startswith("INPLACE_") or step.opname == "BINARY_OP" and step.argrepr.endswith("="):
                self.changes = True
            elif step.opname == "IMPORT_NAME":
                self.imports.add(step.argval)
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self.hidden = True
            elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in outside:
                self.hidden = True
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add(constant, outside & frozenset(constant.co_freevars))


def _is_first_argument(code: types.CodeType, steps: Sequence[dis.Instruction], place: int) -> bool:
    """Whether a step loads the first argument as the call gave it."""
    if not code.co_argcount or not steps[place].opname.startswith("LOAD_FAST"):
        return False
    first, loaded = code.co_varnames[0], steps[place].argval
    is_set = any(step.opname.startswith("STORE_FAST") and first in _names_of(step) for step in steps)
    return (loaded[-1] if isinstance(loaded, tuple) else loaded) == first and not is_set


def _names_of(step: dis.Instruction) -> tuple[Any, ...]:
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _chain(steps: Sequence[dis.Instruction], place: int) -> tuple[str, ...]:
    found = []
    while place < len(steps) and steps[place].opname in _ATTRIBUTE:
        found.append(steps[place].argval)
        place += 1
    return tuple(found)


def reads_of(code: types.CodeType) -> Reads:
    found = _known.get(code)
    if found is None:
        if len(_known) >= _MAX:
            _known.clear()
        found = _known[code] = Reads(code)
    return found


class Asks(enum.Enum):
    """What code asks for the type of."""

    NEVER = enum.auto()
    OF_FIRST = enum.auto()  # of its first argument, as methods do
    OF_ANY = enum.auto()


@functools.lru_cache(_MAX)
def asks_for_type(code: types.CodeType) -> Asks:
    """Without the functions that are made inside."""
    found = Asks.NEVER
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "PRECALL")]
    for place, step in enumerate(steps):
        if step.opname in _GLOBAL and step.argval in ("type", "builtins"):
            call = steps[place + 2]
            if not (_is_first_argument(code, steps, place + 1) and call.opname == "CALL" and call.arg == 1):
                return Asks.OF_ANY
            found = Asks.OF_FIRST
    return found
