# SPDX-License-Identifier: Apache-2.0
"""A name under which modules of this package are imported too."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """name.X is ours.X, the same module object."""

    def __init__(self, name: str, ours: str):
        self.name, self.ours = name, ours

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name and not name.startswith(self.name + "."):
            return None
        try:
            found = importlib.util.find_spec(self._ours(name))
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=found.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system wrote the alias's spec into the module, which has its own.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def _ours(self, name: str) -> str:
        return self.ours + name[len(self.name) :]
