# SPDX-License-Identifier: Apache-2.0
"""Python floats that a traced function may compute with, and not see.

A `Number` takes the place of a float while a function is traced. What Python computes of floats alone is noted, and done
before every call in Python, in double precision; each number that meets an array is an input of the function. Whatever
would show the value, or that it is not a float, is refused, so what was traced is what happens for every value.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ejk import _jax
from ejk._code import Asks, asks_for_type
from ejk._libraries import is_library

_MAX_STEPS = 1000
_OWN_KERNELS = "ejk.modules"  # they are kernels like any other


class Refused(Exception):
    """A function wants to see a float."""


class Numbers:
    """The floats at some places of a call, and what a function computes of them.

    What meets arrays is known when `learn` has traced the function with one input in place of all.
    """

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places, self.is_refused = places, False
        self._steps: list[tuple[Callable[..., Any], Sequence[int]]] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._inputs: list[int] = []
        self._learns = True

    @property
    def count(self) -> int:
        """How many inputs the function has."""
        return 1 if self._learns else len(self._inputs)

    def of(self, inputs: Sequence[Any]) -> list[Number]:
        """The numbers that take the place of the floats in a trace with these inputs."""
        _register(_jax.loaded())
        return [Number(self, place, inputs) for place in range(len(self.places))]

    def learn(self, trace: Callable[[], object]) -> None:
        """Notes what `trace()` computes. Refused if it may see a float."""
        if sys.getprofile() is not None:  # there can be one only
            raise Refused
        sys.setprofile(self._look_at)
        try:
            trace()
        finally:
            sys.setprofile(None)
        self._learns = False
        self.check()

    def check(self) -> None:
        if self.is_refused:  # the function may have caught the error
            raise Refused

    def values(self, floats: Sequence[Any]) -> list[float]:
        """The inputs of a call. Refused if Python cannot compute them, or they are not floats."""
        known = [floats[place] for place in self.places]
        try:
            for function, operands in self._steps:
                known.append(function(*(known[place] for place in operands)))
        except ArithmeticError as error:
            raise Refused from error
        found = [known[place] for place in self._inputs]
        if any(type(value) is not float for value in found):
            raise Refused
        return found

    def refuse(self, *_: Any) -> NoReturn:
        self.is_refused = True
        raise Refused

    def step(self, key: tuple[Any, ...], function: Callable[..., Any], operands: Sequence[int] = ()) -> int:
        """The place of what a function of noted numbers gives."""
        if key not in self._known:
            if not self._learns or len(self._steps) >= _MAX_STEPS:
                self.refuse()
            self._known[key] = len(self.places) + len(self._steps)
            self._steps.append((function, operands))
        return self._known[key]

    def input(self, place: int, inputs: Sequence[Any]) -> Any:
        """Which of the inputs a number is."""
        if place not in self._inputs:
            if not self._learns:
                self.refuse()
            self._inputs.append(place)
        return inputs[0] if self._learns else inputs[self._inputs.index(place)]

    def _look_at(self, frame: types.FrameType, event: str, _: Any) -> None:
        """Refuses code that asks for types: there is no answer that would do for a float."""
        name = frame.f_globals.get("__name__")
        if event != "call" or is_library(name) and not name.startswith(_OWN_KERNELS):
            return
        asks, code = asks_for_type(frame.f_code), frame.f_code
        if asks is Asks.OF_FIRST and type(frame.f_locals.get(code.co_varnames[0])) is not Number:
            return
        self.is_refused |= asks is not Asks.NEVER


_KNOWING = ("ejk", "jax", "jaxlib")  # that it is not a float
_HIDDEN = frozenset("__array__ __array_ufunc__ __class__ __jax_array__ _inputs _numbers _place".split())


class Number:
    """In place of a float, in code of others than JAX's."""

    __slots__ = ("__weakref__", "_inputs", "_numbers", "_place")
    __array_ufunc__ = None  # NumPy leaves it to this class

    def __init__(self, numbers: Numbers, place: int, inputs: Sequence[Any]) -> None:
        self._numbers, self._place, self._inputs = numbers, place, inputs

    def __getattribute__(self, name: str) -> Any:
        if name in _HIDDEN and not _is_of(sys._getframe(1), _KNOWING):
            if name == "__class__":
                return float
            object.__getattribute__(self, "_numbers").refuse()
        return object.__getattribute__(self, name)

    def __jax_array__(self) -> Any:
        return self._numbers.input(self._place, self._inputs)

    def _computed(self, function: Callable[..., Any], *others: Number) -> Number:
        """What Python computes of this and other numbers alone."""
        places = [number._place for number in others]
        return Number(self._numbers, self._numbers.step((function, *places), function, places), self._inputs)

    def _made_of(self, other: Any) -> Number:
        """Another number as one of these."""
        if type(other) is Number and other._inputs is self._inputs:
            return other
        if type(other) not in (bool, int, float):
            self._numbers.refuse()
        place = self._numbers.step((type(other), repr(other)), functools.partial(_given, other))
        return Number(self._numbers, place, self._inputs)

    def _is_equal(self, other: Any) -> Any:
        if _jax.is_array(other):
            return self.__jax_array__() == other
        if other is None or type(other) in (str, bytes, tuple, list, dict):
            return False  # as for every float
        return self._numbers.refuse()

    def __eq__(self, other: object) -> Any:
        return self._is_equal(other)

    def __ne__(self, other: object) -> Any:
        return operator.invert(self._is_equal(other)) if _jax.is_array(other) else not self._is_equal(other)


def _given(value: Any) -> Any:
    return value


def _is_of(frame: types.FrameType | None, packages: Sequence[str]) -> bool:
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] in packages and not name.startswith(_OWN_KERNELS)


def _binary(function: Callable[..., Any], is_reflected: bool = False) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any) -> Any:
        if _jax.is_array(other):
            pair = (self.__jax_array__(), other)
            return function(*reversed(pair)) if is_reflected else function(*pair)
        pair = (self, self._made_of(other))
        return self._computed(function, *(reversed(pair) if is_reflected else pair))

    return method


def _compared(function: Callable[..., Any]) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any) -> Any:
        return function(self.__jax_array__(), other) if _jax.is_array(other) else self._numbers.refuse()

    return method


def _complete(kind: type[Number]) -> None:
    """Gives the class all that floats have: what computes is noted, all else refused."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        setattr(kind, f"__{name}__", _binary(getattr(operator, name)))
        setattr(kind, f"__r{name}__", _binary(getattr(operator, name), is_reflected=True))
    for name in ("neg", "pos", "abs"):
        setattr(kind, f"__{name}__", functools.partialmethod(_unary, getattr(operator, name)))
    for name in ("lt", "le", "gt", "ge"):
        setattr(kind, f"__{name}__", _compared(getattr(operator, name)))
    shown = {"__hash__", "__repr__", "__str__", "__format__", "__reduce__", "__reduce_ex__", "__sizeof__", "__array__"}
    for name in shown | set(dir(float)) - set(dir(object)) - set(vars(kind)):
        is_data = name in ("real", "imag")
        setattr(kind, name, property(_refuse) if is_data else _refuse)


def _unary(number: Number, function: Callable[..., Any]) -> Number:
    return number._computed(function, number)


def _refuse(number: Number, *_: Any, **__: Any) -> Any:
    return number._numbers.refuse()


_complete(Number)


# ---- as an argument of functions of JAX ---------------------------------------------------------


class _Origin:
    """Where a number that was flattened came from. They are all alike: JAX may keep one."""

    __slots__ = ("number",)

    def __init__(self, number: Number) -> None:
        self.number = weakref.ref(number)

    def __eq__(self, other: object) -> bool:
        return type(other) is _Origin

    def __hash__(self) -> int:
        return 0


@functools.cache
def _register(jax: Any) -> None:
    jax.tree_util.register_pytree_node(Number, _flatten, _unflatten)


def _flatten(number: Number) -> tuple[tuple[Any], _Origin]:
    """For JAX alone: the leaves of a tree would show that it is not a float."""
    frame: types.FrameType | None = sys._getframe(1)
    of_trees = ("jax._src.tree", "jax._src.tree_util")
    if frame is not None and frame.f_globals.get("__name__") in of_trees:
        while frame is not None and frame.f_globals.get("__name__") in of_trees:
            frame = frame.f_back
        if not _is_of(frame, ("jax",)):
            number._numbers.refuse()
    return (number.__jax_array__(),), _Origin(number)


def _unflatten(origin: _Origin, children: Sequence[Any]) -> Any:
    """A float that JAX hands on as it is stays one; where it traces it, it would be an array too."""
    number = origin.number()
    return number if number is not None and number.__jax_array__() is children[0] else children[0]


def is_number(thing: object) -> bool:
    return type(thing) is Number


def is_same(a: Any, b: Any) -> bool:
    return a is b or is_number(a) and is_number(b) and a._place == b._place


__all__ = ["Number", "Numbers", "Refused", "is_number", "is_same"]
