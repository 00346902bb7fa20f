# SPDX-License-Identifier: Apache-2.0
"""What docs/ shows is run."""

import os
import re
import subprocess

from tool import BUILD, ROOT, TOOL, VERBS


def test_the_examples_of_the_document_run(ejk, plugin, device, tmp_path):
    """Lines of ```sh blocks that begin with `$ ejk`, in order, in one empty home."""
    text = (ROOT / "docs/reference/tool.md").read_text()
    lines = re.findall(r"(?m)^\$ (ejk .*)$", text)
    assert len(lines) > 10
    (tmp_path / "libkernels.so").symlink_to(plugin[1])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ejk").symlink_to(TOOL)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
    for line in lines:
        command, _, code = line.partition("  # exit ")
        result = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
        allowed = [int(c) for c in code.split(" or ")] if code else [0]
        assert result.returncode in allowed, (line, result.stdout, result.stderr)


def test_the_tutorial_from_recording_to_shipping_can_be_followed(tmp_path):
    """The files are written and the lines run as the document says, with the installed package."""
    text = (ROOT / "docs/tutorials/recording_to_shipping.md").read_text()
    sources = re.findall(r"(?ms)^```(?:cpp|cmake)\n(?://|#) ([\w.]+)\n(.*?)^```", text)
    assert [name for name, _ in sources] == ["transpose.h", "app.cpp", "kernels.cpp", "CMakeLists.txt"]
    work, prefix = tmp_path / "work", tmp_path / "prefix"
    work.mkdir()
    for name, source in sources:
        (work / name).write_text(source)
    install = ["cmake", "--install", BUILD, "--prefix", prefix]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    env = {"PATH": f"{prefix}/bin:{os.environ['PATH']}", "HOME": str(tmp_path / "home"), "CMAKE_PREFIX_PATH": str(prefix)}

    def plain(line):
        return re.sub(r"tile \d+", "tile N", " ".join(line.split()))

    steps = re.findall(r"(?m)^\$ (.*)\n((?:[^$`].*\n)*)", "".join(re.findall(r"(?ms)^```console\n(.*?)^```", text)))
    assert len(steps) > 10
    for command, shown in steps:
        result = subprocess.run(["sh", "-c", command], cwd=work, env=env, capture_output=True, text=True, timeout=1200)
        assert result.returncode == 0, (command, result.stdout, result.stderr)
        printed = [plain(line) for line in result.stdout.splitlines()]
        for line in shown.splitlines():
            assert any(plain(line) in there for there in printed), (command, line, result.stdout)
    assert not list((work / "user").rglob("*.json"))


def test_the_document_names_every_verb_and_exit_code():
    text = (ROOT / "docs/reference/tool.md").read_text()
    for verb in VERBS:
        assert f"`{verb.split()[0]}" in text or f"ejk {verb}" in text, verb
    codes = re.findall(r"(?m)^\| `(\d+)` \|", text)
    header = (ROOT / "cli/output.h").read_text()
    assert sorted(map(int, codes)) == sorted(map(int, re.findall(r"exit_\w+ = (\d+)", header)))
