# SPDX-License-Identifier: Apache-2.0
"""Pipes, disks and signals around a command."""

import json
import os
import signal
import subprocess

from tool import PLUGINS, TOOL, entry, exported


def test_a_reader_that_goes_away_ends_it_quietly(ejk, store):
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [TOOL, "ls"], stdout=writer, stderr=subprocess.PIPE, env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}
    )
    os.close(writer)
    assert result.returncode == 141 and result.stderr == b""


def test_a_full_disk_is_a_clear_failure(ejk, store):
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}
    with open("/dev/full", "w") as full:
        result = subprocess.run([TOOL, "ls"], stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert result.returncode == 1 and "No space left" in result.stderr
    assert "No space left" in ejk("export", "/dev/full", expect=1).stderr


def test_closed_standard_files_do_no_harm(ejk, store):
    before = {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file()}
    for closed, code in [(">&-", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1)]:
        result = subprocess.run(
            ["sh", "-c", f"exec {TOOL} ls {closed}"], env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}, capture_output=True
        )
        assert result.returncode == code
    assert {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file()} == before


def test_a_store_that_cannot_be_written_is_a_clear_failure(ejk, device, tmp_path):
    exported(tmp_path / "e", entry(device))
    (tmp_path / "file").write_text("")
    result = ejk("import", tmp_path / "e", "--store", tmp_path / "file/store", "--json", expect=1)
    assert result.json["failed"] == 1 and "file/store" in result.stderr
    assert "this process" not in result.stderr  # which keeps nothing


def test_writing_a_report_or_an_export_keeps_the_old_file_if_it_fails(ejk, store, tmp_path):
    assert "no/such" in ejk("export", "no/such/folder/f", expect=3).stderr
    (tmp_path / "out").write_text("old")
    (tmp_path / "out").chmod(0o644)
    ejk("export", "out", "--op", "none", expect=3)
    assert (tmp_path / "out").read_text() == "old"
    ejk("export", "out")
    assert (tmp_path / "out").read_text().startswith('{"ejk_export"')
    assert [p.name for p in tmp_path.glob("out*")] == ["out"]


def test_ctrl_c_ends_a_tuning_with_what_it_has(ejk, start, device, tmp_path):
    (library,) = PLUGINS.glob("*slow.so")
    command = [TOOL, "tune", "plugin.slow", "--arg", "f32[64]", "--arg", "f32[64]", "--plugin", library,
               "--budget-per-call", "100", "--json"]  # fmt: skip
    tool = start(command, env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")})
    for line in tool.stderr:  # progress, after the first second
        if "racing" in line or "tried" in line:
            break
    tool.send_signal(signal.SIGINT)
    out, _ = tool.communicate(timeout=90)  # of a budget of 100 seconds
    assert tool.returncode == 130
    document = json.loads(out)
    assert document["interrupted"]
    left = [p.name for p in (tmp_path / "store").rglob("*") if p.suffix in (".tmp", ".intent")]
    assert left == []


def test_ctrl_c_ends_an_import_between_two_entries(ejk, start, tmp_path):
    cache = {f"cpu|cpu|op@v0|{i:016x}": {"block": i} for i in range(20000)}
    (tmp_path / "big.json").write_text(json.dumps(cache))
    env = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    tool = start([TOOL, "import", tmp_path / "big.json", "--json"], env=env)
    assert "entries" in tool.stderr.readline()
    tool.send_signal(signal.SIGINT)
    out, _ = tool.communicate(timeout=60)
    assert tool.returncode == 130
    told = json.loads(out)
    assert told["interrupted"] and 0 < told["added"] < 20000
    assert len(ejk("ls", "--json").json["entries"]) == told["added"]
