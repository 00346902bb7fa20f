# SPDX-License-Identifier: Apache-2.0
"""Kernels that run with the best config for each call.

An executor finds the config, and runs the kernel with it:

    from ejk.ops import ConfigCache, ConfigSelectorChain, Executor, Kernel

    executor = Executor(ConfigSelectorChain(ConfigCache()))
    y = executor(my_kernel, a, b)      # the first call tunes and remembers
"""

from ejk._sites import for_device
from ejk.ops.config import (
    AutotunePolicy,
    ConfigCache,
    ConfigSelectorChain,
    PersistentCache,
    Tuner,
    forward_autotune_only,
    overlay_cache,
    policy_override,
)
from ejk.ops.core import Cfg, Invocation, Kernel, Out
from ejk.ops.execution import (
    AutotuneData,
    Autotuner,
    AutotuningResult,
    CompiledCandidate,
    ConfigChooser,
    Entry,
    Executor,
    FNAutotuner,
    Measurement,
    agree,
    autotune,
    autotune_lowered,
    autotune_recorded,
    benchmark,
    compile_candidates,
    default_executor,
    idle,
    pmap_with_config,
    vmap_with_config,
)
from ejk.ops.registry import clear_invocations, get_invocations, record_invocation
from ejk.ops.utils import (
    BwdParams,
    FwdParams,
    abstractify,
    default_key_builder_with_sharding,
    device_fingerprint,
    device_kind,
    extract_labels_from_hlo_text,
    find_labels_in_lowered,
    from_json,
    get_device_platform,
    label,
    labels_to_configs,
    sharding_fingerprint,
    short_hash,
    stable_json,
    to_json,
)

__all__ = [
    "AutotuneData",
    "AutotunePolicy",
    "Autotuner",
    "AutotuningResult",
    "BwdParams",
    "Cfg",
    "CompiledCandidate",
    "ConfigCache",
    "ConfigChooser",
    "ConfigSelectorChain",
    "Entry",
    "Executor",
    "FNAutotuner",
    "FwdParams",
    "Invocation",
    "Kernel",
    "Measurement",
    "Out",
    "PersistentCache",
    "Tuner",
    "abstractify",
    "agree",
    "autotune",
    "autotune_lowered",
    "autotune_recorded",
    "benchmark",
    "clear_invocations",
    "compile_candidates",
    "default_executor",
    "default_key_builder_with_sharding",
    "device_fingerprint",
    "device_kind",
    "extract_labels_from_hlo_text",
    "find_labels_in_lowered",
    "for_device",
    "forward_autotune_only",
    "from_json",
    "get_device_platform",
    "get_invocations",
    "idle",
    "label",
    "labels_to_configs",
    "overlay_cache",
    "pmap_with_config",
    "policy_override",
    "record_invocation",
    "sharding_fingerprint",
    "short_hash",
    "stable_json",
    "to_json",
    "vmap_with_config",
]
