# SPDX-License-Identifier: Apache-2.0
"""Which modules are libraries: what they hold does not change, unless they are of those that it does in."""

import functools
import os
import sys
import sysconfig

_LIBRARIES = frozenset(sys.stdlib_module_names) | frozenset(
    "ejk jax jaxlib ml_dtypes numpy opt_einsum pydantic pydantic_core scipy typing_extensions".split()
)
_CHANGING = frozenset(
    "contextvars ctypes datetime gc importlib inspect os random secrets socket subprocess sys threading time uuid".split()
)
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))


def is_library(module_name) -> bool:
    if not isinstance(module_name, str):
        return False
    package = _package_of(module_name)
    return package in _LIBRARIES and not _is_of_the_program(package, sys.modules.get(package))


@functools.lru_cache(1024)
def _is_of_the_program(package, module) -> bool:
    """Whether a module with the name of a library lies elsewhere: beside a program, in place of the library."""
    file = getattr(module, "__file__", None)
    if file is None or package == "ejk":
        return False
    folder = os.path.realpath(os.path.dirname(file)) + os.sep
    return not (folder.startswith(_STANDARD) or "-packages" + os.sep in folder)


@functools.lru_cache(1024)
def _package_of(module_name: str) -> str:
    return module_name.partition(".")[0]


def is_changing(module_name: str) -> bool:
    return module_name.partition(".")[0] in _CHANGING or module_name.startswith("numpy.random")
