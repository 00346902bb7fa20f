# SPDX-License-Identifier: Apache-2.0
"""PyTorch or JAX as a side of bench/ops: the protocol of bench/ops_ours.cpp, one case per function.

A case is a function `NAME_LIBRARY(words)` here that returns what is to be timed; it must wait for its
result.
"""

import os
import sys
import time

THREADS = int(os.environ.get("OPS_THREADS", "1"))


def matmul_torch(words):
    """matmul TYPE M N K"""
    m, n, k = map(int, words[2:5])
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[words[1]]
    a, b, c = torch.rand(m, k).to(kind), torch.rand(k, n).to(kind), torch.empty(m, n, dtype=kind)
    return lambda: torch.mm(a, b, out=c)


def matmul_jax(words):
    m, n, k = map(int, words[2:5])
    kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[words[1]]
    a, b = (jax.random.uniform(jax.random.key(i), s).astype(kind) for i, s in enumerate([(m, k), (k, n)]))
    multiply = jax.jit(lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32))
    return lambda: multiply(a, b).block_until_ready()


def grouped_matmul_jax(words):
    """grouped_matmul TYPE GROUPS ROWS N K, with groups as in matmul.h"""
    groups, rows, n, k = map(int, words[2:6])
    kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[words[1]]
    begins = [rows * i * i // (groups * groups) for i in range(groups + 1)]
    sizes = jnp.array([last - first for first, last in zip(begins, begins[1:])], dtype=jnp.int32)
    shapes = [(rows, k), (groups, k, n)]
    a, b = (jax.random.uniform(jax.random.key(i), s).astype(kind) for i, s in enumerate(shapes))
    multiply = jax.jit(lambda x, y, s: jax.lax.ragged_dot(x, y, s, preferred_element_type=jnp.float32))
    return lambda: multiply(a, b, sizes).block_until_ready()


def attention_torch(words):
    """attention KIND TYPE BATCH QUERIES KEYS HEADS KV_HEADS DIM"""
    kind, dtype = words[1], {"f32": torch.float32, "bf16": torch.bfloat16}[words[2]]
    batch, queries, keys, heads, kv_heads, dim = map(int, words[3:9])
    gradient, causal = kind.startswith("grad"), kind.endswith("causal")
    q = (torch.rand(batch, heads, queries, dim) * 2 - 1).to(dtype)
    k, v = ((torch.rand(batch, kv_heads, keys, dim) * 2 - 1).to(dtype) for _ in range(2))
    grouped = heads != kv_heads

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    if not gradient:
        return forward
    for x in (q, k, v):
        x.requires_grad_(True)
    dout = (torch.rand(batch, heads, queries, dim) * 2 - 1).to(dtype)

    def forward_and_backward():
        with torch.enable_grad():
            return torch.autograd.grad(forward(), (q, k, v), dout)

    return forward_and_backward


def attention_jax(words):
    kind, dtype = words[1], {"f32": jnp.float32, "bf16": jnp.bfloat16}[words[2]]
    batch, queries, keys, heads, kv_heads, dim = map(int, words[3:9])
    gradient, causal = kind.startswith("grad"), kind.endswith("causal")
    shapes = [(batch, queries, heads, dim), (batch, keys, kv_heads, dim), (batch, keys, kv_heads, dim)]
    arrays = [jax.random.uniform(jax.random.key(i), s, minval=-1).astype(dtype) for i, s in enumerate(shapes)]
    forward = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal))
    if not gradient:
        return lambda: forward(*arrays).block_until_ready()

    @jax.jit
    def forward_and_backward(q, k, v, dout):
        out, pull = jax.vjp(forward, q, k, v)
        return out, pull(dout)

    dout = jax.random.uniform(jax.random.key(9), shapes[0], minval=-1).astype(dtype)
    return lambda: jax.block_until_ready(forward_and_backward(*arrays, dout))


def rms_norm_torch(words):
    """rms_norm | layer_norm | softmax TYPE ROWS COLUMNS"""
    rows, columns = map(int, words[2:4])
    x, w = torch.rand(rows, columns), torch.rand(columns)
    return lambda: torch.nn.functional.rms_norm(x, (columns,), w, 1e-6)


def layer_norm_torch(words):
    rows, columns = map(int, words[2:4])
    x, w = torch.rand(rows, columns), torch.rand(columns)
    return lambda: torch.nn.functional.layer_norm(x, (columns,), w, w, 1e-5)


def softmax_torch(words):
    x = torch.rand(*map(int, words[2:4]))
    return lambda: torch.softmax(x, -1)


def jax_rows(words, function):
    """Of `function` in float32, rounded to the type at the end."""
    rows, columns = map(int, words[2:4])
    kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[words[1]]
    x, w = jax.random.uniform(jax.random.key(0), (rows, columns)).astype(kind), jnp.ones(columns, kind)
    call = jax.jit(lambda x, w: function(x.astype(jnp.float32), w.astype(jnp.float32)).astype(kind))
    return lambda: call(x, w).block_until_ready()


def rms_norm_jax(words):
    return jax_rows(words, lambda x, w: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w)


def layer_norm_jax(words):
    def layer_norm(x, w):
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * w + w

    return jax_rows(words, layer_norm)


def softmax_jax(words):
    return jax_rows(words, lambda x, w: jax.nn.softmax(x, -1))


def timed(call, times):
    call()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(times):
        call()
    return f"{time.process_time() - cpu:.9g} {time.perf_counter() - wall:.9g}"


def answer(library, cases, words):
    if words[0] == "set":
        case = globals().get(f"{words[2]}_{library}")
        if case is None:
            return f"no {words[2]} in {library}"
        cases[words[1]] = case(words[2:])
        cases[words[1]]()
        return "ok"
    if words[0] == "run":
        return timed(cases[words[1]], int(words[2]))
    if words[0] == "clear":
        cases.clear()
        return "ok"
    return f"no such request: {words[0]}"


def main():
    cases = {}
    for line in sys.stdin:
        try:
            reply = answer(sys.argv[1], cases, line.split())
        except Exception as problem:  # whatever a library does not like is told, not fatal
            reply = f"no {type(problem).__name__}: {problem}"
        print(reply.replace("\n", " "), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "torch":
        # CUDA libraries are stand-ins (peers.py); what they lack is never called.
        sys.setdlopenflags(os.RTLD_LAZY)
        import torch

        torch.set_num_threads(THREADS)
        torch.set_grad_enabled(False)
    else:
        import jax
        import jax.numpy as jnp
    main()
