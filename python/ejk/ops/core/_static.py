# SPDX-License-Identifier: Apache-2.0
"""Values that pass through JAX unchanged.

JAX keeps the class that is registered here for good, and with it what this module has imported: that stays little.
"""

from __future__ import annotations

from typing import Any

from ejk import _jax

_static_type: Any = None


def static() -> Any:
    """A pytree without leaves that carries a value through JAX unchanged."""
    global _static_type
    if _static_type is None:

        class Static:
            def __init__(self, value: Any) -> None:
                self.value = value

            def __eq__(self, other: object) -> bool:
                return type(other) is Static and self.value is other.value

            def __hash__(self) -> int:
                return id(self.value)

        _jax.loaded().tree_util.register_pytree_node(Static, lambda s: ((), s), lambda s, _: s)
        _static_type = Static
    return _static_type


def keep_static(residuals: Any) -> Any:
    jax, wrap = _jax.loaded(), static()

    def keep(leaf: Any) -> Any:
        return leaf if _jax.is_array(leaf) or _jax.is_numpy(leaf) else wrap(leaf)

    return jax.tree_util.tree_map(keep, residuals)


def keep_numbers(out: Any) -> tuple[Any, bool]:
    """A result with its Python numbers and texts kept from becoming arrays, and whether it has any."""
    jax, wrap = _jax.loaded(), static()
    leaves, tree = jax.tree_util.tree_flatten(out)
    kept = [wrap(leaf) if isinstance(leaf, (bool, int, float, complex, str, bytes)) else leaf for leaf in leaves]
    return tree.unflatten(kept), any(a is not b for a, b in zip(kept, leaves))


def give_static(tree: Any) -> Any:
    """What was kept, as it was."""
    kind = static()
    return _jax.loaded().tree_util.tree_map(
        lambda x: x.value if isinstance(x, kind) else x, tree, is_leaf=lambda x: isinstance(x, kind)
    )


__all__ = ["give_static", "keep_numbers", "keep_static", "static"]
