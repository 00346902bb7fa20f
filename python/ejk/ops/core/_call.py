# SPDX-License-Identifier: Apache-2.0
"""One call of a kernel as the selection sees it: hooks, and trials on private data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ejk import _configs, _jax, _sites
from ejk._known import NotKnown, known_of
from ejk.ops.core._function import Given, accepted, arguments_of, forward, function_of
from ejk.ops.core._mesh import over_mesh_of
from ejk.ops.core.kernel import (
    Kernel,
    _get_platform_method,
    _overrides,
    declare_types_of,
    declared_config,
    describe,
)

if TYPE_CHECKING:
    from ejk.ops.config._own import OwnCache


class KernelCall:
    """What the core asks of a kernel written in Python."""

    def __init__(
        self,
        kernel: Any,
        inv: Any,
        site: _sites.Site,
        on_event: Any = None,
        tuner: Any = None,
        cfg_type: type | None = None,
    ) -> None:
        self.kernel, self.inv, self.site, self.platform = kernel, inv, site, site.platform
        self.on_event, self.tuner, self.cfg_type = on_event, tuner, cfg_type
        self.method = getattr(inv, "method", None)
        self.config_class = (declared_config(kernel) if isinstance(kernel, Kernel) else None) or cfg_type
        self.own_cache: OwnCache | None = None
        self.own_persistent: OwnCache | None = None
        self.wait: Callable[[], None] | None = None
        self.given_candidates: list[Any] | None = None
        self._candidates: tuple[list[Any] | None] | None = None
        self._lessons: Iterator[bool] | None = None

    def tell_own_caches(self) -> None:
        """What came of the selection goes to the caches of the program's own."""
        for cache in (self.own_cache, self.own_persistent):
            if cache is not None:
                cache.tell()

    def heuristic_cfg(self) -> tuple[Any] | None:
        method = _get_platform_method(self.kernel, "heuristic_cfg", self.platform, self.method)
        if method is None:
            return None
        config = method(self.inv)
        if self.config_class is None:
            self.config_class = type(config)
        return (config,)

    def candidate_cfgs(self) -> list[Any] | None:
        """Asked of the kernel once."""
        if self._candidates is None:
            self._candidates = (self._candidates_of_kernel(),)
        return self._candidates[0]

    def _candidates_of_kernel(self) -> list[Any] | None:
        for name in ("candidate_cfgs", "config_space"):
            method = _get_platform_method(self.kernel, name, self.platform, self.method)
            if method is not None:
                return list(method(self.inv))
        return None

    def fit(self, config: Any) -> Any:
        """A config that was stored without its type, as the kernel's own."""
        if isinstance(config, dict):
            if self.config_class is None:
                try:
                    self.heuristic_cfg()
                except Exception:  # asked for its type only; what it throws is told when it is needed
                    pass
            return _configs.fit(config, self.config_class)
        return config

    def read(self, written: Any) -> tuple[Any] | str:
        """A stored config in a tuple, or why it does not fit this kernel."""
        try:
            return (self._decoded(written),)
        except ValueError as error:
            return str(error)

    def _decoded(self, written: Any) -> Any:
        op = describe(self.inv, self.kernel).op
        if self._lessons is None:
            self._lessons = self._teach(op)
        while True:
            try:
                return _configs.decode(written, op, self.config_class)
            except NotKnown:
                if next(self._lessons, None) is None:
                    raise

    def _teach(self, op: str) -> Iterator[bool]:
        """Makes known what the kernel's configs are made of, what costs least first."""
        def annotations() -> None:
            known_of(op).declare(self.cfg_type)
            declare_types_of(type(self.kernel), op)

        for source in (annotations, self.heuristic_cfg, self.candidate_cfgs):
            try:
                for config in source() or ():
                    _configs.encode(config, op)
            except Exception:  # asked for types only; what it throws is told when it is needed
                pass
            yield True

    def is_valid(self, config: Any) -> bool:
        config = self.fit(config)  # ValueError: it does not fit
        if not _overrides(self.kernel, "is_valid"):
            return True
        return bool(self.kernel.is_valid(config, self.inv))

    def numerics(self, config: Any) -> Any:
        """The class of the config; None if the kernel does not say."""
        if not _overrides(self.kernel, "numerics"):
            return None
        return self.kernel.numerics(self.fit(config), self.inv)

    def shows_progress(self) -> bool:
        from ejk.ops.config._progress import is_shown

        return is_shown()

    def trial(self, backward: bool) -> Trial:
        return Trial(self, backward)

    def sketch(self) -> list[dict[str, Any]] | None:
        """What is recorded of the call: enough to make it again in another process, without its data."""
        from ejk.ops.registry import sketch_of

        return sketch_of(self.kernel, self.inv)

    def keep(self) -> None:
        """The heuristic has answered, and the call is to be tuned later."""
        if self.wait is not None:
            self.wait()

    def event(self, kind: str, data: dict[str, Any]) -> None:
        encoded = data.pop("config")
        if kind == "autotune_finish" and encoded is None:
            return  # it found nothing: what answers instead is told next
        if kind == "autotune_start":
            data["candidates"] = self._count_of_candidates()
        elif kind != "error":
            data["cfg"] = self.fit(self._decoded(encoded)) if encoded is not None else None
        if kind in ("autotune_start", "autotune_finish", "heuristics"):
            data |= {"platform": self.platform, "method": self.method}
        self.on_event(kind, **data)

    def _count_of_candidates(self) -> int:
        if self.given_candidates is not None:
            return len(self.given_candidates)
        try:
            return len(self.candidate_cfgs() or ())
        except Exception:  # the tuning will say what was thrown
            return 0


class Trial:
    """The call on arrays of its own, with one config after the other. Runs outside of any trace."""

    def __init__(self, call: KernelCall, backward: bool) -> None:
        self.call, self._mesh = call, over_mesh_of(call.inv)
        # Over a mesh a kernel may have no gradient to measure.
        self.backward = backward and (self._mesh is None or getattr(call.kernel, "supports_grad_validation", False))
        self._placed: dict[tuple[Any, ...], list[Any]] = {}
        arguments = arguments_of(call.inv)
        self.with_jax = arguments.with_jax
        self._functions: dict[int, Callable[..., Any]] = {}
        self._last: Any = None
        self._wait: Any = _jax.loaded().block_until_ready if self.with_jax else None
        if self.with_jax:
            self._arrays = [
                _jax.example_data(a.aval, i) if _jax.is_tracer(a) else a for i, a in enumerate(arguments.arrays)
            ]
            self.repeatable = True
        else:
            self._pristine = (call.inv.args, dict(call.inv.kwargs))
            self._work: Any = None
            self.repeatable = not _numpy_arrays(self._pristine)
        self._arguments = arguments

    # -- what the core asks --

    def reset(self) -> None:
        self._last = None
        if not self.with_jax:
            self._work = _copied(self._pristine)

    def run(self, config: Any) -> None:
        try:
            self._run(config)
        except SystemExit as leaving:  # of the candidate: the program goes on without it
            raise RuntimeError(f"it wants to end the process with {leaving.code!r}") from leaving

    def _run(self, config: Any) -> None:
        if not self.with_jax:
            args, kwargs = self._work if self._work is not None else _copied(self._pristine)
            run = forward(self.call.kernel, self.call.platform, self.call.method)
            self._last = run(*args, cfg=self.call.fit(config), **kwargs)
            return
        function = self._functions.get(id(config))
        if function is None:
            function = self._functions[id(config)] = self._compiled(config)
        self._last = self._wait(function(*self._arrays))

    def run_reference(self) -> bool:
        kernel = self.call.kernel
        if not _overrides(kernel, "reference") or self.backward or self._mesh is not None:
            return False  # over a mesh it would not see shards, as `run` does
        if self.with_jax:
            args, kwargs = self._arguments.whole(self._arrays)
        else:
            args, kwargs = self._work = _copied(self._pristine)
        self._last = kernel.reference(*args, **accepted(kernel.reference, kwargs))
        return True

    def outputs(self) -> list[tuple[str, bytes]]:
        """(dtype, bytes) of everything the last run gave or changed."""
        found = _leaves(self._last)
        if not self.with_jax:
            found += _numpy_arrays(self._work if self._work is not None else self._pristine)
        return [pair for leaf in found for pair in _bytes_of(leaf)]

    def tolerance(self, dtype: str) -> Any:
        if not _overrides(self.call.kernel, "tolerance"):
            return None
        return self.call.kernel.tolerance(dtype)

    def ask_own_tuner(self, configs: list[Any]) -> int:
        """The place of the config that a tuner of the user's own picks."""
        inv = self.call.inv
        args, kwargs = self._arguments.whole(self._arrays) if self.with_jax else (inv.args, dict(inv.kwargs))
        call, mesh = self.call, self._mesh

        def make_fn(config: Any) -> Callable[..., Any]:
            def fn(*a: Any, **k: Any) -> Any:
                given = Given(a, k)
                run = function_of(call.kernel, given, config, call.site, call.method, None, mesh, self.with_jax)
                return run(*given.arrays)

            tagged: Any = fn
            tagged._ejk_method = "regular" if mesh is None else "shard_map"
            tagged._ejk_validate_backward = self.backward
            return fn

        best = self.call.tuner.autotune(make_fn, args, kwargs, tuple(configs))
        if best is None:
            raise RuntimeError("it gave no config")
        for i, config in enumerate(configs):
            if config is best:
                return i
        return configs.index(best)

    # -- how --

    def _compiled(self, config: Any) -> Callable[..., Any]:
        jax, call = _jax.loaded(), self.call
        fitted = call.fit(config)
        form = self._arguments.form or self._arguments.given
        plain = function_of(call.kernel, form, fitted, call.site, call.method, mesh=self._mesh)
        if self._arguments.form is None:
            return _on_copies(jax, plain)
        function = _with_backward(jax, plain, self._arrays) if self.backward else plain
        compiled = jax.jit(function)
        try:
            lowered = compiled.lower(*self._arrays)
        except Exception:  # what it is then, running it will say
            return _on_copies(jax, plain)
        return compiled if self._mesh is None else self._over_shards(jax, lowered.compile())

    def _over_shards(self, jax: Any, compiled: Any) -> Callable[..., Any]:
        """Called with arrays that are where it wants them: cutting them up is not measured."""
        shardings = tuple(compiled.input_shardings[0])
        if shardings not in self._placed:
            self._placed[shardings] = list(map(jax.device_put, self._arrays, shardings))
        return lambda *_: compiled(*self._placed[shardings])


def _on_copies(jax: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs as it is may donate what it is given: the caller's arrays stay."""
    return lambda *arrays: function(*(jax.numpy.copy(a) if _jax.is_array(a) else a for a in arrays))


def untraceable(jax: Any) -> tuple[type[Exception], ...]:
    """What is raised when a function wants the values of arrays that it is traced with."""
    errors = jax.errors
    return (
        errors.ConcretizationTypeError,
        errors.TracerArrayConversionError,
        errors.TracerIntegerConversionError,
        errors.TracerBoolConversionError,
        errors.NonConcreteBooleanIndexError,
    )


def _with_backward(jax: Any, function: Callable[..., Any], arrays: list[Any]) -> Callable[..., Any]:
    """Forward and backward: the results, and the gradients of their sum."""
    jnp = jax.numpy
    places = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]

    def both(*given: Any) -> Any:
        def of_floats(*floats: Any) -> Any:
            whole = list(given)
            for place, value in zip(places, floats):
                whole[place] = value
            return function(*whole)

        out, pull = jax.vjp(of_floats, *(given[i] for i in places))
        return out, pull(jax.tree_util.tree_map(_ones_like(jax), out))

    return both


def _ones_like(jax: Any) -> Callable[[Any], Any]:
    def ones(x: Any) -> Any:
        if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
            return jax.numpy.ones_like(x)
        import numpy

        return numpy.zeros(x.shape, jax.dtypes.float0)

    return ones


def _leaves(tree: Any) -> list[Any]:
    jax = _jax.loaded()
    if jax is not None:
        return list(jax.tree_util.tree_leaves(tree))
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [] if tree is None else [tree]


def _numpy_arrays(tree: Any) -> list[Any]:
    return [leaf for leaf in _leaves(tree) if _jax.is_numpy(leaf)]


def _copied(tree: Any) -> Any:
    """Arrays copied, everything else shared."""
    if _jax.is_numpy(tree):
        return tree.copy()
    if isinstance(tree, dict):
        return {name: _copied(value) for name, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_copied(value) for value in tree)
    return copy.copy(tree) if isinstance(tree, (list, set, bytearray)) else tree


_KNOWN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128".split()
)


def _bytes_of(leaf: Any) -> list[tuple[str, bytes]]:
    """As the core compares it: small floats as float32, everything that is not a number by its text."""
    try:
        import numpy
    except ImportError:
        return [("uint8", repr(leaf).encode())]
    if _jax.is_array(leaf):
        jax = _jax.loaded()
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
    elif not isinstance(leaf, (numpy.ndarray, numpy.generic, bool, int, float, complex)):
        if hasattr(leaf, "__array__"):
            pass
        else:
            return [("uint8", repr(leaf).encode())]
    array = numpy.asarray(leaf)
    if array.dtype.name not in _KNOWN:
        if array.dtype.kind in "OUSMm":
            return [("uint8", repr(array.tolist()).encode())]
        array = array.astype(numpy.float32)
    return [(array.dtype.name, numpy.ascontiguousarray(array).tobytes())]
