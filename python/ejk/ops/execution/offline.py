# SPDX-License-Identifier: Apache-2.0
"""Tuning the calls that a lowered computation holds."""

from __future__ import annotations

from typing import Any

from ejk import _core
from ejk.ops.config.selection import ConfigSelectorChain
from ejk.ops.core.kernel import Invocation
from ejk.ops.execution.tuning import AutotuningResult, tune_calls
from ejk.ops.registry import get_invocations
from ejk.ops.utils.fingerprint import device_fingerprint
from ejk.ops.utils.meta import find_labels_in_lowered


def autotune_lowered(selector: ConfigSelectorChain, lowered: Any) -> AutotuningResult:
    """Tunes every labelled call of a computation that was recorded, each once.

    `lowered`: what jax.jit(f).lower(...) gave, compiled or not, an export, a text or bytes. Calls are recorded
    with EJKERNEL_OPS_RECORD=1 or `record_invocation`; labels without a record are in `result.skipped`.

        result = autotune_lowered(selector, jax.jit(f).lower(x))
        with result:
            y = jax.jit(f)(x)
    """
    recorded = get_invocations(device_fingerprint())
    calls: dict[tuple[str, str], Invocation] = {}
    skipped: list[tuple[str, str]] = []
    for label in find_labels_in_lowered(lowered):
        parts = _core.parse_label(label)
        if parts is None:
            continue
        _, op, key = parts
        found = recorded.get(op, {}).get(key)
        if found is None:
            skipped.append((label, "it was not recorded: set EJKERNEL_OPS_RECORD=1 before the calls are made"))
            continue
        kernel, args, kwargs = found
        calls[op, key] = Invocation(kernel=kernel, args=args, kwargs=kwargs)
    return tune_calls(selector, calls, skipped=skipped)


__all__ = ["autotune_lowered"]
