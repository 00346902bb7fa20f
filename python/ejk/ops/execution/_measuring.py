# SPDX-License-Identifier: Apache-2.0
"""Functions made ready to be measured, and races of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ejk import _core, _jax
from ejk.ops.core._call import _with_backward, untraceable
from ejk.ops.core._function import Arguments
from ejk.ops.registry import with_data

_MAX_SECONDS = 60.0

_Candidate = TypeVar("_Candidate")


def prepared(fn: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """fn(*args, **kwargs) as a function without arguments that waits for its results.

    Jitted, with its gradient if it is tagged so; forward only if that cannot be differentiated; not jitted
    if that cannot be. Arrays that are traced are zeros here, those of recorded calls seeded numbers. Raises
    what fn raises.
    """
    jax = _jax.loaded()
    if jax is None:
        return lambda: fn(*args, **kwargs)
    arguments = Arguments(with_data(tuple(args)), with_data(dict(kwargs), 1000))
    arrays = [_zeros(jax, a) if _jax.is_tracer(a) else a for a in arguments.arrays]

    def forward(*given: Any) -> Any:
        a, k = arguments.whole(given)
        return fn(*a, **k)

    ways = []
    if arrays:
        if getattr(fn, "_ejk_validate_backward", False) and _has_floats(jax, arrays):
            ways.append(jax.jit(_with_backward(jax, forward, arrays)))
        ways.append(jax.jit(forward))
    for way in ways:
        try:
            way.lower(*arrays)
        except Exception as error:
            if way is ways[-1] and not isinstance(error, (*untraceable(jax), TypeError)):
                raise
            continue
        return lambda: jax.block_until_ready(way(*arrays))
    return lambda: jax.block_until_ready(forward(*arrays))


def _zeros(jax: Any, tracer: Any) -> Any:
    return jax.numpy.zeros(tracer.shape, tracer.dtype)


def _has_floats(jax: Any, arrays: list[Any]) -> bool:
    return any(jax.numpy.issubdtype(a.dtype, jax.numpy.inexact) for a in arrays)


class _Race:
    """Functions as the core's trials; what they return is not compared."""

    repeatable = True

    def __init__(self, makers: list[Callable[[], Callable[[], Any]]]) -> None:
        self._makers = makers
        self._functions: dict[int, Callable[[], Any]] = {}

    def reset(self) -> None:
        pass

    def run(self, place: int) -> None:
        function = self._functions.get(place)
        if function is None:
            function = self._functions[place] = self._makers[place]()
        function()

    def run_reference(self) -> bool:
        return False

    def outputs(self) -> list[tuple[str, bytes]]:
        return []

    def tolerance(self, dtype: str) -> None:
        return None


def race(
    tuner: Any,
    make_fn: Callable[[_Candidate], Callable[..., Any]],
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    candidates: Sequence[_Candidate],
) -> tuple[_Candidate, list[tuple[_Candidate, float]]]:
    """The fastest candidate, and (candidate, seconds) of each; seconds are infinite where it failed."""

    def maker(candidate: _Candidate) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            return prepared(make_fn(candidate), args, kwargs)

        return make

    with _jax.outside_of_any_trace():
        trial = _Race([maker(candidate) for candidate in candidates])
        winner, measured = _core.race(
            trial, list(range(len(candidates))), tuner.warmup, tuner.iters, _MAX_SECONDS
        )
    if winner is None:
        reasons = "; ".join(f"{candidate!r}: {why}" for candidate, (_, _, why) in zip(candidates, measured))
        raise RuntimeError(f"[Tuner.autotune] every candidate failed: {reasons}")
    seconds = [s if status in ("ok", "tied", "slower") else float("inf") for status, s, _ in measured]
    return candidates[winner], list(zip(candidates, seconds))
