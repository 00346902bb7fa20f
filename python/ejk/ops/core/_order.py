# SPDX-License-Identifier: Apache-2.0
"""The order of the items in dicts, which JAX sorts when it takes arguments apart."""

from __future__ import annotations

import collections
from typing import Any

_DICTS = (dict, collections.defaultdict)


def order_of(thing: Any) -> tuple[Any, ...] | None:
    """What `in_order` needs; None if there is nothing to do."""
    kind = type(thing)
    if kind in _DICTS:
        keys, inside = tuple(thing), tuple(map(order_of, thing.values()))
        return None if _is_sorted(keys) and not any(inside) else (keys, inside)
    if kind in (tuple, list):
        inside = tuple(map(order_of, thing))
        return inside if any(inside) else None
    return None


def in_order(thing: Any, order: tuple[Any, ...] | None) -> Any:
    """Containers like those that `order` is of, with their items in that order."""
    if order is None:
        return thing
    if type(thing) not in _DICTS:
        return type(thing)(map(in_order, thing, order))
    found = thing.copy()
    found.clear()
    for key, inside in zip(*order):
        found[key] = in_order(thing[key], inside)
    return found


def _is_sorted(keys: tuple[Any, ...]) -> bool:
    try:
        return all(a < b for a, b in zip(keys, keys[1:]))
    except TypeError:
        return False


__all__ = ["in_order", "order_of"]
