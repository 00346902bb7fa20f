# SPDX-License-Identifier: Apache-2.0
"""Compiled functions of one kernel: which there are, and when a call runs as it is in place of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ejk import _jax
from ejk._captured import Opaque, outline_of
from ejk._numbers import Numbers, Refused
from ejk.ops.core._function import Arguments
from ejk.ops.core._static import give_static, keep_numbers

_Value = TypeVar("_Value")

_FEW = 4  # values of a float that are compiled for; from then on it is an input
_MAX_VALUES = 256
_MAX_FORMS = 256
_MANY_ALIKE = 8  # forms that differ in numbers, texts and contents alone


class Jitted:
    """A function of arrays, jitted for as long as that gives what the call gives as it is."""

    def __init__(self, jax: Any, function: Callable[..., Any], name: str, holds_objects: bool) -> None:
        self._jax, self._function, self._name, self._holds_objects = jax, function, name, holds_objects
        self._is_checked = self._gives_static = self._donates = self.runs_as_it_is = False
        self._target = self._jit()

    def _jit(self, donated: tuple[int, ...] = ()) -> Any:
        def traced(*arrays: Any) -> Any:
            out, has_static = keep_numbers(self._function(*arrays))
            self._gives_static |= has_static
            return out

        traced.__name__ = traced.__qualname__ = self._name
        return self._jax.jit(traced, donate_argnums=donated)

    def __call__(self, arrays: Sequence[Any], as_it_is: Callable[[], Any]) -> Any:
        """Runs, or calls `as_it_is`, from then on if that works where the jitted function does not."""
        if self.runs_as_it_is:
            return as_it_is()
        try:
            return self.run(arrays)
        except Exception as error:  # of any kind, because it is raised while tracing anything
            is_of_the_trace = not isinstance(error, self._jax.errors.JaxRuntimeError)
        out = as_it_is()
        self.runs_as_it_is = is_of_the_trace
        return out

    def gives_the_same(self, arrays: Sequence[Any], as_it_is: Callable[[], Any]) -> bool:
        """Whether it can be jitted, donates nothing, and gives what the call gives as it is."""
        try:
            self.check(arrays)
            return not self._donates and _is_close(self._jax, self.run(arrays), as_it_is())
        except Exception:  # the call itself raises it again
            return False

    def trace(self, arrays: Sequence[Any]) -> None:
        self._target.trace(*arrays)

    def check(self, arrays: Sequence[Any]) -> None:
        """Traces; what was traced must be all that a run does. What it donates by itself, the whole of it donates."""
        program = self._target.trace(*arrays).jaxpr
        if self._holds_objects and not _is_closed(program):
            raise Opaque
        self._is_checked = True
        donated = _donated(program)
        if donated:
            self._donates, self._target = True, self._jit(donated)

    def run(self, arrays: Sequence[Any]) -> Any:
        if not self._is_checked:
            self.check(arrays)
        out = self._target(*arrays)
        return give_static(out) if self._gives_static else out

    def warm(self) -> Callable[..., Any]:
        """A function that runs it without a question."""
        if not self._gives_static:
            found: Callable[..., Any] = self._target
            return found
        target = self._target
        return lambda *arrays: give_static(target(*arrays))


def _is_closed(program: Any) -> bool:
    """Whether a program depends on its arguments alone: on no array that something held unseen, on no callback."""
    inside = getattr(program, "jaxpr", program)
    if any(map(_jax.is_array, getattr(program, "consts", ()))):
        return False
    return all(
        "callback" not in step.primitive.name and all(map(_is_closed, _programs_in(step.params.values())))
        for step in inside.eqns
    )


def _programs_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _programs_in(value)


def _donated(jaxpr: Any) -> tuple[int, ...]:
    """The places of arguments that functions which it calls itself donate. Inside of those nothing is donated."""
    places = {id(var): place for place, var in enumerate(jaxpr.jaxpr.invars)}
    found: set[int] = set()
    for step in jaxpr.jaxpr.eqns:
        flags = step.params.get("donated_invars")
        inner = step.params.get("call_jaxpr")
        if flags is None and hasattr(inner, "jaxpr") and len(inner.jaxpr.invars) == len(step.invars):
            inside = _donated(inner)  # of a function with its own gradient
            flags = [place in inside for place in range(len(step.invars))]
        found |= {places[id(var)] for var, flag in zip(step.invars, flags or ()) if flag and id(var) in places}
    return tuple(sorted(found))


class _OfFloats:
    """A function of arrays and of floats."""

    def __init__(self, make: Callable[[Numbers | None], Jitted], places: tuple[int, ...]) -> None:
        self._numbers = Numbers(places)
        self._jitted = make(self._numbers)

    def gives_the_same(self, arguments: Arguments, as_it_is: Callable[[], Any]) -> bool:
        """Whether it sees no float and gives what the call gives as it is."""
        try:
            self._numbers.learn(lambda: self._jitted.trace([*arguments.arrays, 0.0]))
            arrays = [*arguments.arrays, *self._numbers.values(arguments.floats)]
        except Exception:  # of any kind, because it is raised while tracing anything
            return False
        return self._jitted.gives_the_same(arrays, as_it_is) and not self._numbers.is_refused

    def __call__(self, arguments: Arguments, as_it_is: Callable[[], Any]) -> Any:
        try:
            inputs = self._numbers.values(arguments.floats)
        except Refused:
            return as_it_is()
        return self._jitted([*arguments.arrays, *inputs], as_it_is)


class Variants:
    """The functions of calls that differ in the values of floats alone.

    The first few values are constants of a function each. Then those that differ are inputs of one function, if it does
    not see them; if it does, a value is compiled for when it comes again.
    """

    def __init__(self) -> None:
        self._by_value: dict[tuple[str, ...], Jitted] = {}
        self._general: dict[tuple[Any, ...], _OfFloats] = {}
        self._may_be_inputs = True
        self._seen_once: dict[tuple[str, ...], bool] = {}

    def run(
        self, arguments: Arguments, make: Callable[[Numbers | None], Jitted], as_it_is: Callable[[], Any]
    ) -> tuple[Any, Jitted | None]:
        """The result, and the function if it was of these values alone."""
        values = tuple(value.hex() for value in arguments.floats)
        found = self._by_value.get(values)
        if found is None and len(self._by_value) >= _FEW:
            done = self._run_general(arguments, values, make, as_it_is) if self._may_be_inputs else None
            if done is not None:
                return done[0], None
            if not self._seen_once.pop(values, False):
                put(self._seen_once, values, True, _MAX_VALUES)
                return as_it_is(), None
        if found is None:
            found = put(self._by_value, values, make(None), _MAX_VALUES)
        return found(arguments.arrays, as_it_is), found

    def _run_general(
        self,
        arguments: Arguments,
        values: tuple[str, ...],
        make: Callable[[Numbers | None], Jitted],
        as_it_is: Callable[[], Any],
    ) -> tuple[Any] | None:
        """The result in a tuple; None if the floats that differ cannot be inputs."""
        known = [values, *self._by_value]
        varying = tuple(place for place, each in enumerate(zip(*known)) if len(set(each)) > 1)
        fixed = tuple(value for place, value in enumerate(values) if place not in varying)
        function = self._general.get((varying, fixed))
        if function is None:
            function = _OfFloats(make, varying)
            self._may_be_inputs = function.gives_the_same(arguments, as_it_is)
            if not self._may_be_inputs:
                return None
            self._general[varying, fixed] = function
        return (function(arguments, as_it_is),)


def _is_close(jax: Any, a: Any, b: Any) -> bool:
    """Whether two results are the same but for the order of roundings."""
    leaves, tree = jax.tree_util.tree_flatten(a)
    others, other_tree = jax.tree_util.tree_flatten(b)
    return tree == other_tree and all(map(functools.partial(_is_close_leaf, jax), leaves, others))


def _is_close_leaf(jax: Any, a: Any, b: Any) -> bool:
    if not (_jax.is_array(a) and _jax.is_array(b)):
        return type(a) is type(b) and a == b
    if a.aval != b.aval:
        return False
    jnp = jax.numpy
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return bool((a == b).all())
    rounding = 1000 * float(jnp.finfo(a.dtype).eps)
    largest = jnp.nanmax(jnp.abs(b), initial=0.0, where=jnp.isfinite(b))
    return bool(jnp.isclose(a, b, rtol=rounding, atol=rounding * largest, equal_nan=True).all())


class _AsItIs:
    """In place of variants of a form that is not compiled for."""

    def run(
        self, arguments: Arguments, make: Callable[[Numbers | None], Jitted], as_it_is: Callable[[], Any]
    ) -> tuple[Any, Jitted | None]:
        return as_it_is(), None


class Targets:
    """The functions made of one kernel. Kernels with the same attributes share them.

    Of many forms that are alike, as those of a call with the number of a step in it, each is compiled for only when it
    comes again.
    """

    def __init__(self) -> None:
        self._by_form: dict[tuple[Any, ...], Variants] = {}
        self._alike: dict[int, int] = {}
        self._seen_once: dict[int, bool] = {}

    def variants(self, key: tuple[Any, ...]) -> Variants | _AsItIs:
        found = self._by_form.get(key)
        if found is None:
            if not self._is_worth_it(key):
                return _AsItIs()
            found = put(self._by_form, key, Variants(), _MAX_FORMS)
        return found

    def _is_worth_it(self, key: tuple[Any, ...]) -> bool:
        # Hashes will do: two that are equal by chance cost time, and no result.
        outline, form = hash(tuple(map(outline_of, key))), hash(key)
        count = put(self._alike, outline, self._alike.get(outline, 0) + 1, 16 * _MAX_FORMS)
        if count <= _MANY_ALIKE or self._seen_once.pop(form, False):
            return True
        put(self._seen_once, form, True, _MAX_FORMS)
        return False


def put(table: dict[Any, _Value], key: Any, value: _Value, most: int) -> _Value:
    """The value, in place of the oldest if there are too many."""
    if len(table) >= most:
        table.pop(list(table)[0], None)
    table[key] = value
    return value
