# SPDX-License-Identifier: Apache-2.0
"""One config per call for all ranks of a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ejk import _core, _jax, _scopes

_traces = itertools.count()


def agree(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Pins the configs of all calls in a call of the function with these arguments, in one question.

    In a run with pins (EJKERNEL_PERSISTENT_CACHE_PIN) a trace asks for each new call as it comes to it. After `agree`
    it asks for none: the function is traced once before, as jax.eval_shape does, and what this rank would take for
    its calls is offered together. Waits for no other rank. The number of calls; 0, without a trace, in other runs.
    """
    if not _core.pins_are_on():
        return 0
    number = next(_traces)
    # What is traced inside is not what runs: another rank may have been first.
    with _scopes.Scope(None, is_for_selectors=False, token=lambda: ("agree", number)):
        return _core.pin_choices_of(lambda: _jax.required().eval_shape(function, *args, **kwargs))


__all__ = ["agree"]
