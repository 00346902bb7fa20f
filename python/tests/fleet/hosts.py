# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: namespaces with processes, a name, a folder and a network of their own, and a switch between.

Nothing of them is seen outside, and all of it goes with the process that made them: their processes, their links
and what listens there. The tests of Ray and bench/fleet.py use them.
"""

import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile

HEAD = "10.77.0.1"
PORT = "6379"
# Processes do not outlive who started them.
_BOUND = ["setpriv", "--pdeathsig", "KILL"]
# How long parts of Ray wait for each other when they start. Its own 10 to 60 s are too little on a busy machine; a
# host that is lost is noticed by other means.
_PATIENCE = {
    "RAY_raylet_start_wait_time_s": "600",  # `ray start`, for the node
    "RAY_agent_register_timeout_ms": "600000",  # the node, for its agents
    "RAY_worker_register_timeout_seconds": "600",  # the node, for the process of an actor
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "600000",  # the head, for a host that is silent or slow; a dead one is seen at once
}


def why_not():
    """Why there are no hosts or no Ray on this machine; "" if there are."""
    missing = [tool for tool in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(tool, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} missing (Debian: util-linux, iproute2)"
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True)
    if tried.returncode != 0:
        return "no namespaces here (root has them)"
    if not ray_command().exists():
        return "no Ray beside this Python (./test fleet installs it)"
    return ""


def ray_command():
    return pathlib.Path(sys.executable).with_name("ray")


def _path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class Host:
    """`kill` ends it with everything that runs there."""

    def __init__(self, name, folder, own):
        """`own`: a folder that has other contents on each host."""
        self.name, self.folder = name, folder
        (folder / "own").mkdir(parents=True)
        self.environment = {
            **os.environ,
            "PATH": _path(),
            "HOME": str(folder),
            "EJKERNEL_PERSISTENT_CACHE_DIR": str(folder / "store"),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        prepare = 'hostname "$0" && mount --bind "$1" "$2" && ip link set lo up && echo up'
        new = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(
            [*_BOUND, *new, "sh", "-c", f"{prepare} && sleep infinity & wait", name, str(folder / "own"), str(own)],
            stdout=subprocess.PIPE, text=True, env=self.environment,
        )  # fmt: skip
        if self._process.stdout.readline() != "up\n":
            raise RuntimeError(f"host {name} did not start")
        # What unshare forked is the first process there.
        children = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.process = int(children.read_text().split()[0])

    def start(self, *words, environment={}, **how):
        """A process there; to kill it is to kill what it runs."""
        inside = ["nsenter", f"--target={self.process}", "--net", "--mount", "--uts", "--pid"]
        return subprocess.Popen([*inside, *_BOUND, *map(str, words)], env=self.environment | environment, **how)

    def run(self, *words):
        with self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            told, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{words} on {self.name} ended with {process.returncode}: {told}")

    def ip(self, *words):
        """In its network, where numbers of processes are those of this one."""
        inside = ["nsenter", f"--target={self.process}", "--net", "ip"]
        subprocess.run([*inside, *map(str, words)], env=self.environment, check=True)

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Cluster:
    """A head that only directs, and hosts that each have one CPU for Ray. Use it with `with`."""

    def __init__(self, **environment):
        self.environment = {
            # All that reach Ray can run code, so only those with this token may.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            **_PATIENCE,
            **environment,
        }
        # A short name: Ray makes sockets below it, and no name of a socket has more than 107 characters.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ejk_hosts_", dir="/tmp"))
        (self.folder / "ray").mkdir()
        self.hosts = {}
        self._made = 0

    def __enter__(self):
        try:
            self._switch = self._new("switch")
            self._switch.ip("link", "add", "bridge", "type", "bridge")
            self._switch.ip("link", "set", "bridge", "up")
            self.head = self._new("head")
            self._connect(self.head, HEAD)
            place = f"--temp-dir={self.folder / 'ray'}"
            self._start_ray(self.head, "--head", f"--port={PORT}", place, "--num-cpus=0", "--include-dashboard=false")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts.values():
            host.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self):
        return f"{HEAD}:{PORT}"

    def add(self):
        """One more host."""
        host = self._new(f"host{self._made}")
        self._connect(host, f"10.77.0.{self._made}")
        self._start_ray(host, f"--address={self.address}", "--num-cpus=1")
        return host

    def kill(self, host):
        self.hosts.pop(host.name).kill()

    def cut(self, host):
        """Nothing goes there or comes from there any more, and no error is reported."""
        self._switch.ip("link", "set", host.name, "down")

    def _new(self, name):
        self._made += 1
        host = Host(name, self.folder / name, self.folder / "ray")
        host.environment |= self.environment | {"EJK_TEST_HOST": name}
        self.hosts[name] = host
        return host

    def _connect(self, host, address):
        self._switch.ip("link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.process)
        self._switch.ip("link", "set", host.name, "master", "bridge", "up")
        host.ip("address", "add", f"{address}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")
        host.address = address

    def _start_ray(self, host, *words):
        own = (f"--node-ip-address={host.address}", "--object-store-memory=100000000", "--disable-usage-stats")
        host.run(ray_command(), "start", *words, *own)
