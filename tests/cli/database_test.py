# SPDX-License-Identifier: Apache-2.0
"""A database that many machines share, as an operator meets it."""

import pytest
from tool import ROOT, SHIFTED, entry, measured, record


def test_from_nothing_to_a_store_that_machines_share(ejk, device, database, tmp_path):
    unfit = ejk("store", "check", database, "--json", expect=4)
    assert not unfit.json["usable"] and "ejk store init" in unfit.json["why"]
    made = ejk("store", "init", database, "--json").json
    assert made["made"] and made["version"] == 3
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


def test_calls_that_machines_recorded_are_planned_in_one_place(ejk, device, plugin, database, tmp_path):
    ejk("store", "init", database)
    tuned = ejk("tune", *SHIFTED, *plugin, "--json", "--budget-per-call", "0.2").json["tuned"][0]
    for name, calls in (("a", 100), ("b", 23)):
        machine = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / name)}
        (tmp_path / name).mkdir()
        record(tmp_path / name / "recorded", device, tuned, calls=calls, seconds=calls / 100)
        for _ in range(2):  # the second time changes nothing
            assert ejk("store", "push", "--all", database, "--json", env=machine).json["calls_sent"] == 1
    planner = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "planner"), "EJKERNEL_PERSISTENT_CACHE_URL": database}
    (planned,) = ejk("tune", "--recorded", "--dry-run", "--json", env=planner).json["plan"]
    assert planned["calls"] == 123 and planned["key"] == tuned["key"]
    assert abs(planned["seconds"] - 1.23) < 1e-9
    done = ejk("tune", "--recorded", *plugin, "--json", "--store", database, "--budget-per-call", "0.2",
               env={"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "planner")}).json  # fmt: skip
    assert [t["key"] for t in done["tuned"]] == [tuned["key"]]
    covered = ejk("what-if", "--json", env=planner).json
    assert covered["calls"] == 123


def test_a_snapshot_reaches_every_machine(ejk, device, database, tmp_path):
    ejk("store", "init", database)
    measured(tmp_path / "store", entry(device))
    ejk("store", "push", "--all", database)
    shared = {"EJKERNEL_PERSISTENT_CACHE_URL": database}
    made = ejk("snapshot", "publish", "--op", "gemm", "--json", env=shared).json
    assert made["choices"] == 1 and "s3cret" not in made["where"]
    (listed,) = ejk("snapshot", "show", "--store", database, "--json").json["snapshots"]
    assert (listed["snapshot"], listed["author"], listed["bytes"]) == (made["snapshot"], "postgres", made["bytes"])

    other = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "other")}
    launch = {**other, "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT": made["snapshot"]}
    assert "there is no snapshot" in ejk("explain", "gemm:", env=launch, expect=1).stderr
    assert f"snapshot {made['snapshot']}" in ejk("explain", "gemm:", env={**launch, **shared}).stdout
    kept = tmp_path / "other/snapshots" / f"{made['snapshot']}.jsonl"
    assert kept.stat().st_size == made["bytes"]  # so that the next process needs no database
    assert f"snapshot {made['snapshot']}" in ejk("explain", "gemm:", env=launch).stdout
    kept.write_text("other")
    assert "it was changed" in ejk("explain", "gemm:", env=launch, expect=1).stderr


def test_a_database_of_version_1_is_upgraded_by_its_owner_alone(ejk, server):
    server.psql("postgres", "-c", "CREATE DATABASE old")
    server.psql("old", "-f", ROOT / "src/store/postgres/schema.sql")
    old = server.url("old")
    assert ejk("store", "check", old, "--json").json["version"] == 1
    assert "ejk store upgrade" in ejk("snapshot", "show", "--store", old, expect=1).stderr
    stranger = old.replace("postgres:s3cret@", "nobody@")
    server.psql("old", "-c", "CREATE ROLE nobody LOGIN; GRANT ejk_admin TO nobody")
    assert "permission denied" in ejk("store", "upgrade", stranger, expect=1).stderr
    assert ejk("store", "upgrade", old, "--json").json["version"] == 3
    assert ejk("snapshot", "show", "--store", old, "--json").json["snapshots"] == []
    assert "nothing to do" in ejk("store", "upgrade", old).stdout


def test_no_output_has_the_password(ejk, database):
    for arguments in (
        ("store", "check", database), ("store", "init", database), ("store", "push", database),
        ("ls", "--store", database), ("prune", "--all", "--store", database),
        ("snapshot", "show", "--store", database), ("snapshot", "publish", "--store", database),
        ("snapshot", "show", f"{database}#3"),
        ("store", "check", "postgresql://ann:s3cret@h:1/d?nonsense=1"),
        ("store", "check", "postgresql://ann:s3cret@127.0.0.1:1/d"),
    ):  # fmt: skip
        for json in ((), ("--json",)):
            done = ejk(*arguments, *json, expect=None)
            assert done.returncode != 0 or arguments[-1] == database
            assert "s3cret" not in done.stdout + done.stderr, arguments


@pytest.mark.parametrize("line", ["what-if", "top", "explain gemm:", "report r.html", "bench gemm@v1", "tune --recorded --dry-run", "tune --recorded"])
def test_a_database_that_is_away_is_said_once(ejk, device, store, line):
    tuned = entry(device)
    record(store / "recorded", device, tuned)
    away = {"EJKERNEL_PERSISTENT_CACHE_URL": "postgresql://127.0.0.1:1/d"}
    told = ejk(*line.split(), env=away, expect=None)
    assert told.stderr.count("Connection refused") == 1, told.stderr


def test_why_a_database_cannot_be_reached_is_one_line_without_escapes(ejk):
    told = ejk("store", "check", "postgresql://127.0.0.1:1/d", expect=None).stderr
    assert "Connection refused; Is the server running" in told and "\\n" not in told


def test_verbs_that_change_a_directory_refuse_a_database(ejk, database):
    assert "expected a directory" in ejk("prune", "--all", "--store", database, expect=2).stderr


def test_without_the_client_library_the_package_is_named(ejk):
    absent = {"EJK_LIBPQ_LIBRARY": "/nowhere.so"}
    assert "libpq5" in ejk("store", "check", "postgresql:///d", env=absent, expect=1).stderr
    told = ejk("ls", "--store", "postgresql:///d", env=absent)
    assert told.stderr.count("libpq5") == 1 and "kept there" in told.stderr
