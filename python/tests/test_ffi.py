# SPDX-License-Identifier: Apache-2.0
"""Custom calls of XLA whose attribute and arrays do not fit each other end with an error, never with a crash."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("jax")
modules = pytest.importorskip("ejk.modules")

CALLS = """
import json, random, sys
import jax, jax.numpy as jnp
import numpy as np
from ejk import _core
from ejk.modules import _ffi, _kernels
from ejk.ops import policy_override

assert _ffi.is_ready()
numbers = np.random.default_rng(0)
made = {}  # name -> (arrays, [(shape, dtype)], attribute) of calls as the package makes them

def noting(name, f, *args):
    custom_call = _ffi._custom_call

    def note(jax_, arrays, results, text):
        arrays = [np.zeros(a.shape, a.dtype) if isinstance(a, jax.core.Tracer) else np.asarray(a) for a in arrays]
        pull = " pull" if json.loads(text).get("pull") else ""
        made[name + pull] = arrays, [(tuple(s), np.dtype(d).name) for s, d in results], json.loads(text)
        return custom_call(jax_, arrays, results, text)

    _ffi._custom_call = note
    try:
        with policy_override(allow_autotune=False):
            out = f(*args)
            jax.vjp(f, *args)[1](out)  # last: what is noted of forward is the one of a gradient
    finally:
        _ffi._custom_call = custom_call

def array(*shape):
    return jnp.asarray(numbers.standard_normal(shape, dtype="float32"))

from ejk.modules import decode_attention, flash_attention, grouped_matmul, layer_norm, matmul, rms_norm, softmax
noting("softmax", softmax, array(4, 8))
noting("rms_norm", rms_norm, array(4, 8), array(8))
noting("layer_norm", layer_norm, array(4, 8), array(8), array(8))
noting("matmul", matmul, array(4, 8), array(8, 5))
noting("flash_attention", flash_attention, *(array(2, 6, 2, 8) for _ in range(3)))
noting("decode_attention", lambda *qkv: decode_attention(*qkv), array(2, 2, 8), array(2, 6, 2, 8), array(2, 6, 2, 8))
sizes = jnp.asarray([1, 3], jnp.int32)
noting("grouped_matmul", lambda a, b: grouped_matmul(a, b, sizes), array(4, 8), array(2, 8, 5))
assert len(made) == 14, list(made)

def call(arrays, results, attribute):
    text = attribute if isinstance(attribute, str) else _core.stable_json(attribute)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    found = jax.ffi.ffi_call("ejk_call", types, has_side_effect=True)(*arrays, call=text)
    return jax.block_until_ready(found)
"""


def run(program, *words):
    command = [sys.executable, "-c", CALLS + program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-8000:])
    return done.stdout


def test_calls_that_do_not_fit_are_refused_with_what_is_wrong():
    program = """
def changed(name, inputs=None, results=None, **members):
    arrays, types, attribute = made[name]
    return inputs(list(arrays)) if inputs else arrays, results(list(types)) if results else types, {**attribute, **members}

def without(name, member):
    arrays, types, attribute = made[name]
    return arrays, types, {k: v for k, v in attribute.items() if k != member}

def shape(i, *sizes):
    return lambda arrays: [np.zeros(sizes, a.dtype) if j == i else a for j, a in enumerate(arrays)]

def typed(i, dtype):
    return lambda arrays: [a.astype(dtype) if j == i else a for j, a in enumerate(arrays)]

def result(i, *sizes, dtype="float32"):
    return lambda types: [(sizes, dtype) if j == i else t for j, t in enumerate(types)]

first = lambda n: lambda things: things[:n]
again = lambda things: things + things[-1:]

BAD = [
    ("no results", changed("softmax", results=first(0)), "without results"),
    ("no inputs", changed("softmax", inputs=first(0)), "the first array is needed"),
    ("too many results", changed("softmax", results=again), "2 results"),
    ("too many inputs", changed("softmax", inputs=again), "2 arrays were given: 1 are needed"),
    ("no JSON", (*made["softmax"][:2], "{"), ""),
    ("no object", (*made["softmax"][:2], "[]"), "no member"),
    ("no op", without("softmax", "op"), "no member op"),
    ("no rank", without("softmax", "rank"), "no member rank"),
    ("no config", without("softmax", "config"), "no member config"),
    ("another op", changed("softmax", op="system"), "no built-in operation"),
    ("another op's config", changed("softmax", op="matmul"), ""),
    ("op that is no text", changed("softmax", op=3), ""),
    ("negative rank", changed("softmax", rank=-1), "a rank of -1"),
    ("high rank", changed("softmax", rank=3), "2 axes"),
    ("huge rank", changed("softmax", rank=2**63), "a rank of"),
    ("rank that is a text", changed("softmax", rank="2"), "a rank of"),
    ("low rank", changed("softmax", rank=1), "axes"),
    ("unmapped input", changed("softmax", inputs=shape(0, 3, 4, 8), results=result(0, 5, 4, 8)), "mapped axis"),
    ("fewer axes", changed("softmax", inputs=shape(0), results=result(0, 5, 4, 8)), "axes"),
    ("another type", changed("softmax", dtype="bfloat16"), "bfloat16"),
    ("type of no kernel", changed("softmax", dtype="float64"), "float64"),
    ("no type", changed("softmax", dtype="object"), "object"),
    ("input of another type", changed("softmax", inputs=typed(0, "int32")), "float32"),
    ("options that are a list", changed("softmax", options=[1]), "options"),
    ("scale that is a text", changed("softmax", options={"scale": "x"}), ""),
    ("result of another shape", changed("softmax", results=result(0, 4, 7)), "expected float32[4, 8]"),
    ("result of another type", changed("softmax", results=result(0, 4, 8, dtype="int32")), "expected float32"),
    ("no threads", changed("softmax", config={**made["softmax"][2]["config"], "threads": 0}), "threads"),
    ("config of another kind", changed("softmax", config=3), ""),
    ("few scales", changed("rms_norm", results=result(1, 1)), "expected float32[4]"),
    ("weight that is missing", changed("rms_norm", inputs=first(1)), "more are needed"),
    ("short weight", changed("rms_norm", inputs=shape(1, 3)), "expected float32[8]"),
    ("short weight", changed("rms_norm pull", inputs=shape(1, 3)), "expected float32[8]"),
    ("few scales", changed("rms_norm pull", inputs=shape(2, 1)), "expected float32[4]"),
    ("few results", changed("rms_norm pull", results=first(1)), "1 results"),
    ("few moments", changed("layer_norm", results=result(1, 4, 2)), "expected float32[4, 3]"),
    ("few moments", changed("layer_norm pull", inputs=shape(3, 4, 2)), "expected float32[4, 3]"),
    ("few results", changed("layer_norm pull", results=first(2)), "2 results"),
    ("few columns", changed("matmul", inputs=shape(1, 1, 3, 5)), ""),
    ("few results", changed("matmul pull", results=first(1)), "1 results"),
    ("few inputs", changed("matmul pull", inputs=first(2)), "more are needed"),
    ("few inputs", changed("grouped_matmul pull", inputs=first(0)), "the first array is needed"),
    ("few groups", changed("grouped_matmul", inputs=shape(2, 1)), ""),
    ("large groups", changed("grouped_matmul", inputs=lambda a: [a[0], a[1], a[2] + 2**30]), "group_sizes"),
    ("short lse", changed("flash_attention", results=lambda t: [t[0], ((1, 1, 1), "float32")]), "expected float32[2, 2, 6]"),
    ("short lse", changed("flash_attention pull", inputs=shape(4, 1, 1, 1)), "expected float32[2, 2, 6]"),
    ("short out", changed("flash_attention pull", inputs=shape(3, 1, 1, 1, 1)), "expected float32[2, 6, 2, 8]"),
    ("lengths that are not there", changed("flash_attention", options={"query_seq_lengths": True}), "more are needed"),
    ("lengths beyond", changed("decode_attention", options={**made["decode_attention"][2]["options"], "lengths": True},
                               inputs=lambda a: [*a, np.full(2, 7, "int32")]), "length"),
    ("few results", changed("decode_attention pull", results=first(2)), "2 results"),
    ("no library", {"registered": "x@v1", "config": {}, "arguments": [], "copies": [], "rank": 1}, "x@v1"),
]
wrong = []
for name, case, told in BAD:
    if isinstance(case, dict):
        case = (*made["softmax"][:2], case)
    try:
        call(*case)
    except Exception as error:
        if told not in str(error):
            wrong.append((name, told, str(error)))
    else:
        wrong.append((name, "was accepted", case[1:]))
assert not wrong, "\\n".join(map(str, wrong))
for name, case in made.items():
    call(*case)  # as they were
"""
    run(program)


def test_mutated_calls_end_with_an_error_at_worst():
    program = """
choice = random.Random(int(sys.argv[1]))
SHAPES = [(), (0,), (1,), (8,), (4, 8), (8, 4), (1, 8), (0, 8), (4, 0), (2, 4, 8), (1, 4, 8), (2, 2, 8), (2, 6, 2, 8),
          (3, 2, 6, 2, 8), (2, 2, 6), (4, 3), (2, 8, 5), (1, 4, 5)]
DTYPES = ["float32", "int32", "bfloat16", "int8", "bool", "float16", "uint32", "complex64"]
VALUES = [None, True, False, 0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**64, -(2**63), 0.5, 1e300, "", "x", "float32",
          "bfloat16", [], [1], [[0, 0]], [[-1, 99]], {}, {"given": 0}, {"given": 99}, {"threads": 0}]

def mutated_value(value):
    if isinstance(value, dict) and value and choice.random() < 0.8:
        name = choice.choice(list(value))
        if choice.random() < 0.1:
            return {k: v for k, v in value.items() if k != name}
        return {**value, name: mutated_value(value[name])}
    return choice.choice(VALUES)

def mutated_arrays(arrays):
    arrays, what = list(arrays), choice.randrange(5)
    if not arrays or what == 0:
        return arrays + [np.zeros(choice.choice(SHAPES), choice.choice(DTYPES[:2]))]
    i = choice.randrange(len(arrays))
    if what == 1:
        del arrays[i]
    elif what == 2:
        arrays[i] = jnp.asarray(arrays[i]).astype(choice.choice(DTYPES))
    elif what == 3:
        arrays[i] = np.zeros(choice.choice(SHAPES), arrays[i].dtype)
    else:
        choice.shuffle(arrays)
    return arrays

def mutated_types(types):
    shapes = mutated_arrays([np.zeros(s, d) if d != "bfloat16" else jnp.zeros(s, d) for s, d in types])
    return [(a.shape, a.dtype.name) for a in shapes]

outcomes = {"run": 0, "refused": 0}
for number in range(int(sys.argv[2])):
    name = choice.choice(list(made))
    arrays, types, attribute = made[name]
    for _ in range(choice.choice([1, 1, 2, 3])):
        what = choice.randrange(4)
        if what == 0:
            arrays = mutated_arrays(arrays)
        elif what == 1:
            types = mutated_types(types)
        else:
            attribute = mutated_value(attribute)
    print(number, name, [(a.shape, a.dtype.name) for a in arrays], types, attribute, flush=True)
    try:
        call(arrays, types, attribute)
        outcomes["run"] += 1
    except Exception as error:
        outcomes["refused"] += 1
for name, case in made.items():
    call(*case)  # the process is as it was
print(json.dumps(outcomes))
"""
    found = json.loads(run(program, "1", "300").splitlines()[-1])
    assert found["refused"] > 100
