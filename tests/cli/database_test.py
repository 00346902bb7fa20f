# SPDX-License-Identifier: Apache-2.0
"""A database that many machines share, as an operator meets it."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest
from tool import entry, measured

PROGRAMS = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
USER = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}  # a server refuses to be root


@pytest.fixture(scope="module")
def database():
    """The URL of an empty one, by a socket."""
    if not PROGRAMS:
        pytest.skip("no server of PostgreSQL is installed (Debian: postgresql)")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ejk_pg_"))
    folder.chmod(0o777)
    how = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **USER}
    subprocess.run([PROGRAMS[-1] / "initdb", "-D", folder / "data", "-U", "postgres", "-N", "-A", "trust"], check=True, **how)
    server = subprocess.Popen(
        [PROGRAMS[-1] / "postgres", "-D", folder / "data", "-F", "-k", folder, "-c", "listen_addresses="], **how
    )
    while subprocess.run([PROGRAMS[-1] / "pg_isready", "-q", "-h", folder]).returncode != 0:
        assert server.poll() is None, "the server does not start"
        time.sleep(0.05)
    yield f"postgresql://postgres:s3cret@/postgres?host={folder}"
    server.terminate()
    server.wait()
    shutil.rmtree(folder)


def test_from_nothing_to_a_store_that_machines_share(ejk, device, database, tmp_path):
    unfit = ejk("store", "check", database, "--json", expect=4)
    assert not unfit.json["usable"] and "ejk store init" in unfit.json["why"]
    made = ejk("store", "init", database, "--json").json
    assert made["made"] and made["version"] == 1
    assert not ejk("store", "init", database, "--json").json["made"]
    assert "nothing to do" in ejk("store", "upgrade", database).stdout

    measured(tmp_path / "store", entry(device))
    assert ejk("store", "push", database, "--json").json["sent"] == 0  # nothing waits
    assert ejk("store", "push", "--all", database, "--json").json["sent"] == 1
    checked = ejk("store", "check", database, "--json").json
    assert checked["usable"] and checked["may_replace"] and checked["entries"] == 1

    # Another machine has it.
    other = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "other")}
    (seen,) = ejk("ls", "--json", "--store", database, env=other).json["entries"]
    assert seen["op"] == "gemm@v1" and database.split("host=")[1] in seen["where"]
    by_default = {**other, "EJKERNEL_PERSISTENT_CACHE_URL": database}
    assert "gemm@v1" in ejk("ls", env=by_default).stdout
    assert '"block": 64' in ejk("show", "gemm:", "--json", env=by_default).stdout


def test_no_output_has_the_password(ejk, database):
    for arguments in (
        ("store", "check", database), ("store", "init", database), ("store", "push", database),
        ("ls", "--store", database), ("prune", "--all", "--store", database),
        ("store", "check", "postgresql://ann:s3cret@h:1/d?nonsense=1"),
        ("store", "check", "postgresql://ann:s3cret@127.0.0.1:1/d"),
    ):  # fmt: skip
        for json in ((), ("--json",)):
            done = ejk(*arguments, *json, expect=None)
            assert done.returncode != 0 or arguments[-1] == database
            assert "s3cret" not in done.stdout + done.stderr, arguments


def test_verbs_that_change_a_directory_refuse_a_database(ejk, database):
    assert "expected a directory" in ejk("prune", "--all", "--store", database, expect=2).stderr


def test_without_the_client_library_the_package_is_named(ejk):
    absent = {"EJK_LIBPQ_LIBRARY": "/nowhere.so"}
    assert "libpq5" in ejk("store", "check", "postgresql:///d", env=absent, expect=1).stderr
    told = ejk("ls", "--store", "postgresql:///d", env=absent)
    assert told.stderr.count("libpq5") == 1 and "kept in" in told.stderr
