# SPDX-License-Identifier: Apache-2.0
"""Keys equal the original's vectors, and differ where the original's collide."""

import collections
import copy
import dataclasses
import functools
import hashlib
import json
import pathlib
import pickle
import struct
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program
from ejk.ops import (
    BwdParams,
    Executor,
    FwdParams,
    Invocation,
    Kernel,
    default_key_builder_with_sharding,
    extract_labels_from_hlo_text,
    label,
    policy_override,
    short_hash,
    stable_json,
    to_json,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "tests/data/keys.json").read_text())


def array(description, make):
    dtype = description["dtype"]
    if dtype.startswith("key<"):
        key = jax.random.key(0)
        return jax.random.split(key, description["shape"][0]) if description["shape"] else key
    return make(description["shape"], dtype)


def np_array(shape, dtype):
    if dtype.startswith("str"):
        return np.zeros(shape, f"U{int(dtype[3:]) // 32}")
    return np.zeros(shape, dtype)


def made(v):
    kind = v["t"]
    if kind == "jax_array":
        return array(v, lambda shape, dtype: jnp.zeros(shape, dtype))
    if kind == "np_array":
        return array(v, np_array)
    if kind == "shape_dtype_struct":
        return jax.ShapeDtypeStruct(v["shape"], v["dtype"])
    if kind == "none":
        return None
    if kind in ("bool", "str"):
        return v["v"]
    if kind == "int":
        return int(v["v"])
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(v["bits"]))[0]
    if kind == "np_scalar":
        if v["dtype"] == "bool":
            return np.bool_(v["repr"] == "np.True_")
        return np.dtype(v["dtype"]).type(v["repr"].split("(")[1].rstrip(")"))
    if kind == "np_dtype":
        return np.dtype(v["name"])
    if kind == "list":
        return [made(x) for x in v["v"]]
    if kind == "tuple":
        return tuple(made(x) for x in v["v"])
    if kind == "namedtuple":
        names = [f"f{i}" for i in range(len(v["v"]))]
        return collections.namedtuple("T", names)(*(made(x) for x in v["v"]))
    if kind == "dict":
        return {k if isinstance(k, str) else made(k): made(x) for k, x in v["v"]}
    if kind == "dataclass":
        fields = {name: made(x) for name, x in v["v"]}
        known = {"FwdParams": FwdParams, "BwdParams": BwdParams}.get(v["name"])
        if known is not None:
            return known(**fields)
        return dataclasses.make_dataclass(v["name"], list(fields))(**fields)
    if kind == "pydantic":
        import pydantic

        fields = {name: made(x) for name, x in v["v"]}
        return pydantic.create_model(v.get("name", "M"), **{n: (object, ...) for n in fields})(**fields)
    raise AssertionError(f"unknown kind {kind}: {v}")


def invocation(v):
    op = v["label"].split("#", 1)[1].rsplit("@v", 1)[0]
    return Invocation(
        op_id=op,
        args=tuple(made(a) for a in v["args"]),
        kwargs={name: made(value) for name, value in v["kwargs"]},
        batch_axes=v["batch_axes"],
        method=v["method"],
    )


@pytest.fixture(scope="module", autouse=True)
def wide_types():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("v", [v for v in VECTORS["invocations"] if v["portable"]], ids=lambda v: v["name"])
def test_every_portable_call_has_the_originals_key(v):
    from ejk.ops.core.kernel import describe

    inv = invocation(v)
    assert describe(inv, None).spec == v["stable_json"]
    assert inv.call_key == v["call_key"]
    op = v["label"].split("#", 1)[1].rsplit(":", 1)[0]
    assert label(op, inv.call_key) == v["label"]


@pytest.mark.parametrize(
    "v",
    [v for v in VECTORS["invocations"] if v["portable"] and not any(a["t"] == "jax_array" for a in v["args"])],
    ids=lambda v: v["name"],
)
def test_keys_with_sharding_equal_the_originals(v):
    # A sharding's text names the device, which is another one wherever there are several.
    if "sharding" in json.dumps(v["args"]):
        pytest.skip("nested arrays of JAX")
    if "jax_array" not in json.dumps(v):
        assert default_key_builder_with_sharding(invocation(v)) == v["key_with_sharding"]


@pytest.mark.parametrize("v", VECTORS["bare"], ids=lambda v: v["name"])
def test_every_value_has_the_originals_text(v):
    value = made(v["value"])
    assert stable_json(value) == v["stable_json"]
    assert short_hash(value) == v["short_hash"]
    if v["value"]["t"] not in ("jax_array", "np_array", "pydantic"):
        assert to_json(value) == v["to_json"]


def test_floats_are_written_as_python_writes_them():
    for bits, text in VECTORS["float_text"]:
        assert stable_json(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


def test_labels_equal_the_originals():
    for v in VECTORS["labels"]:
        assert label(v["op_id"], v["hash"], v["prefix"]) == v["label"]


@pytest.mark.parametrize("v", VECTORS["extract"], ids=lambda v: v["name"])
def test_labels_are_found_where_the_original_finds_them_and_where_it_does_not(v):
    found = extract_labels_from_hlo_text(v["text"])
    if v["labels"]:
        assert found == v["labels"]
    elif v["label_re"]:
        assert found == [f"ejkernel_ops#{m['op']}:{m['key']}" for m in v["label_re"]]


@pytest.mark.parametrize("v", VECTORS["params_hash"], ids=lambda v: str(v["python_hash"]))
def test_parameters_hash_as_the_originals(v):
    assert hash(made(v["value"])) == v["python_hash"]


def key(*args, **kwargs):
    return Invocation(op_id="op", args=args, kwargs=kwargs).call_key


class Opaque:
    def __init__(self, value):
        self.value = value


DISTINCT = {
    "dtype classes": [jnp.float32, jnp.bfloat16, np.float32, np.int8, float, int],
    "functions": [jnp.tanh, jnp.sin, len, lambda x: x, lambda x: x + 1, lambda x: x + 2],
    "partials": [functools.partial(max, 1), functools.partial(max, 2), functools.partial(min, 1)],
    "functions of JAX": [jax.nn.relu, jax.nn.gelu, jax.jit(lambda x: x), jax.jit(lambda x: 2 * x), jax.custom_vjp(len)],
    "objects": [Opaque(1), Opaque(2), Opaque((1, 2)), object()],
    "closures": [(lambda n: lambda x: x + n)(n) for n in (1, 2)],
    "numbers": [1, 1.5, "1", True, None, 1 + 2j, b"1"],
    "sets": [{1, 2}, {1, 3}, frozenset()],
}


@pytest.mark.parametrize("kind", DISTINCT)
def test_different_things_have_different_keys(kind):
    keys = [key(thing) for thing in DISTINCT[kind]]
    assert len(set(keys)) == len(keys)


def test_objects_do_not_count_by_their_address():
    assert key(Opaque(1)) == key(Opaque(1))
    assert key({"a", "b", "c"}) == key({"c", "b", "a"})
    assert "0x" not in stable_json([Opaque(1), object(), jnp.tanh, lambda: 0])


def test_functions_do_not_count_by_path_or_line():
    text = stable_json(lambda x: x)
    assert __file__ not in text and ".py" not in text


def test_jitted_functions_do_not_count_by_what_jax_keeps_in_them():
    f = jax.jit(lambda x: 2 * x)
    before = stable_json([f, jax.nn.relu])
    f(1.0), jax.nn.relu(jnp.ones(2))
    assert stable_json([f, jax.nn.relu]) == before and "cache" not in before


def test_objects_that_lead_back_to_themselves_have_keys():
    def linked(value):
        one, other = Opaque(value), Opaque(None)
        one.next, other.next = other, one
        return one

    assert key(linked(1)) == key(linked(1)) != key(linked(2))
    assert key(linked(1)) != key(linked(1).next)


KEYS_OF_SETS = """
import enum
from ejk.ops import short_hash

class Modes(enum.Enum):
    smooth = frozenset({"relu", "gelu", "silu"})

def inside(mode):
    return mode in {"relu", "gelu", "silu", ("a", "b")}

def around(mode):
    return lambda: mode in {"relu", "gelu", "silu"}

nested = {frozenset({"a", "b", "c"}), ("d", frozenset({"e", "f", "g"}))}
constants = inside.__code__.replace(co_consts=(*inside.__code__.co_consts, ("d", frozenset({"e", "f", "g"}))))
print(*map(short_hash, [inside, around, around(1), type(inside)(constants, {}), nested, Modes.smooth]))
"""


def test_sets_count_alike_in_every_process():
    assert len({run_program(KEYS_OF_SETS, PYTHONHASHSEED=str(seed)).stdout for seed in range(5)}) == 1


def test_texts_of_constants_are_those_of_python_but_for_the_order_of_sets():
    from ejk import _describe

    for value in (1, -0.0, "a'b", (), (1,), (1, ("x", None, ...)), set(), frozenset(), {1}, frozenset({"a"}), ({(1,)}, b"x")):
        assert _describe._text(value) == repr(value)
    assert _describe._text(({"b", "a"}, frozenset({2, 1}))) == "({'a', 'b'}, frozenset({1, 2}))"


def test_unusual_dict_keys_are_no_error():
    assert key({1: 2, "a": 3, None: 4}) != key({1: 2, "a": 3, None: 5})
    assert key({(1, 2): 3}) != key({(1, 3): 3})


def test_an_object_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        key(loop)


def test_a_kernel_may_have_a_key_of_its_own():
    class Bucketed(Kernel):
        def key_builder(self, inv):
            return f"rows{-(-inv.args[0].shape[0] // 64) * 64}"

    from ejk.ops.core.kernel import describe

    kernel = Bucketed()
    keys = [describe(Invocation(kernel=kernel, args=(np.zeros(n),)), kernel).key for n in (3, 60, 65)]
    assert keys == ["rows64", "rows64", "rows128"]


def test_sharding_counts_with_the_builder_that_says_so():
    mesh = jax.make_mesh((2,), ("x",))
    x = jnp.zeros((4, 4))
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("x")))
    plain, sharded = (Invocation(op_id="op", args=(a,)) for a in (x, spread))
    assert plain.call_key == sharded.call_key
    assert default_key_builder_with_sharding(plain) != default_key_builder_with_sharding(sharded)

    class K(Kernel):
        pass

    assert default_key_builder_with_sharding(K("op"), (x,), {}).startswith("op@v0:")

    from ejk.ops.core.kernel import describe

    def rows(inv):
        return f"rows{inv.args[0].shape[0]}"

    class WithSharding(Kernel):
        key_builder = default_key_builder_with_sharding

    class ByRows(Kernel):
        key_builder = rows

    of = [describe(inv, WithSharding("op")).key for inv in (plain, sharded)]
    assert of == [default_key_builder_with_sharding(inv) for inv in (plain, sharded)]
    assert describe(plain, ByRows("op")).key == "rows4"


def test_invocations_can_be_copied():
    inv = Invocation(kernel=Kernel("op"), args=(np.ones(3), 2), kwargs={"scale": 2.0}, metadata={"why": "so"})
    for other in (copy.copy(inv), pickle.loads(pickle.dumps(inv))):
        assert other.call_key == inv.call_key and other.metadata == inv.metadata and other.op_id == "op"


@pytest.mark.parametrize(
    "text, written, key",
    [
        ("\ud83d", r'"\ud83d"', "690ddc315345577e"),
        ("a\ud83db", r'"a\ud83db"', "d14c8a0d48b1d5a9"),
        ("\udcff\ud83d", r'"\udcff\ud83d"', "794130be372818e9"),
        ("\ud83d\ude00", r'"\ud83d\ude00"', "2e71c27475b8745d"),
        ("\U0001f600", r'"\ud83d\ude00"', "2e71c27475b8745d"),
        ("\udcff", r'"\udcff"', "0b675834ce92a29e"),
        ("\udced\udca0\udcbd", r'"\udced\udca0\udcbd"', None),
    ],
    ids=ascii,
)
def test_half_characters_have_the_keys_of_ejkernel(text, written, key):
    assert stable_json(text) == written
    assert short_hash(text) == hashlib.sha256(written.encode()).hexdigest()[:16]
    inv = Invocation(op_id="x", args=(np.ones(3, "float32"), text))
    assert key is None or inv.call_key == key


def test_half_characters_run_and_are_told_apart():
    class Repeat(Kernel):
        def run(self, x, text, *, cfg, **kwargs):
            return x * len(text) + len(kwargs)

        def heuristic_cfg(self, inv):
            return 1

    executor, kernel, x = Executor(), Repeat(), np.ones(2)
    assert executor(kernel, x, "\ud83d")[0] == 1 and executor(kernel, x, "\udced\udca0\udcbd")[0] == 3
    assert executor.label(kernel, x, "\ud83d") != executor.label(kernel, x, "\udced\udca0\udcbd")
    assert executor(kernel, x, "", **{"\ud83d": 1})[0] == 1


def test_an_object_that_asks_for_a_text_does_not_change_that_of_its_argument():
    class Asks:
        def __repr__(self):
            return stable_json("plain")

    assert stable_json(["\ud83d", Asks()]) == r'["\ud83d","\"plain\""]'


@pytest.mark.parametrize(
    "method, key",
    [
        (None, "4b89b628aeafeb12"),
        ("shard_map", "e93975c0dd340f86"),
        ("pmap", "b6c0444d1130e30f"),
        ("vmap", "8a7940a4b13e25d7"),
        ("batch", "011c88649212f789"),
        ("", "508e99190432bfe2"),
    ],
)
def test_methods_have_the_keys_of_ejkernel(method, key):
    assert Invocation(op_id="x", args=(np.ones(3, "float32"),), method=method).call_key == key


@pytest.mark.parametrize("method", ["batch", "pmap", "vmap"])
def test_a_method_that_selects_no_hooks_is_a_plain_call(method):
    class Plain(Kernel):
        def run(self, x, *, cfg):
            return x * cfg

        def heuristic_cfg(self, inv):
            return 2 if inv.method == method else 3

    executor, x = Executor(), np.ones(2)
    with policy_override(allow_autotune=False):
        assert executor(Plain(), x, method=method)[0] == 2 and executor(Plain(), x)[0] == 3


class AnswersAll:
    def __getattr__(self, name):
        return self


class NoText:
    def __repr__(self):
        raise RuntimeError("no text")

    def __call__(self, x):
        return x


def holds(value):
    return lambda x: (x, value)


def composed(count):
    function = len
    for _ in range(count):
        function = holds(function)
    return function


def hostile_callables():
    endless = {}
    endless["itself"] = endless
    return {
        "holds_an_endless_dict": holds(endless),
        "partial_of_an_endless_dict": functools.partial(len, endless),
        "composed": composed(150),
        "single_dispatch": functools.singledispatch(holds(1)),
        "answers_all": AnswersAll(),
        "mock": unittest.mock.Mock(),
        "no_text": NoText(),
        "holds_no_text": holds(NoText()),
        "set_of_no_text": {NoText()},
    }


@pytest.mark.parametrize("name", hostile_callables())
def test_every_kind_of_callable_has_a_key(name):
    x = np.ones(3, "float32")
    value = hostile_callables()[name]
    keys = [Invocation(op_id="x", args=(x, value)).call_key, Invocation(op_id="x", args=(x, value)).call_key]
    assert keys[0] == keys[1] != Invocation(op_id="x", args=(x, None)).call_key
    assert Invocation(op_id="x", args=(x,), kwargs={"deep": [[{"a": value}]]}).call_key
