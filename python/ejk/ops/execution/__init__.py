# SPDX-License-Identifier: Apache-2.0
"""Running and tuning kernels."""

from ejk.ops.execution._agreement import agree
from ejk.ops.execution._compiling import CompiledCandidate, compile_candidates
from ejk.ops.execution.batch import pmap_with_config, vmap_with_config
from ejk.ops.execution.executor import ConfigChooser, Executor, default_executor, idle
from ejk.ops.execution.offline import autotune_lowered
from ejk.ops.execution.tuning import (
    AutotuneData,
    Autotuner,
    AutotuningResult,
    Entry,
    FNAutotuner,
    Measurement,
    autotune,
    autotune_recorded,
    benchmark,
)

Tuner = Autotuner  # as ejkernel names it here; the selector's is ejk.ops.Tuner

__all__ = [
    "AutotuneData",
    "Autotuner",
    "AutotuningResult",
    "CompiledCandidate",
    "ConfigChooser",
    "Entry",
    "Executor",
    "FNAutotuner",
    "Measurement",
    "Tuner",
    "agree",
    "autotune",
    "autotune_lowered",
    "autotune_recorded",
    "benchmark",
    "compile_candidates",
    "default_executor",
    "idle",
    "pmap_with_config",
    "vmap_with_config",
]
