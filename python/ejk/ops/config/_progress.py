# SPDX-License-Identifier: Apache-2.0
"""Whether tunings are shown while they run."""

from __future__ import annotations

import contextvars
import os
from typing import Any

_shown = contextvars.ContextVar("ejk_autotune_progress", default=False)


def is_shown() -> bool:
    """Whether this context, or $EJKERNEL_AUTOTUNE_PROGRESS=1, wants to see tunings."""
    return _shown.get() or os.environ.get("EJKERNEL_AUTOTUNE_PROGRESS") == "1"


def set_autotune_progress(enabled: bool = True) -> None:
    """Shows tunings on stderr from now on, or no longer, in this context."""
    _shown.set(bool(enabled))


class log_autotune_progress:
    """While it is entered, tunings are shown on stderr."""

    def __init__(self) -> None:
        self._before: list[contextvars.Token[bool]] = []

    def __enter__(self) -> Any:
        self._before.append(_shown.set(True))
        return self

    def __exit__(self, *exc: Any) -> None:
        _shown.reset(self._before.pop())


__all__ = ["log_autotune_progress", "set_autotune_progress"]
