# SPDX-License-Identifier: Apache-2.0
"""What a kernel is, and one call of it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
import weakref
from typing import Any, Generic

from ejk import _configs, _core
from ejk._known import hints_of, known_of, name_of
from ejk.ops.core.types import Cfg, Out

# What a method's name may end in on a device, the most specific first.
_SUFFIXES = {
    "cpu": ("cpu", "xla"),
    "xla": ("cpu", "xla"),
    "gpu": ("gpu", "cuda", "triton"),
    "cuda": ("gpu", "cuda", "triton"),
    "triton": ("gpu", "cuda", "triton"),
    "tpu": ("tpu", "pallas"),
    "pallas": ("tpu", "pallas"),
}


class Kernel(Generic[Cfg, Out]):
    """An operation that can run with different configs.

    A subclass has `run(self, *args, cfg, **kwargs)`. It may have

    - `heuristic_cfg(inv)`: a good guess without measuring;
    - `candidate_cfgs(inv)` or `config_space(inv)`: what to tune over;
    - `is_valid(cfg, inv)`: whether a config can run this call;
    - `numerics(cfg, inv)`: configs for which it is equal give bitwise equal results, gradients included; None, or no
      such method: nothing is known. See `AutotunePolicy.numerics`;
    - `reference(*args, **kwargs)`: slow and right, what candidates are compared with;
    - `prepare(*args, **kwargs)`: the caller's arguments as `run` takes them, as (args, kwargs);
    - `fwd_with_residuals` and `vjp`, or `custom_vjp`: gradients of its own;
    - `key_builder(inv)`: a key of its own, in place of the one made of types and shapes.

    `run`, `heuristic_cfg`, `candidate_cfgs`, `fwd_with_residuals` and `vjp` may have variants by
    context and platform; the most specific one is taken: `run_shard_map_gpu`, `run_shard_map`,
    `run_gpu` (or `run_triton`, `run_cuda`; `run_tpu`, `run_pallas`; `run_cpu`, `run_xla`), `run`.

    A kernel is a value: what a call gives depends on its arguments, its config and the kernel's
    attributes, which are noticed when they are set.
    """

    op_id: str = ""  #: its name in stores and messages
    version: str = "0"  #: change it when old measurements mean nothing any more
    key_builder: Any = None  #: a function of an `Invocation` that makes the key; None: the usual key

    def __init__(self, op_id: str | None = None, *, name: str | None = None) -> None:
        chosen = op_id if op_id is not None else name
        if chosen is not None:
            self.op_id = chosen
        elif not getattr(self, "op_id", ""):
            self.op_id = f"{type(self).__module__}.{type(self).__name__}"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        remember_class(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if "_ejk_compiled" in self.__dict__ and name != "_ejk_compiled":
            del self.__dict__["_ejk_compiled"]  # made with the old value
            _core.new_epoch()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        if self.__dict__.pop("_ejk_compiled", None) is not None:
            _core.new_epoch()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_ejk_compiled"}

    def __call__(self, *args: Any, **kwargs: Any) -> Out:
        """Runs with the config that fits, through the default executor."""
        from ejk.ops.execution.executor import default_executor

        return default_executor()(self, *args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The caller's arguments as `run` takes them."""
        return args, kwargs

    # Any: a type checker takes whatever arguments a subclass has.
    def run(self, *args: Any, **kwargs: Any) -> Out:
        """The operation itself, `run(self, *args, cfg, **kwargs)`."""
        raise NotImplementedError(f"[{op_of(self)}] {type(self).__qualname__} has no run method")

    def heuristic_cfg(self, inv: Invocation[Cfg, Out]) -> Cfg:
        """A good guess for this call."""
        raise NotImplementedError(f"[{op_of(self)}] {type(self).__qualname__} has no heuristic_cfg")

    def candidate_cfgs(self, inv: Invocation[Cfg, Out]) -> typing.Iterable[Cfg]:
        """The configs to choose from by measuring; by default the heuristic's alone."""
        if _overrides(self, "config_space"):
            return self.config_space(inv)
        return [self.heuristic_cfg(inv)]

    def config_space(self, inv: Any = None) -> typing.Iterable[Cfg]:
        """Another name for `candidate_cfgs`."""
        if _overrides(self, "candidate_cfgs"):
            return self.candidate_cfgs(inv)
        return [self.heuristic_cfg(inv)]

    def fwd_with_residuals(self, *args: Any, **kwargs: Any) -> tuple[Out, Any]:
        """What `run` gives, and what `vjp` will need, `fwd_with_residuals(self, *args, cfg, **kwargs)`."""
        raise NotImplementedError(f"[{op_of(self)}] {type(self).__qualname__} has no fwd_with_residuals")

    def vjp(self, *args: Any, **kwargs: Any) -> Any:
        """The gradient of each argument, None where there is none, `vjp(self, residuals, y, dy, *args, cfg, **kwargs)`.
        `y` may be left out."""
        raise NotImplementedError(f"[{op_of(self)}] {type(self).__qualname__} has no vjp")

    def custom_vjp(self, primals: Any, cfg: Cfg, kwargs: Any, cotangents: Any) -> Any:
        """Gradients in one function, without residuals."""
        raise NotImplementedError(f"[{op_of(self)}] {type(self).__qualname__} has no custom_vjp")

    def create_shard_map_wrapper(
        self, fn: Any, *args: Any, mesh: Any, in_specs: Any, out_specs: Any, check_vma: bool = False, **kwargs: Any
    ) -> tuple[Any, ...]:
        """`fn` over a mesh, and the arguments to call it with.

        A kernel's own is called without `fn`, as `(*args, mesh=, in_specs=, out_specs=, check_vma=, cfg=, **kwargs)`, and
        may give a third: `callback(results, cfg=...)`, whose result is the call's.
        """
        import jax

        def on_a_shard(*shards: Any) -> Any:
            return fn(*shards, **kwargs)

        return (
            jax.shard_map(on_a_shard, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma),
            args,
        )


def _variant(name: str) -> typing.Callable[..., Any]:
    def variant(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"[{op_of(self)}] {type(self).__qualname__} has no {name}")

    variant.__name__, variant.__qualname__ = name, f"Kernel.{name}"
    variant.__doc__ = f"`{name.partition('_shard_map')[0]}` inside shard_map, if a kernel has another one there."
    return variant


for _name in ("run", "fwd_with_residuals", "vjp"):
    for _context in ("shard_map", "shard_map_gpu"):
        setattr(Kernel, f"{_name}_{_context}", _variant(f"{_name}_{_context}"))


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Invocation(Generic[Cfg, Out]):
    """One call: what heuristics look at and keys are made of.

    Made by the executor; by hand either with `op_id=` or with `kernel=`. `metadata` is anything the maker wants
    to keep with it; nothing here looks at it. It does not change; `dataclasses.replace` makes another one.
    """

    __slots__ = (
        "op_id",
        "args",
        "kwargs",
        "batch_axes",
        "override_cfg",
        "stamp",
        "method",
        "mesh",
        "in_specs",
        "out_specs",
        "check_vma",
        "kernel",
        "metadata",
        "_described",
        "_arguments",
    )
    op_id: str  #: which operation is called
    args: tuple[Any, ...]  #: positional arguments of `run`, arrays or their shapes and types
    kwargs: dict[str, Any]  #: named arguments of `run`, without `cfg`
    batch_axes: typing.Mapping[str, int] | None  #: of a batched call: argument to axis
    override_cfg: Cfg | None  #: a config that came with the call; it is used and never kept
    stamp: bool  #: whether the lowered computation gets a label
    method: str | None  #: `shard_map`, or None for a plain call
    mesh: Any  #: of a call under `shard_map`, as JAX takes it
    in_specs: Any  #: of a call under `shard_map`, one per argument
    out_specs: Any  #: of a call under `shard_map`, of the result
    check_vma: bool  #: passed on to `jax.shard_map`
    kernel: Kernel[Cfg, Out] | None  #: the kernel that is called, if it is known
    metadata: Any  #: anything its maker wants to keep with it; nothing here looks at it

    def __init__(
        self,
        op_id: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: typing.Mapping[str, Any] | None = None,
        batch_axes: typing.Mapping[str, int] | None = None,
        override_cfg: Cfg | None = None,
        stamp: bool = True,
        method: str | None = None,
        mesh: Any = None,
        in_specs: Any = None,
        out_specs: Any = None,
        check_vma: bool = False,
        *,
        kernel: Kernel[Cfg, Out] | None = None,
        metadata: Any = None,
    ) -> None:
        if isinstance(op_id, Kernel):
            op_id, kernel = None, op_id
        if op_id is None and kernel is None:
            raise TypeError("[Invocation] got neither op_id= nor kernel=; expected one of them")
        values = (
            op_id if op_id is not None else op_of(kernel),
            tuple(args),
            dict(kwargs or {}),
            batch_axes,
            override_cfg,
            stamp,
            method,
            mesh,
            in_specs,
            out_specs,
            check_vma,
            kernel,
            {} if metadata is None else metadata,
            None,
            None,
        )
        for name, value in zip(self.__slots__, values):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:  # of a copy and a pickle
        first = [getattr(self, name) for name in self.__slots__[:11]]
        return functools.partial(Invocation, kernel=self.kernel, metadata=self.metadata), tuple(first)

    def __hash__(self) -> int:  # what equal ones have in common; their arguments may have no hash
        return hash((self.op_id, self.method, len(self.args)))

    def __repr__(self) -> str:
        return f"Invocation(op_id={self.op_id!r}, abstract_args={self.abstract_args!r}, kwargs={sorted(self.kwargs)})"

    @property
    def abstract_args(self) -> tuple[Any, ...]:
        """The arguments with their arrays as ShapeDtypeStruct."""
        from ejk.ops.utils.fingerprint import abstractify

        found: tuple[Any, ...] = abstractify(self.args)
        return found

    @property
    def abstract_kwargs(self) -> dict[str, Any]:
        """The same of the named arguments."""
        from ejk.ops.utils.fingerprint import abstractify

        found: dict[str, Any] = abstractify(self.kwargs)
        return found

    @property
    def device_fingerprint(self) -> str:
        """The device the call is made on."""
        from ejk.ops.core._function import site_of_call

        return site_of_call(self).core.fingerprint

    @property
    def call_key(self) -> str:
        """16 hex digits that stand for types, shapes and values of the arguments."""
        return self.make_key()

    def make_key(self, key_builder: typing.Callable[[Any], object] | None = None) -> str:
        """The call's key: what `key_builder(self)` gives, or the usual one."""
        if key_builder is not None:
            return str(key_builder(self))
        return describe(self, None).key


_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()  # those of kernels, by name


def remember_class(cls: type) -> None:
    """Makes a class of kernels known, so that recorded calls of it can be made again."""
    _classes[name_of(cls)] = cls


def class_named(name: object) -> type:
    """The class of kernels of that name, if this process has it; else ValueError."""
    found = _classes.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"the kernel {str(name)[:100]} is not known in this process")
    return found


def declare_types_of(cls: type, whose: str) -> None:
    """Makes known for `whose` what a kernel's class names itself: its config, annotations and defaults of `run` and
    `__init__`."""
    known = known_of(whose)
    known.declare(_declared_config(cls))
    for name in [name for name in dir(cls) if name in ("run", "__init__") or name.startswith("run_")]:
        method = getattr(cls, name)
        if method is getattr(Kernel, name, None):
            continue
        for hint in hints_of(method).values():
            known.declare(hint)
        defaults = getattr(method, "__defaults__", None) or ()
        for default in (*defaults, *(getattr(method, "__kwdefaults__", None) or {}).values()):
            _configs.encode(default, whose)


def declare_types_of_op(op: str) -> None:
    """Makes known for an op with its version what the classes of kernels that go by it name."""
    for cls in list(_classes.values()):
        if "@v".join(_names_of(cls)) == op:
            declare_types_of(cls, op)


def op_of(kernel: Any) -> str:
    """The name a kernel goes by, without its version."""
    return getattr(kernel, "op_id", "") or f"{type(kernel).__module__}.{type(kernel).__name__}"


def versioned_op(kernel: Any) -> str:
    return f"{op_of(kernel)}@v{getattr(kernel, 'version', '0')}"


def goes_by_its_own_name(kernel: Any) -> bool:
    """Whether name and version of a kernel are those of its class, or others that its `__init__` may have given and
    no other known class goes by: stores tell kernels apart by both."""
    given = getattr(kernel, "__dict__", {})
    if type(given.get("op_id", "")) is not str or type(given.get("version", "")) not in (str, int, float):
        return False
    cls, op, version = type(kernel), op_of(kernel), str(getattr(kernel, "version", "0"))
    own_op, own_version = _names_of(cls)
    if (op, version) == (own_op, own_version) or not {"op_id", "version"} & given.keys():
        return True
    has_init = cls.__init__ not in (Kernel.__init__, object.__init__)
    may_be_given = has_init or op != own_op and not getattr(cls, "op_id", "")
    others = [_names_of(other) for other in list(_classes.values()) if other is not cls]
    return may_be_given and (op, version) not in others


def _names_of(cls: type) -> tuple[str, str]:
    """Name and version of kernels of a class that are not given others."""
    return str(getattr(cls, "op_id", "") or f"{cls.__module__}.{cls.__name__}"), str(getattr(cls, "version", "0"))


def describe(inv: Any, kernel: Any, data: str = "") -> _core.Call:
    """The call as the core sees it. With a kernel, under that kernel's version and key. Made once."""
    from ejk.ops.core._function import site_of_call

    site = site_of_call(inv)
    known: tuple[Any, str, Any, _core.Call] | None = getattr(inv, "_described", None)
    if known is not None and known[0] is kernel and (not data or known[1] == data) and known[2] is site.core:
        return known[3]
    key_builder = _key_builder(kernel)
    call = _core.Call(
        op_id=inv.op_id,
        version=str(getattr(kernel, "version", "0")),
        device=site.core,
        method=getattr(inv, "method", None),
        args=inv.args,
        kwargs=dict(inv.kwargs),
        key=str(key_builder(inv)) if key_builder is not None else "",
        batch_axes=inv.batch_axes,
        data=data,
    )
    if isinstance(inv, Invocation):
        object.__setattr__(inv, "_described", (kernel, data, site.core, call))
    return call


def _key_builder(kernel: Any) -> typing.Callable[[Any], object] | None:
    """A kernel's own, a method or a function of the invocation alone; None if it has none."""
    found = getattr(kernel, "key_builder", None)
    code = getattr(found, "__code__", None)
    if isinstance(found, types.MethodType) and code is not None and (code.co_argcount, code.co_flags & 4) == (1, 0):
        return found.__func__
    return found


def declared_config(kernel: object) -> type | None:
    """The config type a kernel's class names, Kernel[Config, ...]; None if it names none."""
    return _declared_config(type(kernel))


def _declared_config(cls: type) -> type | None:
    for base in cls.__mro__:
        for generic in base.__dict__.get("__orig_bases__", ()):
            origin = typing.get_origin(generic)
            if isinstance(origin, type) and issubclass(origin, Kernel):
                first = typing.get_args(generic)[:1]
                if first and isinstance(first[0], type):
                    return first[0]
    return None


def _overrides(kernel: object, name: str) -> bool:
    """Whether a kernel has a method of its own instead of the one of the base class."""
    own = getattr(type(kernel), name, None)
    return (own is not None and own is not getattr(Kernel, name, None)) or name in getattr(kernel, "__dict__", {})


_HOOKS = frozenset(name for name in vars(Kernel) if not name.startswith("_")) - {"op_id", "version"} | {
    "is_valid",
    "numerics",
    "reference",
    "tolerance",
}


def may_be_set(cls: type, name: str, value: object) -> bool:
    """Whether a kernel of this class may get an attribute from a record: one that nothing calls in place of a hook."""
    if name.startswith("__") or name == "_ejk_compiled" or _is_no_data(cls, name):
        return False
    return not callable(value) or not any(name == hook or name.startswith(f"{hook}_") for hook in _HOOKS)


def _is_no_data(cls: type, name: str) -> bool:
    """Whether a class has something under this name that is more than the default of an attribute."""
    own = inspect.getattr_static(cls, name, None)
    if hasattr(type(own), "__set__") or hasattr(type(own), "__delete__"):
        return True
    if isinstance(own, type) or name in getattr(cls, "__dataclass_fields__", ()):
        return False
    return callable(own) or isinstance(own, (staticmethod, classmethod))


def _names(method: str, platform: str | None, context: str | None) -> typing.Iterator[str]:
    suffixes = _SUFFIXES.get(platform, (platform,)) if platform else ()
    if context:
        yield from (f"{method}_{context}_{suffix}" for suffix in suffixes)
        yield f"{method}_{context}"
    yield from (f"{method}_{suffix}" for suffix in suffixes)
    yield method
    yield f"{method}_xla"  # runs anywhere


def _get_platform_method(
    kernel: object, method_name: str, platform: str | None, context: str | None = None
) -> typing.Callable[..., Any] | None:
    """The most specific variant of a method that `kernel` has; None if it has none."""
    for name in _names(method_name, platform, context):
        if _overrides(kernel, name):
            found: typing.Callable[..., Any] = getattr(kernel, name)
            return found
    return None


def _has_custom_vjp(kernel: object, platform: str | None = None, context: str | None = None) -> bool:
    """Whether a kernel has gradients of its own: both halves, or both in one."""
    if _overrides(kernel, "custom_vjp"):
        return True
    halves = ("fwd_with_residuals", "vjp")
    return all(_get_platform_method(kernel, half, platform, context) is not None for half in halves)


__all__ = ["Invocation", "Kernel"]
