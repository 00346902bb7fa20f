# SPDX-License-Identifier: Apache-2.0
"""A call over a mesh, the kernel's own way or the usual one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ejk import _jax
from ejk.ops.core.kernel import _overrides, op_of


class OverMesh(NamedTuple):
    """Where a call with method="shard_map" runs, and how its arrays are cut up."""

    mesh: Any
    in_specs: Any
    out_specs: Any
    check_vma: bool

    def key(self) -> tuple[Any, ...]:
        """What tells it from another. Specs may be trees with dicts and lists in them, which have no hash themselves."""
        jax = _jax.required()

        def is_spec(part: object) -> bool:
            return isinstance(part, jax.sharding.PartitionSpec)

        specs, tree = jax.tree_util.tree_flatten((self.in_specs, self.out_specs), is_leaf=is_spec)
        return self.mesh, tuple(specs), tree, self.check_vma

    def run(
        self, kernel: Any, on_a_shard: Callable[..., Any], args: tuple[Any, ...], cfg: Any, kwargs: dict[str, Any]
    ) -> Any:
        """The call: through the kernel's own `create_shard_map_wrapper`, else `on_a_shard` of each shard.

        In its own way a kernel brings its gradient along: JAX differentiates what that computes.
        """
        if _overrides(kernel, "create_shard_map_wrapper"):
            way = kernel.create_shard_map_wrapper(*args, cfg=cfg, **self._asdict(), **kwargs)
        else:
            way = kernel.create_shard_map_wrapper(on_a_shard, *args, **self._asdict(), **kwargs)
        if not isinstance(way, (tuple, list)) or len(way) not in (2, 3):
            raise TypeError(
                f"[{op_of(kernel)}] create_shard_map_wrapper returned {way!r}; expected (function, arguments), "
                "or those and a callback(results, cfg=...); return two or three"
            )
        function, arguments, *callback = way
        results = function(*arguments)
        return callback[0](results, cfg=cfg) if callback and callback[0] is not None else results


def over_mesh_of(inv: Any) -> OverMesh | None:
    """The mesh that a call runs over; None if it runs without one."""
    if getattr(inv, "method", None) != "shard_map" or inv.mesh is None:
        return None
    return OverMesh(inv.mesh, inv.in_specs, inv.out_specs, inv.check_vma)
