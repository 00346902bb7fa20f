# SPDX-License-Identifier: Apache-2.0
"""ejk.modules: the C++ operations in JAX and on arrays in memory, against plain JAX."""

import inspect
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program
from ejk import _core, modules
from ejk.modules import _ffi, _plain
from ejk.ops import ConfigSelectorChain, Executor, find_labels_in_lowered, overlay_cache, policy_override
from ejk.ops.config.cache import ConfigCache
from jax.sharding import PartitionSpec as P

random = np.random.default_rng(0)


def normal(*shape, dtype="float32"):
    return jnp.asarray(random.standard_normal(shape, dtype="float32")).astype(dtype)


pytestmark = pytest.mark.usefixtures("no_tuning")


def close(a, b, tolerance=3e-5):
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_allclose(np.asarray(a, "float64"), np.asarray(b, "float64"), rtol=tolerance, atol=tolerance)


q, k, v = normal(2, 37, 4, 16), normal(2, 37, 2, 16), normal(2, 37, 2, 16)
x, w, c = normal(3, 5, 64), normal(64), normal(64)
some, none = jnp.array([3, 37]), jnp.array([20, 0])
groups = jnp.array([2, 0, 5])
filled = jnp.array([50, 7, 0])
table, in_pages = jnp.array([[3, 1, 8], [0, 0, 0], [5, -1, 99]]), jnp.array([20, 3, 8])


def attention(**options):
    plain = dict(options)
    window = plain.pop("sliding_window", (None, None))
    plain["window_left"], plain["window_right"] = window if isinstance(window, tuple) else (window, window)
    plain["softcap"], plain["scale"] = plain.pop("logits_soft_cap", None), plain.pop("softmax_scale", None)
    lengths = plain.pop("query_seq_lengths", None), plain.pop("key_value_seq_lengths", None)
    return (
        lambda *a: modules.flash_attention(*a, **options),
        lambda *a: _plain.flash_attention(*a, *lengths, **plain),
    )


# name: (native, plain, arrays that have gradients)
CASES = {
    "flash": (*attention(), (q, k, v)),
    "flash causal": (*attention(causal=True), (q, k, v)),
    "flash window": (*attention(causal=True, sliding_window=(5, 0)), (q, k, v)),
    "flash one window": (*attention(sliding_window=4), (q, k, v)),
    "flash cap": (*attention(logits_soft_cap=3.0, softmax_scale=0.3), (q, k, v)),
    "flash lengths": (*attention(query_seq_lengths=some, key_value_seq_lengths=none), (q, k, v)),
    "softmax": (modules.softmax, _plain.softmax, (x,)),
    "softmax scale": (lambda x: modules.softmax(x, scale=2), lambda x: _plain.softmax(x, scale=2.0), (x,)),
    "rms_norm": (modules.rms_norm, _plain.rms_norm, (x, w)),
    "rms_norm bare": (modules.rms_norm, _plain.rms_norm, (x,)),
    "rms_norm row": (modules.rms_norm, _plain.rms_norm, (w, c)),
    "layer_norm": (modules.layer_norm, _plain.layer_norm, (x, w, c)),
    "layer_norm bare": (modules.layer_norm, _plain.layer_norm, (x,)),
    "layer_norm bias": (
        lambda x, c: modules.layer_norm(x, None, c),
        lambda x, c: _plain.layer_norm(x, None, c),
        (x, c),
    ),
    "matmul": (modules.matmul, _plain.matmul, (normal(6, 8), normal(8, 10))),
    "matmul bias": (modules.matmul, _plain.matmul, (normal(4, 6, 8), normal(8, 10), normal(10))),
    "matmul batched": (modules.matmul, _plain.matmul, (normal(2, 3, 6, 8), normal(2, 3, 8, 10))),
    "matmul transposed": (
        lambda a, b: modules.matmul(a, b, transpose_a=True, transpose_b=True),
        lambda a, b: _plain.matmul(a, b, None, transpose_a=True, transpose_b=True),
        (normal(4, 8, 6), normal(4, 10, 8)),
    ),
    "grouped_matmul": (
        lambda a, b: modules.grouped_matmul(a, b, groups),
        lambda a, b: _plain.grouped_matmul(a, b, groups),
        (normal(10, 8), normal(3, 8, 5)),
    ),
    "decode": (
        lambda *a: modules.decode_attention(*a, filled),
        lambda *a: _plain.decode_attention(*a, filled),
        (normal(3, 4, 16), normal(3, 50, 2, 16), normal(3, 50, 2, 16)),
    ),
    "decode window": (
        lambda *a: modules.decode_attention(*a, filled, sliding_window=3, logits_soft_cap=2.0),
        lambda *a: _plain.decode_attention(*a, filled, window_left=3, softcap=2.0),
        (normal(3, 4, 16), normal(3, 50, 2, 16), normal(3, 50, 2, 16)),
    ),
    "decode whole": (
        modules.decode_attention,
        _plain.decode_attention,
        (normal(3, 4, 16), normal(3, 50, 2, 16), normal(3, 50, 2, 16)),
    ),
    "decode paged": (
        lambda q, k, v: modules.decode_attention(q, k, v, in_pages, block_table=table),
        lambda q, k, v: _plain.paged_decode_attention(q, k, v, table, in_pages),
        (normal(3, 4, 16), normal(9, 8, 2, 16), normal(9, 8, 2, 16)),
    ),
}


def test_they_are_the_native_ones():
    assert _ffi.is_ready()
    text = jax.jit(modules.softmax).lower(x).as_text()
    assert "ejk_call" in text and "exponential" not in text


@pytest.mark.parametrize("name", CASES)
def test_equals_plain_jax(name):
    native, plain, arrays = CASES[name]
    expected = plain(*arrays)
    close(native(*arrays), expected)
    close(jax.jit(native)(*arrays), expected)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_plain_jax(name):
    native, plain, arrays = CASES[name]
    every = tuple(range(len(arrays)))
    found = jax.grad(lambda *a: (native(*a) ** 2).sum(), every)(*arrays)
    expected = jax.grad(lambda *a: (plain(*a) ** 2).sum(), every)(*arrays)
    for a, b in zip(found, expected):
        close(a, b, 3e-4)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_under_jit_vmap_and_scan(name):
    native, plain, arrays = CASES[name]
    first = jnp.stack([arrays[0], arrays[0] + 0.5, arrays[0] * 2])

    def value_and_gradient(function):
        return jax.value_and_grad(lambda one: (function(one, *arrays[1:]) ** 2).sum())

    found = jax.jit(jax.vmap(value_and_gradient(native)))(first)
    each = [value_and_gradient(plain)(one) for one in first]  # JAX cannot map all of it
    for a, b in zip(found, zip(*each)):
        close(a, jnp.stack(b), 1e-3)

    scanned = jax.lax.scan(lambda s, one: (s + 1, native(one, *arrays[1:])), 0, first)[1]
    close(scanned, jnp.stack([plain(one, *arrays[1:]) for one in first]), 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_says_what_there_is_instead(name):
    native, _, arrays = CASES[name]
    op = name.split()[0].replace("flash", "flash_attention").replace("decode", "decode_attention")
    for _ in range(3):  # warm, too
        jax.grad(lambda *a: native(*a).sum())(*arrays)
        with pytest.raises(TypeError, match=rf"{op}\] .*reverse mode only"):
            jax.jvp(native, arrays, arrays)


def test_gradients_of_a_page_that_sequences_share_are_summed():
    q, k, v = normal(2, 2, 8), normal(3, 4, 1, 8), normal(3, 4, 1, 8)
    shared, lengths = jnp.array([[1, 0], [1, 2]]), jnp.array([6, 8])

    def loss(function, *options):
        return jax.grad(lambda q, k, v: (function(q, k, v, *options) ** 2).sum(), (0, 1, 2))(q, k, v)

    found = loss(lambda q, k, v: modules.decode_attention(q, k, v, lengths, block_table=shared))
    for a, b in zip(found, loss(_plain.paged_decode_attention, shared, lengths)):
        close(a, b, 1e-4)


def test_vmap_twice_over_different_arguments():
    xs, ws = normal(2, 3, 4, 16), normal(2, 16)

    def both(function):
        return jax.vmap(jax.vmap(function, (0, None)), (0, 0))(xs, ws)

    close(both(modules.rms_norm), both(_plain.rms_norm))


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_with_gradients(check_vma):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    xs, ws = normal(8, 16), normal(16)

    def over_mesh(function):
        sharded = jax.shard_map(
            function, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=check_vma
        )
        return jax.jit(jax.value_and_grad(lambda x, w: (sharded(x, w) ** 2).sum(), (0, 1)))(xs, ws)

    (value, gradients), (expected, others) = over_mesh(modules.rms_norm), over_mesh(_plain.rms_norm)
    close(value, expected, 1e-4)
    for a, b in zip(gradients, others):
        close(a, b, 1e-3)


def test_shard_map_of_attention_and_product():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])

    def block(q, k, v, w):
        out = modules.flash_attention(q, k, v, causal=True)
        return modules.matmul(out.reshape(*out.shape[:2], -1), w)

    def plain(q, k, v, w):
        out = _plain.flash_attention(q, k, v, None, None, causal=True)
        return _plain.matmul(out.reshape(*out.shape[:2], -1), w)

    weight = normal(64, 24)
    spec = P(None, None, "i")
    sharded = jax.shard_map(
        lambda q, k, v, w: jax.lax.psum(block(q, k, v, w), "i"),
        mesh=mesh,
        in_specs=(spec, spec, spec, P("i")),
        out_specs=P(),
    )
    arguments = (q, k, v, weight)
    close(jax.jit(sharded)(*arguments), plain(*arguments), 1e-4)
    found = jax.jit(jax.grad(lambda *a: (sharded(*a) ** 2).sum(), (0, 1, 2, 3)))(*arguments)
    expected = jax.grad(lambda *a: (plain(*a) ** 2).sum(), (0, 1, 2, 3))(*arguments)
    for a, b in zip(found, expected):
        close(a, b, 2e-3)


@pytest.mark.parametrize(
    "name",
    ["flash causal", "softmax", "rms_norm", "layer_norm", "matmul bias", "grouped_matmul", "decode", "decode paged"],
)
def test_bfloat16(name):
    native, plain, arrays = CASES[name]
    arrays = [a.astype("bfloat16") for a in arrays]
    close(native(*arrays), plain(*arrays), 4e-2)
    every = tuple(range(len(arrays)))
    found = jax.grad(lambda *a: native(*a).astype("float32").sum(), every)(*arrays)
    for a, b in zip(found, jax.grad(lambda *a: plain(*a).astype("float32").sum(), every)(*arrays)):
        close(a, b, 6e-2)


def test_the_result_type_of_products():
    a, b = normal(4, 8, dtype="bfloat16"), normal(8, 4, dtype="bfloat16")
    assert modules.matmul(a, b).dtype == "bfloat16"
    assert modules.matmul(a, b, result="float32").dtype == "float32"
    assert modules.matmul(a, b, result=jnp.float32).dtype == "float32"


@pytest.mark.parametrize("dtype", ["float16"])
def test_other_types_are_computed_by_jax(dtype):
    given = x.astype(dtype)
    assert "ejk_call" not in jax.jit(modules.softmax).lower(given).as_text()
    close(modules.softmax(given), _plain.softmax(given))


def test_plain_jax_is_compiled_once_for_all_floats_among_the_options():
    traced = []

    @_plain.jitted
    def scaled(jax, x, *, scale=1.0, shift=0):
        traced.append(shift)
        return x * scale + shift

    for n in range(20):
        close(scaled(x, scale=n / 7), x * (n / 7))
        close(scaled(x, scale=n / 7, shift=2), x * (n / 7) + 2)
    assert traced == [0, 2]
    close(jax.grad(lambda x: scaled(x, scale=3.0).sum())(x), jnp.full_like(x, 3.0))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 4, 8)])
def test_empty_arrays(shape):
    empty = jnp.zeros(shape)
    assert modules.softmax(empty).shape == shape
    assert modules.rms_norm(empty).shape == shape
    assert jax.vmap(modules.softmax)(empty).shape == shape


def test_a_config_can_be_given_with_the_call_or_by_an_overlay():
    kernel = modules.FlashAttention()
    options = dict(causal=True, window_left=None, window_right=None, softcap=None, scale=None)
    executor = Executor(ConfigSelectorChain(cache=ConfigCache()))
    call = (kernel, q, k, v, None, None)
    chosen = executor.choose_config(*call, **options)
    mine = {**chosen, "fwd": {**chosen["fwd"], "q_blocksize": 48}}
    assert mine != chosen

    def is_used(**given):
        lowered = jax.jit(lambda *a: modules.flash_attention(*a, causal=True, executor=executor, **given)).lower(q, k, v)
        return "q_blocksize\\22:48" in lowered.as_text()

    assert not is_used() and is_used(cfg=mine)
    with overlay_cache({executor.label(*call, **options): mine}):
        assert is_used()
    close(modules.flash_attention(q, k, v, causal=True, cfg=mine), CASES["flash causal"][1](q, k, v))


def test_checked_calls_are_known_by_type_shape_and_options():
    small, wide = normal(2, 3), normal(2, 4)
    for _ in range(2):
        close(modules.softmax(small), _plain.softmax(small))
        close(modules.softmax(small, scale=3), _plain.softmax(small, scale=3.0))
        close(modules.softmax(wide), _plain.softmax(wide))
        close(modules.softmax(small.astype("bfloat16")), _plain.softmax(small.astype("bfloat16")), 1e-2)
        close(modules.rms_norm(small, small[0]), _plain.rms_norm(small, small[0]))
        close(modules.rms_norm(small), _plain.rms_norm(small))
        with pytest.raises(ValueError, match="rms_norm"):
            modules.rms_norm(small, wide[0])
        wide_groups = np.array([1, 1], "int64")  # converted, every time
        close(modules.grouped_matmul(small, normal(2, 3, 5) * 0, wide_groups), jnp.zeros((2, 5)))
        flags = modules.matmul(small, wide, transpose_a=1), modules.matmul(small, wide, transpose_a=True)
        close(*flags)
        windows = [modules.flash_attention(q, k, v, sliding_window=w) for w in (4, (4, 4), [4, 4])]
        close(windows[0], windows[1]), close(windows[0], windows[2])


def test_calls_are_labelled():
    lowered = jax.jit(lambda *a: modules.flash_attention(*a, causal=True)).lower(q, k, v)
    assert any("flash_attention@v1" in label for label in map(str, find_labels_in_lowered(lowered)))


def test_tuning_in_a_trace_leaves_nothing_behind():
    executor = Executor(ConfigSelectorChain(cache=ConfigCache()))
    with policy_override(allow_autotune=True):
        traced = jax.make_jaxpr(lambda x: modules.softmax(x, executor=executor))(x)
    assert str(traced).count("ffi_call") == 1
    close(modules.softmax(x, executor=executor), _plain.softmax(x))


def test_wrong_shapes_and_types_say_what_is_needed():
    with pytest.raises(ValueError, match=r"\[matmul\] got float32\[6, 8\], float32\[7, 3\].*; expected"):
        modules.matmul(normal(6, 8), normal(7, 3))
    with pytest.raises(ValueError, match=r"\[flash_attention\].*multiple"):
        modules.flash_attention(q, k[:, :, :1].repeat(3, 2), v[:, :, :1].repeat(3, 2))
    with pytest.raises(ValueError, match=r"\[rms_norm\].*weight\[n\]"):
        modules.rms_norm(x, normal(5))
    with pytest.raises(ValueError, match="one floating type"):
        modules.flash_attention(q, k, v.astype("bfloat16"))
    with pytest.raises(ValueError, match="one floating type"):
        modules.softmax(jnp.arange(4))
    with pytest.raises(TypeError, match=r"\[softmax\] got list; expected an array"):
        modules.softmax([1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"\[rms_norm\] got weight by name; .*options are eps"):
        modules.RmsNorm()(x, weight=w)
    with pytest.raises(ValueError, match="lengths"):
        modules.decode_attention(normal(3, 4, 16), normal(9, 8, 2, 16), normal(9, 8, 2, 16), block_table=table)


def test_values_that_only_cpp_can_see_are_errors_of_the_call():
    with pytest.raises(Exception, match=r"\[grouped_matmul\]"):
        jax.block_until_ready(modules.grouped_matmul(normal(4, 8), normal(2, 8, 3), jnp.array([3, 9])))


# ---- arrays in memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flash causal", "softmax", "rms_norm", "layer_norm", "matmul bias", "matmul transposed"])
def test_numpy(name):
    native, plain, arrays = CASES[name]
    found = native(*map(np.asarray, arrays))
    assert type(found) is np.ndarray
    close(found, np.asarray(plain(*arrays)))


def test_numpy_with_strides_and_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    square = random.standard_normal((6, 6), dtype="float32")
    close(modules.softmax(square.T), np.asarray(_plain.softmax(jnp.asarray(square.T))))
    small = modules.softmax(square.astype(ml_dtypes.bfloat16))
    assert small.dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="softmax"):
        modules.softmax(square.astype("float64"))


def test_any_dlpack_object_in_a_program_without_jax():
    program = """
import sys
sys.modules["jax"] = None  # as if it were not installed
import numpy
from ejk import _core, modules

class Foreign:
    def __init__(self, array):
        self.array = array
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

x = numpy.random.default_rng(0).standard_normal((3, 8), dtype="float32")
out = numpy.from_dlpack(modules.softmax(Foreign(x)))
assert abs(out.sum(1) - 1).max() < 1e-5
assert numpy.array_equal(out, modules.softmax(x))

query, cache = x.reshape(3, 1, 8), numpy.ones((3, 5, 1, 8), "float32")
for numbers in ("int32", "int64", "uint8"):  # which has no astype
    lengths = numpy.array([5, 0, 2], numbers)
    out = modules.decode_attention(Foreign(query), Foreign(cache), Foreign(cache), Foreign(lengths))
    assert numpy.array_equal(numpy.from_dlpack(out), modules.decode_attention(query, cache, cache, lengths)), numbers
print("fine")
"""
    found = run_program(program, EJKERNEL_AUTOTUNE_POLICY="heuristics")
    assert found.stdout == "fine\n", found.stderr


def test_a_jaxlib_that_does_not_fit_is_left_alone():
    program = """
from ejk import _core
from ejk.modules import _ffi
_ffi._version_of = lambda jax: (0, 0)
import jax
import jax.numpy as jnp
from ejk import _core, modules
x = jnp.arange(6.0).reshape(2, 3)
out = modules.softmax(x)
assert abs(out.sum(1) - 1).max() < 1e-6
assert "ejk_call" not in jax.jit(modules.softmax).lower(x).as_text()
modules.softmax(x)
print(jax.devices()[0].platform)
"""
    found = run_program(program)
    assert found.stdout == "cpu\n", found.stderr
    assert found.stderr.count("version") == 1 and "install this package again" in found.stderr


# ---- operations as their folders describe them -----------------------------------------------------

OPS = sorted(_core.op_descriptions())


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_every_folder_of_an_operation_is_listed_and_callable():
    folders = {path.parent.name for path in (pathlib.Path(__file__).parents[2] / "src/ops").glob("*/op.h")}
    assert set(OPS) - folders == {"paged_decode_attention"} and folders <= set(OPS)
    assert all(op in modules.__all__ and callable(getattr(modules, op)) for op in OPS)


@pytest.mark.parametrize("op", OPS)
def test_plain_jax_has_the_arrays_and_options_of_the_description(op):
    face = modules._face(modules._described_alone(op))
    assert parameters(getattr(_plain, op))[1:] == parameters(face)[:-2]


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm", "matmul", "grouped_matmul"])
def test_functions_have_the_arrays_and_options_of_the_description(op):
    assert parameters(getattr(modules, op)) == parameters(modules._face(modules._described_alone(op)))


DESCRIBED = {
    "softmax": ((normal(6, 64),), {"scale": 2.0}),
    "rms_norm": ((normal(6, 64), w), {}),
    "layer_norm": ((normal(6, 64), None, c), {"eps": 1e-3}),
    "matmul": ((normal(3, 9, 5), normal(3, 4, 5), normal(4)), {"transpose_b": True}),
    "grouped_matmul": ((normal(9, 5), normal(3, 5, 4), jnp.array([2, 0, 5], jnp.int32)), {}),
    "flash_attention": ((q, k, v, None, jnp.array([20, 0], jnp.int32)), {"causal": True, "softcap": 3.0}),
    "decode_attention": ((q[:, 0], k, v), {"window_left": 5}),
    "paged_decode_attention": (
        (normal(3, 4, 16), normal(9, 8, 2, 16), normal(9, 8, 2, 16), table.astype("int32"), in_pages.astype("int32")),
        {"scale": 0.3},
    ),
}


@pytest.mark.parametrize("op", OPS)
def test_the_description_alone_makes_an_operation_and_its_gradient(op):
    arrays, options = DESCRIBED[op]
    face, plain = modules._face(modules._described_alone(op)), getattr(_plain, op)
    floats = [i for i, a in enumerate(arrays) if a is not None and a.dtype == "float32"]

    def both(function):
        def of_floats(*given):
            all_arrays = list(arrays)
            for i, a in zip(floats, given):
                all_arrays[i] = a
            return function(*all_arrays, **options)

        out, pull = jax.vjp(jax.jit(of_floats), *(arrays[i] for i in floats))
        return out, *pull(jnp.cos(out))

    for found, expected in zip(both(face), both(plain), strict=True):
        close(found, expected, 1e-4)


def test_a_description_without_plain_jax_says_where_it_runs():
    with pytest.raises(NotImplementedError, match=r"\[softmax\] runs on CPUs, with float32 or bfloat16"):
        modules._face(modules._described_alone("softmax"))(x.astype("float16"))
