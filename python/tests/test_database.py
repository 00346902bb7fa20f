# SPDX-License-Identifier: Apache-2.0
"""A database that many machines share, as a program of Python meets it."""

import hashlib
import json

import postgres_server
import pytest
from conftest import ROOT, run_program
from ejk.ops import PersistentCache

PLACE = ("cpu|a machine", "doubled@v1", "0123456789abcdef")

PROGRAM = """
import numpy as np
from ejk import _core
from ejk.ops import ConfigSelectorChain, Executor, Invocation, Kernel, PersistentCache, device_fingerprint

class Doubled(Kernel):
    op_id = "doubled"
    def run(self, x, *, cfg):
        return x * cfg
    def heuristic_cfg(self, inv):
        return 2
    def candidate_cfgs(self, inv):
        return [2, 5, 7]

kernel, x, y = Doubled(), np.ones(3), np.ones(4)
"""


@pytest.fixture(scope="module")
def server():
    with postgres_server.running() as running:
        for number in ("", "_2", "_3"):
            running.psql("template1", "-f", ROOT / f"src/store/postgres/schema{number}.sql")
        yield running


@pytest.fixture
def database(server, request):
    """The URL of an empty one."""
    name = f"of_{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]}"
    server.psql("postgres", "-c", f"CREATE DATABASE {name}")
    return server.url(name)


def by_place(url, monkeypatch):
    return PersistentCache(url)


def by_path(url, monkeypatch):
    return PersistentCache(path=url)


def by_variable(url, monkeypatch):
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_URL", url)
    return PersistentCache()


@pytest.mark.parametrize("opened", [by_place, by_path, by_variable])
def test_machines_share_a_database(opened, database, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened(database, monkeypatch).put(*PLACE, {"block": 7})
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path / "another machine's"))
    assert opened(database, monkeypatch).get(*PLACE) == {"block": 7}
    assert PLACE in opened(database, monkeypatch).keys()
    assert not [path for path in tmp_path.rglob("*") if "postgres" in path.name], "it is no name of a file"


def test_a_url_is_no_name_and_no_file(database):
    store = PersistentCache(database + "&application_name=a.json")
    assert store.opname is None
    store.put(*PLACE, 7)
    assert PersistentCache("of a program", path=database).get(*PLACE) == 7


def test_no_output_has_the_password(database, server, tmp_path):
    done = run_program(
        f"""
        import dataclasses, logging
        from ejk.ops import PersistentCache
        logging.basicConfig()

        @dataclasses.dataclass
        class Changed:
            tile: int = 1

        for given in ({database!r}, "postgresql://ann:s3cret@127.0.0.1:1/d"):
            for store in (PersistentCache(given), PersistentCache(path=given)):
                print(store, store.path, vars(store))
                store.put(*{PLACE!r}, {{"block": 7}})
                typed = PersistentCache(path=given, cfg_type=Changed)
                print(typed.get(*{PLACE!r}), store.entry(*{PLACE!r}), store.keys())
        for wrong in ("postgresql://ann:s3cret@h:1/d?nonsense=1", "postgresql://ann:s3cret@h:x/d"):
            for open_it in (lambda: PersistentCache(wrong), lambda: PersistentCache(path=wrong)):
                try:
                    open_it()
                except ValueError as error:
                    print(error)
        """
    )
    said = done.stdout + done.stderr
    assert "s3cret" not in said, said
    assert f"the config for key {PLACE[2]} in" in said and "cannot be used" in said and "nonsense" in said, said
    assert not [path for path in tmp_path.rglob("*") if "s3cret" in str(path)]


def snapshot_of(entries, **changes):
    """(its name, its text): as docs/reference/store_format.md says."""
    documents = [{**entry, **changes} for entry in entries]
    lines = [{"ejk_snapshot": 1}, *({k: v for k, v in d.items() if k not in ("candidates", "checksum")} for d in documents)]
    text = "".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)
    return hashlib.sha256(text.encode()).hexdigest(), text


def test_a_program_with_a_snapshot_uses_nothing_else(database, server, tmp_path):
    store = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "tuned")}
    stores = """
store = PersistentCache()
label = Executor(ConfigSelectorChain(persistent=store)).label(kernel, x)
store.put(device_fingerprint(), *_core.parse_label(label)[1:], 5)
"""
    run_program(PROGRAM + stores, **store)
    entries = [json.loads(path.read_text()) for path in (tmp_path / "tuned/v2").rglob("*.json")]
    assert len(entries) == 1
    name, text = snapshot_of(entries, config=7)
    server.psql(database.split("@/")[1].split("?")[0], text=f"SELECT ejk.publish($snapshot${text}$snapshot$)")
    (tmp_path / "choices.jsonl").write_text(text)

    asks = """
selector = ConfigSelectorChain(persistent=PersistentCache())
for array in (x, y):
    print(*selector.choose_with_origin(Invocation(kernel=kernel, args=(array,)), kernel))
"""
    url = {"EJKERNEL_PERSISTENT_CACHE_URL": database}
    elsewhere = {"EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "another machine's")}
    for launch in (
        {**store, **url, "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT": name},
        {**elsewhere, "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT": f"{database}#sha256:{name}"},
        {**elsewhere, "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT": f"{tmp_path / 'choices.jsonl'}#{name}"},
    ):
        said = run_program(PROGRAM + asks, **launch).stdout
        assert said == "7 persistent\n2 heuristics\n", "the snapshot's; where it has none, nothing is tuned"
    kept = tmp_path / "tuned/snapshots" / f"{name}.jsonl"
    assert kept.read_text() == text, "so that the next process needs no database"
    assert run_program(PROGRAM + asks, **store).stdout.startswith("5 persistent\n"), "without it the store answers"


def test_a_snapshot_that_is_missing_or_changed_is_an_error_before_the_first_kernel(database, tmp_path):
    runs = """
try:
    print("ran", Executor(ConfigSelectorChain(persistent=PersistentCache()))(kernel, x))
except OSError as error:
    print("error", error)
"""
    name, text = snapshot_of([])
    (tmp_path / "choices.jsonl").write_text(text + "\n")
    url = {"EJKERNEL_PERSISTENT_CACHE_URL": database}
    for address, why in ((name, "there is no snapshot"), (f"{tmp_path / 'choices.jsonl'}#{name}", "it was changed")):
        said = run_program(PROGRAM + runs, EJKERNEL_PERSISTENT_CACHE_SNAPSHOT=address, **url).stdout
        assert said.startswith("error") and why in said and "s3cret" not in said, said
