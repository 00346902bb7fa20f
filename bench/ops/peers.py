# SPDX-License-Identifier: Apache-2.0
"""What bench/ops measures beside this library: installed here, started here, one process each."""

import collections
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OURS = ROOT / "build/release/bench/ops_ours"
VENV = ROOT / ".venv-ops"
STUBS = VENV / "stubs"

PACKAGES = ["libopenblas0-pthread", "libblis4-pthread", "libdnnl2"]
JAX = ["jax==0.10.2", "numpy"]
# From PyPI torch comes for CUDA and wants gigabytes of it: only what its import needs is installed.
TORCH = ["torch==2.13.0", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "MarkupSafe"]
TORCH += ["fsspec", "filelock"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def attempt(what, command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines()
        say(f"{what} could not be installed, its columns stay empty: {lines[-1] if lines else ''}")
    return done.returncode == 0


def install_packages():
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}"]
    missing = [
        p
        for p in PACKAGES
        if subprocess.run([*query, p], capture_output=True, text=True).stdout != "installed"
    ]
    if not missing:
        return
    if os.geteuid() != 0:
        say("missing, and only root can install them: apt-get install -y " + " ".join(missing))
        return
    say("installing " + " ".join(missing))
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if attempt("the list of packages", ["apt-get", "update"], env=env):
        attempt(" ".join(missing), install, env=env)


def install_python():
    stamp = VENV / "stamp"
    wanted = " ".join([*JAX, *TORCH])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"making {VENV.name} with JAX and PyTorch")
    if not attempt(VENV.name, ["/usr/bin/python3", "-m", "venv", "--clear", str(VENV)]):
        return
    pip = [str(VENV / "bin/pip"), "install", "-q", "--disable-pip-version-check"]
    complete = attempt("JAX", [*pip, *JAX])
    complete = attempt("PyTorch", [*pip, "--no-deps", *TORCH]) and complete
    if any(VENV.glob("lib/python3*/site-packages/torch/lib")):
        make_stubs()
    if complete:
        stamp.write_text(wanted)


def make_stubs():
    """Empty stand-ins for the CUDA libraries torch is linked with: it runs on the CPU without them.

    Each has the functions that torch asks it for; all say that there is no device.
    """
    (libraries,) = VENV.glob("lib/python3*/site-packages/torch/lib")
    needed, functions = set(), collections.defaultdict(set)
    for library in libraries.glob("*.so*"):
        dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        symbols = subprocess.run(["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True)
        for line in symbols.stdout.splitlines():
            words = line.split()
            if len(words) >= 8 and words[6] == "UND":
                name, _, version = words[7].partition("@")
                functions[version].add(name)
    unversioned = {name for name in functions[""] if re.match(r"cu|nccl|nv", name)}
    STUBS.mkdir(exist_ok=True)
    for name in needed - {library.name for library in libraries.iterdir()}:
        if not re.match(r"lib(cu|nv|nccl)", name):
            continue
        provided = functions.get(name, unversioned if name.startswith("libnccl") else set())
        source = "".join(
            f"long {f}(void) {{ return {0 if f.startswith('__') else 100}; }}\n" for f in sorted(provided)
        )
        versions = STUBS / "versions"
        versions.write_text(f"{name if name in functions else ''} {{ global: *; }};")
        command = ["g++", "-w", "-shared", "-fPIC", "-o", str(STUBS / name), f"-Wl,-soname,{name}"]
        command += [f"-Wl,--version-script={versions}", "-x", "c", "-"]
        subprocess.run(command, input=source, text=True, check=True)


def set_up():
    if not OURS.exists():
        sys.exit(f"{OURS.relative_to(ROOT)} is not built: run this as `make bench-ops`")
    install_packages()
    install_python()


def cpu_flags():
    found = re.search(r"(?m)^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text())
    return set(found.group(1).split()) if found else set()


def environment(target, threads):
    """Peers use the instruction set that is compared, and as many threads."""
    count = str(threads)
    env = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": count,
        "BLIS_NUM_THREADS": count,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPS_THREADS": count,
        "THP_MEM_ALLOC_ENABLE": "1",  # PyTorch: huge pages for its arrays, as this library's have
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "LD_LIBRARY_PATH": f"{STUBS}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }
    flags = cpu_flags()
    if target == "avx2":
        env |= {
            "OPENBLAS_CORETYPE": "Haswell",
            "BLIS_ARCH_TYPE": "3",  # haswell; this version takes numbers only
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
        }
    elif "avx512f" in flags:
        # On a CPU they do not know by its model number OpenBLAS 0.3.21 falls back to SSE and BLIS 0.9
        # to AVX2.
        env.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
        env.setdefault("BLIS_ARCH_TYPE", "0")  # skx
    return env


class Side:
    """A process that speaks the protocol of bench/ops_ours.cpp."""

    def __init__(self, command, env, core):
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"ended with {self.process.wait()} at '{line}'")
        return answer.strip()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Sides:
    """The processes by name, started when they are first asked."""

    def __init__(self, target, threads, cache):
        self.target = target
        self.env = environment(target, threads) | {"EJKERNEL_PERSISTENT_CACHE_DIR": str(cache)}
        # One thread: one core, so that nothing can use another. The last one is often the quietest.
        self.core = max(os.sched_getaffinity(0)) if threads == 1 else None
        self.running = {}

    def ask(self, name, line):
        if name not in self.running:
            python = name in ("jax", "torch")
            peer = [str(VENV / "bin/python"), str(ROOT / "bench/ops/python_peer.py"), name]
            self.running[name] = Side(peer if python else [str(OURS)], self.env, self.core)
            if name == "ours" and self.target:
                self.running[name].ask(f"target {self.target}")
        return self.running[name].ask(line)

    def clear(self):
        """Drops all cases. A process that a case ended is started again for the next one."""
        for name, side in list(self.running.items()):
            try:
                side.ask("clear")
            except (OSError, RuntimeError):
                del self.running[name]

    def close(self):
        for side in self.running.values():
            try:
                side.close()
            except OSError:
                pass  # it ended by itself


def cores():
    return len(os.sched_getaffinity(0))
