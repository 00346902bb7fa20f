# SPDX-License-Identifier: Apache-2.0
"""The persistent tier: configs on disk, shared by processes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any, Generic

from ejk import _configs, _core, _log
from ejk._known import NotKnown
from ejk.ops.config._own import methods_of, overrides
from ejk.ops.config.cache import get_arguments, place_of, put_arguments
from ejk.ops.core.kernel import declare_types_of_op
from ejk.ops.core.types import Cfg

_PROVENANCE_KEY = "__ejk_provenance__"  # in files of newer versions of ejkernel: who made a config, ...
_CFG_CLASS_KEY = "__ejk_cfg_class__"  # ... and of what class it was, which is not looked at: the kernel knows
_PROVENANCE_AUTOTUNE = "autotune"
_TRUSTED_PROVENANCE = frozenset({_PROVENANCE_AUTOTUNE})


class PersistentCache(Generic[Cfg]):
    """A folder with a small file for each config, or a database that many machines share.

    Without a path: $EJKERNEL_PERSISTENT_CACHE_URL, else $EJKERNEL_PERSISTENT_CACHE_DIR, else the user's
    cache folder. A URL of PostgreSQL may also be the first argument. A path that ends in
    ".json" is a cache file of ejkernel: its configs are found, new ones go to a folder beside it. With an
    `opname` and no path, the file is the one that ejkernel keeps under that name, and the folder is one of
    that name in the user's cache folder, whose own entries are found too, behind those. `loader` and
    `dumper` turn what is kept into a config and back; with one of them a selector keeps configs alone here,
    without what was measured. `cfg_type` is what configs that came without a type are made to be.
    """

    def __init__(
        self,
        opname: str | None = None,
        path: str | os.PathLike[str] | None = None,
        loader: Callable[[Any], Cfg] | None = None,
        dumper: Callable[[Cfg], Any] | None = None,
        cfg_type: type[Cfg] | None = None,
    ):
        if path is None and isinstance(opname, str) and _core.is_database_url(opname):
            opname, path = None, opname
        self.opname, self.loader, self.dumper, self.cfg_type = opname, loader, dumper, cfg_type
        if path is not None:
            self.path = os.path.expanduser(os.fspath(path))
        else:
            self.path = _core.default_store_path() if opname is None else _file_of_the_original(opname)
        if path is None and opname is not None:
            self._store = _with_file(_folder_named(opname), self.path, behind=True)
        elif path is None:
            self._store = _core.PersistentCache()
        elif _core.is_database_url(self.path):
            self._store = _core.PersistentCache(path=self.path)
            self.path = self._where()  # without its password
        elif self.path.endswith(".json"):
            self._store = _with_file(self.path + ".d", self.path)
        else:
            self._store = _core.PersistentCache(path=self.path)

    def put(self, *where_and_config: Any, provenance: str = _PROVENANCE_AUTOTUNE, **named: Any) -> None:
        """put(device, op_id, call_key, cfg) or put(key, cfg).

        What is of any other `provenance` than "autotune" is not kept, and nothing is for that key any more.
        """
        device, op, key, config = put_arguments(where_and_config, named, "PersistentCache")
        if provenance not in _TRUSTED_PROVENANCE:
            self._store.erase(device, op or "-", key)
            return
        kept = self._as_kept(config)
        if "$opaque" in _core.stable_json(_configs.encode(kept)):
            raise TypeError(f"[PersistentCache.put] {config!r} holds an object that cannot be written")
        self._store.put(device, op or "-", key, kept)

    def _as_kept(self, config: Any) -> Any:
        """What `loader` will be given, if there is one: plain data."""
        if self.dumper is not None:
            return self.dumper(config)
        if self.loader is None or isinstance(config, type):
            return config
        if dataclasses.is_dataclass(config) and not isinstance(config, type):
            return dataclasses.asdict(config)
        return config.model_dump() if hasattr(config, "model_dump") else config

    def get(self, *where: Any, **named: Any) -> Cfg | None:
        """get(device, op_id, call_key) or get(key); None if there is none that can be read."""
        device, op, key = get_arguments(where, named, "PersistentCache")
        try:
            found = self._store.get(device, op or "-", key)
            if found is None:
                return None
            config = self._decoded(found[0], op or "-")
            # What a tuning stored has its type already.
            plain = isinstance(config, (dict, list, str, int, float, type(None)))
            if self.loader is not None and plain:
                return self.loader(config)
            fitted: Cfg | None = _configs.fit(config, self.cfg_type)
            return fitted
        except ValueError as error:
            store = self._where()
            _log.warn_once((store, device, op, key), f"[{op}] the config for key {key} in {store}: {error}")
            return None

    def _decoded(self, written: Any, op: str) -> Any:
        try:
            return _configs.decode(written, op, self.cfg_type)
        except NotKnown:
            declare_types_of_op(op)
        try:
            return _configs.decode(written, op, self.cfg_type)
        except NotKnown as error:
            if self.loader is not None and isinstance(written, dict) and "$type" in written:
                return _configs.decode({name: item for name, item in written.items() if name != "$type"}, op)
            raise NotKnown(f"{error}: pass cfg_type=...") from None

    def entry(self, *where: Any, **named: Any) -> dict[str, Any] | None:
        """The same with all that is known of it: evidence, candidates, environment."""
        device, op, key = get_arguments(where, named, "PersistentCache")
        return self._store.entry(device, op or "-", key)

    def erase(self, *where: Any, **named: Any) -> bool:
        """Removes what `get` would find. True if there was something."""
        device, op, key = get_arguments(where, named, "PersistentCache")
        return self._store.erase(device, op or "-", key)

    def keys(self) -> list[tuple[str, str, str]]:
        """(device, op_id, call_key) of every entry."""
        return self._store.keys()

    def __contains__(self, key: object) -> bool:
        device, op, digits = place_of(key)
        return self._store.entry(device, op or "-", digits) is not None

    def __repr__(self) -> str:
        return f"PersistentCache({self._where()})"

    def _where(self) -> str:
        return " + ".join(self._store.where)


_OUR_STORE = methods_of(PersistentCache, "get", "put")


def is_own_store(given: Any) -> bool:
    """Whether the selector must go through `get` and `put`: they, or what they call, are the program's own."""
    return overrides(given, _OUR_STORE) or given.loader is not None or given.dumper is not None


def _file_of_the_original(opname: str) -> str:
    folder = os.environ.get("EJKERNEL_PERSISTENT_CACHE_DIR") or "~/ejkernel-presistent-cache"
    return os.path.join(os.path.expanduser(folder), f"{opname}.json")


def _folder_named(opname: str) -> str:
    """Empty if there is no place for it."""
    place = _core.default_store_path()
    return os.path.join(place, f"{opname}.json.d") if place else ""


def _with_file(folder: str, file: str, behind: bool = False) -> _core.PersistentCache:
    from ejk.ops.utils.fingerprint import original_fingerprint

    devices = [original_fingerprint()]
    return _core.PersistentCache(path=folder, file=file, imported=_read(file), devices=devices, behind=behind)


def _read(path: str) -> dict[str, Any]:
    """Configs by name. A file that cannot be read, or is no such file, holds nothing; that is said."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return {name: config for name, entry in found.items() if (config := _trusted(entry)) is not None}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _log.warn(f"nothing is imported from {path}: {error}")
        return {}


def _trusted(entry: Any) -> Any:
    """The config of an entry of a file, None if it says that it was not measured."""
    if not isinstance(entry, dict) or _PROVENANCE_KEY not in entry:
        return entry
    provenance = entry[_PROVENANCE_KEY]
    return entry.get("cfg") if isinstance(provenance, str) and provenance in _TRUSTED_PROVENANCE else None


__all__ = ["PersistentCache"]
