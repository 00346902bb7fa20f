# SPDX-License-Identifier: Apache-2.0
"""Wheels where there is no compiler and no library of ours: they install, and what is in them works."""

import os
import re
import subprocess
import sysconfig
import zipfile

import pytest
from conftest import PACKAGES, ROOT, VERSION, run

WHEELS = sorted(PACKAGES.glob("*.whl"))
# The tests of python/tests that need more than a wheel, and what.
LEFT_OUT = {
    "test_libraries.py": "a compiler, and the library to link with",
    "test_under_ejkernel.py": "the original, which pip downloads into an environment of its own",
    "test_package.py::test_the_package_is_built_without_the_parser_of_the_tools_command_line": "cmake",
    "test_worker.py::test_the_tool_tunes_python_kernels_with_a_worker": "the tool, which is no part of a wheel",
}

USES_IT = """
import importlib.metadata, math
import numpy as np
import ejk, ejk._core
from ejk.modules import softmax
assert ejk._core.__version__ == importlib.metadata.version("ejk") == {version!r}
x = np.arange(12, dtype=np.float32).reshape(3, 4)
assert np.allclose(softmax(x).sum(axis=-1), 1)
libraries = {{line.split()[-1] for line in open("/proc/self/maps") if "libhwy" in line}}
assert libraries and all("/ejk.libs/" in file for file in libraries), libraries
print("it works")
"""


def test_there_are_wheels():
    assert WHEELS, f"no wheel in {PACKAGES}; make wheel makes them"


@pytest.fixture(params=WHEELS, ids=lambda wheel: wheel.name)
def wheel(request):
    return request.param


def python_of(wheel):
    """The one that the wheel was made with, beside which its tests' other packages are."""
    digits = wheel.name.split("-")[2].removeprefix("cp")
    version = f"{digits[0]}.{digits[1:]}"
    own = ROOT / ".venv/bin/python"
    return own if version == sysconfig.get_python_version() else ROOT / f".venv-{version}/bin/python"


def test_a_wheel_is_for_many_linuxes_and_small_and_has_highway_inside(wheel):
    name, version, *_, platform = wheel.stem.split("-")
    assert (name, version) == ("ejk", VERSION)
    assert "manylinux_2_" in platform
    assert wheel.stat().st_size <= 15e6
    files = zipfile.ZipFile(wheel).namelist()
    assert any(file.startswith("ejk.libs/libhwy") for file in files)
    assert f"ejk-{VERSION}.dist-info/licenses/LICENSE" in files
    assert not [file for file in files if file.endswith((".cpp", ".h", ".a", ".cmake"))]


def test_the_extension_exports_what_python_asks_for_and_nothing_else(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (extension,) = tmp_path.glob("ejk/_core*.so")
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", extension).splitlines()]
    assert symbols == ["PyInit__core"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Gives the Python of an environment with nothing but the wheel, and programs that find nothing but it."""
    made = {}

    def install(wheel):
        if wheel not in made:
            folder = tmp_path_factory.mktemp("venv")
            run(python_of(wheel), "-m", "venv", "--without-pip", folder)
            python = folder / "bin/python"
            environment = {"PATH": str(folder / "bin"), "HOME": str(folder)}
            pip = [python_of(wheel), "-m", "pip", "--python", python, "--disable-pip-version-check"]
            run(*pip, "install", "--no-index", "--no-deps", wheel, env=environment)
            made[wheel] = python, environment
        return made[wheel]

    return install


def test_the_python_tests_pass_where_no_compiler_is_found(wheel, installed):
    python, environment = installed(wheel)
    packages = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = run(python, "-c", packages, env=environment).strip()
    # What the tests need, behind what the wheel brought.
    beside = run(python_of(wheel), "-c", packages).strip()
    with open(f"{own}/beside.pth", "w") as file:
        file.write(f"import site; site.addsitedir({beside!r})\n")
    said = run(python, "-c", "import ejk._core; print(ejk._core.__file__)", env=environment)
    assert said.startswith(own)
    assert "it works" in run(python, "-c", USES_IT.format(version=VERSION), env=environment)
    tests = ROOT / "python/tests"
    assert all((tests / name.partition("::")[0]).exists() for name in LEFT_OUT)
    left_out = [f"--deselect=python/tests/{name}" for name in LEFT_OUT]
    at_once = ["-n", str(os.cpu_count()), "--dist", "loadfile"]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *at_once, *left_out, tests],
        env={**environment, "TMPDIR": os.environ.get("TMPDIR", "/tmp")},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(done.stdout)  # with -rP: how long that took
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 500


def test_a_bare_debian_needs_nothing_but_python(bare_debian):
    bare_debian("apt-get", "install", "-y", "--no-install-recommends", "python3-venv")
    version = bare_debian("python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").strip()
    (wheel,) = PACKAGES.glob(f"*-{version}-*.whl")
    assert not [tool for tool in ("c++", "cc", "cmake", "ninja") if bare_debian.has(tool)]
    bare_debian.copy(wheel, f"srv/{wheel.name}")
    bare_debian("python3", "-m", "venv", "/srv/venv")
    bare_debian("/srv/venv/bin/pip", "install", "--no-index", f"/srv/{wheel.name}")
    bare_debian("/srv/venv/bin/pip", "install", "numpy")
    assert "it works" in bare_debian("/srv/venv/bin/python", "-c", USES_IT.format(version=VERSION))
