# SPDX-License-Identifier: Apache-2.0
"""Every kernel call runs with the best configuration for its shapes on this device.

`ejk.ops` has kernels, executors, caches and tuning; `ejk.modules` operations that are ready to use.
Nothing here needs JAX until a call brings arrays of JAX along.
"""

from types import ModuleType

from ejk._core import __version__

__all__ = ["__version__", "modules", "ops"]


def __getattr__(name: str) -> ModuleType:
    if name in ("modules", "ops"):
        import importlib

        return importlib.import_module(f"ejk.{name}")
    raise AttributeError(f"module 'ejk' has no attribute {name!r}")
