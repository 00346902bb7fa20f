# SPDX-License-Identifier: Apache-2.0
"""Where configs come from: caches, stores, the selection chain."""

from ejk.ops.config.cache import ConfigCache, overlay_cache
from ejk.ops.config.persistent import PersistentCache
from ejk.ops.config.selection import (
    AutotunePolicy,
    ConfigSelectorChain,
    Tuner,
    forward_autotune_only,
    log_autotune_progress,
    policy_override,
    set_autotune_progress,
)

__all__ = [
    "AutotunePolicy",
    "ConfigCache",
    "ConfigSelectorChain",
    "PersistentCache",
    "Tuner",
    "forward_autotune_only",
    "log_autotune_progress",
    "overlay_cache",
    "policy_override",
    "set_autotune_progress",
]
