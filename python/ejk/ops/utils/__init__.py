# SPDX-License-Identifier: Apache-2.0
"""Devices, keys, labels, JSON."""

from ejk.ops.utils.datacarrier import BwdParams, FwdParams
from ejk.ops.utils.fingerprint import (
    abstractify,
    default_key_builder_with_sharding,
    device_fingerprint,
    device_kind,
    get_device_platform,
    sharding_fingerprint,
    short_hash,
    stable_json,
)
from ejk.ops.utils.meta import (
    extract_labels_from_hlo_text,
    find_labels_in_lowered,
    label,
    labels_to_configs,
)
from ejk.ops.utils.serialize import from_json, to_json

__all__ = [
    "BwdParams",
    "FwdParams",
    "abstractify",
    "default_key_builder_with_sharding",
    "device_fingerprint",
    "device_kind",
    "extract_labels_from_hlo_text",
    "find_labels_in_lowered",
    "from_json",
    "get_device_platform",
    "label",
    "labels_to_configs",
    "sharding_fingerprint",
    "short_hash",
    "stable_json",
    "to_json",
]
