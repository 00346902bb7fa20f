# SPDX-License-Identifier: Apache-2.0
"""`import ejk.as_ejkernel` makes `import ejkernel` mean this package, where ejkernel is not installed."""

import importlib
import importlib.abc
import importlib.util
import sys


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """ejkernel.X is ejk.X, the same module object."""

    def find_spec(self, name, path=None, target=None):
        if name != "ejkernel" and not name.startswith("ejkernel."):
            return None
        ours = "ejk" + name[len("ejkernel") :]
        try:
            found = importlib.util.find_spec(ours)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=found.submodule_search_locations is not None)

    def create_module(self, spec):
        module = importlib.import_module("ejk" + spec.name[len("ejkernel") :])
        self._own = (module, module.__spec__, module.__name__)
        return module

    def exec_module(self, module):
        # The import system wrote the alias's names into the module, which has its own.
        module.__spec__ = importlib.util.find_spec(_own_name(module))
        module.__loader__ = module.__spec__.loader


def _own_name(module):
    return module.__name__ if not module.__name__.startswith("ejkernel") else "ejk" + module.__name__[len("ejkernel") :]


def _installed() -> bool:
    try:
        return importlib.util.find_spec("ejkernel") is not None
    except (ImportError, ValueError):
        return False


if "ejkernel" not in sys.modules and not _installed():
    sys.meta_path.append(_Alias())
