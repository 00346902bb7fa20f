# SPDX-License-Identifier: Apache-2.0
"""The packages that were made, and a Debian that has nothing but what every Debian has."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ROOT / os.environ.get("EJK_TEST_PACKAGES", "build/packages")
VERSION = ".".join(re.findall(r"#define EJK_VERSION_[A-Z]+ (\d+)\n", (ROOT / "include/ejk/version.h").read_text()))


def run(*command, **options):
    """A command that must end well; gives its standard output."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class BareDebian:
    """A Debian of its own in a folder: the base system, this machine's package sources, and nothing else."""

    def __init__(self, folder):
        self.folder = folder

    def make(self):
        folder = self.folder
        release = re.search(r"VERSION_CODENAME=(\w+)", pathlib.Path("/etc/os-release").read_text())[1]
        sites = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", f"Codename: {release}")
        run("debootstrap", "--variant=minbase", "--include=ca-certificates", release, folder, sites.split()[0])
        (folder / "etc/apt/sources.list").unlink(missing_ok=True)
        sources = ("apt/sources.list", "apt/sources.list.d", "apt/apt.conf.d", "pip.conf")
        for name in (*sources, "ssl/certs/ca-certificates.crt", "resolv.conf"):
            self.copy(pathlib.Path("/etc") / name, f"etc/{name}")
        self("apt-get", "update")

    def __call__(self, *command):
        """Runs a command there. What it mounts for it ends with it."""
        inside = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
        environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment |= {"HOME": "/srv", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return run("unshare", "--mount", "sh", "-c", inside, str(self.folder), *map(str, command), env=environment)

    def copy(self, source, to):
        """To a path in there; what does not exist is not copied."""
        target = self.folder / to
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def has(self, command):
        return any(os.path.lexists(self.folder / place / command) for place in ("usr/bin", "bin", "usr/local/bin"))


@pytest.fixture(scope="session")
def made_debian(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("a bare Debian needs root: debootstrap and chroot")
    if shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("a bare Debian needs debootstrap")
    folder = tmp_path_factory.mktemp("debian")
    folder.chmod(0o755)
    BareDebian(folder).make()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bare_debian(made_debian, tmp_path_factory):
    """For the tests of one file, which see what those before them installed."""
    folder = tmp_path_factory.mktemp("bare") / "debian"
    run("cp", "-a", made_debian, folder)
    yield BareDebian(folder)
    shutil.rmtree(folder)
