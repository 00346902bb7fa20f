# SPDX-License-Identifier: Apache-2.0
"""What a call says of itself, beside the kernel's arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from ejk.ops.core.kernel import op_of


class Options(NamedTuple):
    """Which config a call runs with, whether it is labelled, and over which mesh."""

    cfg: Any = None
    stamp: bool = True
    method: str | None = None
    mesh: Any = None
    in_specs: Any = None
    out_specs: Any = None
    check_vma: bool = False

    @classmethod
    def taken_from(cls, kernel, named: dict) -> tuple[Options, dict]:
        """The options among a call's named arguments, and the others, which are the kernel's."""
        if _NAMES.isdisjoint(named):
            return _NONE, named
        options = cls(**{name: named[name] for name in cls._fields if name in named})
        kwargs = {name: value for name, value in named.items() if name not in cls._fields and name != "_cfg"}
        return options._with_other_name_of_cfg(kernel, named.get("_cfg")), kwargs

    def _with_other_name_of_cfg(self, kernel, cfg) -> Options:
        if cfg is None:
            return self
        if self.cfg is not None and self.cfg is not cfg and self.cfg != cfg:
            raise TypeError(
                f"[{op_of(kernel)}] got cfg={self.cfg!r} and _cfg={cfg!r}; expected one config; leave one of them out"
            )
        return self._replace(cfg=cfg)


_NAMES, _NONE = frozenset((*Options._fields, "_cfg")), Options()


def check_mesh(inv) -> None:
    """Raises ValueError if a call shall run over a mesh and does not say over which, or how."""
    if inv.method != "shard_map":
        return
    missing = [name for name in ("mesh", "in_specs", "out_specs") if getattr(inv, name) is None]
    if missing:
        raise ValueError(
            f"[{inv.op_id}] got method='shard_map' without {', '.join(missing)}; expected mesh, in_specs and "
            "out_specs; pass them, or leave out method"
        )
