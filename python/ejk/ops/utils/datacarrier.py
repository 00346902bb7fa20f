# SPDX-License-Identifier: Apache-2.0
"""Standard parameter containers of attention-like kernels. None leaves the choice to the kernel."""

import hashlib
from dataclasses import dataclass


def get_safe_hash_int(text: object, algorithm: str = "md5") -> int:
    """The digest of str(text) as a number: the same in every process, unlike Python's own hash of a text."""
    if algorithm not in hashlib.algorithms_available:
        raise ValueError(f"[get_safe_hash_int] got algorithm={algorithm!r}; expected one of hashlib's; pass 'md5'")
    digest = hashlib.new(algorithm, str(text).encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest, "big")


def hash_fn(self: object) -> int:
    """A `__hash__` for containers of parameters: made of the numbers, lists and dicts that are set."""
    held = (value for value in vars(self).values() if isinstance(value, (int, float, dict, list)))
    return get_safe_hash_int("".join(map(str, held)))


@dataclass
class FwdParams:
    """Block sizes and the like of a forward pass. A field that is None leaves the choice to the kernel."""

    blocksize_m: int | None = None  #: rows of a block
    blocksize_k: int | None = None  #: depth of a block
    blocksize_n: int | None = None  #: columns of a block
    q_blocksize: int | None = None  #: queries of a block
    kv_blocksize: int | None = None  #: keys and values of a block
    blocksize_heads: int | None = None  #: heads of a block
    blocksize_keys: int | None = None  #: keys of a block
    num_key_splits: int | None = None  #: parts that the keys are split into
    num_warps: int | None = None  #: warps of a GPU block
    num_stages: int | None = None  #: stages of a GPU pipeline

    __hash__ = hash_fn


@dataclass
class BwdParams:
    """Block sizes and the like of a backward pass. A field that is None leaves the choice to the kernel."""

    blocksize_m: int | None = None  #: rows of a block
    blocksize_k: int | None = None  #: depth of a block
    blocksize_n: int | None = None  #: columns of a block
    q_blocksize: int | None = None  #: queries of a block
    kv_blocksize: int | None = None  #: keys and values of a block
    num_warps: int | None = None  #: warps of a GPU block
    num_stages: int | None = None  #: stages of a GPU pipeline

    __hash__ = hash_fn


__all__ = ["BwdParams", "FwdParams", "get_safe_hash_int", "hash_fn"]
