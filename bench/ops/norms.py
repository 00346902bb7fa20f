# SPDX-License-Identifier: Apache-2.0
"""bench/ops: rms_norm, layer_norm and softmax against memcpy of as many bytes, PyTorch and JAX.

PyTorch and JAX make a new array for every result: at these sizes much of their time is page faults.
"""

from race import Case, geomean

OPS = ["rms_norm", "softmax", "layer_norm"]
# 134 MB in, 134 MB out, and shapes that are no powers of two: out of the caches of most CPUs.
LARGE = [(8192, 4096), (32768, 1024), (2048, 16384), (6001, 5600)]
SMALL = [(512, 1024)]


def case(op, shape, kind="f32", threads=1):
    size = " ".join(map(str, shape))
    entries = {
        "tuned": ("ours", f"{op} {kind} {size} tuned"),
        "again": ("ours", f"{op} {kind} {size} tuned"),
        "heuristic": ("ours", f"{op} {kind} {size} heuristic"),
        "memcpy": ("ours", f"memcpy {kind} {size}"),
    }
    if kind == "f32":
        entries["torch"] = ("torch", f"{op} {kind} {size}")
    else:
        entries["ours f32"] = ("ours", f"{op} f32 {size} tuned")
    entries["jax"] = ("jax", f"{op} {kind} {size}")
    return Case(f"{op} {kind} " + "x".join(map(str, shape)), entries, threads)


def cases(options):
    """`options.shapes`: those that were asked for, (rows, columns) each; else the usual ones."""
    if options.shapes:
        return [case(op, shape) for op in OPS for shape in options.shapes]
    if options.quick:
        return [case(op, LARGE[0]) for op in OPS[:2]] + [case(OPS[0], LARGE[0], "bf16")]
    return (
        [case(op, shape) for op in OPS for shape in LARGE + SMALL]
        + [case(op, (16384, 4096), "bf16") for op in OPS]
        + [case(op, LARGE[0], threads=0) for op in OPS]
    )


def figures(results):
    """Of the large float32 cases with one thread: how fast we are, as a multiple of memcpy."""
    out = {}
    for op in OPS:
        for column, peer in {"ours f32": "own_f32", "jax": "jax"}.items():
            single = [r for r in results if r.case.threads == 1 and r.case.name.startswith(f"{op} bf16 ")]
            ratios = [r.ratio(column) for r in single if r.ratio(column)]
            if ratios:
                out[f"{op}_bf16_over_{peer}"] = geomean(ratios)
        for ours in ("tuned", "heuristic"):
            ratios = [
                r.ratio("memcpy", ours)
                for r in results
                if r.case.threads == 1
                and r.case.name.startswith(f"{op} f32 ")
                and r.case.name.split()[-1] not in ["x".join(map(str, shape)) for shape in SMALL]
            ]
            if ratios and all(ratios):
                suffix = "" if ours == "tuned" else "_heuristic"
                out[f"{op}_over_memcpy{suffix}"] = geomean(ratios)
                out[f"{op}_over_memcpy_worst{suffix}"] = round(min(ratios), 3)
    return out
