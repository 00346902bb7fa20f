# SPDX-License-Identifier: Apache-2.0
"""Making anew: objects of words and other arrays."""

from __future__ import annotations

import builtins
import collections
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ejk import _jax
from ejk._captured.objects import empty
from ejk._captured.words import Copy, Exact, Same, Word


class Maker:
    """Makes what the words say, one thing after the other."""

    def __init__(
        self, words: Iterable[Any], arguments: Iterable[Any], arrays: Iterable[Any], floats: Iterable[Any]
    ) -> None:
        self._words = iter(words)
        self._next = self._words.__next__
        self._arguments, self._arrays, self._floats = iter(arguments), iter(arrays), iter(floats)
        self._made: list[Any] = list(arguments)
        self._spaces: dict[int, dict[str, Any]] = {}
        self._modules: dict[types.ModuleType, Copy] = {}

    def make(self) -> Any:
        return _MAKERS[self._next()](self)

    def make_all(self, count: int) -> list[Any]:
        return [self.make() for _ in range(count)]

    def _again(self) -> Any:
        return self._made[self._next()]

    def _argument(self) -> Any:
        return next(self._arguments)

    def _array(self) -> Any:
        self._made.append(next(self._arrays))
        return self._made[-1]

    def _numpy(self) -> Any:
        dtype, shape, order, may_change, content = (self._next() for _ in range(5))
        found = sys.modules["numpy"].ndarray(shape, dtype, bytearray(content), order=order)
        found.flags.writeable = may_change
        self._made.append(found)
        return found

    def _float(self) -> Any:
        return next(self._floats)

    def _value(self) -> Any:
        self._next()
        value = self._next()
        return value.value if type(value) is Exact else value

    def _same(self) -> Any:
        return self._next().thing

    def _reference(self) -> Any:
        return self._next()()

    def _slice(self) -> slice:
        return slice(*self.make_all(3))

    def _container(self) -> Any:
        kind, count = self._next(), self._next()
        if kind is tuple:
            return tuple(self.make_all(count))
        if isinstance(kind, weakref.ref):
            named_tuple: Any = kind()
            return tuple.__new__(named_tuple, self.make_all(count))
        longest = self._next()
        found = kind() if kind is list else kind(maxlen=longest)
        self._made.append(found)
        found.extend(self.make_all(count))
        return found

    def _dict(self) -> Any:
        kind, keys = self._next(), self._next().value
        found = kind()
        self._made.append(found)
        factory = self.make()
        if kind is collections.defaultdict:
            found.default_factory = factory
        for key in keys:
            found[key] = self.make()
        return found

    def _set(self) -> Any:
        kind, members = self._next(), self._next()
        return kind(members.value)  # a frozenset stays the same object

    def _partial(self) -> Any:
        kind, count, names = self._next(), self._next(), self._next()
        function, given = self.make(), self.make_all(count)
        return kind(function, *given, **{name: self.make() for name in names})

    def _method(self) -> types.MethodType:
        return types.MethodType(self.make(), self.make())

    def _bound(self) -> Any:
        name = self._next()
        return getattr(self.make(), name)

    def _function(self) -> types.FunctionType:
        code, name, qualified = self._next(), self._next(), self._next()
        count, named, attributes = self._next(), self._next(), self._next()
        space, names = self._space()
        cells = tuple(types.CellType() for _ in code.co_freevars)
        found = types.FunctionType(code, space, name, None, cells)
        found.__qualname__ = qualified
        self._made.append(found)
        for cell in cells:
            value = self.make()
            if value is not Word.EMPTY:
                cell.cell_contents = value
        found.__defaults__ = tuple(self.make_all(count)) or None
        found.__kwdefaults__ = {name: self.make() for name in named} or None
        for name in attributes:
            found.__dict__[name] = self.make()
        for name in names:
            value = self.make()
            if value is not Word.EMPTY:
                space[name] = value
        return found

    def _space(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        place, module, package, names = self._next(), self._next(), self._next(), self._next()
        if type(place) is Same:
            return place.thing, ()
        fresh = {"__builtins__": builtins, "__name__": module, "__package__": package}
        return self._spaces.setdefault(place, fresh), names

    def _module(self) -> types.ModuleType:
        module: types.ModuleType = self._next().thing
        names = self._next()
        values = {name: self.make() for name in names}
        if all(module.__dict__[name] is value for name, value in values.items()) and module not in self._modules:
            return module
        if module not in self._modules:
            copy = self._modules[module] = Copy(module.__name__)
            copy.__dict__.update(module.__dict__, _ejk_original=module)
        self._modules[module].__dict__.update(values)
        return self._modules[module]

    def _object(self) -> Any:
        kind, names, slots = self._next()(), self._next(), self._next()
        found = empty(kind)
        self._made.append(found)
        if names:
            object.__getattribute__(found, "__dict__").update((name, self.make()) for name in names)
        for slot in slots:
            slot.thing.__set__(found, self.make())
        return found

    def _pytree(self) -> Any:
        kind, count = self._next(), self._next()
        data, children = self.make(), self.make_all(count)
        return _node(kind, data, [_jax.loaded().tree_util.tree_structure(0)] * count).unflatten(children)

    def _tree(self) -> Any:
        kind, count = self._next()(), self._next()
        return _node(kind, self.make(), self.make_all(count))


def _node(kind: Any, data: Any, children: Sequence[Any]) -> Any:
    tree_util = _jax.loaded().tree_util
    return tree_util.PyTreeDef.from_node_data_and_children(tree_util.default_registry, (kind, data), children)


def _empty_word(maker: Maker) -> Word:
    return Word.EMPTY


_MAKERS: dict[Word, Callable[[Maker], Any]] = {
    Word.AGAIN: Maker._again,
    Word.ARGUMENT: Maker._argument,
    Word.ARRAY: Maker._array,
    Word.BOUND: Maker._bound,
    Word.CONTAINER: Maker._container,
    Word.DICT: Maker._dict,
    Word.EMPTY: _empty_word,
    Word.FLOAT: Maker._float,
    Word.FUNCTION: Maker._function,
    Word.METHOD: Maker._method,
    Word.MODULE: Maker._module,
    Word.NUMPY: Maker._numpy,
    Word.OBJECT: Maker._object,
    Word.PARTIAL: Maker._partial,
    Word.PYTREE: Maker._pytree,
    Word.REFERENCE: Maker._reference,
    Word.SAME: Maker._same,
    Word.SET: Maker._set,
    Word.SLICE: Maker._slice,
    Word.TREE: Maker._tree,
    Word.VALUE: Maker._value,
}
