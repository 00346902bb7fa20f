# SPDX-License-Identifier: Apache-2.0
"""Scopes: policy changes, overlays and devices that hold for the code inside a `with`, and for it alone.

They follow the context (contextvars): tasks and threads do not see each other's. A scope is a dict of
policy changes, a cache that is laid over, or FORWARD_ONLY; those of one selector come with it. Or it is a
site, for which calls are made.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from ejk import _jax

FORWARD_ONLY = "forward_only"

# Those entered, outermost first.
current: contextvars.ContextVar[tuple[Scope, ...]] = contextvars.ContextVar("ejk_scopes", default=())


def in_force(selector: object) -> tuple[Any, ...]:
    """What `selector` must be asked under, outermost first."""
    mine = [s for s in current.get() if s.is_for_selectors and (s.selector is None or s.selector is selector)]
    return tuple(s.what for s in mine)


class Scope:
    """A `with` that puts something in force. May be entered again, also inside itself and in several
    threads; scopes may end in any order. With a `token`, functions that are jitted already are traced again
    inside, and as they were outside: it tells what is traced under one scope from what is under another."""

    def __init__(
        self,
        what: Any,
        selector: Any = None,
        *,
        is_for_selectors: bool = True,
        token: Callable[[], object] | None = None,
    ) -> None:
        self.what, self.selector, self.is_for_selectors, self._token = what, selector, is_for_selectors, token

    def __enter__(self) -> Scope:
        current.set((*current.get(), self))
        self._sync_traces()
        return self

    def __exit__(self, *exc: Any) -> None:
        entered = list(current.get())
        for i in range(len(entered) - 1, -1, -1):
            if entered[i] is self:  # it is not there if this is another context than it was entered in
                del entered[i]
                current.set(tuple(entered))
                break
        self._sync_traces()

    def _sync_traces(self) -> None:
        if self._token is not None:
            sync_traces()


def sync_traces() -> None:
    """Tells JAX which scopes are in force: what is traced under them is theirs alone."""
    tokens = tuple(scope._token() for scope in current.get() if scope._token is not None)
    _jax.retrace_under(tokens or None)
