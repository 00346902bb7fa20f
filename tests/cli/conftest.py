# SPDX-License-Identifier: Apache-2.0
"""The tool `ejk` as an operator meets it, every verb as a process of its own."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest
from browser import Browser
from tool import PLUGINS, POSTGRES, SHIFTED, SPEC, TOOL, entry, measured, wait_for


@pytest.fixture(scope="session", autouse=True)
def the_tool_is_built():
    assert TOOL.exists(), f"{TOOL} is not there: cmake --preset dev && cmake --build --preset dev"


@pytest.fixture
def ejk(tmp_path):
    """Runs the tool in an empty home; `expect` is the exit code, the result has .json if it parses."""

    def call(*arguments, expect=0, env=None, text=True, timeout=120, **how):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store"),
            **(env or {}),
        }
        result = subprocess.run(
            [TOOL, *map(str, arguments)],
            env=environment, capture_output=True, text=text, timeout=timeout, **{"cwd": tmp_path, **how},
        )  # fmt: skip
        assert expect is None or result.returncode == expect, (arguments, result.returncode, result.stdout, result.stderr)
        if "--json" in arguments and result.stdout:
            result.json = json.loads(result.stdout, parse_constant=pytest.fail)
        return result

    (tmp_path / "home").mkdir()
    return call


@pytest.fixture
def start():
    """Starts a process, with pipes for what it says. It ends with the test at the latest."""
    with contextlib.ExitStack() as ends:

        def call(command, **how):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = ends.enter_context(subprocess.Popen(list(map(str, command)), text=True, **{**pipes, **how}))
            ends.callback(process.kill)
            return process

        yield call


@pytest.fixture
def device(ejk):
    return ejk("devices", "--json").json["devices"][0]


@pytest.fixture
def store(ejk, device, tmp_path):
    """The default store with two entries."""
    measured(tmp_path / "store", entry(device))
    measured(tmp_path / "store", entry(device, op="norm@v2", spec=SPEC.replace("8,4", "16,4")))
    return tmp_path / "store"


@pytest.fixture
def plugin():
    (library,) = PLUGINS.glob("*kernels.so")
    return ["--plugin", library]


@pytest.fixture
def shifted(ejk, plugin, tmp_path):
    """The tuned entry of a kernel from a plugin, in a store of its own."""
    (tuned,) = ejk("tune", *SHIFTED, *plugin, "--json", "--store", tmp_path / "first").json["tuned"]
    return tuned


@pytest.fixture
def bad(plugin):
    (library,) = PLUGINS.glob("*bad.so")
    return [*plugin, "--plugin", library]


@pytest.fixture
def browser(tmp_path):
    browser = Browser(tmp_path)
    yield browser
    browser.end()


@pytest.fixture(scope="module")
def database():
    """The URL of an empty one, by a socket."""
    if not POSTGRES:
        pytest.skip("no server of PostgreSQL is installed (Debian: postgresql)")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ejk_pg_"))
    folder.chmod(0o777)
    user = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}  # a server refuses to be root
    how = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **user}
    subprocess.run([POSTGRES[-1] / "initdb", "-D", folder / "data", "-U", "postgres", "-N", "-A", "trust"], check=True, **how)
    server = subprocess.Popen(
        [POSTGRES[-1] / "postgres", "-D", folder / "data", "-F", "-k", folder, "-c", "listen_addresses="], **how
    )
    try:

        def is_ready():
            assert server.poll() is None, "the server does not start"
            return subprocess.run([POSTGRES[-1] / "pg_isready", "-q", "-h", folder]).returncode == 0

        wait_for(is_ready, "the server")
        yield f"postgresql://postgres:s3cret@/postgres?host={folder}"
    finally:
        server.send_signal(signal.SIGINT)  # after SIGTERM it would wait for its clients
        server.wait()
        shutil.rmtree(folder)
