# SPDX-License-Identifier: Apache-2.0
"""What a call says of itself, beside the kernel's arguments."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from ejk.ops.core.kernel import _get_platform_method, op_of
from ejk.ops.utils.fingerprint import get_device_platform


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
    def taken_from(cls, kernel: Any, named: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
        """The options among a call's named arguments, and the others, which are the kernel's."""
        if _NAMES.isdisjoint(named):
            return _NONE, named
        own = _own_of_run(kernel, named)
        options = cls(**{name: named[name] for name in cls._fields if name in named and name not in own})
        kwargs = {name: value for name, value in named.items() if name in own or name not in _NAMES}
        return options._with_other_name_of_cfg(kernel, named.get("_cfg")), kwargs

    def _with_other_name_of_cfg(self, kernel: Any, cfg: Any) -> Options:
        if cfg is None:
            return self
        if self.cfg is not None and self.cfg is not cfg and self.cfg != cfg:
            raise TypeError(
                f"[{op_of(kernel)}] got cfg={self.cfg!r} and _cfg={cfg!r}; expected one config; leave one of them out"
            )
        return self._replace(cfg=cfg)


_NAMES, _NONE = frozenset((*Options._fields, "_cfg")), Options()


_OF_MESH = ("mesh", "in_specs", "out_specs")
_PLAIN = (None, "batch", "pmap", "vmap")  # calls that run as any other and count by that name


def _own_of_run(kernel: Any, named: dict[str, Any]) -> set[str]:
    """Those of the names which say over what mesh a call runs that are the kernel's own arguments: its `run` has them,
    and the call is not one over a mesh."""
    given = [name for name in _OF_MESH if name in named]
    if not given or named.get("method") == "shard_map":
        return set()
    run = _get_platform_method(kernel, "run", get_device_platform(), named.get("method"))
    if run is None:
        return set()
    try:
        parameters = inspect.signature(run).parameters
    except (TypeError, ValueError):
        return set()
    by_name = {name for name in given if name in parameters and parameters[name].kind is not inspect.Parameter.VAR_KEYWORD}
    return {name for name in by_name if named[name] is not None or parameters[name].default is inspect.Parameter.empty}


def check_mesh(inv: Any) -> None:
    """Raises ValueError if a call names an unknown context, shall run over a mesh and does not say over which
    or how, or says it and shall not."""
    given = [name for name in _OF_MESH if getattr(inv, name) is not None]
    if inv.method == "shard_map":
        missing = [name for name in _OF_MESH if name not in given]
        if missing:
            raise ValueError(
                f"[{inv.op_id}] got method='shard_map' without {', '.join(missing)}; expected mesh, in_specs and "
                "out_specs; pass them, or leave out method"
            )
        return
    if inv.method not in _PLAIN and not _has_hooks_for(inv.kernel, inv.method):
        raise ValueError(
            f"[{inv.op_id}] got method={inv.method!r}; expected 'shard_map', 'batch', 'pmap', 'vmap' or a context that "
            f"the kernel has methods for, as run_{inv.method}; pass one of them, or leave out method"
        )
    if given:
        raise ValueError(
            f"[{inv.op_id}] got {', '.join(given)} with method={inv.method!r}; expected method='shard_map', or a run "
            "that has arguments of these names; pass method='shard_map', or leave them out"
        )


_WITH_CONTEXT = ("run", "heuristic_cfg", "candidate_cfgs", "fwd_with_residuals", "vjp")


def _has_hooks_for(kernel: Any, method: str) -> bool:
    beginnings = tuple(f"{hook}_{method}" for hook in _WITH_CONTEXT)
    return any(name == start or name.startswith(f"{start}_") for name in dir(kernel) for start in beginnings)
