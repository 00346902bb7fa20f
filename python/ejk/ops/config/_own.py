# SPDX-License-Identifier: Apache-2.0
"""Parts of the chain that are a program's own: tuners with methods of their own, any object as a cache."""

from __future__ import annotations

from typing import Any


def methods_of(ours: type, *names: str) -> dict[str, Any]:
    """The methods as they are now, to tell whether others have taken their place."""
    return {name: getattr(ours, name) for name in names}


def overrides(given: object, ours: dict[str, Any]) -> bool:
    """Whether one of these methods is another in `given`: of its class, its own, or set on our class."""
    own, cls = getattr(given, "__dict__", ()), type(given)
    for name, method in ours.items():
        if name in own or getattr(cls, name, None) is not method:
            return True
    return False


def check_cache(name: str, given: object) -> None:
    """Raises TypeError if this cannot be asked and told."""
    if given is not None and not all(callable(getattr(given, method, None)) for method in ("get", "put")):
        raise TypeError(
            f"[ConfigSelectorChain] got {name}={given!r}; expected an object with get(device, op_id, call_key) and "
            "put(device, op_id, call_key, cfg); pass a ConfigCache or a PersistentCache, or a class of your own like them"
        )


class OwnCache:
    """One choice's view of a cache that is the program's own: asked at most once, told when the choice is made.

    The core asks more often than that, and holds locks when it tells.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._found: dict[tuple[Any, ...], Any] = {}
        self._told: list[tuple[Any, ...]] = []

    def get(self, *where: Any) -> Any:
        if where not in self._found:
            self._found[where] = self._cache.get(*where)
        return self._found[where]

    def put(self, *where_and_config: Any) -> None:
        *where, self._found[tuple(where)] = where_and_config
        self._told.append(where_and_config)

    def tell(self) -> None:
        """Puts what came of the choice."""
        for where_and_config in self._told:
            self._cache.put(*where_and_config)
