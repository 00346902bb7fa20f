# SPDX-License-Identifier: Apache-2.0
"""Tuning by hand: one call, recorded calls, the hyperparameters of a function."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic

from ejk import _core, _jax
from ejk.ops.config.cache import overlay_cache
from ejk.ops.config.selection import ConfigSelectorChain, Tuner
from ejk.ops.core.kernel import Invocation, Kernel, describe
from ejk.ops.core.types import Cfg
from ejk.ops.execution._measuring import race
from ejk.ops.execution._options import check_mesh
from ejk.ops.execution.executor import _prepared, default_executor
from ejk.ops.registry import get_invocations, with_data


@dataclass
class Measurement:
    """How long one config took; infinite if it failed."""

    cfg: Any  #: the config that ran
    seconds: float  #: median time of one run


@dataclass
class AutotuneData(Generic[Cfg]):
    """All measurements of a tuning."""

    measurements: list[Measurement]  #: one for each candidate
    _fastest: Any = field(default=None, repr=False, compare=False)

    @property
    def fastest_config(self) -> Cfg:
        """The config that won."""
        if self._fastest is not None:
            found: Cfg = self._fastest[0]
            return found
        if not self.measurements:
            raise RuntimeError("[AutotuneData] nothing was measured")
        best: Cfg = min(self.measurements, key=lambda m: m.seconds).cfg
        return best


class Autotuner(Generic[Cfg]):
    """Races configs and gives all that was measured."""

    def __init__(self, warmup: int = 1, iters: int = 3) -> None:
        self._tuner: Tuner[Cfg] = Tuner(warmup, iters)
        self.warmup, self.iters = warmup, iters

    def autotune(
        self,
        make_fn: Callable[[Cfg], Callable[..., Any]],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        candidates: Iterable[Cfg],
    ) -> AutotuneData[Cfg]:
        """Races the functions make_fn(candidate) on these arguments. Raises RuntimeError if none is left."""
        candidates = tuple(candidates)
        if not candidates:
            raise RuntimeError("[Autotuner.autotune] no candidates were given: at least one is needed")
        best, measured = race(self._tuner, make_fn, args, kwargs, candidates)
        return AutotuneData([Measurement(*pair) for pair in measured], (best,))


@dataclass(frozen=True)
class Entry:
    """One tuned call: op with version, key, config."""

    op_id_v: str  #: `name@vVERSION`
    call_key: str  #: 16 hex digits
    cfg: Any  #: the winner


@dataclass(frozen=True)
class AutotuningResult:
    """Tuned calls of a device. As a context manager they come before memory and disk."""

    device: str  #: fingerprint
    entries: tuple[Entry, ...] = ()  #: one for each call that was tuned
    skipped: tuple[tuple[str, str], ...] = ()
    """(label, why) of the calls that were not tuned."""
    _entered: list[overlay_cache] = field(default_factory=list, repr=False, compare=False)

    def as_overlay(self) -> dict[tuple[str, str, str], Any]:
        """What `overlay_cache` takes."""
        return {(self.device, e.op_id_v, e.call_key): e.cfg for e in self.entries}

    def __enter__(self) -> Any:
        overlay = overlay_cache(self.as_overlay())
        overlay.__enter__()
        self._entered.append(overlay)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._entered.pop().__exit__(*exc)


def benchmark(
    fn: Callable[..., Any],
    *args: Any,
    num_iters: int | None = None,
    num_warmup: int = 1,
    warmup: int = 1,
    iters: int = 5,
    **kwargs: Any,
) -> float:
    """How long `fn(*args, **kwargs)` takes: in milliseconds with `num_iters=`, else in seconds."""
    from ejk.ops.execution._measuring import prepared

    count, before = (iters, warmup) if num_iters is None else (num_iters, num_warmup)
    with _jax.outside_of_any_trace():
        if args or kwargs:
            call = prepared(fn, args, kwargs)
        else:  # nothing to jit over: what it returns is waited for
            jax = _jax.loaded()
            call = fn if jax is None else (lambda: jax.block_until_ready(fn()))
        seconds = _core.seconds_of(call, before, count)
    return seconds if num_iters is None else 1e3 * seconds


# ---- calls --------------------------------------------------------------------------------------


def autotune(
    fn: Any = None,
    /,
    *args: Any,
    configs: Iterable[Any] | None = None,
    num_warmup: int = 1,
    num_iters: int = 3,
    **options: Any,
) -> Any:
    """`autotune(kernel, *args, configs=..., num_warmup=, num_iters=, **kwargs)`: the fastest config of a call.

    `configs` are the kernel's own candidates if none are given. Nothing is read from or written to a store.
    Raises RuntimeError if no config is left.

    `autotune(fn, hyperparams={"block": [64, 128]})`, also as a decorator: fn with the values that are
    fastest for each call's types and shapes; see FNAutotuner.
    """
    if isinstance(fn, Kernel):
        selector = ConfigSelectorChain(tuner=Tuner(num_warmup, num_iters))
        call_args, call_kwargs = _prepared(fn, args, options)
        inv = Invocation(kernel=fn, args=call_args, kwargs=call_kwargs)
        return selector.tune(inv, fn, configs)[0]
    if args:
        raise TypeError(f"[autotune] a {type(fn).__name__} was given with arguments: a Kernel is expected then")
    tuning = {name: options.pop(name) for name in list(options) if name in _DECORATE_OPTIONS}
    tuner = FNAutotuner(**options)
    if fn is None:
        return lambda function: tuner.decorate(function, **tuning)
    return tuner.decorate(fn, **tuning)


def autotune_recorded(
    hyperparameter_selector: Any = None, *, show_progress: bool = False, repetition_count: int = 1
) -> AutotuningResult:
    """Tunes recorded calls: all of this device's with a selector, or a list of invocations.

    Of a selector: its cache and store keep what is found. Of invocations, or without an argument: the default
    executor's. Gives an AutotuningResult.
    """
    given = hyperparameter_selector
    if given is None or hasattr(given, "choose"):
        selector = given if given is not None else default_executor().chooser
        invocations = get_invocations()
    else:
        selector, invocations = default_executor().chooser, _as_invocations(given)
    calls = {}
    for inv in invocations:
        if inv.kernel is None:
            raise TypeError(f"[autotune_recorded] the invocation of {inv.op_id} has no kernel: make it with kernel=")
        call = describe(inv, inv.kernel)
        calls[call.op, call.key] = inv
    return tune_calls(selector, calls, show_progress, repetition_count)


def _as_invocations(given: Any) -> list[Invocation]:
    if isinstance(given, dict):  # as get_invocations(device) gives them
        return [
            Invocation(kernel=kernel, args=args, kwargs=kwargs)
            for calls in given.values()
            for kernel, args, kwargs in calls.values()
        ]
    return list(given)


def tune_calls(
    selector: Any,
    calls: Mapping[tuple[str, str], Invocation],
    show_progress: bool = False,
    repetition_count: int = 1,
    skipped: Iterable[tuple[str, str]] = (),
) -> AutotuningResult:
    """Tunes each call once ((op, key) -> invocation)."""
    from ejk.ops.utils.fingerprint import device_fingerprint

    entries, left_out = [], list(skipped)
    for number, ((op, key), inv) in enumerate(calls.items(), 1):
        if show_progress:
            print(f"ejk: tuning {op}:{key}, {number} of {len(calls)}", flush=True)
        real = replace(inv, args=with_data(inv.args), kwargs=with_data(inv.kwargs, 1000))
        try:
            check_mesh(real)
            for _ in range(max(1, repetition_count)):
                config, entry = selector.tune(real, inv.kernel)
        except (RuntimeError, ValueError) as error:
            left_out.append((f"{op}:{key}", str(error)))
            continue
        entries.append(Entry(op, key, config))
    return AutotuningResult(device_fingerprint(), tuple(entries), tuple(left_out))


# ---- the hyperparameters of a function -----------------------------------------------------------


@dataclass
class TimingResult:
    """How one choice of hyperparameters did."""

    hyperparams: dict[str, Any]  #: the choice
    t_mean: float  #: seconds of a call
    t_std: float = 0.0  #: always 0, which ejkernel fills


_DECORATE_OPTIONS = frozenset(
    "hyperparams max_workers in_shardings out_shardings device example_args example_kws sample_num "
    "event_filter_regex timeout cache_key".split()
)


class FNAutotuner:
    """Finds the hyperparameters with which a function is fastest, by racing them side by side.

    `timing_warmup_iterations` and `timing_rounds` count; the other options are taken for compatibility.
    """

    def __init__(
        self,
        *,
        allow_fallback_timing: bool = True,
        profiling_samples: int = 5,
        must_find_profiler_fraction: float = 0.5,
        enable_detailed_logging: bool = False,
        find_optimal_layouts_automatically: bool = False,
        max_compilation_time_seconds: float = 300.0,
        timing_warmup_iterations: int = 2,
        timing_rounds: int = 5,
        calls_per_round: int = 3,
        cache_size_limit: int = 1000,
        profiler_prefix_filter: str = "jit_",
        profiler_event_regex: str | None = None,
        profiler_min_duration_ns: float = 1000.0,
        profiler_max_events: int | None = 10000,
        profiler_verbose: bool = False,
    ) -> None:
        self.timing_warmup_iterations, self.timing_rounds = timing_warmup_iterations, timing_rounds
        self.cache_size_limit = cache_size_limit

    def tune(
        self,
        fn: Callable[..., Any],
        *,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        hyperparams: dict[str, Any] | None = None,
        example_args: tuple[Any, ...] | None = None,
        example_kws: dict[str, Any] | None = None,
        sample_num: int = 2**63 - 1,
        **ignored: Any,
    ) -> tuple[Callable[..., Any], dict[str, Any], list[tuple[int, TimingResult]]]:
        """(fn with the best hyperparameters, those, [(place, TimingResult)], the best first).

        Arguments without data (traced, or jax.ShapeDtypeStruct) are measured on `example_args` and `example_kws`, else
        on seeded numbers. Raises RuntimeError if all fail.
        """
        _check_callable(fn)
        args = args if example_args is None or _has_data(args) else example_args
        kwargs = kwargs if example_kws is None or _has_data(kwargs) else example_kws
        choices = _product(hyperparams or {})[:sample_num]
        tuner = Tuner(self.timing_warmup_iterations, self.timing_rounds)

        def make_fn(place: int) -> Callable[..., Any]:
            return functools.partial(fn, **choices[place])

        best, measured = race(tuner, make_fn, args, kwargs or {}, tuple(range(len(choices))))
        results = [(place, TimingResult(choices[place], seconds)) for place, seconds in measured]
        results.sort(key=lambda result: (result[0] != best, result[1].t_mean))
        return functools.partial(fn, **choices[best]), dict(choices[best]), results

    def decorate(
        self,
        fn: Callable[..., Any],
        *,
        hyperparams: dict[str, Any] | None = None,
        example_args: tuple[Any, ...] | None = None,
        example_kws: dict[str, Any] | None = None,
        cache_key: str | None = None,
        sample_num: int = 2**63 - 1,
        **ignored: Any,
    ) -> Any:
        """fn with the hyperparameters that are fastest for the types and shapes of each call.

        It has `optimal_hyperparams` and `timing_results`: those of the last call.
        """
        _check_callable(fn)
        known: dict[str, tuple[dict[str, Any], list[tuple[int, TimingResult]]]] = {}
        tuned: Any

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            if any(name in kwargs for name in hyperparams or {}):
                return fn(*args, **kwargs)
            key = _core.short_hash([cache_key, args, kwargs])
            if key not in known:
                if len(known) >= self.cache_size_limit:
                    known.clear()
                known[key] = self.tune(
                    fn,
                    args=args,
                    kwargs=kwargs,
                    hyperparams=hyperparams,
                    example_args=example_args,
                    example_kws=example_kws,
                    sample_num=sample_num,
                )[1:]
            best, results = known[key]
            tuned.optimal_hyperparams, tuned.timing_results = dict(best), results
            return fn(*args, **kwargs, **best)

        tuned = run
        tuned.optimal_hyperparams, tuned.timing_results = {}, []
        return tuned


def _check_callable(fn: object) -> None:
    if not callable(fn):
        raise TypeError(f"[autotune] got {fn!r}; expected a function; pass one")


def _has_data(tree: Any) -> bool:
    jax = _jax.loaded()
    leaves = [] if jax is None else jax.tree_util.tree_leaves(tree)
    return not any(_jax.is_tracer(leaf) or isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def _product(hyperparams: dict[str, Any]) -> list[dict[str, Any]]:
    values = {name: _values_of(name, given) for name, given in hyperparams.items()}
    return [dict(zip(values, chosen)) for chosen in itertools.product(*values.values())]


def _values_of(name: str, given: Any) -> list[Any]:
    """One value is a list of one."""
    values = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not values:
        raise ValueError(f"[autotune] got hyperparams={{{name!r}: {given!r}}}; expected values; give one at least")
    return values


__all__ = [
    "AutotuneData",
    "Autotuner",
    "AutotuningResult",
    "Entry",
    "FNAutotuner",
    "Measurement",
    "TimingResult",
    "autotune",
    "autotune_recorded",
    "benchmark",
]
