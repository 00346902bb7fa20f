# SPDX-License-Identifier: Apache-2.0
"""An environment that has the original (PyPI: ejkernel) and, of everything else, what this one has. Made once."""

import pathlib
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "build/ejkernel"
REQUIREMENT = "ejkernel==0.0.80.3"


def python() -> str:
    """Its interpreter. An error says why it could not be made."""
    # Not the path alone: packages beside it may have .pth files of their own.
    beside = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    stamp, wanted = VENV / "stamp", f"{REQUIREMENT} {sys.version}\n{beside}"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {VENV.relative_to(ROOT)} with {REQUIREMENT}", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", VENV)
        pathlib.Path(_packages_of(VENV), "beside.pth").write_text(beside)
        pip = (sys.executable, "-m", "pip", "--python", VENV / "bin/python", "--disable-pip-version-check")
        _run(*pip, "install", "-q", REQUIREMENT)
        stamp.write_text(wanted)
    return str(VENV / "bin/python")


def _packages_of(venv) -> str:
    return sysconfig.get_path("purelib", "venv", {"base": str(venv)})


def _run(*command) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise RuntimeError(
            f"[ejkernel_venv] {' '.join(map(str, command))} failed: {' | '.join(said)}; "
            f"{REQUIREMENT} is needed to compare with: let pip reach a package index"
        )
