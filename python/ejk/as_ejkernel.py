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
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        # The import system wrote the alias's spec into the module, which has its own.
        module.__spec__ = module.__spec__.loader_state


def _installed() -> bool:
    try:
        return importlib.util.find_spec("ejkernel") is not None
    except (ImportError, ValueError):
        return False


if "ejkernel" not in sys.modules and not _installed():
    sys.meta_path.insert(0, _Alias())  # before the finder of files, which would load a second copy
