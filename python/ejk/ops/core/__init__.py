# SPDX-License-Identifier: Apache-2.0
"""Kernels and their calls."""

from ejk.ops.core.kernel import Invocation, Kernel, _get_platform_method, _has_custom_vjp
from ejk.ops.core.types import Cfg, Out

__all__ = ["Cfg", "Invocation", "Kernel", "Out", "_get_platform_method", "_has_custom_vjp"]
