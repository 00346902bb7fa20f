# SPDX-License-Identifier: Apache-2.0
"""Configs as JSON text."""

import dataclasses
import json
from typing import Any

from ejk import _configs


def to_json(obj: Any) -> str:
    """`obj` as JSON; what JSON cannot say becomes its repr."""

    def plain(o: Any) -> Any:
        if dataclasses.is_dataclass(o) and not isinstance(o, type):
            return dataclasses.asdict(o)
        if hasattr(o, "model_dump"):
            return o.model_dump()
        return repr(o)

    return json.dumps(obj, default=plain, sort_keys=True, separators=(",", ":"))


def from_json(s: str, cls: type | None = None) -> Any:
    """What the text says, as a `cls` if one is given. Raises ValueError if it does not fit."""
    value = json.loads(s)
    if cls is None:
        return value
    if isinstance(value, dict):
        made = _configs.fit(value, cls)
        return made if isinstance(made, cls) else cls(**value)
    return value if isinstance(value, cls) else cls(value)


__all__ = ["from_json", "to_json"]
