# SPDX-License-Identifier: Apache-2.0
"""The two commands as a person meets them: help, wrong arguments, missing packages."""

import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench")]
import lint  # tools

import build  # bench

COMMANDS = ["run", "test"]


def call(command, *arguments, path_first=None):
    env = dict(os.environ)
    if path_first:
        env["PATH"] = f"{path_first}:{env['PATH']}"
    return subprocess.run(
        [str(ROOT / command), *arguments],
        env=env,
        cwd="/",  # they must work from anywhere
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def fake_tools(tmp_path):
    """A folder for PATH; add(name, body) puts a shell script there."""

    def add(name, body):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return tmp_path

    return add


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_how_to_use_it_and_does_nothing_else(command):
    result = call(command, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: ./{command}")
    assert "==" not in result.stdout


def test_fuzzing_without_clang_says_what_to_install(fake_tools):
    path = fake_tools("clang++", "exit 127")
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    result = subprocess.run(["make", "fuzz"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "apt-get install clang libclang-rt-14-dev" in result.stderr


def repository(folder, files):
    """A repository with one commit of these files; git(...) runs there."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    def git(*words):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "begin")
    return git


def test_lint_looks_at_changed_sources_and_those_that_see_a_changed_header(tmp_path):
    git = repository(tmp_path, {
        "include/ejk/deep.h": "",
        "include/ejk/middle.h": "#include <ejk/deep.h>\n",
        "src/base/text.h": "",
        "src/base/text.cpp": '#include "text.h"\n',
        "src/store/far.cpp": '#include "base/text.h"\n',
        "src/store/near.cpp": "#include <ejk/middle.h>\n",
        "cli/main.cpp": "",
        "python/bind.cpp": "",
        "tests/a_test.cpp": '#include "base/text.h"\n',
        "README.md": "",
    })  # fmt: skip
    git("checkout", "-b", "change")
    assert lint.chosen(tmp_path, "main") == []
    (tmp_path / "README.md").write_text("changed")
    (tmp_path / "tests/a_test.cpp").write_text("// changed")
    assert lint.chosen(tmp_path, "main") == []
    (tmp_path / "cli/main.cpp").write_text("// changed")
    git("commit", "-am", "change")
    (tmp_path / "python/new.cpp").write_text("")
    assert lint.chosen(tmp_path, "main") == ["cli/main.cpp", "python/new.cpp"]
    (tmp_path / "src/base/text.h").write_text("// changed")
    assert lint.chosen(tmp_path, "HEAD") == ["python/new.cpp", "src/base/text.cpp", "src/store/far.cpp"]
    (tmp_path / "include/ejk/deep.h").write_text("// changed")
    assert "src/store/near.cpp" in lint.chosen(tmp_path, "HEAD")
    (tmp_path / "src/base/text.cpp").unlink()
    assert "src/base/text.cpp" not in lint.chosen(tmp_path, "HEAD")


def test_lint_looks_at_everything_without_a_base_or_when_its_rules_change(tmp_path):
    repository(tmp_path, {".clang-tidy": "", "src/a.cpp": "", "cli/b.cpp": "", "bench/c.cpp": ""})
    assert lint.chosen(tmp_path, "HEAD") == []
    assert sorted(lint.chosen(tmp_path, "")) == ["cli/b.cpp", "src/a.cpp"]
    (tmp_path / ".clang-tidy").write_text("Checks: '*'")
    assert lint.chosen(tmp_path, "HEAD") == lint.chosen(tmp_path, "")


def test_build_times_are_taken_from_runs_that_passed_only(tmp_path):
    log = tmp_path / "log"
    log.write_text("== [   3 s] building dev\n== [ 123 s] all tests passed\n")
    assert build.seconds_of(log, "all tests passed") == 123
    log.write_text("== [   9 s] building release\n== [  77 s] done\n")
    assert build.seconds_of(log, "done") == 77
    for failed in ("== [   3 s] building dev\n", "== [   3 s] testing done\nfailed: dev\n", ""):
        log.write_text(failed)
        with pytest.raises(SystemExit, match="expected .*went well"):
            build.seconds_of(log, "done")
    assert build.seconds_of(None, "done") is None


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_argument_is_refused_by_name(command):
    result = call(command, "sideways")
    assert result.returncode == 2
    assert "sideways" in result.stderr and "--help" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_without_root_the_exact_apt_line_is_printed(command, fake_tools):
    fake_tools("id", "echo 1000")
    fake_tools("apt-get", "echo apt-get must not run >&2; exit 99")
    path = fake_tools(
        "dpkg-query",
        'for p; do :; done; case $p in ninja-build|cmake) exit 1;; *) printf installed;; esac',
    )
    result = call(command, path_first=path)
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1].strip()
    assert line == "sudo apt-get install -y --no-install-recommends cmake ninja-build"


def test_a_package_that_was_removed_but_not_purged_counts_as_missing(fake_tools):
    fake_tools("id", "echo 1000")
    path = fake_tools(
        "dpkg-query", "for p; do :; done; case $p in make) printf config-files;; *) printf installed;; esac"
    )
    assert call("run", path_first=path).stderr.splitlines()[-1].endswith("recommends make")


def test_the_time_of_each_stage_is_told(fake_tools, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("1000")
    path = fake_tools("date", f"cat {clock}")
    script = f"""
        . cmake/setup.sh
        stage "building dev: ejk"; echo 1090 > {clock}
        stage "testing dev"; echo 1097 > {clock}
        stage_times
    """
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    told = subprocess.run(["sh", "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-2:] == ["    90 s  building dev: ejk", "     7 s  testing dev"]


def packages_of(file):
    return dict(line.split("==") for line in (ROOT / file).read_text().splitlines() if "==" in line)


def test_the_compilers_for_devices_are_those_of_the_jax_that_is_tested():
    compilers, jax = packages_of("requirements-devices.txt"), packages_of("requirements.txt")["jax"]
    assert compilers["jax-cuda13-plugin"] == compilers["jax-cuda13-pjrt"] == jax
    wanted = [need for need in importlib.metadata.requires("jax") if need.startswith("libtpu")]
    assert wanted == [f"libtpu=={compilers['libtpu'].rpartition('.')[0]}.*; extra == \"tpu\""]


def make_device_venv(folder, pip):
    """With a Python that makes no environment and has this for pip."""
    shutil.copy(ROOT / "requirements-devices.txt", folder)
    python = folder / ".venv/bin/python"
    for made in (python, folder / ".venv-devices/bin/python"):
        made.parent.mkdir(parents=True)
        made.write_text(f"#!/bin/sh\ncase $2 in venv) ;; pip) {pip} ;; *) echo {folder} ;; esac\n")
        made.chmod(0o755)
    (folder / ".venv/stamp").write_text("made")
    script = f". {ROOT}/cmake/setup.sh; make_venv() {{ :; }}; make_device_venv; make_device_venv; echo went on"
    return subprocess.run(["sh", "-euc", script], cwd=folder, capture_output=True, text=True, timeout=60)


def test_it_is_said_beforehand_what_is_downloaded_how_large_and_where(tmp_path):
    done = make_device_venv(tmp_path, "echo installed")
    assert done.returncode == 0, done.stderr
    first, *packages, last = done.stdout.splitlines()
    assert first.endswith("making .venv-devices: 470 MB are downloaded and take 1.4 GB there:")
    assert dict(line.split("==") for line in packages) == packages_of("requirements-devices.txt")
    assert last == "went on" and (tmp_path / ".venv-devices/stamp").exists()


def test_compilers_that_cannot_be_downloaded_are_a_clear_word(tmp_path):
    done = make_device_venv(tmp_path, "echo no route to the index; exit 1")
    assert (done.returncode, "went on" in done.stdout) == (1, False)
    assert "no route to the index" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "the compilers for devices could not be had: let pip reach a package index, then try again"
    )
    assert not (tmp_path / ".venv-devices/stamp").exists()


def python_to_build_for(version, path, pyenv):
    script = f". {ROOT}/cmake/setup.sh; python_to_build_for {version}"
    env = {"PATH": f"{path}:/usr/bin:/bin", "PYENV_ROOT": str(pyenv)}
    done = subprocess.run(["sh", "-euc", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.strip() if done.returncode == 0 else None


def test_pythons_of_pyenv_are_found_behind_shims_that_fail(fake_tools, tmp_path):
    shims = fake_tools("python3.98", "echo 'pyenv: python3.98: command not found' >&2; exit 127")
    assert python_to_build_for("3.98", shims, tmp_path) is None
    bare, whole = (tmp_path / f"versions/3.98.{patch}/bin/python3.98" for patch in (1, 2))
    for python, code in ((bare, 1), (whole, 0)):  # the first has no headers
        python.parent.mkdir(parents=True)
        fake_tools(python.relative_to(tmp_path), f"exit {code}")
    assert python_to_build_for("3.98", shims, tmp_path) == str(whole)
    in_path = fake_tools("python3.98", "exit 0") / "python3.98"
    assert python_to_build_for("3.98", shims, tmp_path) == str(in_path)


def shown_commands():
    """Commands in code spans and code blocks of the documents; prose may say "make sure"."""
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        code = "\n".join(re.findall(r"(?s)```.*?```|`[^`\n]+`", document.read_text()))
        yield from re.findall(r"(?m)(?:^|[\s`])(\./[\w.-]+|make [\w-]+)", code)


def test_every_command_the_documents_show_exists():
    shown = set(shown_commands())
    assert {"./run", "./test", "make bench-NAME"} <= shown
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    benches = [f"bench-{file.stem}" for file in (ROOT / "bench").iterdir()] + ["bench-NAME"]
    for command in shown:
        if command.startswith("make "):
            assert command.removeprefix("make ") in targets + benches, command
        else:
            assert os.access(ROOT / command, os.X_OK), command


def test_every_preset_that_the_commands_name_exists():
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    names = {preset["name"] for preset in presets["configurePresets"]}
    scripts = (ROOT / "test").read_text() + (ROOT / "run").read_text()
    used = set(re.findall(r"--preset (\w+)", scripts)) | set(re.findall(r"(?m)^ *build (\w+)", scripts))
    assert used == {"dev", "asan", "tsan", "release"}
    assert used <= names
