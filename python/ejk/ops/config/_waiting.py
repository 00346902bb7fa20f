# SPDX-License-Identifier: Apache-2.0
"""Calls that were answered with a heuristic and wait for `idle`. Of their arrays only types and shapes are kept."""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ejk import _core, _jax, _log, _sites
from ejk.ops.core.kernel import Invocation

_MAX = 1000


@dataclass
class WaitingCall:
    """One of them, and the policy that was in force when it was made."""

    call: _core.Call
    inv: Invocation[Any, Any]
    kernel: Any
    site: _sites.Site
    policy: dict[str, Any]
    seconds: float = 0  # of tuning so far

    def with_numbers(self) -> Invocation[Any, Any]:
        seeds = itertools.count()

        def filled(leaf: Any) -> Any:
            return leaf.made(next(seeds)) if isinstance(leaf, _Array) else leaf

        return replace(self.inv, args=_mapped(filled, self.inv.args), kwargs=_mapped(filled, self.inv.kwargs))


def without_arrays(inv: Invocation[Any, Any]) -> Invocation[Any, Any]:
    args, kwargs = _mapped(_without_numbers, inv.args), _mapped(_without_numbers, dict(inv.kwargs))
    return replace(inv, args=args, kwargs=kwargs, metadata=None)


class Waiting:
    """The queue. Thread-safe; each call is tuned by one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: collections.deque[WaitingCall] = collections.deque()
        self._on = 0  # are being tuned

    def add(self, call: WaitingCall) -> None:
        with self._lock:
            if len(self._calls) < _MAX:
                self._calls.append(call)

    def idle(self, seconds: float, tune: Callable[[WaitingCall, float], bool]) -> int:
        """tune(call, seconds) says whether it is done with the call."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0 and (call := self._take()) is not None:
            is_done = False
            try:
                is_done = tune(call, rest)
            except Exception as error:  # of any kind: it costs this call, not the program
                is_done = True
                _log.warn_once(("idle", call.call.key), f"[{call.call.op}] a call that waited cannot be tuned: {error}")
            finally:
                self._put_back(call, is_done)
        with self._lock:
            return len(self._calls) + self._on

    def _take(self) -> WaitingCall | None:
        with self._lock:
            if not self._calls:
                return None
            self._on += 1
            return self._calls.popleft()

    def _put_back(self, call: WaitingCall, is_done: bool) -> None:
        with self._lock:
            self._on -= 1
            if not is_done:
                self._calls.appendleft(call)


@dataclass(frozen=True)
class _Array:
    shape: tuple[int, ...]
    dtype: Any
    of_numpy: bool

    def made(self, seed: int) -> Any:
        return _jax.example_numbers(self.dtype, self.shape, seed) if self.of_numpy else _jax.example_data(self, seed)


def _without_numbers(leaf: Any) -> Any:
    of_numpy = _jax.is_numpy(leaf)
    return _Array(leaf.shape, leaf.dtype, of_numpy) if of_numpy or _jax.is_array(leaf) else leaf


def _mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    jax = _jax.loaded()
    if jax is not None:
        return jax.tree_util.tree_map(f, tree)
    if isinstance(tree, dict):
        return {name: _mapped(f, value) for name, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_mapped(f, value) for value in tree)
    return f(tree)


__all__ = ["Waiting", "WaitingCall", "without_arrays"]
