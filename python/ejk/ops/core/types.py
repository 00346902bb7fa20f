# SPDX-License-Identifier: Apache-2.0
"""Type variables of kernels."""

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # what is not said is Any; Python has this from 3.13 on
    from typing_extensions import TypeVar as _TypeVar

    Cfg = _TypeVar("Cfg", default=Any)
    Out = _TypeVar("Out", default=Any)
else:
    Cfg, Out = TypeVar("Cfg"), TypeVar("Out")
"""A kernel's config: a dataclass, a pydantic model, a dict, a plain value; and what it returns."""

AnyCfg = TypeVar("AnyCfg")
AnyOut = TypeVar("AnyOut")
"""The same of the kernel that a call is given."""

__all__ = ["Cfg", "Out"]
