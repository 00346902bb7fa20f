# SPDX-License-Identifier: Apache-2.0
"""What the code of a function reads besides its arguments, and whether that is all that it does."""

import dis
import types

_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_DYNAMIC = frozenset("globals eval exec __import__ open input breakpoint".split())
_MOST = 4096

_known: dict = {}


class Reads:
    """`names`: global name -> the attributes that follow it at once, as (("numpy", "tanh"), ...), () if none do.

    `imports`: modules that it imports itself. `hidden`: it changes variables outside, or looks for some by their name.
    """

    __slots__ = ("attributes", "hidden", "imports", "names")

    def __init__(self, code):
        self.names, self.imports, self.attributes, self.hidden = {}, set(), set(), False
        self._add(code, frozenset(code.co_freevars))
        self.names = {name: tuple(sorted(chains)) for name, chains in sorted(self.names.items())}
        self.hidden = self.hidden or not _DYNAMIC.isdisjoint(self.names)

    def _add(self, code, outside):
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for place, step in enumerate(steps):
            if step.opname in _GLOBAL:
                self.names.setdefault(step.argval, set()).add(_chain(steps, place + 1))
            elif step.opname in _ATTRIBUTE:
                self.attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                self.imports.add(step.argval)
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self.hidden = True
            elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in outside:
                self.hidden = True
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add(constant, outside & frozenset(constant.co_freevars))


def _chain(steps, place):
    found = []
    while place < len(steps) and steps[place].opname in _ATTRIBUTE:
        found.append(steps[place].argval)
        place += 1
    return tuple(found)


def reads_of(code) -> Reads:
    found = _known.get(code)
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[code] = Reads(code)
    return found
