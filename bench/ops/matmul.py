# SPDX-License-Identifier: Apache-2.0
"""bench/ops: matrix products against OpenBLAS, BLIS and oneDNN; bfloat16 against float32 and JAX.

Grouped products: against the same libraries, one product after the other, and JAX's ragged_dot.
"""

import math
import random

from race import Case, geomean

LIBRARIES = ["openblas", "blis", "onednn"]
SHAPES = [
    (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
    (2048, 2048, 2048), (1, 1024, 1024), (1, 4096, 4096), (4, 1024, 1024), (4, 4096, 1024),
    (8, 4096, 4096), (16, 1024, 4096), (32, 4096, 1024), (64, 1024, 1024), (128, 4096, 1024),
    (128, 1024, 4096), (512, 1024, 1024), (512, 4096, 1024), (2048, 1024, 1024), (4096, 64, 1024),
    (100, 1000, 300), (4096, 16, 4096),
    # Sizes that are no multiples of anything.
    (97, 777, 1111), (333, 517, 65), (1000, 100, 2000), (24, 3000, 700), (3, 2500, 1700),
    (700, 50, 900), (1, 900, 5000),
]  # fmt: skip


def random_shapes(seed, count):
    """Sizes from 1 to 4096, small ones as likely as large ones, drawn at random."""
    choose = random.Random(seed)
    shapes = []
    while len(shapes) < count:
        shape = tuple(round(math.exp(choose.uniform(0, math.log(4096)))) for _ in range(3))
        if math.prod(shape) <= 5e8:
            shapes.append(shape)
    return shapes


# Guesses for AVX-512 were looked at with the first twenty of them, not with the others.
RANDOM = random_shapes(5, 12) + random_shapes(2026, 8) + random_shapes(90210, 20)
QUICK = [(64, 64, 64), (512, 512, 512), (1, 4096, 4096), (32, 4096, 1024), (4096, 64, 1024), (97, 777, 1111)]
BFLOAT16 = [(1, 4096, 4096), (16, 1024, 4096), (128, 4096, 1024), (512, 512, 512)]
# groups, rows, N, K; the groups differ in size
GROUPED = [(8, 512, 1024, 512), (16, 2048, 512, 512), (64, 256, 512, 256), (5, 999, 300, 700)]
ALL_THREADS = [(512, 512, 512), (128, 4096, 1024), (1024, 1024, 1024)]


def ordinary(shape):
    return shape[0] >= 16 and shape[1] > 64


def shape_of(case):
    return tuple(map(int, case.name.split()[-1].split("x")))


def name_of(kind, shape):
    return f"matmul {kind} " + "x".join(map(str, shape))


def float_case(shape, threads=1):
    size = " ".join(map(str, shape))
    entries = {
        "tuned": ("ours", f"matmul f32 {size} tuned"),
        "again": ("ours", f"matmul f32 {size} tuned"),
        "heuristic": ("ours", f"matmul f32 {size} heuristic"),
    }
    entries |= {library: (library, f"sgemm {library} {size}") for library in LIBRARIES}
    return Case(name_of("f32", shape), entries, threads)


def bfloat_case(shape):
    size = " ".join(map(str, shape))
    entries = {
        "tuned": ("ours", f"matmul bf16 {size} tuned"),
        "again": ("ours", f"matmul bf16 {size} tuned"),
        "heuristic": ("ours", f"matmul bf16 {size} heuristic"),
        "ours f32": ("ours", f"matmul f32 {size} tuned"),
        "jax": ("jax", f"matmul bf16 {size}"),
    }
    return Case(name_of("bf16", shape), entries)


def grouped_case(shape, threads=1):
    size = " ".join(map(str, shape))
    entries = {
        "tuned": ("ours", f"grouped_matmul f32 {size} tuned"),
        "again": ("ours", f"grouped_matmul f32 {size} tuned"),
        "heuristic": ("ours", f"grouped_matmul f32 {size} heuristic"),
        "ours bf16": ("ours", f"grouped_matmul bf16 {size} tuned"),
    }
    entries |= {library: (library, f"grouped_sgemm {library} {size}") for library in LIBRARIES}
    entries["jax"] = ("jax", f"grouped_matmul f32 {size}")
    return Case("grouped_" + name_of("f32", shape), entries, threads)


def cases(options):
    """`options.shapes`: those that were asked for, (M, N, K) or (groups, rows, N, K); else the usual ones."""
    if options.shapes:
        wrong = [shape for shape in options.shapes if len(shape) not in (3, 4)]
        if wrong:
            raise SystemExit(f"matmul takes M,N,K or GROUPS,ROWS,N,K, not {wrong[0]}")
        return [float_case(shape) if len(shape) == 3 else grouped_case(shape) for shape in options.shapes]
    if options.quick:
        return [float_case(shape) for shape in QUICK] + [bfloat_case(BFLOAT16[0]), grouped_case(GROUPED[0])]
    return (
        [float_case(shape) for shape in SHAPES + RANDOM]
        + [bfloat_case(shape) for shape in BFLOAT16]
        + [grouped_case(shape) for shape in GROUPED]
        + [float_case(shape, threads=0) for shape in ALL_THREADS]
        + [grouped_case(GROUPED[1], threads=0)]
    )


def figures(results):
    """Of the cases with one thread: how fast `tuned` is, as a multiple of a peer."""
    single = [r for r in results if r.case.threads == 1]
    plain = [r for r in single if r.case.name.startswith("matmul f32 ")]
    out = {}
    for name, beginning, columns in [
        ("matmul_bf16", "matmul bf16 ", {"ours f32": "own_f32", "jax": "jax"}),
        ("grouped_matmul", "grouped_matmul f32 ", {"openblas": "openblas", "jax": "jax"}),
    ]:
        some = [r for r in single if r.case.name.startswith(beginning)]
        for column, peer in columns.items():
            ratios = [r.ratio(column) for r in some if r.ratio(column)]
            if ratios:
                out[f"{name}_geomean_{peer}"] = geomean(ratios)
                out[f"{name}_worst_{peer}"] = round(min(ratios), 3)
    for ours in ("tuned", "heuristic"):
        suffix = "" if ours == "tuned" else "_heuristic"
        against, best = [], []
        for result in plain:
            ratios = {library: result.ratio(library, ours) for library in LIBRARIES}
            known = [ratio for ratio in ratios.values() if ratio]
            best += [min(known)] if known else []
            if ratios["openblas"] and ordinary(shape_of(result.case)):
                against.append(ratios["openblas"])
        if against:
            out[f"matmul_geomean_openblas{suffix}"] = geomean(against)
            out[f"matmul_worst_openblas{suffix}"] = round(min(against), 3)
        if best:
            out[f"matmul_geomean_best{suffix}"] = geomean(best)
            out[f"matmul_worst_best{suffix}"] = round(min(best), 3)
    return out
