# SPDX-License-Identifier: Apache-2.0
"""Type variables of kernels."""

from typing import TypeVar

Cfg = TypeVar("Cfg")
"""A kernel's config: a dataclass, a pydantic model, a dict, a plain value."""

Out = TypeVar("Out")
"""What a kernel returns."""

__all__ = ["Cfg", "Out"]
