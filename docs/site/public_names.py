# SPDX-License-Identifier: Apache-2.0
"""Public names of the Python package that its reference does not show.

A module is public if no part of its name begins with an underscore, and its names are those of its `__all__`. A name is
shown if the reference has it, or the same class, function or type variable under the same name of another module.
"""

import importlib
import pkgutil


def modules(package):
    """The package and what is in it, imported."""
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [package, *(importlib.import_module(name) for name in names if "._" not in name)]


def is_public(name):
    return not name.startswith("_") or name.endswith("__")


def thing(path):
    """What a dotted name means; None if it is no module and no name of one."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError):
        return None


def not_shown(package, shown):
    """What is missing among the dotted names that are shown; a module without `__all__` names nothing public."""
    known = {(path.rpartition(".")[2], id(thing(path))) for path in shown if hasattr(thing(path), "__module__")}
    missing = []
    for module in modules(package):
        if module.__name__ not in shown:
            missing.append(module.__name__)
        for name in filter(is_public, getattr(module, "__all__", [])):
            path = f"{module.__name__}.{name}"
            if path not in shown and (name, id(getattr(module, name))) not in known:
                missing.append(path)
    return missing
