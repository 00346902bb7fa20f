# SPDX-License-Identifier: Apache-2.0
"""Warm calls of real code: kernels made anew, dtypes, enums and sets among the arguments, each told from the others."""

import dataclasses
import enum
import functools
import gc
import weakref
import zlib

import ejk.modules
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import run_program
from ejk.ops import AutotunePolicy, ConfigCache, ConfigSelectorChain, Kernel, pmap_with_config, policy_override
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import OneConfig, without_tuning


class Mode(enum.Enum):
    fast = 1
    safe = 2


class Other(enum.Enum):
    fast = 1


class Number(enum.IntEnum):
    one = 1


X = jnp.arange(4.0)


def told(*values) -> float:
    """A number that stands for values and their types."""
    return float(
        zlib.crc32(repr([(type(v), sorted(map(repr, v)) if isinstance(v, frozenset) else v) for v in values]).encode())
        % 9973
    )


class Tell(OneConfig):
    op_id = "warm.tell"

    def run(self, x, *values, cfg, **named):
        return x + told(*values, *named.values())


@pytest.fixture
def warm_only(executor, monkeypatch):
    """Calls from here on are warm or fail."""

    def no_step_in_python(*_, **__):
        raise AssertionError("the call is not warm")

    return lambda: monkeypatch.setattr(executor, "_call", no_step_in_python, raising=False)


VALUES = [
    jnp.float32,
    jnp.bfloat16,
    np.float32,
    np.dtype("float32"),
    np.dtype(ml_dtypes.bfloat16),
    jnp.dtype("int4"),
    float,
    Mode.fast,
    Mode.safe,
    Other.fast,
    Number.one,
    1,
    1.0,
    True,
    jax.lax.Precision.HIGHEST,
    frozenset(),
    frozenset({1, "a", Mode.fast}),
    frozenset({frozenset({1}), (2, jnp.float32)}),
    frozenset({1}),
    frozenset([7, 15]),  # one made of its members has another order
    frozenset({True}),
    frozenset({1.0}),
    (1,),
    (Mode.fast, (np.float32, None)),
    ...,
    None,
    "float32",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_a_second_call_with_such_a_value_is_warm(value, executor, warm_only):
    kernel = Tell()
    for _ in range(2):
        executor(kernel, X, value)
        executor(kernel, X, option=value)
    warm_only()
    assert (executor(kernel, X, value) == X + told(value)).all()
    assert (executor(kernel, X, option=value) == X + told(value)).all()


def test_operations_of_the_package_are_warm(executor, monkeypatch):
    x, w = jnp.ones((4, 64)), jnp.ones((64, 64))
    calls = [
        lambda: ejk.modules.softmax(x, executor=executor),
        lambda: ejk.modules.rms_norm(x, w[0], executor=executor),
        lambda: ejk.modules.layer_norm(x, w[0], executor=executor),
        lambda: ejk.modules.matmul(x, w, executor=executor),
    ]
    for call in calls:
        call(), call()
    # Warm without a step in Python: what comes here may still be warm for the executor.
    monkeypatch.setattr(ejk.modules, "_checked_run", lambda *_: pytest.fail("the call is not warm"))
    for call in calls:
        call()


def test_the_other_name_of_a_call_outlives_an_entry_that_goes_while_it_is_made():
    program = """
    import jax.numpy as jnp
    from ejk import modules
    from ejk.ops import AutotunePolicy, ConfigSelectorChain, Executor

    x, asked = jnp.ones((2, 8)), []
    executor = Executor(ConfigSelectorChain(policy=AutotunePolicy(allow_autotune=False)))

    def where(*arrays):
        asked.append(executor._warm_entries)
        if len(asked) == 3:  # of the call, of its entry that is looked for, of its other name
            executor._forget()
        return where

    executor._count_sites(where)
    modules.softmax(x, executor=executor)
    assert asked == [0, 1, 1] and executor._warm_entries == 1, asked
    modules._checked_run = None
    assert abs(modules.softmax(x, executor=executor).sum(1) - 1).max() < 1e-6
    """
    # What is freed is overwritten.
    run_program(program, GLIBC_TUNABLES="glibc.malloc.tcache_count=0:glibc.malloc.perturb=165")


CHANGES_OF_SELECTORS = {
    "a member of the policy": lambda chooser: setattr(chooser.policy, "budget_seconds", 1.0),
    "the policy": lambda chooser: setattr(chooser, "policy", AutotunePolicy(allow_autotune=False)),
    "the cache": lambda chooser: setattr(chooser, "cache", ConfigCache()),
    "the store": lambda chooser: setattr(chooser, "persistent", None),
    "who hears of events": lambda chooser: setattr(chooser, "on_event", None),
}


@pytest.mark.parametrize("change", CHANGES_OF_SELECTORS)
def test_a_selector_that_is_made_leaves_warm_calls_warm_and_one_that_is_changed_does_not(change, executor, warm_only):
    kernel = Tell()
    executor(kernel, X), executor(kernel, X)
    warm_only()
    ConfigSelectorChain(policy=AutotunePolicy(validate_backward=True), autotune=False)
    with policy_override(allow_heuristics=False):
        assert not executor.chooser.policy.allow_heuristics
    executor(kernel, X)
    CHANGES_OF_SELECTORS[change](executor.chooser)
    with pytest.raises(AssertionError, match="not warm"):
        executor(kernel, X)


def test_no_value_is_taken_for_another(executor, warm_only):
    for _ in range(2):
        for value in VALUES:
            assert (executor(Tell(), X, value) == X + told(value)).all(), value
    warm_only()
    for value in reversed(VALUES):
        assert (executor(Tell(), X, value) == X + told(value)).all(), value


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.sampled_from(VALUES), max_size=3), min_size=1, max_size=6))
def test_results_are_those_of_run_in_any_order(calls):
    executor = without_tuning()
    for values in calls * 2:
        assert (executor(Tell(), X, *values) == X + told(*values)).all()


def test_many_options_that_are_left_at_their_defaults_stay_warm(executor, warm_only):
    options = {f"option_{i:02}": VALUES[i % len(VALUES)] for i in range(40)}
    none = dict(cfg=None, _cfg=None, method=None, mesh=None, in_specs=None, out_specs=None)
    kernel = Tell()
    for _ in range(2):
        executor(kernel, X, **options, **none)
    warm_only()
    assert (executor(kernel, X, **options, **none) == X + told(*options.values())).all()


# ---- kernels made anew ---------------------------------------------------------------------------


class Scale(Tell):
    op_id = "warm.scale"

    def __init__(self, *values):
        super().__init__(op_id="warm.scale")
        self.values = values

    def run(self, x, *, cfg):
        return x + told(self.values)


@dataclasses.dataclass(frozen=True)
class Frozen(Tell):
    values: tuple

    def run(self, x, *, cfg):
        return x + told(self.values)


@dataclasses.dataclass(frozen=True, slots=True)
class Slots(Tell):
    values: tuple

    def run(self, x, *, cfg):
        return x + told(self.values)


class Duck:
    op_id, version = "warm.duck", "1"

    def __init__(self, values):
        self.values = values

    def run(self, x, *, cfg):
        return x + told(self.values)

    def heuristic_cfg(self, inv):
        return 1


MAKERS = [lambda values: Scale(*values), Frozen, Slots, Duck]
KINDS = pytest.mark.parametrize("make", MAKERS, ids=["plain", "frozen", "slots", "duck"])


@KINDS
def test_a_kernel_made_anew_is_as_warm_as_an_equal_one(make, executor, warm_only):
    states = [
        (),
        (1,),
        (1.0,),
        (True,),
        (Mode.fast,),
        (Other.fast,),
        (jnp.float32,),
        (np.float32, "a"),
        (frozenset({1}),),
    ]
    for state in states:
        assert (executor(make(state), X) == X + told(state)).all(), state
    warm_only()
    for state in reversed(states):
        assert (executor(make(state), X) == X + told(state)).all(), state
    assert executor._warm_entries == len(states)


def test_a_changed_attribute_is_noticed(executor):
    kernel, duck = Scale(1), Duck((1,))
    for value in (1, 2, 1.0, 2, 1):
        kernel.values = duck.values = (value,)
        for _ in range(2):
            assert (executor(kernel, X) == X + told((value,))).all()
            assert (executor(duck, X) == X + told((value,))).all()


class Weighted(Tell):
    op_id = "warm.weighted"

    def __init__(self, weights, note=None):
        super().__init__()
        self.weights, self.note = weights, note

    def run(self, x, *, cfg):
        return x * jnp.asarray(self.weights)


@pytest.mark.parametrize(
    "of", [jnp.asarray, np.asarray, list, lambda w: (jnp.asarray(w),)], ids=["jax", "numpy", "list", "tuple"]
)
def test_kernels_with_weights_are_not_taken_for_each_other(of, executor):
    for weights in ([1.0] * 4, [2.0] * 4, [1.0] * 4, [3.0] * 4):
        for _ in range(2):
            assert (executor(Weighted(of(weights)), X) == X * weights[0]).all()


def test_a_hook_of_an_objects_own_is_not_taken_for_its_classs(executor):
    def with_run(number):
        kernel = Scale()
        kernel.run = lambda x, *, cfg: x + number
        return kernel

    for _ in range(2):
        assert (executor(Scale(), X) == X + told(())).all()
        for number in (7, 8):
            assert (executor(with_run(number), X) == X + number).all()


class Hidden(Tell):
    """Its state is not in its attributes."""

    __slots__ = ("__secret",)

    def __init__(self, secret):
        super().__init__()
        self.__secret = secret

    def run(self, x, *, cfg):
        return x + self.__secret


def test_a_kernel_with_hidden_state_is_told_apart(executor):
    for secret in (1, 2, 1, 3):
        assert (executor(Hidden(secret), X) == X + secret).all()


def test_gradients_and_jit_see_the_same(executor):
    for scale in (2, 3, 2, 3):
        kernel = Weighted(scale)
        assert (jax.grad(lambda x, k=kernel: executor(k, x).sum())(X) == scale).all()
        assert (jax.jit(lambda x, k=kernel: executor(k, x))(X) == X * scale).all()
        assert (executor(kernel, X) == X * scale).all()


def test_classes_made_anew_do_not_pile_up(executor):
    for i in range(280):
        made = type("Made", (Scale,), {"op_id": "warm.made"})
        option = enum.Enum("Option", "a b").a
        assert (executor(made(i), X) == X + told((i,))).all()
        if i % 100 == 0:
            assert (executor(Tell(), X, option) == X + told(option)).all()
    assert executor._warm_entries < 280


# ---- configs of the caller's own -----------------------------------------------------------------


@dataclasses.dataclass
class Inner:
    numbers: tuple = ()


@dataclasses.dataclass
class Config:
    block: object = 1
    inner: Inner | None = None


class Configured(Kernel[Config, jax.Array]):
    op_id = "warm.configured"

    def run(self, x, *, cfg):
        return x + told(cfg.block, *(cfg.inner.numbers if cfg.inner else ()))

    def heuristic_cfg(self, inv):
        return Config(0)


def test_a_config_made_anew_is_as_warm_as_an_equal_one(executor, warm_only):
    configs = [
        lambda b=b, n=n: Config(b, n and Inner(n))
        for b in (1, 1.0, True, Mode.fast)
        for n in (None, (1,), (1.0, jnp.int4))
    ]
    for make in configs:
        expected = X + told(make().block, *(make().inner.numbers if make().inner else ()))
        assert (executor(Configured(), X, cfg=make()) == expected).all()
        assert (executor(Configured(), X, _cfg=make()) == expected).all()
    assert (executor(Configured(), X) == X + told(0)).all()
    warm_only()
    for make in reversed(configs):
        expected = X + told(make().block, *(make().inner.numbers if make().inner else ()))
        assert (executor(Configured(), X, cfg=make()) == expected).all()
        assert (executor(Configured(), X, _cfg=make()) == expected).all()
    assert (executor(Configured(), X) == X + told(0)).all()


def test_a_changed_config_is_noticed(executor):
    config = Config(1, Inner())
    for block in (1, 2, 1, 3):
        config.block, config.inner.numbers = block, (block,)
        for _ in range(2):
            assert (executor(Configured(), X, cfg=config) == X + told(block, block)).all()


def test_a_config_of_the_callers_own_is_for_that_call_alone(executor):
    for _ in range(3):
        assert (executor(Configured(), X, cfg=Config(5)) == X + told(5)).all()
        assert (executor(Configured(), X) == X + told(0)).all()
        assert executor.choose_config(Configured(), X) == Config(0)


# ---- what kernels hold ---------------------------------------------------------------------------

W = jnp.ones(4)


def reads_a_global(x):
    return x * W


class Reader:
    def __init__(self):
        self.w = jnp.ones(4)

    def __call__(self, x):
        return x * self.w


class Holding(Tell):
    op_id = "warm.holding"

    def __init__(self, f):
        super().__init__()
        self.f = f

    def run(self, x, *, cfg):
        return self.f(x)


@pytest.mark.parametrize("kept", [False, True], ids=["made_anew", "kept"])
def test_a_function_that_a_kernel_holds_reads_what_a_global_is_now(kept, executor, monkeypatch):
    kernel = Holding(reads_a_global)
    for number in (1, 2, 3, 1):
        monkeypatch.setitem(globals(), "W", jnp.full(4, float(number)))
        for _ in range(3):
            assert (executor(kernel if kept else Holding(reads_a_global), X) == X * number).all()
            assert (jax.jit(lambda x: executor(kernel, x))(X) == X * number).all()


@pytest.mark.parametrize("kept", [False, True], ids=["made_anew", "kept"])
@pytest.mark.parametrize("of", [lambda h: h, lambda h: (h,), lambda h: {"h": [h]}], ids=["itself", "tuple", "dict"])
def test_an_object_that_a_kernel_holds_is_what_it_is_now(kept, of, executor):
    class Deep(Holding):
        def run(self, x, *, cfg):
            held = self.f
            while not callable(held):
                held = held["h"] if isinstance(held, dict) else held[0]
            return held(x)

    reader = Reader()
    kernel = Deep(of(reader))
    for number in (1, 2, 3, 1):
        reader.w = jnp.full(4, float(number))
        for _ in range(3):
            assert (executor(kernel if kept else Deep(of(reader)), X) == X * number).all()


def test_weights_that_are_changed_in_place_are_noticed(executor):
    weights, numbers = np.ones(4, np.float32), [1.0] * 4
    kernels = Weighted(weights), Weighted(numbers)
    for number in (1.0, 2.0, 3.0, 1.0):
        weights[:], numbers[:] = number, [number] * 4
        for _ in range(3):
            for kernel in kernels:
                assert (executor(kernel, X) == X * number).all()


class OfTheClass(Tell):
    op_id, scale, table = "warm.of_the_class", 1, None

    def run(self, x, *, cfg):
        return x * (self.scale if self.table is None else self.table["scale"])


def test_an_attribute_of_the_class_that_is_set_later_is_noticed(executor, warm_only, monkeypatch):
    kernel, table = OfTheClass(), {"scale": 1}
    for number in (1, 2, 1.5, 2):
        monkeypatch.setattr(OfTheClass, "scale", number)
        for _ in range(2):
            assert (executor(kernel, X) == X * number).all()
            assert (executor(OfTheClass(), X) == X * number).all()
    monkeypatch.setattr(OfTheClass, "table", table)
    for number in (1, 2, 3):
        table["scale"] = number
        for _ in range(3):
            assert (executor(kernel, X) == X * number).all()
    monkeypatch.setattr(OfTheClass, "table", None)
    warm_only()
    assert (executor(kernel, X) == X * 2).all()


class Halves:
    def half(self, x):
        return x / 2


class Mixed(Halves, Tell):
    op_id = "warm.mixed"

    def run(self, x, *, cfg):
        return self.half(x) * getattr(self, "late", 1) * self.read() + self.fixed() + self.known + cfg_of(cfg)

    def read(self):
        return 1

    @staticmethod
    def fixed():
        return 0

    @property
    def known(self):
        return 0


@dataclasses.dataclass(frozen=True)
class Times:
    n: int = 1

    def more(self):
        return 0


def cfg_of(cfg):
    return cfg.more() + getattr(cfg, "late", 0) if isinstance(cfg, Times) else 0


CHANGES_OF_CLASSES = {
    "a late attribute": (Mixed, "late", 3),
    "a late attribute of a base": (Halves, "late", 3),
    "run": (Mixed, "run", lambda self, x, *, cfg: x * 7),
    "a method": (Mixed, "read", lambda self: 5),
    "a method of a base": (Halves, "half", lambda self, x: x * 8),
    "a method that hides another": (Mixed, "half", lambda self, x: x * 8),
    "a static method": (Mixed, "fixed", staticmethod(lambda: 5)),
    "a property": (Mixed, "known", property(lambda self: 5)),
    "a method of a config": (Times, "more", lambda self: 5),
    "a late attribute of a config": (Times, "late", 5),
}


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "made anew"])
@pytest.mark.parametrize("name", CHANGES_OF_CLASSES)
def test_a_change_of_a_class_is_noticed(executor, monkeypatch, name, is_kept):
    cls, attribute, value = CHANGES_OF_CLASSES[name]
    kept = Mixed()

    def check():
        for _ in range(3):
            kernel = kept if is_kept else Mixed()
            for cfg in (1, Times()):
                assert (executor(kernel, X, cfg=cfg) == kernel.run(X, cfg=cfg)).all()

    check()
    with monkeypatch.context() as changed:
        changed.setattr(cls, attribute, value, raising=False)
        check()
    check()


def test_a_class_that_is_changed_back_and_forth_is_warm_in_between(executor, warm_only, monkeypatch):
    for n in (2, 3, 2):
        monkeypatch.setattr(Mixed, "late", n, raising=False)
        for _ in range(2):
            executor(Mixed(), X)
    warm_only()
    assert (executor(Mixed(), X) == Mixed().run(X, cfg=1)).all()


def test_an_attribute_that_is_set_past_the_kernel_is_noticed(executor):
    kernel = Scale(1)
    for number in (1, 2, 1.0, 2):
        kernel.__dict__["values"] = (number,)
        for _ in range(2):
            assert (executor(kernel, X) == X + told((number,))).all()


def test_a_kernel_that_changes_is_not_taken_for_what_it_was(executor):
    traced = jax.jit(lambda x, kernel: executor(kernel, x), static_argnums=1)
    first = Scale(1)
    assert (traced(X, first) == X + told((1,))).all()
    first.values = (2,)
    assert (traced(X, Scale(1)) == X + told((1,))).all()
    assert (traced(X, Scale(2)) == X + told((2,))).all()


def test_pmap_sees_what_a_kernel_holds_now(executor):
    kernel = Weighted(1.0)
    parallel = pmap_with_config(executor, kernel)
    reader = Reader()
    holding = pmap_with_config(executor, Holding(reader))
    for number in (1.0, 2.0, 3.0):
        kernel.weights, reader.w = number, jnp.full(4, number)
        assert (parallel(X[None]) == X * number).all()
        assert (holding(X[None]) == X * number).all()


@dataclasses.dataclass(frozen=True)
class Part:
    name: str

    def with_note(self, note):
        object.__setattr__(self, "note", note)
        return self


ALIKE = [
    (lambda v: float(np.signbit(v)), np.float32(0.0), np.float32(-0.0)),
    (lambda v: float(np.signbit(v)), np.float64(0.0), np.float64(-0.0)),
    (lambda v: float(np.signbit(v.imag)), complex(0, 0.0), complex(0, -0.0)),
    (lambda v: float(next(iter(v))), frozenset([8, 0]), frozenset([0, 8])),
    (lambda v: float(v.stop), range(0, 3, 2), range(0, 4, 2)),
    (lambda v: float(v[0].stop), (range(0, 3, 2),), (range(0, 4, 2),)),
    (lambda v: float(v.note), Part("a").with_note(1), Part("a").with_note(2)),
]


class Read(Tell):
    op_id = "warm.read"

    def __init__(self, read, value):
        super().__init__()
        self.read_, self.value = ALIKE.index(read), value

    def run(self, x, *, cfg):
        return x + ALIKE[self.read_][0](self.value)


@pytest.mark.parametrize("case", ALIKE, ids=lambda case: type(case[1]).__name__)
def test_values_that_compare_equal_are_told_apart_in_a_kernel(case, executor):
    for value in (*case[1:], *case[1:]):
        assert (executor(Read(case, value), X) == X + case[0](value)).all()


# ---- what configs hold ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Acting:
    act: object


class ByConfig(Tell):
    op_id = "warm.by_config"

    def run(self, x, *, cfg):
        return cfg.act(x) if callable(cfg.act) else x * jnp.asarray(cfg.act)


class Chosen(ByConfig):
    op_id = "warm.chosen"

    def heuristic_cfg(self, inv):
        return Acting(reads_a_global)


def test_a_function_that_a_config_holds_reads_what_a_global_is_now(executor, monkeypatch):
    kernel, config, chosen = ByConfig(), Acting(reads_a_global), Chosen()
    for number in (1, 2, 3, 1):
        monkeypatch.setitem(globals(), "W", jnp.full(4, float(number)))
        for _ in range(3):
            assert (executor(kernel, X, cfg=config) == X * number).all()
            assert (executor(kernel, X, cfg=Acting(reads_a_global)) == X * number).all()
            assert (executor(chosen, X) == X * number).all()


@pytest.mark.parametrize("in_what", [lambda a: a, lambda a: (a,), lambda a: [a]], ids=["itself", "tuple", "list"])
def test_arrays_that_a_config_holds_are_what_they_are_now(in_what, executor):
    weights = np.ones(4, np.float32)
    kernel, config = ByConfig(), Acting(in_what(weights))
    for number in (1.0, 2.0, 3.0, 1.0):
        weights[:] = number
        for _ in range(3):
            assert (executor(kernel, X, cfg=config) == X * number).all()
            assert (executor(kernel, X, cfg=Acting(jnp.full(4, number))) == X * number).all()


def test_configs_of_two_classes_of_one_name_are_told_apart(executor):
    def of_a_class(number):
        @dataclasses.dataclass(frozen=True)
        class Local:
            block: int = 1
            act = number

        return Local()

    kernel = ByConfig()
    for _ in range(2):
        for number in (1, 2, 3):
            assert (executor(kernel, X, cfg=of_a_class(number)) == X * number).all()


# ---- what stays ----------------------------------------------------------------------------------


class Head:
    def __init__(self, number):
        self.w = np.full(4, number, np.float32)

    def __call__(self, x):
        return x * self.w


def head_of_a_closure(number):
    weights = jnp.full(4, float(number))
    return lambda x: x * weights


HEADS = [Head, head_of_a_closure, lambda number: functools.partial(Head(number))]


@pytest.mark.parametrize("make", HEADS, ids=["object", "closure", "partial"])
@pytest.mark.parametrize("holder", ["kernel", "config"])
def test_objects_that_a_calls_own_kernel_and_config_hold_go_with_them(make, holder, executor):
    class Part:
        """Something that is seen to go."""

    gone = []
    for number in range(10):
        head, part = make(number), Part()
        gone.append(weakref.ref(part))
        if holder == "kernel":
            kernel = Holding(head if number % 2 else (lambda x, head=head: head(x)))
            kernel.part = part
            config = None
        else:
            kernel, config = ByConfig(), Acting((part, head))
            kernel.run = lambda x, *, cfg: x
        executor(kernel, X, cfg=config)
        executor(kernel, X, cfg=config)
    del head, part, kernel, config
    gc.collect()
    assert sum(reference() is not None for reference in gone) == 0


class Applied(Kernel):
    op_id = "applied"

    def run(self, x, f, *, cfg):
        return f(x)

    def heuristic_cfg(self, inv):
        return 1


def test_types_of_numpy_may_be_keys_of_what_a_function_reads(executor):
    scales = {np.float32: 2.0, np.int32: 3.0}
    executor(Applied(), X, lambda x: x * scales[np.float32])
    scales[np.float32] = 5.0
    assert (executor(Applied(), X, lambda x: x * scales[np.float32]) == 5 * X).all()
