# SPDX-License-Identifier: Apache-2.0
"""Functions lowered for a device that may not be here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ejk import _jax, _sites


def lowered_for(site: _sites.Site, function: Callable[..., Any], arrays: Sequence[Any], over_mesh: bool = False) -> Any:
    """What jax.jit(function).lower(...) gives for these arrays; if they are elsewhere, for such at the site."""
    jax = _jax.required()
    jitted = jax.jit(function)
    if over_mesh or site.can_run and site.is_like(_sites.where(*arrays)):
        return jitted.lower(*arrays)
    if site.device is None:
        return jitted.trace(*arrays).lower(lowering_platforms=(site.lowered_as,))
    sharding = jax.sharding.SingleDeviceSharding(site.device)
    return jitted.lower(*(jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in arrays))
