# SPDX-License-Identifier: Apache-2.0
"""Objects taken apart: their arrays and floats, and everything else as words that can be compared.

An array of NumPy is no such array but a word, by its content: code may do with it what NumPy alone can.

`Seen` follows what a callable or an object can reach: closure cells, defaults, the globals and modules that its code
reads, bound methods, partials, attributes, containers. Two objects with equal words do the same with equal arrays and
floats. `make` makes an object of the words and other arrays, and leaves the one that they came from as it is. What
cannot be followed is `Opaque`: what it does may be different every time.

The words hold no function, closure or object of a user's, so that whoever keeps them keeps none of those alive.
"""

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

from ejk import _jax
from ejk._code import reads_of
from ejk._libraries import gives_the_same, is_library, is_pure
from ejk._numbers import Number

_MOST_WORDS = 4000  # to look at more than that costs more than it saves
_MOST_BYTES = 1 << 16  # of an array of NumPy that is looked at in every call


class Opaque(Exception):
    """Something that cannot be seen into."""


class _TooMuch(Opaque):
    """It would take too long to look at all of it."""


_reaching_too_much = weakref.WeakSet()  # codes of functions, classes of objects


def _maker_of(thing):
    """A function's code, an object's class; `object` for what says nothing of what it holds."""
    while isinstance(thing, (functools.partial, types.MethodType)):
        thing = thing.func if isinstance(thing, functools.partial) else thing.__func__
    if isinstance(thing, types.FunctionType):
        return thing.__code__
    return object if is_library(type(thing).__module__) else type(thing)


class _Word(enum.Enum):
    """What comes next. A word is compared by identity."""

    AGAIN = enum.auto()  # what was met before
    ARGUMENT = enum.auto()  # an array that is an argument itself
    ARRAY = enum.auto()
    BOUND = enum.auto()  # a builtin method of an object
    CONTAINER = enum.auto()
    DICT = enum.auto()
    EMPTY = enum.auto()  # a cell or a name without a value
    FLOAT = enum.auto()
    FUNCTION = enum.auto()
    METHOD = enum.auto()
    MODULE = enum.auto()
    NUMPY = enum.auto()  # an array of NumPy
    OBJECT = enum.auto()
    PARTIAL = enum.auto()
    PYTREE = enum.auto()
    REFERENCE = enum.auto()  # to something of a user's that counts by its identity
    SAME = enum.auto()  # something of a library's that does
    SET = enum.auto()
    SLICE = enum.auto()
    TREE = enum.auto()
    VALUE = enum.auto()

    __hash__ = object.__hash__


class _Same:
    __slots__ = ("thing",)

    def __init__(self, thing):
        self.thing = thing

    def __hash__(self):
        return id(self.thing)

    def __eq__(self, other):
        return type(other) is type(self) and self.thing is other.thing


class _Member(_Same):
    """A member of an enum. What it holds is told with its class."""

    __slots__ = ()


class _Exact:
    """A value that is equal to no other: -0.0 is not 0.0, NaN is NaN. `text` tells it apart."""

    __slots__ = ("text", "value")

    def __init__(self, value, text):
        self.value, self.text = value, text

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return type(other) is _Exact and type(self.value) is type(other.value) and self.text == other.text


class _Copy(types.ModuleType):
    """A module with other arrays in it."""


def _is_public(thing) -> bool:
    """Whether it is what a library has under its name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__name__", None)
    if not (isinstance(name, str) and gives_the_same(thing)):
        return False
    return getattr(sys.modules.get(module), name, None) is thing


def _is_its_own(value) -> bool:
    """Whether a library's attribute is a thing of a library's, and no array."""
    if _jax.is_array(value) or _jax.is_numpy(value) or not is_library(type(value).__module__):
        return False
    while not isinstance(value, types.FunctionType) and callable(getattr(value, "__wrapped__", None)):
        value = value.__wrapped__
    return not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) or gives_the_same(value)


_met = weakref.WeakSet()


def _was_met(thing) -> bool:
    """Whether it was there in an earlier call. What is made anew for every call is never worth compiling for."""
    if thing in _met:
        return True
    _met.add(thing)
    return False


class _Effects:
    """What functions that were seen may change in classes, which are not made anew."""

    def __init__(self):
        self.reads, self.kinds, self.containers, self.hands_on_classes = [], [], set(), False

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


# ---- taking apart -------------------------------------------------------------------------------


class Seen:
    """`words`, `arrays` and `floats` of what was added. `arguments`: arrays that it need not be given again; None in place
    of one that does not count as the same."""

    def __init__(self, arguments=(), is_fixed=False, effects=None):
        self.words, self.arrays, self.floats = [], [], []
        self._places, self._spaces = {}, {}
        self._limit = _MOST_WORDS
        self._kept = list(arguments)  # while it lives, nothing else has its id
        for place, argument in enumerate(arguments):
            if argument is not None:
                self._places.setdefault(id(argument), place)
        # What classes reach is not made anew with other arrays: it may hold none.
        self._is_fixed = is_fixed
        self._fixed = self if is_fixed else None
        self._effects = effects or _Effects()

    def all_words(self) -> tuple:
        return tuple(self.words) if self._fixed is None else (*self.words, *self._fixed.words)

    def check_effects(self) -> None:
        """Opaque if what was added may change a class."""
        self._effects.check()

    def add(self, thing) -> None:
        (_WAYS.get(type(thing)) or _way_of(type(thing)))(self, thing)
        if len(self.words) > self._limit:
            raise _TooMuch

    def add_whole(self, thing) -> None:
        """The same; what turned out to reach too much is not looked at again."""
        maker = _maker_of(thing)
        if maker in _reaching_too_much:
            raise Opaque
        self._limit = len(self.words) + _MOST_WORDS
        try:
            self.add(thing)
        except (_TooMuch, RecursionError):
            if maker is not object:
                _reaching_too_much.add(maker)
            raise Opaque from None

    def add_all(self, things) -> None:
        for thing in things:
            self.add(thing)

    def add_argument(self) -> None:
        self.words.append(_Word.ARGUMENT)

    def add_array(self, array) -> None:
        if self._is_fixed:
            raise Opaque
        if not self._is_again(array):
            self.words.append(_Word.ARRAY)
            self.arrays.append(array)

    def add_numpy(self, array) -> None:
        if self._is_fixed or array.dtype.hasobject or array.nbytes > _MOST_BYTES:
            raise Opaque
        if not self._is_again(array):
            order = "F" if array.flags.fnc else "C"
            self.words += (_Word.NUMPY, array.dtype, array.shape, order, array.flags.writeable, array.tobytes(order))

    def add_float(self, value) -> None:
        if self._is_fixed:
            self.words += (_Word.VALUE, float, _Exact(value, value.hex()))
            return
        self.words.append(_Word.FLOAT)
        self.floats.append(value)

    def add_value(self, value) -> None:
        self.words += (_Word.VALUE, type(value), value)

    def add_number(self, value) -> None:
        text = value.tobytes() if hasattr(value, "tobytes") else repr(value)
        self.words += (_Word.VALUE, type(value), _Exact(value, text))

    def add_slice(self, value) -> None:
        self.words.append(_Word.SLICE)
        self.add_all((value.start, value.stop, value.step))

    def add_same(self, thing) -> None:
        self.words += (_Word.SAME, _Same(thing))

    def refuse(self, thing) -> None:
        raise Opaque

    def _is_again(self, thing) -> bool:
        place = self._places.setdefault(id(thing), len(self._kept))
        if place < len(self._kept):
            self.words += (_Word.AGAIN, place)
            return True
        self._kept.append(thing)
        return False

    # -- containers --

    def add_container(self, things) -> None:
        if isinstance(things, tuple):
            self.words += (_Word.CONTAINER, type(things), len(things))
        elif self._is_again(things):
            return
        else:
            self.words += (_Word.CONTAINER, type(things), len(things), getattr(things, "maxlen", None))
        self.add_all(things)

    def add_named_tuple(self, things) -> None:
        if has_attributes(things):  # one made anew would not have them
            raise Opaque
        self.words += (_Word.CONTAINER, weakref.ref(type(things)), len(things))
        self.add_all(things)
        self.see_class(type(things))

    def add_dict(self, things) -> None:
        if self._is_again(things):
            return
        keys = tuple(things)
        if not all(map(is_plain, keys)):
            raise Opaque
        self.words += (_Word.DICT, type(things), _Exact(keys, tuple(map(told_apart, keys))))
        self.add(getattr(things, "default_factory", None))
        self.add_all(things.values())

    def add_set(self, things) -> None:
        members, kind = tuple(things), type(things)
        if not all(map(is_plain, members)):
            raise Opaque
        if kind is set and tuple(set(members)) != members:  # one made anew has another order
            raise Opaque
        kept = members if kind is set else things
        self.words += (_Word.SET, kind, _Exact(kept, tuple(map(told_apart, members))))

    # -- callables --

    def add_partial(self, partial) -> None:
        if partial.__dict__:
            raise Opaque
        self.words += (_Word.PARTIAL, type(partial), len(partial.args), tuple(partial.keywords))
        self.add(partial.func)
        self.add_all(partial.args)
        self.add_all(partial.keywords.values())

    def add_method(self, method) -> None:
        self.words.append(_Word.METHOD)
        if type(method.__func__) is types.FunctionType:
            self.add_function(method.__func__, is_method=not isinstance(method.__self__, type))
        else:
            self.add(method.__func__)
        self.add(method.__self__)

    def add_builtin(self, function) -> None:
        whose = function.__self__
        if whose is None or isinstance(whose, types.ModuleType):
            name = function.__module__ if whose is None else whose.__name__
            if not is_pure(name) or not gives_the_same(function):
                raise Opaque
            self.add_same(function)
            return
        self.words += (_Word.BOUND, function.__name__)
        self.add(whose)

    def add_jitted(self, function) -> None:
        if _is_public(function):
            self.add_same(function)
            return
        # JAX may have traced it when what it reads was something else: it gives what it gave then.
        inside = Seen(is_fixed=True)
        inside.add(function.__wrapped__)
        words = [word for word in inside.words if isinstance(word, _Word)]
        reads_libraries_alone = words[0] is _Word.FUNCTION and {*words[1:]} <= {_Word.SAME, _Word.MODULE}
        if not reads_libraries_alone or not _was_met(function):
            raise Opaque
        self.words += (_Word.REFERENCE, weakref.ref(function))

    def add_function(self, function, is_method=False) -> None:
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
        self.words += (_Word.FUNCTION, function.__code__, function.__name__, function.__qualname__)
        self.words += (len(defaults), tuple(named), tuple(attributes))
        self._begin_globals(space, reads)
        for cell in cells:
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self.words.append(_Word.EMPTY)
        self.add_all(defaults)
        self.add_all(named.values())
        self.add_all(attributes.values())
        self._add_globals(space, reads)

    def _begin_globals(self, space, reads) -> None:
        module = space.get("__name__")
        if is_library(module):  # a wrapper that it has made: it runs among its own
            self.words += (_Same(space), None, None, ())
            return
        used = space.get("__builtins__")
        if used is not builtins and used is not builtins.__dict__:
            raise Opaque
        place = self._spaces.setdefault(id(space), len(self._spaces))
        self.words += (place, module, space.get("__package__"), tuple(reads.names))

    def _add_globals(self, space, reads) -> None:
        if is_library(space.get("__name__")):
            return
        for name, chains in reads.names.items():
            value = space.get(name, builtins.__dict__.get(name, _Word.EMPTY))
            if value is _Word.EMPTY:
                self.words.append(value)
            elif isinstance(value, types.ModuleType):
                self._add_module(value, chains, reads)
            else:
                self.add(value)

    # -- modules --

    def add_module(self, module) -> None:  # nobody knows what is read of it
        if not is_pure(module.__name__):
            raise Opaque
        self.add_same(module)

    def _add_module(self, module, chains, reads) -> None:
        """What code reads of a module, as chains of attributes that begin there."""
        name, held = module.__name__, module.__dict__
        of_library = is_library(name)
        if not is_pure(name) if of_library else "__getattr__" in held:
            raise Opaque
        members: dict = {}
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
        self.words += (_Word.MODULE, _Same(held.get("_ejk_original", module)), tuple(found))
        for attribute in found:
            value = held[attribute]
            if isinstance(value, types.ModuleType):
                if () in members[attribute] and is_library(value.__name__):
                    self.add_module(value)
                else:
                    self._add_module(value, sorted(members[attribute]), reads)
            elif of_library and _is_its_own(value):
                self.add_same(value)
            else:
                self.add(value)

    # -- objects --

    def add_object(self, thing) -> None:
        kind = type(thing)
        if is_library(kind.__module__) and _is_public(thing):
            self.add_same(thing)
            return
        if self._is_again(thing):
            return
        slots = [slot for slot in slots_of(kind) if _is_filled(slot, thing)]
        held = _attributes(thing)
        names = tuple(name for name in held if name != "_ejk_compiled")
        self.words += (_Word.OBJECT, weakref.ref(kind), names, tuple(map(_Same, slots)))
        self.add_all([held[name] for name in names])
        self.add_all([slot.__get__(thing) for slot in slots])
        self.see_class(kind)

    def add_of_library(self, thing) -> None:
        if _is_public(thing):
            self.add_same(thing)
            return
        jax = _jax.loaded()
        parts = jax.tree_util.default_registry.flatten_one_level(thing) if jax is not None else None
        if parts is None:
            raise Opaque
        children, data = tuple(parts[0]), parts[1]
        self.words += (_Word.PYTREE, type(thing), len(children))
        self.add(data)
        self.add_all(children)

    def add_tree(self, tree) -> None:
        """The structure of a pytree, which may hold anything as data of its nodes."""
        if not has_data(tree):
            self.words += (_Word.VALUE, type(tree), _Exact(tree, _tree_told_apart(tree)))
            return
        kind, data = tree.node_data()
        self.words += (_Word.TREE, weakref.ref(kind), len(tree.children()))
        self.add(data)
        for child in tree.children():
            self.add_tree(child)

    def add_member_of_enum(self, thing) -> None:
        self.words += (_Word.SAME, _Member(thing))
        self.see_class(type(thing))

    def add_class(self, kind) -> None:
        if is_library(kind.__module__):
            if not gives_the_same(kind):
                raise Opaque
            self.add_same(kind)
            return
        self.words += (_Word.REFERENCE, weakref.ref(kind))
        self._effects.hands_on_classes = True
        self.see_class(kind)

    def _beside(self):
        if self._fixed is None:
            self._fixed = Seen(is_fixed=True, effects=self._effects)
        return self._fixed

    def see_class(self, kind) -> None:
        """What objects reach through their class."""
        if "<locals>" in kind.__qualname__ and not is_library(kind.__module__) and not _was_met(kind):
            raise Opaque
        beside = self._beside()
        for base in (*kind.__mro__, *type(kind).__mro__):
            if not is_library(base.__module__) and not beside._is_again(base):
                beside._add_members(base)

    def _add_held_by(self, member) -> None:
        """What a member of an enum holds beside a plain value."""
        if is_plain_member(member):
            return
        held = {"value": member._value_, **_own_attributes(member)}
        self._effects.containers |= {"_value_", *held}
        self.words.append(tuple(held))
        self.add_all(held.values())

    def _add_members(self, kind) -> None:
        only_functions, jitted = issubclass(kind, enum.Enum), _jitted_type()
        is_dataclass = "__dataclass_fields__" in vars(kind)
        self._effects.kinds.append(kind)
        for member in kind.__members__.values() if only_functions else ():
            self._add_held_by(member)
        for name, value in vars(kind).items():
            is_method = isinstance(value, types.FunctionType) and name not in _OF_CLASSES and not issubclass(kind, type)
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if is_dataclass and name.startswith("__") and _is_of_dataclasses(value):
                continue
            if "_fields" in vars(kind) and _is_of_named_tuples(value):
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
            elif not (only_functions or is_of_python(name) or isinstance(value, _SLOTS)):
                self.words.append(name)
                if not is_plain(value):
                    self._effects.containers.add(name)
                self.add(value)


def _is_of_dataclasses(value) -> bool:
    """Whether a special method of a dataclass is one that was made for it: those read its fields alone."""
    if not isinstance(value, types.FunctionType):
        return False
    return "__create_fn__" in value.__code__.co_qualname or value.__globals__.get("__name__") == "dataclasses"


def _is_of_named_tuples(value) -> bool:
    """The same for a named tuple."""
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__")).startswith(("collections", "namedtuple_"))
    return type(value) is _FIELD


def is_of_python(name) -> bool:
    """Whether an attribute of a class is one that Python or pydantic keeps there for itself."""
    return name in _OF_PYTHON or name.startswith("__pydantic_")


_OF_CLASSES = ("__new__", "__init_subclass__", "__class_getitem__")  # their first argument is a class
_OF_MEMBERS = frozenset("_value_ _name_ __objclass__ _sort_order_ _inverted_".split())
_OF_PYTHON = frozenset(
    "__abstractmethods__ __annotate__ __annotate_func__ __annotations__ __annotations_cache__ __class_vars__ "
    "__dataclass_fields__ __dataclass_params__ __dict__ __doc__ __final__ __firstlineno__ __match_args__ __module__ "
    "__non_callable_proto_members__ __orig_bases__ __parameters__ __private_attributes__ __protocol_attrs__ "
    "__qualname__ __signature__ __slotnames__ __slots__ __static_attributes__ __type_params__ __weakref__ _abc_impl".split()
)
_FIELD = type(collections.namedtuple("Named", "field").field)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented), range, types.CodeType)


def is_plain(value) -> bool:
    """Whether it is a number, a text, a type of elements or the like, or a tuple or a set of such."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(map(is_plain, value))
    if kind in _PLAIN or kind in (float, complex):
        return True
    if isinstance(value, type):
        return is_library(value.__module__)
    if isinstance(value, enum.Enum):
        return not has_functions(kind) and is_plain_member(value)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.dtype, numpy.generic))


def told_apart(value):
    """What tells plain values apart: 1, 1.0 and True are three, also inside of tuples and sets; so are 0.0 and -0.0."""
    kind = type(value)
    if kind in (tuple, list, frozenset):  # equal sets may be of another order
        return kind, tuple(map(told_apart, value))
    if kind is float:
        return kind, value.hex()
    if kind in (complex, range):
        return kind, repr(value)
    if not isinstance(value, type) and hasattr(value, "tobytes"):  # a scalar of NumPy; times have units in their dtype
        return kind, str(value.dtype), value.tobytes()
    return kind, value


def _tree_told_apart(tree):
    """The same of the structure of a pytree with plain data."""
    node = tree.node_data()
    return node and (node[0], told_apart(node[1]), tuple(map(_tree_told_apart, tree.children())))


def has_functions(kind) -> bool:
    """Whether a class of enums has some of its own, or its members hold some: they may read anything."""
    own = [base for base in kind.__mro__ if not is_library(base.__module__)]
    # The one function that every enum has is a library's.
    values = [value for base in own for value in vars(base).values() if not is_library(getattr(value, "__module__", ""))]
    if any(isinstance(value, (types.FunctionType, staticmethod, classmethod, property)) for value in values):
        return True
    return not (is_library(kind.__module__) or all(map(is_plain_member, kind.__members__.values())))


def is_plain_member(member) -> bool:
    """Whether a member of an enum is but a name for a plain value."""
    return is_plain(member._value_) and not _own_attributes(member)


def _own_attributes(member) -> dict:
    return {name: value for name, value in vars(member).items() if name not in _OF_MEMBERS}


def has_data(tree) -> bool:
    """Whether nodes of a pytree hold more than their leaves."""
    node = tree.node_data()
    if node is None:
        return False
    is_usual = node[0] in (tuple, list, dict, type(None)) or node[1] is None or is_plain(node[1])
    return not is_usual or any(map(has_data, tree.children()))


def classes_in(tree):
    """Those of a program that nodes of a pytree are of."""
    node = tree.node_data()
    if node is None:
        return
    if not is_library(node[0].__module__):
        yield node[0]
    for child in tree.children():
        yield from classes_in(child)


def has_attributes(named_tuple) -> bool:
    """Whether an object of a class of named tuples is more than a tuple."""
    return isinstance(named_tuple, tuple) and bool(getattr(named_tuple, "__dict__", None))


@functools.cache
def _type_of_jitted(jax):
    return type(jax.jit(is_plain))


def _jitted_type():
    jax = _jax.loaded()
    return _type_of_jitted(jax) if jax is not None else ()


def _attributes(thing) -> dict:
    try:
        held = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    if type(held) is not dict:
        raise Opaque
    return held


def _is_filled(slot, thing) -> bool:
    try:
        slot.__get__(thing)
    except AttributeError:
        return False
    return True


_slots: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def slots_of(kind):
    """The slots of objects that consist of attributes and slots; others are opaque."""
    found = _slots.get(kind)
    if found is not None:
        return found
    if kind.__itemsize__ or hasattr(kind, "__del__"):
        raise Opaque
    members = [slot for base in kind.__mro__ for slot in vars(base).values()]
    found = tuple(slot for slot in members if isinstance(slot, types.MemberDescriptorType) and slot.__name__ != "__dict__")
    words_of_object = object.__basicsize__ // 8 + len(found) + 2  # 2: its dict, its weak references
    if kind is not types.SimpleNamespace and kind.__basicsize__ > 8 * words_of_object:
        raise Opaque
    try:
        _empty(kind)
    except TypeError as error:
        raise Opaque from error
    _slots[kind] = found
    return found


def _empty(kind):
    return types.SimpleNamespace() if kind is types.SimpleNamespace else object.__new__(kind)


_WAYS = {
    **dict.fromkeys(_PLAIN, Seen.add_value),
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
    _Copy: Seen.refuse,
}

_ways: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # of other types


def _way_of(kind):
    found = _ways.get(kind)
    if found is None:
        found = _ways[kind] = _find_way(kind)
    return found


def _find_way(kind):
    if issubclass(kind, type):
        return Seen.add_class
    if issubclass(kind, enum.Enum):
        return Seen.add_member_of_enum
    if issubclass(kind, logging.Logger):
        return Seen.add_same
    return _way_of_jax(kind) or _way_of_numpy(kind) or _way_of_object(kind)


def _way_of_jax(kind):
    jax = _jax.loaded()
    if jax is None:
        return None
    sharding = jax.sharding
    if issubclass(kind, jax.Array) or issubclass(kind, jax.core.Tracer):
        return Seen.add_array
    if kind is _jitted_type():
        return Seen.add_jitted
    values = (sharding.Sharding, sharding.Mesh, sharding.AbstractMesh, sharding.PartitionSpec, jax.ShapeDtypeStruct)
    if issubclass(kind, (*values, jax.Device)):
        return Seen.add_value
    if issubclass(kind, (jax.custom_vjp, jax.custom_jvp)):
        return Seen.add_object
    if issubclass(kind, jax.tree_util.Partial):
        return Seen.add_partial
    return None


def _way_of_numpy(kind):
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


def _way_of_object(kind):
    if issubclass(kind, tuple):
        return Seen.add_named_tuple if hasattr(kind, "_fields") else Seen.refuse
    if is_library(kind.__module__) and not dataclasses.is_dataclass(kind):
        return Seen.add_of_library
    return Seen.add_object


def things_of_libraries(words) -> list:
    """What counts by its identity among what was seen."""
    return [word.thing for word in words if type(word) is _Same]


def codes_of_functions(words) -> list:
    return [word for word in words if type(word) is types.CodeType]


def outline_of(part):
    """Words without the numbers, texts and contents of arrays among them; anything else as it is."""
    if type(part) is not tuple:
        return part
    found, distance = [], {_Word.VALUE: 2, _Word.NUMPY: 5}  # to the value
    left_out = -1
    for place, word in enumerate(part):
        if place == left_out:
            continue
        found.append(word)
        if type(word) is _Word and word in distance:
            left_out = place + distance[word]
    return tuple(found)


# ---- making anew --------------------------------------------------------------------------------


class Maker:
    """Makes what the words say, one thing after the other."""

    def __init__(self, words, arguments, arrays, floats):
        self._words = iter(words)
        self._next = self._words.__next__
        self._arguments, self._arrays, self._floats = iter(arguments), iter(arrays), iter(floats)
        self._made, self._spaces, self._modules = list(arguments), {}, {}

    def make(self):
        return _MAKERS[self._next()](self)

    def make_all(self, count) -> list:
        return [self.make() for _ in range(count)]

    def _again(self):
        return self._made[self._next()]

    def _argument(self):
        return next(self._arguments)

    def _array(self):
        self._made.append(next(self._arrays))
        return self._made[-1]

    def _numpy(self):
        dtype, shape, order, may_change, content = (self._next() for _ in range(5))
        found = sys.modules["numpy"].ndarray(shape, dtype, bytearray(content), order=order)
        found.flags.writeable = may_change
        self._made.append(found)
        return found

    def _float(self):
        return next(self._floats)

    def _value(self):
        self._next()
        value = self._next()
        return value.value if type(value) is _Exact else value

    def _same(self):
        return self._next().thing

    def _reference(self):
        return self._next()()

    def _slice(self):
        return slice(*self.make_all(3))

    def _container(self):
        kind, count = self._next(), self._next()
        if kind is tuple:
            return tuple(self.make_all(count))
        if isinstance(kind, weakref.ref):
            return tuple.__new__(kind(), self.make_all(count))
        longest = self._next()
        found = kind() if kind is list else kind(maxlen=longest)
        self._made.append(found)
        found.extend(self.make_all(count))
        return found

    def _dict(self):
        kind, keys = self._next(), self._next().value
        found = kind()
        self._made.append(found)
        factory = self.make()
        if kind is collections.defaultdict:
            found.default_factory = factory
        for key in keys:
            found[key] = self.make()
        return found

    def _set(self):
        kind, members = self._next(), self._next()
        return kind(members.value)  # a frozenset stays the same object

    def _partial(self):
        kind, count, names = self._next(), self._next(), self._next()
        function, given = self.make(), self.make_all(count)
        return kind(function, *given, **{name: self.make() for name in names})

    def _method(self):
        return types.MethodType(self.make(), self.make())

    def _bound(self):
        name = self._next()
        return getattr(self.make(), name)

    def _function(self):
        code, name, qualified = self._next(), self._next(), self._next()
        count, named, attributes = self._next(), self._next(), self._next()
        space, names = self._space()
        cells = tuple(types.CellType() for _ in code.co_freevars)
        found = types.FunctionType(code, space, name, None, cells)
        found.__qualname__ = qualified
        self._made.append(found)
        for cell in cells:
            value = self.make()
            if value is not _Word.EMPTY:
                cell.cell_contents = value
        found.__defaults__ = tuple(self.make_all(count)) or None
        found.__kwdefaults__ = {name: self.make() for name in named} or None
        for name in attributes:
            found.__dict__[name] = self.make()
        for name in names:
            value = self.make()
            if value is not _Word.EMPTY:
                space[name] = value
        return found

    def _space(self):
        place, module, package, names = self._next(), self._next(), self._next(), self._next()
        if type(place) is _Same:
            return place.thing, ()
        fresh = {"__builtins__": builtins, "__name__": module, "__package__": package}
        return self._spaces.setdefault(place, fresh), names

    def _module(self):
        module, names = self._next().thing, self._next()
        values = {name: self.make() for name in names}
        if all(module.__dict__[name] is value for name, value in values.items()) and module not in self._modules:
            return module
        if module not in self._modules:
            copy = self._modules[module] = _Copy(module.__name__)
            copy.__dict__.update(module.__dict__, _ejk_original=module)
        self._modules[module].__dict__.update(values)
        return self._modules[module]

    def _object(self):
        kind, names, slots = self._next()(), self._next(), self._next()
        found = _empty(kind)
        self._made.append(found)
        if names:
            object.__getattribute__(found, "__dict__").update((name, self.make()) for name in names)
        for slot in slots:
            slot.thing.__set__(found, self.make())
        return found

    def _pytree(self):
        kind, count = self._next(), self._next()
        data, children = self.make(), self.make_all(count)
        return _node(kind, data, [_jax.loaded().tree_util.tree_structure(0)] * count).unflatten(children)

    def _tree(self):
        kind, count = self._next()(), self._next()
        return _node(kind, self.make(), self.make_all(count))


def _node(kind, data, children):
    tree_util = _jax.loaded().tree_util
    return tree_util.PyTreeDef.from_node_data_and_children(tree_util.default_registry, (kind, data), children)


def _empty_word(maker):
    return _Word.EMPTY


_MAKERS = {
    _Word.AGAIN: Maker._again,
    _Word.ARGUMENT: Maker._argument,
    _Word.ARRAY: Maker._array,
    _Word.BOUND: Maker._bound,
    _Word.CONTAINER: Maker._container,
    _Word.DICT: Maker._dict,
    _Word.EMPTY: _empty_word,
    _Word.FLOAT: Maker._float,
    _Word.FUNCTION: Maker._function,
    _Word.METHOD: Maker._method,
    _Word.MODULE: Maker._module,
    _Word.NUMPY: Maker._numpy,
    _Word.OBJECT: Maker._object,
    _Word.PARTIAL: Maker._partial,
    _Word.PYTREE: Maker._pytree,
    _Word.REFERENCE: Maker._reference,
    _Word.SAME: Maker._same,
    _Word.SET: Maker._set,
    _Word.SLICE: Maker._slice,
    _Word.TREE: Maker._tree,
    _Word.VALUE: Maker._value,
}
