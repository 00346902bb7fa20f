# SPDX-License-Identifier: Apache-2.0
"""A server of PostgreSQL for tests, in a directory of its own; postgres_server.h is the one of the C++ tests."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

PROGRAMS = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))


class Server:
    def __init__(self, folder):
        self.folder = folder

    def url(self, database="postgres"):
        """By the socket, as the superuser. The password is not asked for, and no output may have it."""
        return f"postgresql://postgres:s3cret@/{database}?host={self.folder}"

    def psql(self, database, *arguments, text=""):
        """What the statements of `arguments` or `text` say; an error is one of the test."""
        command = [PROGRAMS[-1] / "psql", "-q", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-U", "postgres", database]
        return subprocess.run([*command, *arguments], input=text, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def running():
    """The server, as long as the context lasts; skips the test where none is installed."""
    if not PROGRAMS:
        pytest.skip("no server of PostgreSQL is installed (Debian: postgresql)")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ejk_pg_"))
    folder.chmod(0o777)
    user = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}  # a server refuses to be root
    how = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, **user}
    subprocess.run([PROGRAMS[-1] / "initdb", "-D", folder / "data", "-U", "postgres", "-N", "-A", "trust"], check=True, **how)
    server = subprocess.Popen(
        [PROGRAMS[-1] / "postgres", "-D", folder / "data", "-F", "-k", folder, "-c", "listen_addresses="], **how
    )
    try:
        patience = time.monotonic() + 60
        while subprocess.run([PROGRAMS[-1] / "pg_isready", "-q", "-h", folder]).returncode != 0:
            assert server.poll() is None and time.monotonic() < patience, "the server does not start"
            time.sleep(0.05)
        yield Server(folder)
    finally:
        server.send_signal(signal.SIGINT)  # after SIGTERM it would wait for its clients
        server.wait()
        shutil.rmtree(folder)
