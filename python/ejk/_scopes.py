# SPDX-License-Identifier: Apache-2.0
"""Scopes: policy changes and overlays that hold for the code inside a `with`, and for it alone.

They follow the context (contextvars): tasks and threads do not see each other's. A scope is a dict of
policy changes, a cache that is laid over, or FORWARD_ONLY; those of one selector come with it.
"""

from __future__ import annotations

import contextvars
from typing import Any

FORWARD_ONLY = "forward_only"

# Those entered, outermost first.
current: contextvars.ContextVar[tuple[Scope, ...]] = contextvars.ContextVar("ejk_scopes", default=())


def in_force(selector: object) -> tuple[Any, ...]:
    """What `selector` must be asked under, outermost first."""
    return tuple(s.what for s in current.get() if s.selector is None or s.selector is selector)


class Scope:
    """A `with` that puts something in force. May be entered again, also inside itself and in several
    threads; scopes may end in any order."""

    def __init__(self, what: Any, selector: Any = None) -> None:
        self.what, self.selector = what, selector

    def __enter__(self) -> Scope:
        current.set((*current.get(), self))
        return self

    def __exit__(self, *exc: Any) -> None:
        entered = list(current.get())
        for i in range(len(entered) - 1, -1, -1):
            if entered[i] is self:  # it is not there if this is another context than it was entered in
                del entered[i]
                current.set(tuple(entered))
                break
