# SPDX-License-Identifier: Apache-2.0
"""Runs kernels with the config that fits the call."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ejk import _configs, _core, _jax, _scopes, _sites
from ejk._captured import Opaque
from ejk.ops.config.cache import ConfigCache
from ejk.ops.config.selection import ConfigSelectorChain
from ejk.ops.core._function import (
    Arguments,
    Form,
    Given,
    arguments_of,
    function_of,
    name_for_profilers,
    site_of_arguments,
    site_of_call,
)
from ejk.ops.core._lowering import lowered_for
from ejk.ops.core._mesh import over_mesh_of
from ejk.ops.core.kernel import Invocation, Kernel, describe, op_of
from ejk.ops.core.types import AnyCfg, AnyOut, Cfg, Out
from ejk.ops.execution._held import Held, held_by_config, held_by_kernel
from ejk.ops.execution._jitted import Jitted, Targets
from ejk.ops.execution._options import Options, check_mesh
from ejk.ops.execution._warm import learn

_AnyOut_co = TypeVar("_AnyOut_co", covariant=True)


class ConfigChooser(Protocol[Cfg, Out]):
    """Anything that can find a config for a call."""

    def choose(self, inv: Invocation[Cfg, Out], kernel: Kernel[Cfg, Out]) -> Cfg:
        """The config that this call shall run with."""
        ...


class Compiled(Protocol[AnyCfg, _AnyOut_co]):
    """What Executor.compile gives: a function with its config."""

    config: AnyCfg

    def __call__(self, *args: Any, **kwargs: Any) -> _AnyOut_co: ...

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`lower` of the jitted function."""
        ...


class Executor(_core.Dispatcher, Generic[Cfg, Out]):
    """`executor(kernel, *args, cfg=None, **kwargs)` runs a kernel.

    The config is `cfg` (or `_cfg`), or what `chooser` finds. The kernel's method for the platform runs jitted, with
    the kernel's own gradients if it has some; what it computes carries a label ($EJKERNEL_OPS_STAMP: hash,
    json or none). With method="shard_map" it runs over `mesh`, with `in_specs` and `out_specs`. The second
    call with arguments of the same types and shapes costs little more than the jitted function itself.
    """

    def __init__(self, chooser: ConfigChooser[Cfg, Out] | None = None, stamp_prefix: str = "ejkernel_ops") -> None:
        super().__init__(_scopes.current)
        self.chooser = chooser if chooser is not None else ConfigSelectorChain()
        self.stamp_prefix = stamp_prefix
        self._array_types: set[type] = set()

    @property
    def chooser(self) -> ConfigChooser[Cfg, Out]:
        """What finds configs. May be set to another one."""
        return self._chooser

    @chooser.setter
    def chooser(self, chooser: ConfigChooser[Cfg, Out]) -> None:
        self._chooser = chooser
        self._forget()

    def _cache_to_watch(self) -> ConfigCache[Any] | None:
        """The cache whose changes make warm calls void; None if every call must ask the chooser."""
        chooser = self._chooser
        return chooser.cache if isinstance(chooser, ConfigSelectorChain) and chooser.keeps_answers() else None

    if TYPE_CHECKING:

        def __call__(self, kernel: Kernel[Any, AnyOut], *args: Any, **kwargs: Any) -> AnyOut: ...

    def choose_config(self, kernel: Kernel[AnyCfg, Any], *args: Any, cfg: AnyCfg | None = None, **kwargs: Any) -> AnyCfg:
        """The config that a call would run with, without running it."""
        chooser: Any = self.chooser
        found: AnyCfg = chooser.choose(self._invocation(kernel, args, {"cfg": cfg, **kwargs}), kernel)
        return found

    def compile(
        self, kernel: Kernel[AnyCfg, AnyOut], *example_args: Any, cfg: AnyCfg | None = None, **example_kwargs: Any
    ) -> Compiled[AnyCfg, AnyOut]:
        """A jitted function with the config that fits the example arguments, whatever it is called with.

        Arguments that are not arrays may be left out or changed when it is called; a named argument of the example is
        the default of such an argument. `lower` is that of the jitted function, `config` is the config.
        """
        inv = self._invocation(kernel, example_args, {"cfg": cfg, **example_kwargs})
        check_mesh(inv)
        chooser: Any = self.chooser
        config = inv.override_cfg if inv.override_cfg is not None else chooser.choose(inv, kernel)
        site = site_of_call(inv)
        example_kwargs = Options.taken_from(kernel, example_kwargs)[1]

        def arguments_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            return Arguments(*_prepared(kernel, args, example_kwargs | kwargs))

        def compiled(*args: Any, **kwargs: Any) -> AnyOut:
            arguments = arguments_of_call(args, kwargs)
            _check_site(inv, site, arguments)
            result: AnyOut = self._run(kernel, arguments, config, inv, site)[0]
            return result

        def lower(*args: Any, **kwargs: Any) -> Any:
            arguments = arguments_of_call(args, kwargs)
            label = self._label(kernel, inv, config)
            function = self._function(kernel, arguments.form or arguments.given, config, inv, label, site)
            return lowered_for(site, function, arguments.arrays, over_mesh_of(inv) is not None)

        made: Any = compiled
        made.config, made.lower = config, lower
        found: Compiled[AnyCfg, AnyOut] = made
        return found

    def explain(self, kernel: Kernel[AnyCfg, Any], *args: Any, cfg: AnyCfg | None = None, **kwargs: Any) -> str:
        """Why a call gets the config it gets: every tier, and what it held."""
        chooser: Any = self.chooser
        text: str = chooser.explain(self._invocation(kernel, args, {"cfg": cfg, **kwargs}), kernel)
        return text

    def label(self, kernel: Kernel[Any, Any], *args: Any, **kwargs: Any) -> str:
        """What a call is labelled with in a lowered computation."""
        inv = self._invocation(kernel, args, kwargs)
        call = describe(inv, kernel)
        return _core.make_label(call.op, call.key, self.stamp_prefix)

    # -- a call that is not warm --

    def _call(self, kernel: Any, *args: Any, **named: Any) -> Any:
        given = (kernel, *args)
        inv = self._invocation(kernel, args, named)
        check_mesh(inv)
        _check_scope(inv)
        # Before the choice: what changes meanwhile makes it void.
        cache, epoch = self._cache_to_watch(), _core.epoch()
        generation = cache.generation if cache is not None else 0
        config = self.chooser.choose(inv, kernel)
        arguments, site = arguments_of(inv), site_of_call(inv)
        with _recorded(kernel, inv, arguments) as counted:
            result, warm = self._run(kernel, arguments, config, inv, site)
            counted(result)
        plain = inv.stamp and inv.method is None and inv.mesh is None
        if warm is None or cache is None or arguments.form is None or not plain:
            return result
        if self._may_stay_warm(kernel, arguments):
            self._watch(cache)
            if _sites.the_only_one() is None:
                self._count_sites(_sites.where)
            for array in arguments.arrays:
                self._know(type(array))
            learn(self, kernel, inv.override_cfg, (*args, *named.values()), arguments.form)
            self._publish(given, named, arguments.arrays, warm(), generation, epoch, by_identity=False)
        return result

    def _invocation(self, kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Invocation[Any, Any]:
        options, kwargs = Options.taken_from(kernel, named)
        args, kwargs = _prepared(kernel, args, kwargs)
        return Invocation(op_of(kernel), args, kwargs, None, *options, kernel=kernel)

    def _may_stay_warm(self, kernel: Any, arguments: Arguments) -> bool:
        chooser: Any = self.chooser
        return (
            chooser.on_event is None
            and not _scopes.current.get()
            and arguments.with_jax
            and getattr(kernel, "key_builder", None) is None
            and getattr(type(kernel), "prepare", Kernel.prepare) is Kernel.prepare
            and not recording()
        )

    def _know(self, array_type: type) -> None:
        if array_type not in self._array_types:
            self._array_types.add(array_type)
            self._add_array_type(array_type)

    def _run(
        self, kernel: Any, arguments: Arguments, config: Any, inv: Invocation[Any, Any], site: _sites.Site
    ) -> tuple[Any, Callable[[], Any] | None]:
        """The result, and what makes a function of the arrays alone that gives it too, None if there is none.

        Arguments that cannot be seen into, and those inside another trace, run as they are: what was traced once
        may not be what they are now.
        """
        label = self._label(kernel, inv, config) if arguments.with_jax else None
        if arguments.has_tracers():
            given, arrays = arguments.in_a_trace(kernel, site.platform, inv.method)
            traced = self._function(kernel, given, config, inv, label, site)
            result = _named_in_forward_mode(kernel, traced, arrays)
            if arguments.holds_objects() or any(type(a).__name__ == "JVPTracer" for a in arguments.arrays):
                return result, None
            return result, _of_a_copy(kernel, lambda same: self._traced_when_warm(same, arguments, config, inv, site))

        def as_it_is() -> Any:  # a label would make JAX compile every step of it anew
            given = arguments.given
            return self._function(kernel, given, config, inv, None, site, arguments.with_jax)(*given.arrays)

        form = arguments.form
        if not arguments.with_jax or form is None:
            return as_it_is(), None

        holds_objects = arguments.holds_objects()

        def make(inputs: Any) -> Jitted:
            function = self._function(kernel, form.with_inputs(inputs), config, inv, label, site)
            return Jitted(_jax.loaded(), function, name_for_profilers(kernel), holds_objects)

        try:
            held, of_config = held_by_kernel(kernel), held_by_config(config)
        except Opaque:
            return as_it_is(), None
        targets = targets_of(kernel, held)
        if targets is None:
            return as_it_is(), None
        variants = targets.variants((label is None, *self._key(arguments, of_config.key, inv, site)))
        result, function = variants.run(arguments, make, as_it_is)
        if not (held.is_constant and of_config.is_data):
            return result, None
        if function is None or holds_objects and (function.runs_as_it_is or not arguments.are_followed_when_warm()):
            return result, None
        if not function.runs_as_it_is:
            return result, function.warm
        if held != held_by_kernel(kernel):  # it changes itself when it runs
            return result, None
        given = arguments.given.without_arrays()
        return result, _of_a_copy(kernel, lambda same: self._function(same, given, config, inv, None, site))

    def _function(
        self,
        kernel: Any,
        form: Given | Form,
        config: Any,
        inv: Invocation[Any, Any],
        label: str | None,
        site: _sites.Site,
        with_jax: bool = True,
    ) -> Callable[..., Any]:
        return function_of(kernel, form, config, site, inv.method, label, over_mesh_of(inv), with_jax)

    def _key(
        self, arguments: Arguments, config: Any, inv: Invocation[Any, Any], site: _sites.Site
    ) -> tuple[Any, ...]:
        """What tells the functions of a kernel apart, but for floats. Not the label: it may say what an object's own
        text says, the numbers in its arrays."""
        assert arguments.form is not None
        shapes = tuple(a.aval if _jax.is_array(a) else (a.shape, a.dtype) for a in arguments.arrays)
        over = over_mesh_of(inv)
        mesh = over.key() if over is not None else None
        return arguments.form.words, shapes, config, site.core.fingerprint, inv.method, mesh

    def _label(self, kernel: Any, inv: Invocation[Any, Any], config: Any) -> str | None:
        return self._label_as(_stamp_from_environment(), kernel, inv, config) if inv.stamp else None

    def _label_as(self, stamp: str, kernel: Any, inv: Invocation[Any, Any], config: Any) -> str | None:
        if stamp == "none":
            return None
        call = describe(inv, kernel)
        if stamp == "hash":
            return _core.make_label(call.op, call.key, self.stamp_prefix)
        payload = {"op": call.op, "key": call.key, "cfg": _configs.encode(config), "spec": call.spec}
        return f"{self.stamp_prefix}:{_core.stable_json(payload)}"

    def _traced_when_warm(
        self, kernel: Any, arguments: Arguments, config: Any, inv: Invocation[Any, Any], site: _sites.Site
    ) -> Callable[..., Any]:
        """A function of the arrays, labelled as the environment says when it is called."""
        form, with_label = arguments.given.without_arrays(), {}
        for stamp in _STAMPS:
            label = self._label_as(stamp, kernel, inv, config)
            with_label[stamp] = self._function(kernel, form, config, inv, label, site)
        return lambda *arrays: with_label[_stamp_from_environment()](*arrays)


def _check_scope(inv: Any) -> None:
    """Raises ValueError if a call that computes now is made inside of a `for_device` that is for somewhere else."""
    site = _sites.scoped()
    if site is not None:
        _check_site(inv, site, arguments_of(inv))


def _check_site(inv: Any, site: _sites.Site, arguments: Arguments) -> None:
    if arguments.are_only_types():
        return
    there = site_of_arguments(inv, arguments)
    if not site.is_like(there):
        raise ValueError(
            f"[{inv.op_id}] got a call for {site.name} to compute on {there.name}; expected arrays on {site.name}, or a "
            "function that is traced; move them with jax.device_put, or call it inside of jax.jit(...).lower"
        )


def _of_a_copy(kernel: Any, make: Callable[[Any], Callable[..., Any]]) -> Callable[[], Callable[..., Any]] | None:
    """What makes a function of a kernel as it is now, for whichever kernel is the same then; None if there is none."""
    try:
        same = copy.copy(kernel)
    except Exception:  # of any kind: its class may have a copy of its own
        return None
    return lambda: make(same)


def _named_in_forward_mode(kernel: Any, function: Callable[..., Any], arrays: Iterable[Any]) -> Any:
    try:
        return function(*arrays)
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise TypeError(
            f"[{op_of(kernel)}] has a gradient of its own, which is for reverse mode only (jax.grad, jax.vjp, "
            "jax.jacrev): forward mode (jax.jvp, jax.jacfwd, jax.hessian) cannot be applied to it"
        ) from error


_shared: dict[tuple[type, Any], Targets] = {}
_shared_lock = threading.Lock()


def targets_of(kernel: Any, held: Held) -> Targets | None:
    """The compiled functions of kernels that hold the same; None the first time, if what they hold may change: it may
    be something else in every call."""
    known: tuple[Any, Targets] | None = getattr(kernel, "__dict__", {}).get("_ejk_compiled")
    if known is not None and known[0] == held.key:
        return known[1]
    found = Targets()
    is_new = not held.is_constant
    if not held.has_arrays:
        key = (type(kernel), held.key)
        with _shared_lock:
            if len(_shared) > 1024:
                _shared.clear()
            is_new = is_new and key not in _shared
            found = _shared.setdefault(key, found)
    if isinstance(kernel, Kernel):
        object.__setattr__(kernel, "_ejk_compiled", (held.key, found))
    return None if is_new else found


def _prepared(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    prepare = getattr(type(kernel), "prepare", None)
    if prepare is None or prepare is Kernel.prepare:
        return args, kwargs
    found = kernel.prepare(*args, **kwargs)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise TypeError(f"[{op_of(kernel)}] prepare returned {type(found).__name__}: (args, kwargs) is expected")
    return tuple(found[0]), found[1]


_STAMPS = ("hash", "json", "none")


def _stamp_from_environment() -> str:
    word = os.environ.get("EJKERNEL_OPS_STAMP", "hash").lower() or "hash"
    if word not in _STAMPS:
        raise ValueError(f"[EJKERNEL_OPS_STAMP] got {word!r}; expected 'hash', 'json' or 'none'; set one of them")
    return word


def recording() -> bool:
    """Whether calls are recorded ($EJKERNEL_OPS_RECORD=1)."""
    return os.environ.get("EJKERNEL_OPS_RECORD", "") not in ("", "0")


@contextlib.contextmanager
def _recorded(kernel: Any, inv: Invocation[Any, Any], arguments: Arguments) -> Iterator[Callable[[Any], Any]]:
    """Records the call that is made inside: how often, and some of them how long. A trace counts as a call."""
    if not recording():
        yield lambda result: result
        return
    from ejk.ops.registry import record_call

    number = record_call(kernel, inv, on_disk=True)
    is_first = number not in _counted  # it may compile
    _counted.add(number)
    timed = number and _core.count_call(number) and not is_first and not arguments.has_tracers()
    begin = time.perf_counter()
    yield _jax.loaded().block_until_ready if timed and arguments.with_jax else lambda result: result
    if timed:
        _core.add_call_seconds(number, time.perf_counter() - begin)


_counted: set[int] = set()  # numbers of calls that were made before


_default: Executor[Any, Any] | None = None
_default_lock = threading.Lock()


def default_executor() -> Executor:
    """The process-wide executor, used wherever no other one is passed: memory, the user's store, tuning."""
    global _default
    if _default is not None:
        return _default
    with _default_lock:
        if _default is None:
            from ejk.ops.config.persistent import PersistentCache

            _default = Executor(ConfigSelectorChain(persistent=PersistentCache()))
        return _default


def idle(seconds: float) -> int:
    """The program has nothing to do: tunes calls of the default executor that wait; see ConfigSelectorChain.idle."""
    chooser: Any = default_executor().chooser
    waiting: int = chooser.idle(seconds)
    return waiting


__all__ = ["ConfigChooser", "Executor", "default_executor", "idle"]
