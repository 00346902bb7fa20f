# SPDX-License-Identifier: Apache-2.0
"""bench/ops: attention against PyTorch's and JAX's, and its gradient against theirs; bfloat16 too.

PyTorch gets its arrays in the layout it likes best, [batch, heads, positions, dim].
"""

from race import Case, geomean

# batch, queries, keys, heads, kv heads, dim
FORWARD = [
    (1, 512, 512, 8, 8, 64), (1, 2048, 2048, 8, 8, 64), (2, 1024, 1024, 16, 16, 128), (1, 1024, 1024, 8, 2, 64),
    # Sizes that are no multiples of anything, and short ones.
    (4, 197, 197, 6, 6, 64), (1, 777, 777, 4, 4, 80), (1, 1500, 1500, 6, 3, 48), (16, 64, 64, 8, 8, 64),
]  # fmt: skip
DECODE = [
    (8, 1, 4096, 8, 8, 64), (1, 1, 4096, 32, 8, 128), (1, 1, 4096, 8, 8, 64),
    (4, 1, 1000, 16, 4, 128), (16, 1, 500, 12, 12, 64), (2, 1, 10000, 8, 1, 96),
    (4, 1, 2048, 16, 16, 64), (2, 1, 4096, 32, 32, 128), (8, 1, 4096, 16, 8, 64),
]  # fmt: skip
GRADIENT = [(1, 512, 512, 8, 8, 64), (2, 1024, 1024, 4, 4, 128), (1, 1024, 1024, 8, 2, 64), (4, 197, 197, 6, 6, 64)]
QUICK = {"full": FORWARD[:1], "causal": FORWARD[:1], "decode": DECODE[:1], "grad_causal": GRADIENT[:1]}
ALL = {"full": FORWARD, "causal": FORWARD, "decode": DECODE, "grad_full": GRADIENT, "grad_causal": GRADIENT}
BFLOAT16 = {"full": FORWARD[:1], "causal": FORWARD[:1], "decode": DECODE[:2], "grad_causal": GRADIENT[:1]}
ALL_THREADS = {"full": FORWARD[:2], "causal": FORWARD[:2], "decode": DECODE[:2], "grad_causal": GRADIENT[:1]}


def case_of(kind, shape, threads=1, dtype="f32"):
    size = " ".join(map(str, shape))
    words = f"attention {kind} {dtype} {size}"
    entries = {
        "tuned": ("ours", f"{words} tuned"),
        "again": ("ours", f"{words} tuned"),
        "heuristic": ("ours", f"{words} heuristic"),
    }
    if dtype == "bf16":
        entries["ours f32"] = ("ours", f"attention {kind} f32 {size} tuned")
    entries |= {"torch": ("torch", words), "jax": ("jax", words)}
    return Case(f"attention {kind} {dtype} {'x'.join(map(str, shape))}", entries, threads)


def cases(options):
    """`options.shapes`: those that were asked for, as above; one query is decoding."""
    if options.shapes:
        chosen = {"decode": [], "full": [], "causal": [], "grad_full": [], "grad_causal": []}
        for shape in options.shapes:
            for kind in ["decode"] if shape[1] == 1 else list(chosen)[1:]:
                chosen[kind].append(shape)
        return [case_of(kind, shape) for kind, shapes in chosen.items() for shape in shapes]
    usual = [case_of(kind, shape) for kind, shapes in (QUICK if options.quick else ALL).items() for shape in shapes]
    if options.quick:
        return usual
    return (
        usual
        + [case_of(kind, shape, dtype="bf16") for kind, shapes in BFLOAT16.items() for shape in shapes]
        + [case_of(kind, shape, threads=0) for kind, shapes in ALL_THREADS.items() for shape in shapes]
    )


def figures(results):
    """Of the cases with one thread: how fast `tuned` is, as a multiple of a peer.

    Forward and decoding: PyTorch if it is there, else JAX; `flash_peer` says which. Gradients: JAX.
    bfloat16, all kinds together: JAX, and our own float32.
    """
    short = [r for r in results if r.case.threads == 1 and " bf16 " in r.case.name]
    single = [r for r in results if r.case.threads == 1 and " f32 " in r.case.name]
    peer = "torch" if any(r.ratio("torch") for r in single) else "jax"
    out = {"flash_peer": peer}
    for column, name in {"ours f32": "own_f32", "jax": "jax"}.items():
        ratios = [r.ratio(column) for r in short if r.ratio(column)]
        if ratios:
            out[f"flash_bf16_geomean_{name}"] = geomean(ratios)
    for name, kinds, against in [
        ("full", ["full"], peer),
        ("causal", ["causal"], peer),
        ("decode", ["decode"], peer),
        ("grad", ["grad_full", "grad_causal"], "jax"),
        ("grad_torch", ["grad_full", "grad_causal"], "torch"),
        ("full_jax", ["full"], "jax"),
        ("causal_jax", ["causal"], "jax"),
        ("decode_jax", ["decode"], "jax"),
    ]:
        ratios = [r.ratio(against) for r in single if r.case.name.split()[1] in kinds and r.ratio(against)]
        if ratios:
            out[f"flash_{name}_geomean"] = geomean(ratios)
            out[f"flash_{name}_worst"] = round(min(ratios), 3)
        gains = [r.ratio("heuristic") for r in single if r.case.name.split()[1] in kinds and r.ratio("heuristic")]
        if gains and against == peer:
            out[f"flash_{name}_tuned_over_heuristic"] = geomean(gains)
    return out
