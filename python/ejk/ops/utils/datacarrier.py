# SPDX-License-Identifier: Apache-2.0
"""Standard parameter containers of attention-like kernels. None leaves the choice to the kernel."""

import hashlib
from dataclasses import dataclass, fields


def _hash_of(params) -> int:
    """The same in every process, unlike Python's own hash of a text."""
    values = [getattr(params, f.name) for f in fields(params)]
    text = "".join(str(value) for value in values if value is not None)
    return hash(int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16))


@dataclass
class FwdParams:
    """Block sizes and the like of a forward pass."""

    blocksize_m: int | None = None
    blocksize_k: int | None = None
    blocksize_n: int | None = None
    q_blocksize: int | None = None
    kv_blocksize: int | None = None
    blocksize_heads: int | None = None
    blocksize_keys: int | None = None
    num_key_splits: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    __hash__ = _hash_of


@dataclass
class BwdParams:
    """Block sizes and the like of a backward pass."""

    blocksize_m: int | None = None
    blocksize_k: int | None = None
    blocksize_n: int | None = None
    q_blocksize: int | None = None
    kv_blocksize: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None

    __hash__ = _hash_of


__all__ = ["BwdParams", "FwdParams"]
