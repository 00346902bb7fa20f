# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it costs and needs, and how it ends."""

import pathlib
import subprocess
import sys
import tomllib

import pytest
from conftest import run_program

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_importing_needs_no_jax_and_no_numpy_and_touches_nothing(tmp_path):
    run_program(
        """
        import os, sys
        before = dict(os.environ)
        import ejk.ops
        assert "jax" not in sys.modules and "numpy" not in sys.modules
        assert dict(os.environ) == before
        """,
        HOME=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path),
        EJKERNEL_PERSISTENT_CACHE_DIR=str(tmp_path / "store"),
    )
    assert list(tmp_path.iterdir()) == []


def test_kernels_run_where_there_is_no_jax():
    run_program(
        """
        import sys
        sys.modules["jax"] = None  # importing it raises ImportError
        del sys.modules["jax"]
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name == "jax" or name.startswith("jax."):
                    raise ImportError("no jax here")
        sys.meta_path.insert(0, Refuse())
        import numpy as np
        from ejk.ops import ConfigSelectorChain, Executor, Kernel

        class Scale(Kernel):
            def run(self, x, *, cfg, factor=1.0):
                return x * factor
            def heuristic_cfg(self, inv):
                return {"block": 1}
            def candidate_cfgs(self, inv):
                return [{"block": 1}, {"block": 2}]

        executor = Executor(ConfigSelectorChain())
        got = executor(Scale(), np.ones(8), factor=3.0)
        assert type(got) is np.ndarray and (got == 3).all()
        assert executor.choose_config(Scale(), np.ones(8), factor=3.0) in ({"block": 1}, {"block": 2})
        assert "jax" not in sys.modules
        """
    )


def test_nothing_is_leaked_at_exit():
    done = run_program(
        """
        import asyncio, dataclasses, gc, threading
        import jax, jax.numpy as jnp, numpy as np
        import ejk.modules as modules
        import ejk.ops as ops
        from ejk import _core

        _core.set_leak_warnings(True)

        @dataclasses.dataclass(frozen=True)
        class Config:
            block: int = 1

        class Scale(ops.Kernel[Config, jax.Array]):
            def run(self, x, *, cfg, factor=2.0):
                return x * factor
            def heuristic_cfg(self, inv):
                return Config()
            def candidate_cfgs(self, inv):
                return [Config(1), Config(2)]
            def fwd_with_residuals(self, x, *, cfg, factor=2.0):
                return x * factor, ("kept", factor)
            def vjp(self, residuals, y, dy, x, *, cfg, factor=2.0):
                return (dy * residuals[1],)

        told = []
        kernel, x = Scale(), jnp.ones(8)
        chain = ops.ConfigSelectorChain(ops.ConfigCache(), on_event=lambda kind, **data: told.append((kernel, data)))
        for executor in (ops.Executor(), ops.Executor(chain), ops.Executor(chooser=chain)):
            for _ in range(3):
                executor(kernel, x)
            inner = executor
            f = jax.jit(lambda x: inner(kernel, x) + 1)
            f(x), jax.grad(lambda x: f(x).sum())(x), jax.vmap(inner, (None, 0))(kernel, jnp.ones((2, 8)))
            executor.compile(kernel, x)(x), executor.explain(kernel, x)
        kernel(x), kernel(np.ones(3)), kernel(x, factor=3.0)
        kernel.executor = executor  # a cycle through the core
        with ops.overlay_cache({}), ops.policy_override(allow_autotune=False):
            executor(kernel, x)
        try:
            executor(ops.Kernel("nothing"), x)
        except Exception as error:
            kept = error  # with its frames
        ops.autotune(Scale(), x, configs=[Config(1), Config(2)])
        ops.find_labels_in_lowered(f.lower(x))
        left_open = ops.overlay_cache({})
        left_open.__enter__()

        with ops.policy_override(allow_autotune=False):
            modules.softmax(x), modules.softmax(np.ones((2, 3), "float32"))
            jax.grad(lambda x: modules.rms_norm(x).sum())(x)
            jax.jit(modules.matmul)(jnp.ones((3, 3)), jnp.ones((3, 3)))

        async def task():
            with ops.overlay_cache({}):
                await asyncio.sleep(0)
                return executor(kernel, x)

        async def both():
            await asyncio.gather(task(), task())

        asyncio.run(both())
        thread = threading.Thread(target=lambda: executor(kernel, jnp.ones(5)))
        thread.start(), thread.join()
        """
    )
    assert "leak" not in done.stderr, done.stderr


def test_a_program_whose_classes_jax_keeps_ends_without_a_word():
    done = run_program(
        """
        import jax
        from ejk.ops import Executor, Kernel

        @jax.tree_util.register_pytree_node_class
        class Pair:
            def tree_flatten(self):
                return (self.x,), None
            @classmethod
            def tree_unflatten(cls, _, children):
                return cls()

        class Twice(Kernel):
            def run(self, x, *, cfg):
                return 2 * x
            def heuristic_cfg(self, inv):
                return 1

        executor = Executor()
        for size in range(20):
            executor(Twice(), jax.numpy.ones(size))
        """
    )
    assert done.stderr == ""


# A daemon thread calls kernels while the interpreter ends.
BACKGROUND = """
import threading, time
import ejk.ops as ops

class Twice(ops.Kernel):
    def run(self, x, *, cfg):
        time.sleep(pause)
        return x * 2
    def heuristic_cfg(self, inv):
        return 1
    def candidate_cfgs(self, inv):
        return [1, 2, 3]

executor, kernel = ops.Executor(), Twice()
begun = threading.Event()

def forever(call):
    def work():
        while True:
            for array in arrays:
                call(array)
                begun.set()
    return threading.Thread(target=work, daemon=True)

def end_while(*calls, after):
    for call in calls:
        forever(call).start()
    begun.wait()
    time.sleep(after)
"""
NUMPY = "import numpy; arrays = [numpy.ones(n, 'float32') for n in range(1, 40)]; pause = 0\n"
JAX = "import jax; arrays = [jax.numpy.ones(n) for n in range(1, 40)]; pause = 0\n"


@pytest.mark.parametrize("after", (0.01, 0.2))
@pytest.mark.parametrize(
    "program",
    (
        NUMPY + BACKGROUND + "end_while(lambda x: executor(Twice(), x), after={after})",
        NUMPY + BACKGROUND + "pause = 0.05; end_while(*[lambda x: kernel(x)] * 4, after={after})",
        JAX + BACKGROUND + "end_while(*[lambda x: executor(Twice(), x)] * 2, after={after})",
        JAX + BACKGROUND + "end_while(lambda x: jax.jit(lambda x: executor(kernel, x))(x), after={after})",
    ),
    ids=("tuning", "four_threads_that_sleep", "tuning_with_jax", "tracing"),
)
def test_a_background_thread_does_not_disturb_the_exit(program, after):
    done = run_program(program.replace("{after}", str(after)))
    assert done.stdout + done.stderr == ""


def test_a_thread_that_does_not_come_back_holds_up_the_exit_for_seconds_only_and_no_child_of_fork():
    done = run_program(
        """
import atexit, os
atexit.register(lambda: print(time.monotonic() - begin, flush=True))  # after those of ejk
"""
        + NUMPY
        + BACKGROUND
        + """
pause = 10_000
__import__("warnings").simplefilter("ignore")  # since Python 3.12 one of fork beside threads
forever(kernel).start()
while not [frame for frame in __import__("sys")._current_frames().values() if frame.f_code is Twice.run.__code__]:
    time.sleep(0.01)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
begin = time.monotonic()
"""
    )
    child, parent = map(float, done.stdout.split())
    assert child < parent / 2 and done.stderr == ""


def test_threads_that_the_interpreter_waits_for_end_their_work():
    done = run_program(
        NUMPY
        + BACKGROUND
        + """
import concurrent.futures, sys
pause = 0.1
def work():
    sys.stdout.write(f"{executor(Twice(), numpy.ones(3)).sum()}\\n")
threading.Thread(target=work).start()
pool = concurrent.futures.ThreadPoolExecutor(2)
pool.submit(work), pool.submit(work)
"""
    )
    assert done.stdout.split() == ["6.0"] * 3 and done.stderr == ""


def test_handlers_that_run_at_exit_can_call_kernels():
    done = run_program(
        """
import atexit
atexit.register(lambda: print(executor(Twice(), numpy.ones(3)).sum()))  # before ejk has its own: runs after it
"""
        + NUMPY
        + BACKGROUND
        + "end_while(lambda x: executor(Twice(), x), after=0.1)"
    )
    assert done.stdout.split() == ["6.0"] and done.stderr == ""


def test_kernels_of_the_core_are_reported_by_version():
    import ejk

    assert ejk.__version__.count(".") == 2


def test_the_package_is_built_without_the_parser_of_the_tools_command_line(tmp_path):
    with open(ROOT / "pyproject.toml", "rb") as file:
        defines = tomllib.load(file)["tool"]["scikit-build"]["cmake"]["define"]
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), f"-DPython_EXECUTABLE={sys.executable}"]
    command += [f"-D{name}={value}" for name, value in defines.items()]
    done = subprocess.run([*command, "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
