# SPDX-License-Identifier: Apache-2.0
"""Taking apart: what a callable or an object reaches, as words, arrays and floats."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ejk import _jax
from ejk._captured.objects import (
    SLOTS,
    is_filled,
    is_its_own,
    is_of_dataclasses,
    is_of_named_tuples,
    is_of_python,
    is_public,
    jitted_type,
    own_dict,
    slots_of,
)
from ejk._captured.values import (
    PLAIN,
    has_attributes,
    has_data,
    is_plain,
    is_plain_member,
    own_attributes,
    told_apart,
    tree_told_apart,
)
from ejk._captured.words import Copy, Exact, Member, Opaque, Same, Word
from ejk._code import Reads, reads_of
from ejk._libraries import gives_the_same, is_library, is_pure
from ejk._numbers import Number

_MAX_WORDS = 4000  # to look at more than that costs more than it saves
_MAX_BYTES = 1 << 16  # of an array of NumPy that is looked at in every call
_OF_CLASSES = ("__new__", "__init_subclass__", "__class_getitem__")  # their first argument is a class


class _TooMuch(Opaque):
    """It would take too long to look at all of it."""


_reaching_too_much: weakref.WeakSet[Any] = weakref.WeakSet()  # codes of functions, classes of objects


def _maker_of(thing: Any) -> Any:
    """A function's code, an object's class; `object` for what says nothing of what it holds."""
    while isinstance(thing, (functools.partial, types.MethodType)):
        thing = thing.func if isinstance(thing, functools.partial) else thing.__func__
    if isinstance(thing, types.FunctionType):
        return thing.__code__
    return object if is_library(type(thing).__module__) else type(thing)


_met: weakref.WeakSet[Any] = weakref.WeakSet()


def _was_met(thing: Any) -> bool:
    """Whether it was there in an earlier call. What is made anew for every call is never worth compiling for."""
    if thing in _met:
        return True
    _met.add(thing)
    return False


class _Effects:
    """What functions that were seen may change in classes, which are not made anew."""

    def __init__(self) -> None:
        self.reads: list[tuple[Reads, bool]] = []  # and whether they are a method's
        self.kinds: list[type] = []
        self.containers: set[str] = set()
        self.hands_on_classes = False

    def check(self) -> None:
        if not self.kinds:
            return
        sets = {name for reads, is_method in self.reads for name in reads.sets}
        sets |= {name for reads, is_method in self.reads if not is_method for name in reads.sets_of_first}
        every = [reads for reads, _ in self.reads]
        if sets and (self.hands_on_classes or any(reads.asks_for_class for reads in every)):
            raise Opaque
        if any(name in vars(kind) for kind in self.kinds for name in sets):
            raise Opaque
        reads_some = any(not self.containers.isdisjoint(reads.attributes) for reads in every)
        if reads_some and any(reads.changes for reads in every):
            raise Opaque


class Seen:
    """`words`, `arrays` and `floats` of what was added. `arguments`: arrays that it need not be given again; None in place
    of one that does not count as the same."""

    def __init__(self, arguments: Sequence[Any] = (), is_fixed: bool = False, effects: _Effects | None = None) -> None:
        self.words: list[Any] = []
        self.arrays: list[Any] = []
        self.floats: list[Any] = []
        self._places: dict[int, int] = {}
        self._spaces: dict[int, int] = {}
        self._limit = _MAX_WORDS
        self._kept = list(arguments)  # while it lives, nothing else has its id
        for place, argument in enumerate(arguments):
            if argument is not None:
                self._places.setdefault(id(argument), place)
        # What classes reach is not made anew with other arrays: it may hold none.
        self._is_fixed = is_fixed
        self._fixed: Seen | None = self if is_fixed else None
        self._effects = effects or _Effects()

    def all_words(self) -> tuple[Any, ...]:
        return tuple(self.words) if self._fixed is None else (*self.words, *self._fixed.words)

    def check_effects(self) -> None:
        """Opaque if what was added may change a class."""
        self._effects.check()

    def add(self, thing: Any) -> None:
        (_WAYS.get(type(thing)) or _way_of(type(thing)))(self, thing)
        if len(self.words) > self._limit:
            raise _TooMuch

    def add_whole(self, thing: Any) -> None:
        """The same; what turned out to reach too much is not looked at again."""
        maker = _maker_of(thing)
        if maker in _reaching_too_much:
            raise Opaque
        self._limit = len(self.words) + _MAX_WORDS
        try:
            self.add(thing)
        except (_TooMuch, RecursionError):
            if maker is not object:
                _reaching_too_much.add(maker)
            raise Opaque from None

    def add_all(self, things: Iterable[Any]) -> None:
        for thing in things:
            self.add(thing)

    def add_argument(self) -> None:
        self.words.append(Word.ARGUMENT)

    def add_array(self, array: Any) -> None:
        if self._is_fixed:
            raise Opaque
        if not self._is_again(array):
            self.words.append(Word.ARRAY)
            self.arrays.append(array)

    def add_numpy(self, array: Any) -> None:
        if self._is_fixed or array.dtype.hasobject or array.nbytes > _MAX_BYTES:
            raise Opaque
        if not self._is_again(array):
            order = "F" if array.flags.fnc else "C"
            self.words += (Word.NUMPY, array.dtype, array.shape, order, array.flags.writeable, array.tobytes(order))

    def add_float(self, value: Any) -> None:
        if self._is_fixed:
            self.words += (Word.VALUE, float, Exact(value, value.hex()))
            return
        self.words.append(Word.FLOAT)
        self.floats.append(value)

    def add_value(self, value: Any) -> None:
        self.words += (Word.VALUE, type(value), value)

    def add_number(self, value: Any) -> None:
        text = value.tobytes() if hasattr(value, "tobytes") else repr(value)
        self.words += (Word.VALUE, type(value), Exact(value, text))

    def add_slice(self, value: slice) -> None:
        self.words.append(Word.SLICE)
        self.add_all((value.start, value.stop, value.step))

    def add_same(self, thing: Any) -> None:
        self.words += (Word.SAME, Same(thing))

    def refuse(self, thing: Any) -> NoReturn:
        raise Opaque

    def _is_again(self, thing: Any) -> bool:
        place = self._places.setdefault(id(thing), len(self._kept))
        if place < len(self._kept):
            self.words += (Word.AGAIN, place)
            return True
        self._kept.append(thing)
        return False

    # -- containers --

    def add_container(self, things: Any) -> None:
        if isinstance(things, tuple):
            self.words += (Word.CONTAINER, type(things), len(things))
        elif self._is_again(things):
            return
        else:
            self.words += (Word.CONTAINER, type(things), len(things), getattr(things, "maxlen", None))
        self.add_all(things)

    def add_named_tuple(self, things: Any) -> None:
        if has_attributes(things):  # one made anew would not have them
            raise Opaque
        self.words += (Word.CONTAINER, weakref.ref(type(things)), len(things))
        self.add_all(things)
        self.see_class(type(things))

    def add_dict(self, things: dict[Any, Any]) -> None:
        if self._is_again(things):
            return
        keys = tuple(things)
        if not all(map(is_plain, keys)):
            raise Opaque
        self.words += (Word.DICT, type(things), Exact(keys, tuple(map(told_apart, keys))))
        self.add(getattr(things, "default_factory", None))
        self.add_all(things.values())

    def add_set(self, things: Any) -> None:
        members, kind = tuple(things), type(things)
        if not all(map(is_plain, members)):
            raise Opaque
        if kind is set and tuple(set(members)) != members:  # one made anew has another order
            raise Opaque
        kept = members if kind is set else things
        self.words += (Word.SET, kind, Exact(kept, tuple(map(told_apart, members))))

    # -- callables --

    def add_partial(self, partial: Any) -> None:
        if partial.__dict__:
            raise Opaque
        self.words += (Word.PARTIAL, type(partial), len(partial.args), tuple(partial.keywords))
        self.add(partial.func)
        self.add_all(partial.args)
        self.add_all(partial.keywords.values())

    def add_method(self, method: types.MethodType) -> None:
        self.words.append(Word.METHOD)
        if type(method.__func__) is types.FunctionType:
            self.add_function(method.__func__, is_method=not isinstance(method.__self__, type))
        else:
            self.add(method.__func__)
        self.add(method.__self__)

    def add_builtin(self, function: Any) -> None:
        whose = function.__self__
        if whose is None or isinstance(whose, types.ModuleType):
            name = function.__module__ if whose is None else whose.__name__
            if not is_pure(name) or not gives_the_same(function):
                raise Opaque
            self.add_same(function)
            return
        self.words += (Word.BOUND, function.__name__)
        self.add(whose)

    def add_jitted(self, function: Any) -> None:
        if is_public(function):
            self.add_same(function)
            return
        # JAX may have traced it when what it reads was something else: it gives what it gave then.
        inside = Seen(is_fixed=True)
        inside.add(function.__wrapped__)
        words = [word for word in inside.words if isinstance(word, Word)]
        reads_libraries_alone = words[0] is Word.FUNCTION and {*words[1:]} <= {Word.SAME, Word.MODULE}
        if not reads_libraries_alone or not _was_met(function):
            raise Opaque
        self.words += (Word.REFERENCE, weakref.ref(function))

    def add_function(self, function: types.FunctionType, is_method: bool = False) -> None:
        space = function.__globals__
        module = space.get("__name__")
        if is_library(module) and function.__closure__ is None:
            if not gives_the_same(function):
                raise Opaque
            self.add_same(function)
            return
        reads = reads_of(function.__code__)
        if reads.hidden or not all(map(is_pure, reads.imports)):
            raise Opaque
        if self._is_again(function):
            return
        self._effects.reads.append((reads, is_method))
        cells, defaults = function.__closure__ or (), function.__defaults__ or ()
        named, attributes = function.__kwdefaults__ or {}, function.__dict__
        self.words += (Word.FUNCTION, function.__code__, function.__name__, function.__qualname__)
        self.words += (len(defaults), tuple(named), tuple(attributes))
        self._begin_globals(space, reads)
        for cell in cells:
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self.words.append(Word.EMPTY)
        self.add_all(defaults)
        self.add_all(named.values())
        self.add_all(attributes.values())
        self._add_globals(space, reads)

    def _begin_globals(self, space: dict[str, Any], reads: Reads) -> None:
        module = space.get("__name__")
        if is_library(module):  # a wrapper that it has made: it runs among its own
            self.words += (Same(space), None, None, ())
            return
        used = space.get("__builtins__")
        if used is not builtins and used is not builtins.__dict__:
            raise Opaque
        place = self._spaces.setdefault(id(space), len(self._spaces))
        self.words += (place, module, space.get("__package__"), tuple(reads.names))

    def _add_globals(self, space: dict[str, Any], reads: Reads) -> None:
        if is_library(space.get("__name__")):
            return
        for name, chains in reads.names.items():
            value = space.get(name, builtins.__dict__.get(name, Word.EMPTY))
            if value is Word.EMPTY:
                self.words.append(value)
            elif isinstance(value, types.ModuleType):
                self._add_module(value, chains, reads)
            else:
                self.add(value)

    # -- modules --

    def add_module(self, module: types.ModuleType) -> None:  # what is read of it is not known
        if not is_pure(module.__name__):
            raise Opaque
        self.add_same(module)

    def _add_module(self, module: types.ModuleType, chains: Iterable[tuple[str, ...]], reads: Reads) -> None:
        """What code reads of a module, as chains of attributes that begin there."""
        name, held = module.__name__, module.__dict__
        of_library = is_library(name)
        if not is_pure(name) if of_library else "__getattr__" in held:
            raise Opaque
        members: dict[str, set[tuple[str, ...]]] = {}
        for chain in chains:
            if chain:
                members.setdefault(chain[0], set()).add(chain[1:])
            elif of_library:  # handed on as it is: any attribute that the code names may be one of its
                for attribute in reads.attributes:
                    members.setdefault(attribute, set()).add(())
            else:  # to whatever may read or change any of it
                raise Opaque
        if "__dict__" in members:
            raise Opaque
        found = sorted(attribute for attribute in members if attribute in held)
        self.words += (Word.MODULE, Same(held.get("_ejk_original", module)), tuple(found))
        for attribute in found:
            value = held[attribute]
            if isinstance(value, types.ModuleType):
                if () in members[attribute] and is_library(value.__name__):
                    self.add_module(value)
                else:
                    self._add_module(value, sorted(members[attribute]), reads)
            elif of_library and is_its_own(value):
                self.add_same(value)
            else:
                self.add(value)

    # -- objects --

    def add_object(self, thing: Any) -> None:
        kind = type(thing)
        if is_library(kind.__module__) and is_public(thing):
            self.add_same(thing)
            return
        if self._is_again(thing):
            return
        slots = [slot for slot in slots_of(kind) if is_filled(slot, thing)]
        held = own_dict(thing)
        names = tuple(name for name in held if name != "_ejk_compiled")
        self.words += (Word.OBJECT, weakref.ref(kind), names, tuple(map(Same, slots)))
        self.add_all([held[name] for name in names])
        self.add_all([slot.__get__(thing) for slot in slots])
        self.see_class(kind)

    def add_of_library(self, thing: Any) -> None:
        if is_public(thing):
            self.add_same(thing)
            return
        jax = _jax.loaded()
        parts = jax.tree_util.default_registry.flatten_one_level(thing) if jax is not None else None
        if parts is None:
            raise Opaque
        children, data = tuple(parts[0]), parts[1]
        self.words += (Word.PYTREE, type(thing), len(children))
        self.add(data)
        self.add_all(children)

    def add_tree(self, tree: Any) -> None:
        """The structure of a pytree, which may hold anything as data of its nodes."""
        if not has_data(tree):
            self.words += (Word.VALUE, type(tree), Exact(tree, tree_told_apart(tree)))
            return
        kind, data = tree.node_data()
        self.words += (Word.TREE, weakref.ref(kind), len(tree.children()))
        self.add(data)
        for child in tree.children():
            self.add_tree(child)

    def add_member_of_enum(self, thing: enum.Enum) -> None:
        self.words += (Word.SAME, Member(thing))
        self.see_class(type(thing))

    def add_class(self, kind: type) -> None:
        if is_library(kind.__module__):
            if not gives_the_same(kind):
                raise Opaque
            self.add_same(kind)
            return
        self.words += (Word.REFERENCE, weakref.ref(kind))
        self._effects.hands_on_classes = True
        self.see_class(kind)

    def _beside(self) -> Seen:
        if self._fixed is None:
            self._fixed = Seen(is_fixed=True, effects=self._effects)
        return self._fixed

    def see_class(self, kind: Any) -> None:
        """What objects reach through their class."""
        if "<locals>" in kind.__qualname__ and not is_library(kind.__module__) and not _was_met(kind):
            raise Opaque
        beside = self._beside()
        for base in (*kind.__mro__, *type(kind).__mro__):
            if not is_library(base.__module__) and not beside._is_again(base):
                beside._add_members(base)

    def _add_held_by(self, member: enum.Enum) -> None:
        """What a member of an enum holds beside a plain value."""
        if is_plain_member(member):
            return
        held = {"value": member._value_, **own_attributes(member)}
        self._effects.containers |= {"_value_", *held}
        self.words.append(tuple(held))
        self.add_all(held.values())

    def _add_members(self, kind: Any) -> None:
        only_functions, jitted = issubclass(kind, enum.Enum), jitted_type()
        is_dataclass = "__dataclass_fields__" in vars(kind)
        self._effects.kinds.append(kind)
        for member in kind.__members__.values() if only_functions else ():
            self._add_held_by(member)
        for name, value in vars(kind).items():
            is_method = isinstance(value, types.FunctionType) and name not in _OF_CLASSES and not issubclass(kind, type)
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if is_dataclass and name.startswith("__") and is_of_dataclasses(value):
                continue
            if "_fields" in vars(kind) and is_of_named_tuples(value):
                self.add(getattr(value, "__defaults__", None))
                continue
            if isinstance(value, property):
                self.words.append(name)
                for part in (value.fget, value.fset, value.fdel):
                    self.add_function(part, True) if isinstance(part, types.FunctionType) else self.add(part)
            elif isinstance(value, functools.cached_property):
                self.words.append(name)
                self.add(value.func)
            elif isinstance(value, types.FunctionType):
                self.words.append(name)
                self.add_function(value, is_method)
            elif isinstance(value, jitted):
                raise Opaque  # JAX keeps the object whose method it is
            elif not (only_functions or is_of_python(name) or isinstance(value, SLOTS)):
                self.words.append(name)
                if not is_plain(value):
                    self._effects.containers.add(name)
                self.add(value)


_Way = Callable[[Seen, Any], None]

_WAYS: dict[type, _Way] = {
    **dict.fromkeys(PLAIN, Seen.add_value),
    float: Seen.add_float,
    Number: Seen.add_float,
    complex: Seen.add_number,
    range: Seen.add_number,
    slice: Seen.add_slice,
    tuple: Seen.add_container,
    list: Seen.add_container,
    collections.deque: Seen.add_container,
    dict: Seen.add_dict,
    collections.OrderedDict: Seen.add_dict,
    collections.defaultdict: Seen.add_dict,
    set: Seen.add_set,
    frozenset: Seen.add_set,
    functools.partial: Seen.add_partial,
    types.MethodType: Seen.add_method,
    types.BuiltinFunctionType: Seen.add_builtin,
    types.MethodWrapperType: Seen.add_builtin,
    types.FunctionType: Seen.add_function,
    types.ModuleType: Seen.add_module,
    types.SimpleNamespace: Seen.add_object,
    types.MethodDescriptorType: Seen.add_same,
    types.WrapperDescriptorType: Seen.add_same,
    types.ClassMethodDescriptorType: Seen.add_same,
    Copy: Seen.refuse,
}

_ways: weakref.WeakKeyDictionary[type, _Way] = weakref.WeakKeyDictionary()  # of other types


def _way_of(kind: type) -> _Way:
    found = _ways.get(kind)
    if found is None:
        found = _ways[kind] = _find_way(kind)
    return found


def _find_way(kind: type) -> _Way:
    if issubclass(kind, type):
        return Seen.add_class
    if issubclass(kind, enum.Enum):
        return Seen.add_member_of_enum
    if issubclass(kind, logging.Logger):
        return Seen.add_same
    return _way_of_jax(kind) or _way_of_numpy(kind) or _way_of_object(kind)


def _way_of_jax(kind: type) -> _Way | None:
    jax = _jax.loaded()
    if jax is None:
        return None
    sharding = jax.sharding
    if issubclass(kind, jax.Array) or issubclass(kind, jax.core.Tracer):
        return Seen.add_array
    if kind is jitted_type():
        return Seen.add_jitted
    values = (sharding.Sharding, sharding.Mesh, sharding.AbstractMesh, sharding.PartitionSpec, jax.ShapeDtypeStruct)
    if issubclass(kind, (*values, jax.Device)):
        return Seen.add_value
    if issubclass(kind, (jax.custom_vjp, jax.custom_jvp)):
        return Seen.add_object
    if issubclass(kind, jax.tree_util.Partial):
        return Seen.add_partial
    return None


def _way_of_numpy(kind: type) -> _Way | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if kind is numpy.ndarray:
        return Seen.add_numpy
    if issubclass(kind, numpy.generic):
        return Seen.add_number
    if issubclass(kind, numpy.dtype):
        return Seen.add_value
    return None


def _way_of_object(kind: type) -> _Way:
    if issubclass(kind, tuple):
        return Seen.add_named_tuple if hasattr(kind, "_fields") else Seen.refuse
    if is_library(kind.__module__) and not dataclasses.is_dataclass(kind):
        return Seen.add_of_library
    return Seen.add_object
