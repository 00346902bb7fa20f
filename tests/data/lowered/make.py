# SPDX-License-Identifier: Apache-2.0
"""Makes the files beside it: python make.py FOLDER, with jax 0.10.2 and flatbuffers.

`attributes` is labelled as this library labels: frontend attributes, and scopes without '@'.
`names` is labelled as upstream does: scopes with '@', and a json stamp.
"""
import contextlib
import json
import os
import sys

out = sys.argv[1]
os.environ["XLA_FLAGS"] = f"--xla_dump_to={out}/dump --xla_dump_hlo_as_text --xla_dump_hlo_as_proto"

import jax
import jax.numpy as jnp
from jax import export
from jax.experimental.xla_metadata import set_xla_metadata

PLAIN = "ejkernel_ops#matmul@v1:0123456789abcdef"
ODD = "ejkernel_ops#we:ird / [op] <x> (y) #z 'q' \"d\" \\b λ@v2.1:fedcba9876543210"


@contextlib.contextmanager
def labelled(label):
    with set_xla_metadata(ejkernel_label=label), jax.named_scope(label.replace("@", "%")):
        yield


def attributes(x, y):
    with labelled(PLAIN):
        a = jnp.tanh(x @ y)
    with labelled(ODD):
        b = jnp.sin(a) * 2
    with labelled(PLAIN):
        c = jnp.tanh(b @ y)
    return c.sum()


def names(x, y):
    with jax.named_scope(PLAIN):
        a = jnp.tanh(x @ y)
    tensor = {"dtype": "float32", "shape": [4, 4]}
    call = {"op_id": "matmul@v1", "args": [tensor, tensor], "kwargs": {}, "cfg": {"block": 8}}
    with jax.named_scope("ejkernel_ops:" + json.dumps(call, sort_keys=True, separators=(",", ":"))):
        b = jnp.sin(a)
    return b.sum()


def keep(name, content):
    with open(os.path.join(out, name), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def keep_all(name, function):
    x = jnp.ones((4, 4))
    lowered = jax.jit(function).lower(x, x)
    keep(f"{name}.mlir", lowered.as_text())
    keep(f"{name}.debug.mlir", lowered.as_text(debug_info=True))
    keep(f"{name}.hlo.txt", lowered.as_text("hlo"))
    keep(f"{name}.debug.hlo.txt", lowered.as_text("hlo", debug_info=True))
    keep(f"{name}.hlo.pb", lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    compiled = lowered.compile()
    keep(f"{name}.compiled.hlo.txt", compiled.as_text())
    module = compiled.runtime_executable().hlo_modules()[0]
    keep(f"{name}.compiled.hlo.pb", module.as_serialized_hlo_module_proto())
    keep(f"{name}.export", export.export(jax.jit(function))(x, x).serialize())


keep_all("attributes", jax.grad(attributes))
keep_all("names", names)
for name in os.listdir(os.path.join(out, "dump")):  # the rest says nothing of labels
    path = os.path.join(out, "dump", name)
    if os.path.isfile(path) and not name.endswith(("optimizations.txt", "optimizations.hlo.pb")):
        os.remove(path)
