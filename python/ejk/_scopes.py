# SPDX-License-Identifier: Apache-2.0
"""Scopes: policy changes and overlays that hold for the code inside a `with`, and for it alone.

They follow the context (contextvars): tasks and threads do not see each other's. A scope is a dict of
policy changes, a cache that is laid over, or FORWARD_ONLY; those of one selector come with it.
"""

import contextvars

FORWARD_ONLY = "forward_only"

# (selector or None, scope), outermost first.
current = contextvars.ContextVar("ejk_scopes", default=())


def in_force(selector):
    """The scopes that `selector` must be asked under, outermost first."""
    return tuple(scope for whose, scope in current.get() if whose is None or whose is selector)


class Scope:
    """A `with` that puts something in force. May be entered again, also inside itself."""

    def __init__(self, scope, selector=None):
        self._scope, self._selector = scope, selector
        self._entered = []

    def __enter__(self):
        item = (self._selector, self._scope)
        self._entered.append((item, current.set((*current.get(), item))))
        return self

    def __exit__(self, *exc):
        item, token = self._entered.pop()
        try:
            current.reset(token)
        except (ValueError, RuntimeError):  # left in another context than it was entered in
            rest = list(current.get())
            for i in range(len(rest) - 1, -1, -1):
                if rest[i] is item:
                    del rest[i]
                    current.set(tuple(rest))
                    break
        return None
