# SPDX-License-Identifier: Apache-2.0
"""Which modules are libraries, and which of these give the same whenever they are asked.

Everything else may read a file, a clock, the environment or random numbers: what depends on it is not a constant.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import ModuleType
from typing import Any, TypeGuard

_LIBRARIES = frozenset(sys.stdlib_module_names) | frozenset(
    "ejk jax jaxlib ml_dtypes numpy opt_einsum pydantic pydantic_core scipy typing_extensions".split()
)
_PURE = frozenset(
    "abc array ast base64 binascii bisect builtins cmath collections colorsys contextlib copy copyreg dataclasses "
    "difflib ejk enum fractions functools graphlib hashlib heapq itertools jax jaxlib json keyword logging math ml_dtypes "
    "numbers operator opt_einsum pprint pydantic pydantic_core re reprlib string struct textwrap types typing "
    "typing_extensions unicodedata warnings zlib "
    "_abc _bisect _collections _collections_abc _functools _hashlib _heapq _json _operator _struct".split()
)
_PURE_MODULES = frozenset(
    "numpy numpy._core numpy.char numpy.core numpy.dtypes numpy.exceptions numpy.fft numpy.lib numpy.linalg numpy.ma "
    "numpy.matrixlib numpy.polynomial numpy.rec numpy.strings numpy.typing "
    "scipy scipy._lib scipy.constants scipy.fft scipy.linalg scipy.signal scipy.special".split()
)
_READING_MODULES = tuple(
    "numpy._core.memmap numpy.lib._datasource numpy.lib._format numpy.lib._npyio numpy.lib.format numpy.lib.npyio".split()
)
_READING = frozenset("fromfile fromregex genfromtxt live_arrays load loadtxt memmap open_memmap".split())
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))


def is_library(module_name: object) -> TypeGuard[str]:
    if not isinstance(module_name, str):
        return False
    package = _package_of(module_name)
    return package in _LIBRARIES and not _is_of_the_program(package, sys.modules.get(package))


@functools.lru_cache(1024)
def _is_of_the_program(package: str, module: ModuleType | None) -> bool:
    """Whether a module with the name of a library lies elsewhere: beside a program, in place of the library."""
    file = getattr(module, "__file__", None)
    if file is None or package == "ejk":
        return False
    folder = os.path.realpath(os.path.dirname(file)) + os.sep
    return not (folder.startswith(_STANDARD) or "-packages" + os.sep in folder)


@functools.lru_cache(1024)
def _package_of(module_name: str) -> str:
    return module_name.partition(".")[0]


@functools.lru_cache(1024)
def _is_named_pure(module_name: str) -> bool:
    if _package_of(module_name) in _PURE:
        return True
    part = ".".join(module_name.split(".")[:2])
    return part in _PURE_MODULES and not module_name.startswith(_READING_MODULES)


def is_pure(module_name: object) -> TypeGuard[str]:
    """Whether what a module has gives the same for the same arguments, but for the few functions that read files."""
    return is_library(module_name) and _is_named_pure(module_name)


def gives_the_same(thing: Any) -> bool:
    """Whether a function or a class of a library's does."""
    space = getattr(thing, "__globals__", {})
    defined_in = {getattr(thing, "__module__", None) or "builtins", space.get("__name__", "builtins")}
    return getattr(thing, "__name__", "") not in _READING and all(map(is_pure, defined_in))
