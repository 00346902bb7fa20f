# SPDX-License-Identifier: Apache-2.0
"""The chain that finds a config: override, overlay, memory, disk, tuning, heuristics."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, get_args

from ejk import _core, _jax, _log, _ranks, _scopes, _sites
from ejk.ops.config._own import OwnCache, check_cache, methods_of, overrides
from ejk.ops.config._progress import log_autotune_progress, set_autotune_progress
from ejk.ops.config._waiting import Waiting, WaitingCall, without_arrays
from ejk.ops.config.cache import OUR_CACHE, ConfigCache
from ejk.ops.config.persistent import PersistentCache, is_own_store
from ejk.ops.core._call import KernelCall
from ejk.ops.core._function import arguments_of, site_of_call
from ejk.ops.core.kernel import describe
from ejk.ops.core.types import Cfg, Out

_Fallback = Literal["autotune", "heuristics", "background"]
_Numerics = Literal["any", "same"]

_SEEDED = "seeded normal numbers"  # what a call is tuned on whose arrays have no numbers


@dataclass
class AutotunePolicy:
    """What a selector may do when nothing is stored for a call."""

    allow_autotune: bool = True
    """Candidates may be measured."""
    allow_heuristics: bool = True
    """The kernel's guess may be used."""
    cache_miss_fallback: _Fallback = "autotune"
    """Which of the two is asked first; the other one is asked next, if it is allowed. "background": the heuristic
    answers, and the call waits for `ConfigSelectorChain.idle`; it is recorded beside the store too, for
    `python -m ejk tune`. No process tunes it meanwhile: one that is forked from one with JAX cannot run it. A function
    that JAX has traced keeps its config until it is traced again."""
    validate_backward: bool = False
    """Forward plus backward is measured. Such results are kept apart from forward-only ones."""
    numerics: _Numerics = "any"
    """"same": a config must be of the class that the kernel's `numerics` gives the reference config, so that choices
    change no bit of a result. The reference is the heuristic's, or the selector's `reference_cfgs` names it. Such choices
    are kept apart, by class. A config that is given with the call is not questioned."""
    budget_seconds: float = 10.0
    """Tuning one call takes at most about this many seconds."""
    budget_evaluations: int = 0
    """Tuning one call tries at most this many configs; 0: no limit."""
    target_seconds: float = 0.0
    """Tuning one call ends with the first config that takes at most this long; 0: never."""
    guard: bool = False
    """Candidates run in a child process first, where that works: not if they wait for threads, as those of JAX do."""
    resume: bool = True
    """Continue a stored tuning that was cut short, or that knows fewer candidates than there are now."""
    resume_share: float = 0.1
    """Calls spend at most this share of budget_seconds on that, all processes together."""
    background_bytes: int = 256 << 20
    """Of programs in C++: copies of the arguments of calls that wait for their tuning take at most so many bytes."""
    background_share: float = 0.05
    """Of programs in C++: the process that tunes them takes at most this share of one core."""
    drift_watch: bool = False
    """Of programs in C++: some calls are timed. A call that has become slower than its evidence is told and tuned
    again. In Python a call returns before its arrays are there, so its time says nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_change = name in self.__dict__  # a policy that is being made is not in use yet
        object.__setattr__(self, name, _check({name: value})[name])
        if is_change:
            _core.new_epoch()

    @classmethod
    def from_environment(cls) -> AutotunePolicy:
        """What $EJKERNEL_AUTOTUNE_POLICY names: autotune, background, heuristics or frozen."""
        return cls(**_core.policy_from_environment())


_DEFAULTS = _core.default_policy()
_ALIASES = {"autotune": "allow_autotune", "heuristics": "allow_heuristics"}


def _check(updates: dict[str, Any]) -> dict[str, Any]:
    """The updates under the fields' own names; raises for a name that is not a field, and for a value that does not fit."""
    named = {_ALIASES.get(name, name): value for name, value in updates.items()}
    return {name: _checked(name, value) for name, value in named.items()}


def _checked(name: str, value: Any) -> Any:
    if name not in _DEFAULTS:
        raise TypeError(f"[AutotunePolicy] got {name}={value!r}; expected {', '.join(_DEFAULTS)}; pass one of these")
    kind, given = type(_DEFAULTS[name]), f"[AutotunePolicy] got {name}={value!r}"
    if kind is str:
        words = get_args(_Numerics if name == "numerics" else _Fallback)
        if value not in words:
            raise ValueError(f"{given}; expected {' or '.join(map(repr, words))}; pass one of them")
        return value
    if kind is bool:
        if type(value).__name__ not in ("bool", "bool_") and value not in (0, 1):
            raise TypeError(f"{given}; expected True or False; pass one of them")
        return bool(value)
    if not isinstance(value, numbers.Integral if kind is int else numbers.Real):
        raise TypeError(f"{given}; expected {'a whole number' if kind is int else 'a number'}; pass one")
    number = kind(value)
    if not number >= 0:
        raise ValueError(f"{given}; expected 0 or more; pass such a number")
    return number


class policy_override:
    """While it is entered, the policy has these values, for one selector or for all.

    `policy_override(selector, allow_autotune=False)`, `policy_override(autotune=False)`.
    """

    def __init__(self, selector: ConfigSelectorChain | None = None, **updates: Any) -> None:
        self.selector, self.updates = selector, _check(updates)
        self._scope = _scopes.Scope(self.updates, selector)

    def __enter__(self) -> Any:
        self._scope.__enter__()
        return self.selector if self.selector is not None else self

    def __exit__(self, *exc: Any) -> None:
        self._scope.__exit__(*exc)


class forward_autotune_only:
    """While it is entered, tuning measures forward only, whatever validate_backward says."""

    def __init__(self) -> None:
        self._scope = _scopes.Scope(_scopes.FORWARD_ONLY)

    def __enter__(self) -> Any:
        self._scope.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._scope.__exit__(*exc)


class Tuner(Generic[Cfg]):
    """Measures functions and picks the fastest config.

    `warmup` runs before anything is timed and `iters` rounds, both at least. A subclass with its own
    `autotune`, or its own `measure` which that asks, is asked by the selector in place of the race.
    """

    def __init__(self, warmup: int = 1, iters: int = 3) -> None:
        for name, value in (("warmup", warmup), ("iters", iters)):
            if value < 0:
                raise ValueError(f"[Tuner] got {name}={value}; expected 0 or more")
        self.warmup, self.iters = warmup, iters

    def measure(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
        """Seconds of `fn(*args, **kwargs)`, jitted where that works.

        Arrays are arguments of the jitted function, everything else is part of it; arrays that are being
        traced are replaced by zeros. A function tagged `_ejk_validate_backward = True` is measured with its
        gradient. What cannot be differentiated is measured forward, what cannot be jitted as it is.
        """
        from ejk.ops.execution._measuring import prepared

        with _jax.outside_of_any_trace():
            return _core.seconds_of(prepared(fn, args, kwargs), self.warmup, self.iters)

    def autotune(
        self,
        make_fn: Callable[[Cfg], Callable[..., Any]],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        candidates: Iterable[Cfg],
    ) -> Cfg:
        """The candidate whose function make_fn(candidate) is fastest on these arguments.

        Raises RuntimeError if there is none, or all of them fail.
        """
        from ejk.ops.execution._measuring import race

        candidates = tuple(candidates)
        if not candidates:
            raise RuntimeError("[Tuner.autotune] no candidates were given: at least one is needed")
        if overrides(self, _OUR_MEASURE):
            return self._by_own_measure(make_fn, args, kwargs, candidates)
        return race(self, make_fn, args, kwargs, candidates)[0]

    def _by_own_measure(
        self,
        make_fn: Callable[[Cfg], Callable[..., Any]],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        candidates: tuple[Cfg, ...],
    ) -> Cfg:
        best: tuple[Cfg] | None = None
        least, failures = float("inf"), []
        for candidate in candidates:
            try:
                seconds = self.measure(make_fn(candidate), *args, **kwargs)
            except Exception as error:
                failures.append(f"{candidate!r}: {type(error).__name__}: {error}")
                continue
            if seconds < least:
                best, least = (candidate,), seconds
        if best is None:
            raise RuntimeError(f"[Tuner.autotune] every candidate failed: {'; '.join(failures)}")
        return best[0]


_OUR_MEASURE = methods_of(Tuner, "measure")
_OUR_TUNER = methods_of(Tuner, "autotune", "measure")


class ConfigSelectorChain(Generic[Cfg, Out]):
    """Finds the config of a call; the first that has one answers.

    1. override: given with the call; 2. overlay: `overlay_cache`; 3. memory: `cache`; 4. disk:
    `persistent`; 5. autotune: candidates are measured; 6. heuristics: the kernel's guess; 7. RuntimeError.

    `on_event(event, **data)` hears of every answer. A call that was tuned is not tuned again by the same
    selector (`forbid_reautotune`): the earlier result is returned. `autotune=` sets the policy's
    allow_autotune. Threads and processes that miss on one call tune it once.

    `reference_cfgs` has configs by op ("name@vVERSION"): under `numerics="same"`, what results must be equal to in place
    of the heuristic's.

    `cache` and `persistent` may be any objects with `get(device, op_id, call_key)`, which gives None for nothing, and
    `put(device, op_id, call_key, config)`. Every call then asks such a cache, and what is put to such a store is the
    config alone, without what was measured. All parts may be set later.
    """

    _PARTS = frozenset(("cache", "tuner", "persistent", "persist_autotune", "forbid_reautotune"))

    def __init__(
        self,
        cache: ConfigCache[Cfg] | None = None,
        policy: AutotunePolicy | None = None,
        tuner: Tuner[Cfg] | None = None,
        persistent: PersistentCache[Cfg] | None = None,
        persist_autotune: bool = True,
        on_event: Any = None,
        forbid_reautotune: bool = True,
        *,
        autotune: bool | None = None,
        strict_environment: bool = False,
        reference_cfgs: Mapping[str, Cfg] | None = None,
    ) -> None:
        self.cache = cache if cache is not None else ConfigCache()
        self._policy = policy if policy is not None else AutotunePolicy.from_environment()
        if autotune is not None:
            self._policy = dataclasses.replace(self._policy, allow_autotune=bool(autotune))
        self.tuner = tuner if tuner is not None else Tuner()
        self.persistent, self.persist_autotune = persistent, persist_autotune
        self.on_event, self.forbid_reautotune = on_event, forbid_reautotune
        self._strict_environment, self._reference_cfgs = strict_environment, dict(reference_cfgs or {})
        self._waiting = Waiting()
        self._put_together()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("cache", "persistent"):
            check_cache(name, value)
        object.__setattr__(self, name, value)
        if "_core" not in self.__dict__:
            return  # it is being made and not in use yet
        if name in self._PARTS:
            self._put_together()
        if name in self._PARTS or name == "on_event":
            _core.new_epoch()

    def _own_parts(self) -> tuple[bool, bool, bool]:
        """Whether cache, store and tuner are the program's own. Their methods may be set at any time."""
        own_store = self.persistent is not None and is_own_store(self.persistent)
        return overrides(self.cache, OUR_CACHE), own_store, overrides(self.tuner, _OUR_TUNER)

    def _put_together(self) -> None:
        own_cache, own_store, own_tuner = self._own = self._own_parts()
        self._core = _core.Selector(
            cache=None if own_cache else self.cache,
            warmup=int(getattr(self.tuner, "warmup", 1)),
            iters=int(getattr(self.tuner, "iters", 3)),
            own_tuner=own_tuner,
            persistent=None if own_store or self.persistent is None else self.persistent._store,
            own_persistent=own_store,
            persist_autotune=self.persist_autotune,
            forbid_reautotune=self.forbid_reautotune,
            strict_environment=self._strict_environment,
            reference_cfgs=self._reference_cfgs,
        )

    def keeps_answers(self) -> bool:
        """Whether a call that was answered from memory need not ask again until `cache` changes."""
        return not self._own[0] and not overrides(self, _OUR_CHAIN)

    @property
    def policy(self) -> AutotunePolicy:
        """The policy in force here: the selector's own, or a copy of it with what scopes change."""
        scopes = _scopes.in_force(self)
        if not any(isinstance(scope, (dict, str)) for scope in scopes):
            return self._policy
        return AutotunePolicy(**self._core.policy(self._with_own_policy(scopes)))

    @policy.setter
    def policy(self, policy: AutotunePolicy) -> None:
        self._policy = policy
        _core.new_epoch()

    def choose(self, inv: Any, kernel: Any) -> Cfg:
        """The config for this call. Raises RuntimeError if there is none."""
        return self.choose_with_origin(inv, kernel)[0]

    def choose_with_origin(self, inv: Any, kernel: Any) -> tuple[Cfg, str]:
        """The same with where it came from: "memory", "persistent", "autotune", ..."""
        call, given, scopes, tracing = self._question(inv, kernel)
        kernel_call = self._kernel_call(inv, kernel)
        at = kernel_call.site  # not the call itself: it would keep itself, and this selector, alive
        kernel_call.wait = lambda: self._let_wait(inv, kernel, at)
        with _at(kernel_call.site, tracing):
            config, origin = self._core.choose(call, kernel_call, given, scopes, self.on_event is not None)
        kernel_call.tell_own_caches()
        return kernel_call.fit(config), origin

    def tune(self, inv: Any, kernel: Any, candidates: Iterable[Cfg] | None = None) -> tuple[Cfg, dict[str, Any]]:
        """Tunes now, whatever is stored, and keeps the result: the config and its entry."""
        return self._tuned(inv, kernel, candidates)

    def _tuned(
        self, inv: Any, kernel: Any, candidates: Iterable[Cfg] | None = None, resume: bool = False
    ) -> tuple[Cfg, dict[str, Any]]:
        """`resume`: goes on with a stored tuning that was cut short, or that knows fewer candidates."""
        call, _, scopes, tracing = self._question(inv, kernel)
        kernel_call = self._kernel_call(inv, kernel)
        if not kernel_call.site.can_run:
            raise RuntimeError(
                f"[{call.op}] got a call for {kernel_call.site.name} to tune; expected a device that is here, because "
                "candidates are run; tune where it is, or see with ejk.ops.compile_candidates what fits it"
            )
        given = kernel_call.given_candidates = None if candidates is None else list(candidates)
        listens = self.on_event is not None
        with _at(kernel_call.site, tracing):
            if resume:
                config, entry = self._core.resume(call, kernel_call, scopes, listens)
            else:
                config, entry = self._core.tune(call, kernel_call, given, scopes, listens)
        kernel_call.tell_own_caches()
        return kernel_call.fit(config), entry

    def _stored_tuning(self, inv: Any, kernel: Any) -> dict[str, Any] | None:
        """The entry of the call, if there is nothing left to do for it."""
        call, _, scopes, tracing = self._question(inv, kernel)
        kernel_call = self._kernel_call(inv, kernel)
        with _at(kernel_call.site, tracing):
            return self._core.tuned(call, kernel_call, scopes)

    def _let_wait(self, inv: Any, kernel: Any, site: _sites.Site) -> None:
        call = describe(inv, kernel, _SEEDED)
        self._waiting.add(WaitingCall(call, without_arrays(inv), kernel, site, dict(vars(self.policy))))

    def idle(self, seconds: float) -> int:
        """The program has nothing to do: tunes here, for at most about so long, calls that wait for it under the
        fallback "background". Returns how many still wait.

        Arrays of a waiting call are kept as their types and shapes, and it is tuned with seeded numbers. At most 1000
        calls wait. Later calls get what was found; a function that JAX has traced gets it when it is traced again.
        """
        return self._waiting.idle(seconds, self._tune_waiting)

    def _tune_waiting(self, waiting: WaitingCall, seconds: float) -> bool:
        """Whether it is done."""
        left = waiting.policy["budget_seconds"] - waiting.seconds
        policy = {**waiting.policy, "cache_miss_fallback": "autotune", "budget_seconds": max(0.0, min(seconds, left))}
        listens, is_whole, begin = self.on_event is not None, False, time.monotonic()
        with _at(waiting.site, tracing=True):
            kernel_call = self._kernel_call(waiting.with_numbers(), waiting.kernel, waiting.site)
            if waiting.seconds > 0:
                entry = self._core.resume(waiting.call, kernel_call, (policy,), listens)[1]
                is_whole = entry["evidence"]["complete"]
            else:  # what another process has tuned meanwhile is used
                self._core.choose(waiting.call, kernel_call, None, (policy,), listens)
        kernel_call.tell_own_caches()
        _core.new_epoch()  # warm calls have the heuristic
        took = time.monotonic() - begin
        waiting.seconds += took
        is_cut = seconds < left and took >= seconds and not is_whole
        is_kept = self.persistent is not None and self.persist_autotune and not self._own[1]
        return not (is_cut and is_kept)

    def explain(self, inv: Any, kernel: Any) -> str:
        """Every tier: what it held, why it did or did not answer. Changes nothing."""
        call, given, scopes, tracing = self._question(inv, kernel)
        kernel_call = self._kernel_call(inv, kernel)
        with _at(kernel_call.site, tracing):
            return self._core.explain(call, kernel_call, given, scopes)[0]

    def _kernel_call(self, inv: Any, kernel: Any, site: _sites.Site | None = None) -> KernelCall:
        cfg_type = getattr(self.persistent, "cfg_type", None)
        found = KernelCall(kernel, inv, site or site_of_call(inv), self.on_event, self.tuner, cfg_type)
        own_cache, own_store, _ = self._own
        if own_cache:
            found.own_cache = OwnCache(self.cache)
        if own_store:
            found.own_persistent = OwnCache(self.persistent)
        return found

    def _question(self, inv: Any, kernel: Any) -> tuple[_core.Call, tuple[Any] | None, tuple[Any, ...], bool]:
        if self._own != self._own_parts():
            self._put_together()
        tracing = arguments_of(inv).has_tracers()
        scopes = self._with_own_policy(map(_asked_itself, _scopes.in_force(self)))
        if tracing and _jax.several_processes():
            # Ranks that trace one program must come to one program: measurements would not agree.
            _log.warn_once("several processes", "nothing is tuned while several JAX processes trace a function")
            scopes = (*scopes, {"allow_autotune": False})
        site = site_of_call(inv)
        if not site.can_run:
            if self.policy.allow_autotune:
                what = f"nothing is tuned for {site.name}, which is not here: stored configs and heuristics answer"
                _log.warn_once(site.core.fingerprint, what)
            scopes = (*scopes, {"allow_autotune": False})
        override = getattr(inv, "override_cfg", None)
        call = describe(inv, kernel, _SEEDED if tracing else "")
        return call, None if override is None else (override,), scopes, tracing

    def _with_own_policy(self, scopes: Iterable[Any]) -> tuple[Any, ...]:
        return (dict(vars(self._policy)), *scopes)


_core.set_pin_service(_ranks.service)
_OUR_CHAIN = methods_of(ConfigSelectorChain, "choose", "choose_with_origin")


def _asked_itself(scope: Any) -> Any:
    """An overlay with a get of its own is asked by that."""
    return OwnCache(scope) if isinstance(scope, ConfigCache) and overrides(scope, OUR_CACHE) else scope


@contextlib.contextmanager
def _at(site: _sites.Site, tracing: bool) -> Iterator[None]:
    """Where hooks and trials of a call run."""
    with contextlib.ExitStack() as stack:
        if tracing:
            stack.enter_context(_jax.outside_of_any_trace())
        if site.can_run and not site.is_like(_sites.of_default_device()):
            stack.enter_context(_jax.required().default_device(site.device))
        stack.enter_context(_sites.running_at(site))
        yield


__all__ = [
    "AutotunePolicy",
    "ConfigSelectorChain",
    "Tuner",
    "forward_autotune_only",
    "log_autotune_progress",
    "policy_override",
    "set_autotune_progress",
]
