# SPDX-License-Identifier: Apache-2.0
"""C++ kernels of one's own in JAX: from a shared library that registers them with EJK_REGISTER."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ejk import _core, _jax
from ejk.modules import _ffi
from ejk.ops.core.kernel import Invocation, Kernel


def load_kernels(path: str | os.PathLike[str]) -> dict[str, CppKernel]:
    """The kernels of a shared library, by op ("name@vVERSION"). They stay for the process's life.

    A kernel is called with the arguments of its `run`, in order: arrays for views, values for the rest. In place of an
    array that it only writes (`ejk::Out`) stands a jax.ShapeDtypeStruct; arrays that it changes are left as they are, and
    what they would become is a result. It gives the results in the order of the parameters, then the tensors that
    `run` returns, whose types `returns=` names; one alone is not in a tuple. Its gradient is that of its
    `fwd_with_residuals` and `vjp`, or `custom_vjp`.
    """
    return {op: CppKernel(op) for op in _core.load_kernels(str(path))}


@dataclasses.dataclass
class _Arranged:
    """A call as the C++ side takes it."""

    inputs: list[Any]  # arrays that are read
    results: list[tuple[Any, Any]]  # (shape, dtype)
    written: int  # how many of the results are written, and not returned
    copies: list[list[int]]  # [input, result] of arrays that are changed
    arguments: list[Any]  # values, and {"given": i} for array i of inputs and results


class CppKernel(Kernel):
    """A registered C++ kernel. It runs on the CPU; its config is chosen while JAX traces."""

    def __init__(self, op: str) -> None:
        name, _, version = op.rpartition("@v")
        super().__init__(name)
        self.version = version

    def run(self, *args: Any, cfg: Any, returns: Any = ()) -> Any:
        call = self._arranged(args, returns)
        found = _ffi.call_registered(self._op, call.inputs, call.arguments, call.copies, cfg, call.results)
        return found[0] if len(found) == 1 else tuple(found)

    def fwd_with_residuals(self, *args: Any, cfg: Any, returns: Any = ()) -> tuple[Any, Any]:
        if not _core.registered_has_gradient(self._op):
            raise NotImplementedError(
                f"[{self.op_id}] the C++ kernel has no gradient: give it fwd_with_residuals and vjp, or custom_vjp, "
                "or put jax.custom_vjp around the call"
            )
        return self.run(*args, cfg=cfg, returns=returns), ()

    def vjp(self, residuals: Any, y: Any, dy: Any, *args: Any, cfg: Any, returns: Any = ()) -> tuple[Any, ...]:
        """C++ runs forward again, since residuals of any type cannot pass through JAX."""
        jnp = _jax.required().numpy
        call = self._arranged(args, returns)
        given = [i for i, a in enumerate(args) if _is_array(a) and not _is_type(a)]
        wanted = [i for i in given if jnp.issubdtype(args[i].dtype, jnp.floating)]
        gradients: list[Any] = [None] * len(args)
        if not wanted:
            return tuple(gradients)
        cotangents = [
            d if d.dtype == dtype else jnp.zeros(shape, dtype)  # float0: of whole numbers
            for d, (shape, dtype) in zip(dy if isinstance(dy, tuple) else (dy,), call.results)
        ]
        arrays = _ffi.varying_alike([*call.inputs, *cotangents])
        pull = {"inputs": len(call.inputs), "written": call.written, "wanted": wanted}
        types = [(args[i].shape, args[i].dtype) for i in wanted]
        found = _ffi.call_registered(self._op, arrays, call.arguments, call.copies, cfg, types, pull)
        for i, gradient in zip(wanted, found):
            gradients[i] = gradient
        return tuple(gradients)

    def heuristic_cfg(self, inv: Invocation) -> Any:
        found = _core.registered_heuristic(self._op, self._described(inv.args))
        if found is None:
            raise NotImplementedError(f"[{self.op_id}] the kernel has no heuristic_cfg")
        return found

    def candidate_cfgs(self, inv: Invocation) -> list[Any]:
        return _core.registered_candidates(self._op, self._described(inv.args))

    def is_valid(self, cfg: Any, inv: Invocation) -> bool:
        """Whether the kernel's own `is_valid` accepts this config for this call."""
        return _core.registered_is_valid(self._op, cfg, self._described(inv.args))

    def numerics(self, cfg: Any, inv: Invocation) -> Any:
        """The class of this config, as the kernel's own `numerics` states it; None if it has none."""
        return _core.registered_numerics(self._op, cfg, self._described(inv.args))

    @property
    def _op(self) -> str:
        return f"{self.op_id}@v{self.version}"

    def _described(self, args: tuple[Any, ...]) -> list[Any]:
        return [(a.dtype.name, [int(d) for d in a.shape]) if _is_array(a) else a for a in args]

    def _arranged(self, args: tuple[Any, ...], returns: Any) -> _Arranged:
        returns = tuple(returns) if isinstance(returns, (tuple, list)) else (returns,)
        roles = _core.registered_roles(self._op, self._described(args))
        inputs: list[Any] = []
        results: list[tuple[Any, Any]] = []
        copies: list[list[int]] = []
        places: list[tuple[list[Any], int] | None] = []
        for i, (arg, role) in enumerate(zip(args, roles)):
            if not _is_array(arg):
                places.append(None)
                continue
            if _is_type(arg) != (role == "output"):
                needed = "a jax.ShapeDtypeStruct for what it writes" if role == "output" else f"an array as {role}"
                raise ValueError(f"[{self.op_id}] argument {i} is {arg}: {needed} is needed")
            if role == "in_out":
                copies.append([len(inputs), len(results)])
            places.append((inputs if role == "input" else results, len(inputs if role == "input" else results)))
            if role != "output":
                inputs.append(arg)
            if role != "input":
                results.append((arg.shape, arg.dtype))
        written = len(results)
        results += [(r.shape, r.dtype) for r in returns]
        if not results:
            raise ValueError(f"[{self.op_id}] gives nothing: returns= names the types of what it returns")
        arguments = [
            arg if place is None else {"given": place[1] + (len(inputs) if place[0] is results else 0)}
            for arg, place in zip(args, places)
        ]
        return _Arranged(inputs, results, written, copies, arguments)


def _is_array(x: object) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _is_type(x: object) -> bool:
    return isinstance(x, _jax.required().ShapeDtypeStruct)
