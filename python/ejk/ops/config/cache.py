# SPDX-License-Identifier: Apache-2.0
"""The memory tier, and caches that are laid over everything for a while."""

from __future__ import annotations

from typing import Any, Generic

from ejk import _configs, _core, _scopes
from ejk.ops.config._own import methods_of
from ejk.ops.core.types import Cfg


def place_of(key: object) -> tuple[str, str, str]:
    """(device, op, key) of a key given alone: a label "PREFIX#OP:KEY" or "OP:KEY" is a call on this device, a
    tuple is all three, anything else names no call."""
    if isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str) for part in key):
        return key
    if isinstance(key, str):
        label = _core.parse_label(key)
        op, _, digits = key.rpartition(":") if label is None else (label[1], ":", label[2])
        if "@v" in op:
            from ejk.ops.utils.fingerprint import device_fingerprint

            return device_fingerprint(), op, digits
        return "", "", key
    return "", "", _core.short_hash(key)


_OTHER_NAMES = {"dev": "device", "config": "cfg"}


def put_arguments(given: tuple[Any, ...], named: dict[str, Any], name: str) -> tuple[Any, ...]:
    """put(device, op_id, call_key, cfg) or put(key, cfg)."""
    place = _in_order(given, named, ("device", "op_id", "call_key", "cfg"), ("key", "cfg"), f"{name}.put")
    return place if len(place) == 4 else (*place_of(place[0]), place[1])


def get_arguments(given: tuple[Any, ...], named: dict[str, Any], name: str) -> tuple[Any, ...]:
    """get(device, op_id, call_key) or get(key)."""
    place = _in_order(given, named, ("device", "op_id", "call_key"), ("key",), f"{name}.get")
    return place if len(place) == 3 else place_of(place[0])


def _in_order(given: tuple[Any, ...], named: dict[str, Any], *forms_and_name: Any) -> tuple[Any, ...]:
    """The arguments of a function that takes either of two forms, by place or by name."""
    *forms, name = forms_and_name
    named = {_OTHER_NAMES.get(name, name): value for name, value in named.items()}
    for form in forms:
        if len(given) + len(named) == len(form) and all(word in named for word in form[len(given) :]):
            return (*given, *(named[word] for word in form[len(given) :]))
    shown = ", ".join([*map(repr, given), *(f"{word}=" for word in named)])
    expected = " or ".join(f"({', '.join(form)})" for form in reversed(forms))
    raise TypeError(f"[{name}] got arguments ({shown}); expected {expected}; pass one of these forms")


class ConfigCache(_core.ConfigCache, Generic[Cfg]):
    """Configs of this process by device, op and call key, by a call's label, or by any key of your own.

    `cache.put(executor.label(kernel, a, b), config)` says what such calls run with.
    """

    def put(self, *where_and_config: Any, **named: Any) -> None:
        """put(device, op_id, call_key, cfg) or put(key, cfg)."""
        super().put(*put_arguments(where_and_config, named, "ConfigCache"))
        self._changed()

    def erase(self, *where: Any, **named: Any) -> None:
        """erase(device, op_id, call_key) or erase(key)."""
        super().erase(*get_arguments(where, named, "ConfigCache"))
        self._changed()

    def clear(self) -> None:
        """Forgets everything; calls that are warm are chosen again."""
        super().clear()
        self._changed()

    def _changed(self) -> None:
        if any(scope.what is self for scope in _scopes.current.get()):
            _scopes.sync_traces()

    def get(self, *where: Any, **named: Any) -> Cfg | None:
        """get(device, op_id, call_key) or get(key); None if there is none."""
        found = super().get(*get_arguments(where, named, "ConfigCache"))
        return None if found is None else found[0]

    def __contains__(self, key: object) -> bool:
        return super().get(*place_of(key)) is not None

    def __len__(self) -> int:
        return self.size()

    def __bool__(self) -> bool:
        return True


OUR_CACHE = methods_of(ConfigCache, "get", "put")


class overlay_cache:
    """While it is entered, what it holds comes before memory and disk.

    Takes a cache, or a dict of (device, op_id, call_key), of labels or of keys (or such pairs). Functions that
    are jitted already are traced again inside, and as they were outside.
    """

    def __init__(self, mapping: Any) -> None:
        if isinstance(mapping, _core.ConfigCache):
            self.cache = mapping
        else:
            self.cache = ConfigCache()
            for key, config in dict(mapping).items():
                self.cache.put(key, config)
        self._scope = _scopes.Scope(self.cache, token=lambda: _content(self.cache))

    def __enter__(self) -> Any:
        self._scope.__enter__()
        return self.cache

    def __exit__(self, *exc: Any) -> None:
        self._scope.__exit__(*exc)


def _content(cache: _core.ConfigCache) -> str:
    held = [[*key, _configs.encode(_core.ConfigCache.get(cache, *key)[0])] for key in sorted(cache.keys())]
    return _core.short_hash(held)


__all__ = ["ConfigCache", "overlay_cache"]
