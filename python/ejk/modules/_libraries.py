# SPDX-License-Identifier: Apache-2.0
"""C++ kernels of one's own in JAX: from a shared library that registers them with EJK_REGISTER."""

from __future__ import annotations

from ejk import _core, _jax
from ejk.modules import _ffi
from ejk.ops.core.kernel import Kernel


def load_kernels(path) -> dict[str, CppKernel]:
    """The kernels of a shared library, by op ("name@vVERSION"). They stay for the process's life.

    A kernel is called with the arguments of its `run`, in order: arrays for views, values for the rest. In place of an
    array that it only writes (`ejk::Out`) stands a jax.ShapeDtypeStruct; arrays that it changes are left as they are, and
    what they would become is a result. It gives the results in the order of the parameters, then the tensors that
    `run` returns, whose types `returns=` names; one alone is not in a tuple.
    """
    return {op: CppKernel(op) for op in _core.load_kernels(str(path))}


class CppKernel(Kernel):
    """A registered C++ kernel. It runs on the CPU; its config is chosen while JAX traces."""

    def __init__(self, op: str):
        name, _, version = op.rpartition("@v")
        super().__init__(name)
        self.version = version

    def run(self, *args, cfg, returns=()):
        jax = _jax.required()
        returns = tuple(returns) if isinstance(returns, (tuple, list)) else (returns,)
        roles = _core.registered_roles(self._op, self._described(args))
        inputs, results, copies, arguments = [], [], [], []
        for arg, role in zip(args, roles):
            if not _is_array(arg):
                arguments.append(arg)
                continue
            is_type = isinstance(arg, jax.ShapeDtypeStruct)
            if is_type != (role == "output"):
                needed = "a jax.ShapeDtypeStruct for what it writes" if role == "output" else f"an array as {role}"
                raise ValueError(f"[{self.op_id}] argument {len(arguments)} is {arg}: {needed} is needed")
            if role == "in_out":
                copies.append([len(inputs), len(results)])
            if role != "output":
                inputs.append(arg)
            if role != "input":
                results.append((arg.shape, arg.dtype))
            arguments.append(("input", len(inputs) - 1) if role == "input" else ("result", len(results) - 1))
        first_result = len(inputs)
        sketches = [
            {"given": a[1] + (first_result if a[0] == "result" else 0)} if isinstance(a, tuple) else a for a in arguments
        ]
        results += [(r.shape, r.dtype) for r in returns]
        if not results:
            raise ValueError(f"[{self.op_id}] gives nothing: returns= names the types of what it returns")
        found = _ffi.call_registered(self._op, inputs, sketches, copies, cfg, results)
        return found[0] if len(found) == 1 else tuple(found)

    def heuristic_cfg(self, inv):
        found = _core.registered_heuristic(self._op, self._described(inv.args))
        if found is None:
            raise NotImplementedError(f"[{self.op_id}] the kernel has no heuristic_cfg")
        return found

    def candidate_cfgs(self, inv):
        return _core.registered_candidates(self._op, self._described(inv.args))

    def is_valid(self, cfg, inv) -> bool:
        return _core.registered_is_valid(self._op, cfg, self._described(inv.args))

    @property
    def _op(self) -> str:
        return f"{self.op_id}@v{self.version}"

    def _described(self, args):
        return [(a.dtype.name, [int(d) for d in a.shape]) if _is_array(a) else a for a in args]


def _is_array(x) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")
