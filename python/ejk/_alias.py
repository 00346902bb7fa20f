# SPDX-License-Identifier: Apache-2.0
"""A name under which modules of this package are imported too."""

import importlib
import importlib.abc
import importlib.util


class Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """name.X is ours.X, the same module object."""

    def __init__(self, name: str, ours: str):
        self.name, self.ours = name, ours

    def find_spec(self, name, path=None, target=None):
        if name != self.name and not name.startswith(self.name + "."):
            return None
        try:
            found = importlib.util.find_spec(self._ours(name))
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=found.submodule_search_locations is not None)

    def create_module(self, spec):
        module = importlib.import_module(self._ours(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        # The import system wrote the alias's spec into the module, which has its own.
        module.__spec__ = module.__spec__.loader_state

    def _ours(self, name: str) -> str:
        return self.ours + name[len(self.name) :]
