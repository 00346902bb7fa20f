# SPDX-License-Identifier: Apache-2.0
"""`ejk.ops` under an installed ejkernel, in an environment of its own: the same results, the same errors."""

import json
import os
import pathlib
import pickle
import subprocess
import textwrap

import ejkernel_venv
import numpy
import pytest

FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(scope="session")
def python():
    return ejkernel_venv.python()


def run(command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=1200)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-4000:])
    return done


def program(python, code, **environment):
    return run([python, "-c", textwrap.dedent(code)], **environment)


IS_OURS = """
import ejk, ejk.ops, ejkernel, sys
from ejkernel.ops.config.persistent import PersistentCache
import ejkernel.ops.execution.tuning

assert ejkernel.ops is ejk.ops and sys.modules["ejkernel.ops"] is ejk.ops
assert PersistentCache is ejk.ops.PersistentCache
assert ejkernel.ops.execution.tuning is ejk.ops.execution.tuning
assert ejk.ops.__spec__.name == ejk.ops.__name__ == "ejk.ops"
own = [m.__name__ for m in (ejkernel, ejkernel.modules, ejkernel.kernels, ejkernel.types, ejkernel.errors)]
assert own == ["ejkernel", "ejkernel.modules", "ejkernel.kernels", "ejkernel.types", "ejkernel.errors"], own
assert issubclass(ejkernel.modules.operations.FlashAttention, ejk.ops.Kernel)
try:
    import ejkernel.ops.no_such_module
except ModuleNotFoundError as error:
    assert error.name == "ejkernel.ops.no_such_module", error.name
else:
    raise AssertionError("found what is not there")
"""


def test_after_the_import_ops_are_ours_and_the_rest_is_its_own(python):
    program(python, "import ejk.under_ejkernel\n" + IS_OURS)
    program(python, "import ejk.under_ejkernel, ejk.as_ejkernel\n" + IS_OURS)


def test_the_variable_needs_no_change_of_code(python):
    program(python, IS_OURS, EJK_UNDER_EJKERNEL="1")


@pytest.mark.parametrize("value", ["", "0"])
def test_without_the_variable_nothing_is_imported(value, python):
    code = """
    import sys
    assert not any(name.partition(".")[0] in ("ejk", "ejkernel") for name in sys.modules)
    import ejkernel.ops
    assert ejkernel.ops.__file__.endswith("ejkernel/ops/__init__.py"), ejkernel.ops.__file__
    """
    program(python, code, EJK_UNDER_EJKERNEL=value)


def test_the_import_comes_first_or_says_so(python):
    code = """
    import ejkernel
    try:
        import ejk.under_ejkernel
    except ImportError as error:
        assert "import ejk.under_ejkernel before ejkernel" in str(error), error
    else:
        raise AssertionError("it came too late and said nothing")
    assert ejkernel.ops.__file__.endswith("ejkernel/ops/__init__.py")
    """
    program(python, code)
    program(python, "import ejk.under_ejkernel, ejkernel, importlib\nimportlib.reload(ejk.under_ejkernel)\n" + IS_OURS)


# ---- its operations, both ways -------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes(python, tmp_path_factory):
    """{"case/way": arrays or the text of an error} of the original, and on our ops."""
    folder = tmp_path_factory.mktemp("outcomes")
    sides = {}
    for under in ("0", "1"):
        environment = {
            **os.environ,
            "EJK_UNDER_EJKERNEL": under,
            "EJKERNEL_AUTOTUNE_POLICY": "heuristics",
            "EJKERNEL_PERSISTENT_CACHE_DIR": str(folder / f"store{under}"),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        }
        command = [python, str(FOLDER / "ejkernel_operations.py"), str(folder / under)]
        log = open(folder / f"log{under}", "w")
        sides[under] = subprocess.Popen(command, env=environment, stdout=log, stderr=log), log
    try:
        for under, (process, log) in sides.items():
            assert process.wait(timeout=1200) == 0, pathlib.Path(log.name).read_text()[-4000:]
    finally:
        for process, _ in sides.values():
            process.kill()
    return [pickle.loads((folder / under).read_bytes()) for under in sides]


def relative_error(a, b) -> float:
    """The largest difference over the largest element; infinite where only one of them is a number."""
    if numpy.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return 0.0
    if a.dtype.kind != "f" or (numpy.isfinite(a) != numpy.isfinite(b)).any():
        return numpy.inf
    finite = numpy.isfinite(a)
    return float(numpy.abs(a[finite] - b[finite]).max() / max(numpy.abs(a[finite]).max(), numpy.finfo(a.dtype).tiny))


def difference(original, ours) -> str:
    """What is different; "" if nothing is."""
    if isinstance(original, str) or isinstance(ours, str):
        texts = [x if isinstance(x, str) else "a result" for x in (original, ours)]
        return "" if texts[0] == texts[1] else f"{texts[0]!r} became {texts[1]!r}"
    forms = [[(a.shape, a.dtype) for a in side] for side in (original, ours)]
    if forms[0] != forms[1]:
        return f"{forms[0]} became {forms[1]}"
    worst = max(map(relative_error, original, ours), default=0.0)
    return "" if worst <= 2e-6 else f"a relative difference of {worst:.2g}"


def test_results_and_errors_are_those_of_the_original(outcomes):
    original, ours = outcomes
    assert list(original) == list(ours)
    found = {name: difference(original[name], ours[name]) for name in original}
    assert not any(found.values()), "\n".join(f"{name}: {what}" for name, what in found.items() if what)


def test_thirty_operations_and_a_mesh_are_compared(outcomes):
    original, _ = outcomes
    worked = [name for name, outcome in original.items() if not isinstance(outcome, str)]
    for way, least in (("eager", 30), ("jit", 30), ("grad", 23)):
        of = {name.rpartition("/")[0] for name in worked if name.endswith(way)}
        assert len({name.partition(",")[0] for name in of if not name.startswith("mesh: ")}) >= least, way
        assert len({name for name in of if name.startswith("mesh: ")}) >= 6, way
    assert all(isinstance(outcome, str) for name, outcome in original.items() if name.startswith("fails: "))


def test_recorded_calls_of_names_that_the_library_has_too_are_tuned(python):
    record = """
    import ejk.under_ejkernel, ejkernel.modules as modules, jax.numpy as jnp
    x = jnp.ones((1, 8, 2, 16))
    modules.flash_attention(x, x, x)
    modules.grouped_matmul(jnp.ones((8, 16)), jnp.ones((2, 16, 8)), jnp.array([4, 4], jnp.int32))
    """
    program(python, record, EJKERNEL_OPS_RECORD="1", EJKERNEL_AUTOTUNE_POLICY="heuristics")
    imports = ["--import", "ejk.under_ejkernel", "--import", "ejkernel.modules"]
    tuned = json.loads(run([python, "-m", "ejk", "tune", *imports, "--budget-per-call", "1", "--json"]).stdout)
    assert tuned["skipped"] == []
    assert {entry["op"].partition("@")[0] for entry in tuned["tuned"]} == {"flash_attention", "grouped_matmul"}
