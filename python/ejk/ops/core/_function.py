# SPDX-License-Identifier: Apache-2.0
"""A kernel, its config and all of a call but the arrays, as one function of the arrays."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ejk import _jax, _numbers, _sites
from ejk._captured import (
    Maker,
    Opaque,
    Seen,
    classes_in,
    has_attributes,
    has_data,
    is_plain,
    things_of_libraries,
)
from ejk.ops.core._mesh import OverMesh
from ejk.ops.core._order import in_order, order_of
from ejk.ops.core._static import give_static, keep_static, static
from ejk.ops.core.kernel import Invocation, _get_platform_method, _has_custom_vjp, _overrides, op_of
from ejk.ops.utils.meta import stamped

_nothing = contextlib.nullcontext()
_Call = tuple[tuple[Any, ...], dict[str, Any]]  # args, kwargs


class Given:
    """A call as a function of the arrays among its arguments, with the caller's own objects."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool] | None = None
    ) -> None:
        self._args: Any = args
        self._kwargs: Any = kwargs
        self.arrays: list[Any] = []
        jax = _jax.loaded()
        if jax is not None:
            self.leaves, self.tree = jax.tree_util.tree_flatten((args, kwargs), is_leaf)
            self.order = order_of((args, kwargs))
            self._places = [i for i, leaf in enumerate(self.leaves) if _jax.is_array(leaf) or _jax.is_numpy(leaf)]
            self.arrays = [self.leaves[i] for i in self._places]

    def whole(self, arrays: Sequence[Any]) -> _Call:
        """(args, kwargs) with these arrays; with its own arrays the caller's own containers, which `run` may change."""
        if self._args is not None and all(map(operator.is_, arrays, self.arrays)):
            return self._args, self._kwargs
        leaves = list(self.leaves)
        for place, array in zip(self._places, arrays):
            leaves[place] = array
        call: _Call = in_order(_jax.loaded().tree_util.tree_unflatten(self.tree, leaves), self.order)
        return call

    def others(self) -> list[Any]:
        """The arguments that are not arrays."""
        return [leaf for i, leaf in enumerate(self.leaves) if i not in self._places]

    def has_any(self, is_such: Callable[[Any], bool]) -> bool:
        """Whether there is such a container, in which JAX sees no more than leaves."""
        leaves = _jax.loaded().tree_util.tree_leaves((self._args, self._kwargs), is_such)
        return any(map(is_such, leaves))

    def without_arrays(self) -> Given:
        bare = copy.copy(self)
        bare._args = bare._kwargs = None
        bare.arrays = bare.leaves = [None if i in self._places else leaf for i, leaf in enumerate(self.leaves)]
        return bare

    def unchanged(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: Sequence[Any]) -> Any:
        """`result` of a run: whatever it has changed, it has changed for the caller."""
        return result


class Form:
    """A call as a function of the arrays among its arguments, then of those inside of them, then of the inputs that
    `numbers` stand for. Holds none of the caller's objects."""

    def __init__(
        self, words: tuple[Any, ...], order: tuple[Any, ...] | None, direct: int, floats: Iterable[Any], joins: bool
    ) -> None:
        self.words, self._order, self._direct = (*words, order), order, direct
        self._floats, self._joins = tuple(floats), joins
        self._numbers: _numbers.Numbers | None = None

    def captured(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Those of the arrays that are inside of arguments."""
        return arrays[self._direct :]

    def with_inputs(self, numbers: _numbers.Numbers | None) -> Form:
        form = copy.copy(self)
        form._numbers = numbers
        return form

    def whole(self, arrays: Sequence[Any]) -> _Call:
        maker = Maker(self.words, *self._parts(arrays))
        tree = maker.make()
        leaves = maker.make_all(tree.num_leaves)
        call: _Call = in_order(_jax.loaded().tree_util.tree_unflatten(tree, leaves), self._order)
        return call

    def unchanged(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: Sequence[Any]) -> Any:
        """`result` of a run that has not changed its arguments. Else Opaque: the caller would not see the change."""
        again = Arguments(args, kwargs, _numbers.is_number, self._joins)
        direct, captured, floats = self._parts(arrays)
        now, before = [*again.arrays, *again.floats], [*direct, *captured, *floats]
        if again.form is None or again.form.words != self.words or not all(map(_numbers.is_same, now, before)):
            raise Opaque
        return result

    def _parts(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], list[Any]]:
        end, floats = len(arrays), list(self._floats)
        if self._numbers is not None:
            end -= self._numbers.count
            for place, number in zip(self._numbers.places, self._numbers.of(arrays[end:])):
                floats[place] = number
        return arrays[: self._direct], arrays[self._direct : end], floats


class Arguments:
    """Arguments taken apart.

    `given` is the call as it was made, `form` the same without the caller's objects: None if they cannot be seen into.
    `arrays` and `floats` are the form's, `arrays` without one the given ones. `joins`: an array that is an argument and
    inside of another is there once.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_leaf: Callable[[Any], bool] | None = None,
        joins: bool = True,
    ) -> None:
        self.given = Given(args, kwargs, is_leaf)
        self.form: Form | None = None
        self.floats: list[Any] = []
        self.arrays = self._all = self.given.arrays
        jax = _jax.loaded()
        if jax is not None:
            self._see(joins)
        self.with_jax = any(map(_jax.is_array, self._all))

    def _see(self, joins: bool) -> None:
        direct = self.given.arrays
        seen = Seen([array if joins and _jax.is_array(array) else None for array in direct])
        try:
            seen.add_tree(self.given.tree)
            classes = {*classes_in(self.given.tree)}
            for kind in classes:
                seen.see_class(kind)
            may_be_more = any(kind.__dictoffset__ and issubclass(kind, tuple) for kind in classes)
            if may_be_more and self.given.has_any(has_attributes):
                raise Opaque
            for leaf in self.given.leaves:
                if _jax.is_array(leaf) or _jax.is_numpy(leaf):
                    seen.add_argument()
                else:
                    seen.add_whole(leaf)
            seen.check_effects()
        except (Opaque, RecursionError):
            self._all = [*self.given.arrays, *seen.arrays]
            return
        self.arrays = self._all = [*direct, *seen.arrays]
        self.floats, self.form = seen.floats, Form(seen.all_words(), self.given.order, len(direct), seen.floats, joins)

    def whole(self, arrays: Sequence[Any]) -> _Call:
        """(args, kwargs) with these arrays."""
        return (self.given if self.form is None else self.form).whole(arrays)

    def holds_objects(self) -> bool:
        """Whether there are others than arrays and plain values."""
        tree = self.given.tree
        return not all(map(is_plain, self.given.others())) or has_data(tree) or any(True for _ in classes_in(tree))

    def are_followed_when_warm(self) -> bool:
        """Whether every value that is not plain is a function, or a library's, and holds nothing else."""
        assert self.form is not None
        same = {id(thing) for thing in things_of_libraries(self.form.words)}
        others = [other for other in self.given.others() if not is_plain(other)]
        return all(type(other) is types.FunctionType or id(other) in same for other in others)

    def has_tracers(self) -> bool:
        return any(map(_jax.is_tracer, self._all))

    def are_only_types(self) -> bool:
        """Whether nothing is computed of them now, as inside of jax.jit."""
        return any(_jax.concrete(array) is None for array in self._all)

    @functools.cached_property
    def committed_to(self) -> _sites.Site | None:
        """Where the arrays are, None if JAX may put them anywhere. Raises ValueError if that is in several places."""
        structs = [leaf for leaf in getattr(self.given, "leaves", ()) if type(leaf).__name__ == "ShapeDtypeStruct"]
        only = _sites.the_only_one() if self.with_jax and not structs and not self.has_tracers() else None
        return only or _sites.of_arrays([*self._all, *structs])

    def in_a_trace(
        self, kernel: Any, platform: str | None, method: str | None
    ) -> tuple[Given | Form, list[Any]]:
        """What a call inside another trace is, with its arrays: as it was made, unless a gradient of the kernel's own
        has to be told of the tracers inside of arguments."""
        may_hold_some = self.form is not None and self.holds_objects()
        if may_hold_some and _has_custom_vjp(kernel, platform, method):
            apart = Arguments(*self.given.whole(self.given.arrays), joins=False)
            if apart.form is not None and any(map(_jax.is_tracer, apart.form.captured(apart.arrays))):
                return apart.form, apart.arrays
        return self.given, self.given.arrays


def arguments_of(inv: Any) -> Arguments:
    """The arguments of a call taken apart, once."""
    found: Arguments | None = getattr(inv, "_arguments", None)
    if found is None:
        found = Arguments(inv.args, dict(inv.kwargs))
        if isinstance(inv, Invocation):
            object.__setattr__(inv, "_arguments", found)
    return found


def site_of_call(inv: Any) -> _sites.Site:
    """Where a call runs. Raises ValueError if its arrays are in several kinds of places."""
    return _sites.scoped() or site_of_arguments(inv)


def site_of_arguments(inv: Any, arguments: Arguments | None = None) -> _sites.Site:
    """The same, whatever `for_device` says; with `arguments` in place of its own."""
    mesh = getattr(inv, "mesh", None) if getattr(inv, "method", None) == "shard_map" else None
    if mesh is not None and getattr(mesh, "devices", None) is not None:
        return _sites.site_of(mesh.devices.flat[0])
    try:
        arguments = arguments or arguments_of(inv)
    except Exception:  # JAX cannot take them apart: they have a key, and the call itself raises it
        return _sites.where()
    try:
        return arguments.committed_to or _sites.where()
    except ValueError as error:
        raise ValueError(f"[{inv.op_id}] {error}") from None


def accepted(function: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those of the named arguments that a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return kwargs
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return kwargs
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in kwargs.items() if name in names}


def forward(kernel: Any, platform: str | None, method: str | None) -> Callable[..., Any]:
    """The run method for this platform and context."""
    run = _get_platform_method(kernel, "run", platform, method)
    if run is None:
        raise NotImplementedError(
            f"[{op_of(kernel)}] {type(kernel).__qualname__} has no run method for {platform}"
        )
    return run


def function_of(
    kernel: Any,
    form: Given | Form,
    cfg: Any,
    site: _sites.Site,
    method: str | None = None,
    label: str | None = None,
    mesh: OverMesh | None = None,
    with_jax: bool = True,
) -> Callable[..., Any]:
    """A function of the form's arrays for a site, not jitted; over an OverMesh if there is one."""
    platform = site.platform
    run = forward(kernel, platform, method)

    def plain(*arrays: Any) -> Any:
        args, kwargs = form.whole(arrays)
        return form.unchanged(run(*args, cfg=cfg, **kwargs), args, kwargs, arrays)

    def on_a_shard(*shards: Any, **kwargs: Any) -> Any:
        local = Given(shards, kwargs)
        return function_of(kernel, local, cfg, site, method)(*local.arrays)

    def over_mesh(*arrays: Any) -> Any:
        args, kwargs = form.whole(arrays)
        assert mesh is not None
        return form.unchanged(mesh.run(kernel, on_a_shard, args, cfg, kwargs), args, kwargs, arrays)

    function = plain if mesh is None else over_mesh
    if mesh is None and with_jax and _has_custom_vjp(kernel, platform, method):
        function = _with_gradient(kernel, form, cfg, site, method, plain)

    def at_site(*arrays: Any) -> Any:
        with _sites.running_at(site), _nothing if label is None else stamped(label):
            return function(*arrays)

    at_site.__name__ = at_site.__qualname__ = name_for_profilers(kernel)
    return at_site


# ---- gradients ----------------------------------------------------------------------------------


def _with_gradient(
    kernel: Any, form: Given | Form, cfg: Any, site: _sites.Site, method: str | None, plain: Callable[..., Any]
) -> Callable[..., Any]:
    jax, platform = _jax.loaded(), site.platform
    one_function = _overrides(kernel, "custom_vjp")
    fwd = None if one_function else _get_platform_method(kernel, "fwd_with_residuals", platform, method)
    bwd = None if one_function else _get_platform_method(kernel, "vjp", platform, method)

    operation: Any = jax.custom_vjp(plain)

    def forward_pass(*arrays: Any) -> tuple[Any, Any]:
        if one_function:
            y = plain(*arrays)
            return y, (arrays, y, None)
        args, kwargs = form.whole(arrays)
        assert fwd is not None
        y, residuals = form.unchanged(fwd(*args, cfg=cfg, **kwargs), args, kwargs, arrays)
        return y, (arrays, y, keep_static(residuals))

    def backward_pass(kept: Any, dy: Any) -> tuple[Any, ...]:
        with _sites.running_at(site):  # JAX calls it later than the forward pass
            return gradients(kept, dy)

    def gradients(kept: Any, dy: Any) -> tuple[Any, ...]:
        arrays, y, residuals = kept
        args, kwargs = form.whole(arrays)
        if one_function:
            cotangents = dy if isinstance(dy, (tuple, list)) else (dy,)
            given = kernel.custom_vjp(args, cfg, kwargs, cotangents)
        else:
            assert bwd is not None
            given = _call_vjp(kernel, bwd, give_static(residuals), y, dy, args, {"cfg": cfg, **kwargs})
        return _gradients(kernel, given, args, kwargs, arrays)

    if isinstance(form, Form):
        passes = _with_captured(form, plain, forward_pass, backward_pass)
        operation.defvjp(*passes, symbolic_zeros=True)
    else:
        operation.defvjp(forward_pass, backward_pass)
    found: Callable[..., Any] = operation
    return found


def _with_captured(
    form: Form,
    plain: Callable[..., Any],
    forward_pass: Callable[..., Any],
    backward_pass: Callable[..., tuple[Any, ...]],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The same passes, with gradients for the arrays inside of arguments too, of which the kernel's own gradient does not
    know: those that JAX finds for `plain`, if they are asked for."""
    jax = _jax.loaded()

    def forward(*primals: Any) -> tuple[Any, Any]:
        arrays = tuple(primal.value for primal in primals)
        y, kept = forward_pass(*arrays)
        return y, (kept, static()(any(primal.perturbed for primal in form.captured(primals))))

    def backward(kept: Any, dy: Any) -> tuple[Any, ...]:
        kept, is_asked = kept
        dy = jax.tree_util.tree_map(_instantiated, dy)
        found, arrays = backward_pass(kept, dy), kept[0]
        if not is_asked.value:
            return found
        inside = form.captured(arrays)
        direct = arrays[: len(arrays) - len(inside)]
        gradients = jax.vjp(lambda *captured: plain(*direct, *captured), *inside)[1](dy)
        return *found[: len(direct)], *(_fitting(jax, array, gradient) for array, gradient in zip(inside, gradients))

    return forward, backward


def _instantiated(cotangent: Any) -> Any:
    jax = _jax.loaded()
    if not isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return cotangent
    zeros = sys.modules["numpy"].zeros if cotangent.dtype == jax.dtypes.float0 else jax.numpy.zeros
    return zeros(cotangent.shape, cotangent.dtype)


_OUTPUT_NAMES = {"y", "out", "output", "outputs", "o", "result", "primal_out", "primals_out", "ans"}
_COTANGENT_NAMES = {"dy", "do", "g", "ct", "cts", "dout", "cotangent", "cotangents", "grad", "grads", "tangents"}


def _takes_output(positional: list[str], any_number: bool, count: int) -> bool:
    """Whether vjp is (residuals, y, dy, ...) or (residuals, dy, ...)."""
    second = positional[1].lower() if len(positional) > 1 else ""
    if second in _OUTPUT_NAMES:
        return True
    if second in _COTANGENT_NAMES or second.startswith(("grad_", "d_", "ct_")):
        return False
    if any_number:
        return len(positional) != 2
    if len(positional) == 2 or len(positional) == 2 + count != 3:
        return False
    return True


def _call_vjp(
    kernel: Any, vjp: Callable[..., Any], residuals: Any, y: Any, dy: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    parameters = list(inspect.signature(vjp).parameters.values())
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in kwargs]
    optional = sum(p.default is not p.empty for p in by_place)
    positional = [p.name for p in by_place]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    first = (residuals, y, dy) if _takes_output(positional, any_number, len(args)) else (residuals, dy)
    room = len(args) if any_number else len(positional) - len(first)
    if room > len(args) >= room - optional:  # the call leaves out what has a default
        room = len(args)
    if room not in (0, len(args)):
        raise TypeError(
            f"[{op_of(kernel)}] vjp takes {len(positional)} positional arguments: "
            f"(residuals, y, dy) or (residuals, dy) are expected, alone or with the {len(args)} of the call"
        )
    return vjp(*first, *(args if room else ()), **accepted(vjp, kwargs))


def _gradients(
    kernel: Any, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: Sequence[Any]
) -> tuple[Any, ...]:
    """One cotangent for each array, None where there is none and for those inside of arguments."""
    jax = _jax.loaded()
    if not isinstance(given, (tuple, list)):
        given = (given,)
    given, named = list(given), dict[str, Any]()
    if len(given) == len(args) + 1 and isinstance(given[-1], dict) and set(given[-1]) <= set(kwargs):
        named = given.pop()
    while len(given) > len(args) and given[-1] is None:  # of what the call leaves out
        given.pop()
    if len(given) != len(args):
        holds = [bool(_arrays_in(arg)) for arg in args]
        if len(given) != sum(holds):
            raise TypeError(
                f"[{op_of(kernel)}] vjp returned {len(given)} gradients for {len(args)} arguments, "
                f"{sum(holds)} of which hold arrays: one for each is expected, None where there is none"
            )
        rest = iter(given)
        given = [next(rest) if has else None for has in holds]
    found: list[Any] = []
    for value, gradient in [*zip(args, given), *((v, named.get(k)) for k, v in sorted(kwargs.items()))]:
        found += _gradients_of_one(kernel, value, gradient)
    found += [None] * (len(arrays) - len(found))
    return tuple(_fitting(jax, array, gradient) for array, gradient in zip(arrays, found))


def _arrays_in(value: Any) -> list[Any]:
    leaves = _jax.loaded().tree_util.tree_leaves(value)
    return [leaf for leaf in leaves if _jax.is_array(leaf) or _jax.is_numpy(leaf)]


def _gradients_of_one(kernel: Any, value: Any, gradient: Any) -> list[Any]:
    arrays = _arrays_in(value)
    if gradient is None:
        return [None] * len(arrays)
    jax = _jax.loaded()
    leaves = jax.tree_util.tree_leaves(value)
    given: list[Any] = jax.tree_util.tree_leaves(gradient, is_leaf=lambda x: x is None)
    if len(given) == len(leaves):
        return [g for leaf, g in zip(leaves, given) if _jax.is_array(leaf) or _jax.is_numpy(leaf)]
    if len(given) == len(arrays):
        return given
    raise TypeError(
        f"[{op_of(kernel)}] vjp returned {len(given)} gradients for an argument with {len(arrays)} arrays"
    )


def _fitting(jax: Any, array: Any, gradient: Any) -> Any:
    if gradient is None or not jax.numpy.issubdtype(array.dtype, jax.numpy.inexact):
        return None
    if gradient.dtype != array.dtype and gradient.dtype != jax.dtypes.float0:
        return gradient.astype(array.dtype)
    return gradient


def name_for_profilers(kernel: Any) -> str:
    """What a jitted function is called: the op, as far as an identifier can say it."""
    return "".join(c if c.isalnum() else "_" for c in op_of(kernel)) or "kernel"


__all__ = ["Arguments", "Form", "Given", "accepted", "arguments_of", "forward", "function_of", "name_for_profilers"]
