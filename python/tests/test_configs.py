# SPDX-License-Identifier: Apache-2.0
"""Configs of every type come back as what went in."""

import collections
import dataclasses
import enum
import gc
import json
import os
import pathlib
import types
import weakref
from typing import Optional

import jax.numpy as jnp
import numpy as np
import pydantic
import pytest
from ejk import _configs, _core
from ejk.ops import (
    BwdParams,
    ConfigCache,
    ConfigSelectorChain,
    Executor,
    FwdParams,
    Kernel,
    PersistentCache,
    from_json,
    stable_json,
    to_json,
)
from ejk.ops.config.persistent import _CFG_CLASS_KEY, _PROVENANCE_AUTOTUNE, _PROVENANCE_KEY
from hypothesis import given, settings
from hypothesis import strategies as st

VECTORS = json.loads((pathlib.Path(__file__).resolve().parents[2] / "tests/data/keys.json").read_text())


class Kind(enum.Enum):
    fast = 1
    safe = "s"


@dataclasses.dataclass(frozen=True)
class Inner:
    sizes: tuple = (1, 2)
    kind: Kind = Kind.fast


@dataclasses.dataclass(frozen=True)
class Config:
    block: int = 64
    inner: Inner = Inner()
    dtype: object = None
    names: list | None = None


class Model(pydantic.BaseModel):
    rows: int = 3
    factors: tuple[float, ...] = (1.0, 2.5)
    inner: Optional["Model"] = None


Point = collections.namedtuple("Point", "x y")

CONFIGS = [
    None,
    True,
    3,
    -(2**70),
    2.5,
    float("inf"),
    "text",
    "",
    "é\"\\\n",
    b"bytes",
    1 + 2j,
    (1, (2, 3), [4]),
    [],
    {},
    {"a": 1, "b": [1, {"c": None}]},
    {1: "one", (2, 3): "two", "$x": 3},
    {1, 2},
    frozenset({"a"}),
    Kind.safe,
    Config(),
    Config(128, Inner((4, 5, 6), Kind.safe), np.dtype("int8"), ["a"]),
    Model(inner=Model(rows=7)),
    Point(1, 2),
    FwdParams(q_blocksize=128, num_warps=4),
    BwdParams(),
    types.SimpleNamespace(a=1, b=(2,)),
    np.float32(0.1),
    np.int64(7),
    np.dtype("bfloat16"),
    jnp.float32,
    jnp.tanh,
    len,
    dict,
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_stored_config_comes_back_as_the_type_that_went_in(config, tier, tmp_path):
    cache = ConfigCache() if tier == "memory" else PersistentCache(path=tmp_path)
    cache.put("device", "op@v1", "key", config)
    again = cache if tier == "memory" else PersistentCache(path=tmp_path)
    found = again.get("device", "op@v1", "key")
    assert type(found) is type(config)
    assert found == config
    assert ("device", "op@v1", "key") in again
    assert again.keys() == [("device", "op@v1", "key")]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(plain)
def test_any_nest_of_plain_data_comes_back(config):
    text = _core.stable_json(_configs.encode(config, "plain"))
    found = _configs.decode(_core.parse_json(text), "plain")
    assert found == config and repr(found) == repr(config) or _unordered(found) == _unordered(config)


def test_a_config_that_can_be_written_can_be_read_at_any_depth():
    for nest in (lambda inner: {1: inner}, lambda inner: types.SimpleNamespace(a=inner), lambda inner: (inner,)):
        config, depth = 0, 0
        while True:
            try:
                text = _core.stable_json(_configs.encode(config, "deep"))
            except ValueError:
                break
            assert _configs.decode(_core.parse_json(text), "deep") == config
            config, depth = nest(config), depth + 1
        assert depth > 20


def _unordered(value):
    if isinstance(value, dict):
        return {key: _unordered(item) for key, item in value.items()}
    return type(value)(map(_unordered, value)) if isinstance(value, (list, tuple)) else value


def test_an_object_that_cannot_be_written_lives_in_memory_and_is_refused_on_disk(tmp_path):
    thing = object()
    cache = ConfigCache()
    cache.put("d", "o@v0", "k", {"f": thing})
    assert cache.get("d", "o@v0", "k")["f"] is thing
    store = PersistentCache(path=tmp_path)
    with pytest.raises(TypeError, match="cannot be written"):
        store.put("d", "o@v0", "k", {"f": thing})
    store.put("d", "o@v0", "k", {"f": 1})  # the next put is not disturbed
    assert store.get("d", "o@v0", "k") == {"f": 1}


def test_a_type_that_changed_is_a_miss_and_said(tmp_path, caplog):
    @dataclasses.dataclass
    class Changing:
        a: int = 1

    store = PersistentCache(path=tmp_path)
    store.put("d", "o@v0", "k", Changing(5))
    Old = Changing

    @dataclasses.dataclass
    class Changing:  # noqa: F811
        b: int = 1

    Changing.__qualname__ = Old.__qualname__
    assert PersistentCache(path=tmp_path, cfg_type=Changing).get("d", "o@v0", "k") is None
    assert "unknown field 'a'" in caplog.text


def test_keys_of_ones_own():
    cache = ConfigCache()
    cache.put("anything", 5)
    assert cache.get("anything") == 5 and "anything" in cache and "else" not in cache
    assert cache.get("else") is None
    cache.put(("d", "o@v0", "k"), 6)
    assert cache.get("d", "o@v0", "k") == 6
    with pytest.raises(TypeError, match="arguments"):
        cache.put("a", "b", "c")
    assert len(cache) == cache.size() == 2
    cache.clear()
    assert len(cache) == 0 and cache


@pytest.mark.parametrize("v", VECTORS["persistent"], ids=lambda v: v["name"])
def test_files_of_the_original_are_read(v, tmp_path):
    file = tmp_path / v["file"]
    file.write_text(v["text"])
    classes = {"fwdparams": FwdParams}
    store = PersistentCache(path=str(file), cfg_type=classes.get(v["name"]))
    plain = json.loads(v["text"])
    for get in v["gets"]:
        found = store.get(get["dev"], get["op"], get["key"])
        kept = plain[f"{get['dev']}|{get['op']}|{get['key']}"]
        if v["name"] == "fwdparams":
            assert found == FwdParams(**kept)
        else:
            assert found == kept
    assert file.read_text() == v["text"]


def test_an_imported_config_is_used_by_the_kernel_with_its_type(tmp_path):
    @dataclasses.dataclass
    class Params:
        block: int = 1
        fwd: FwdParams | None = None

    class Op(Kernel[Params, object]):
        def run(self, x, *, cfg):
            return cfg

        def heuristic_cfg(self, inv):
            return Params()

    kernel, x = Op("imported"), np.zeros(3)
    selector = ConfigSelectorChain()
    key = Executor(selector).label(kernel, x).rsplit(":", 1)[1]
    file = tmp_path / "ops.json"
    file.write_text(json.dumps({f"cpu|cpu|imported@v0|{key}": {"block": 7, "fwd": {"num_warps": 2}}}))
    executor = Executor(ConfigSelectorChain(persistent=PersistentCache(path=str(file))))
    assert executor(kernel, x) == Params(7, FwdParams(num_warps=2))


@pytest.mark.parametrize("place", ["$EJKERNEL_PERSISTENT_CACHE_DIR", "$HOME/ejkernel-presistent-cache"])
def test_a_cache_with_a_name_finds_the_file_of_the_original(place, monkeypatch):
    folder = pathlib.Path(os.path.expandvars(place))
    if "HOME" in place:
        monkeypatch.delenv("EJKERNEL_PERSISTENT_CACHE_DIR")
    folder.mkdir(parents=True)
    file = folder / "flash-attn.json"
    file.write_text(text := json.dumps({"cpu|cpu|o@v0|k": {"block": 7}}))
    store = PersistentCache("flash-attn")
    assert store.path == str(file) and PersistentCache("other").get("cpu|cpu", "o@v0", "k") is None
    assert store.get("cpu|cpu", "o@v0", "k") == {"block": 7}
    store.put("cpu|cpu", "o@v0", "k", {"block": 8})
    assert PersistentCache("flash-attn").get("cpu|cpu", "o@v0", "k") == {"block": 8}
    assert file.read_text() == text


def test_caches_of_two_names_do_not_share_entries():
    PersistentCache("a").put("d", "o@v0", "k", 1)
    assert PersistentCache("a").get("d", "o@v0", "k") == 1
    assert PersistentCache("b").get("d", "o@v0", "k") is None and PersistentCache().get("d", "o@v0", "k") is None
    PersistentCache("b").put("d", "o@v0", "k", 2)
    assert [PersistentCache(name).get("d", "o@v0", "k") for name in "ab"] == [1, 2]
    assert PersistentCache("b").erase("d", "o@v0", "k") and PersistentCache("b").get("d", "o@v0", "k") is None
    assert PersistentCache("a").get("d", "o@v0", "k") == 1


def test_a_cache_with_a_name_finds_an_offline_tuning():
    PersistentCache().put("d", "o@v0", "k", 3)  # where `python -m ejk tune` keeps it
    assert PersistentCache("a").get("d", "o@v0", "k") == 3
    PersistentCache("a").put("d", "o@v0", "k", 4)
    assert [PersistentCache(name).get("d", "o@v0", "k") for name in ("a", None)] == [4, 3]


def test_a_cache_with_a_name_needs_no_home(monkeypatch, capfd):
    for name in ("HOME", "XDG_CACHE_HOME", "EJKERNEL_PERSISTENT_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    before = os.listdir()
    store = PersistentCache("a")
    store.put("d", "o@v0", "k", 1)
    assert store.get("d", "o@v0", "k") is None and os.listdir() == before


@pytest.mark.parametrize(
    "entry, found",
    [
        ({_PROVENANCE_KEY: _PROVENANCE_AUTOTUNE, "cfg": {"block": 7}}, {"block": 7}),
        ({_PROVENANCE_KEY: _PROVENANCE_AUTOTUNE, _CFG_CLASS_KEY: "os:system", "cfg": {"block": 7}}, {"block": 7}),
        ({_PROVENANCE_KEY: _PROVENANCE_AUTOTUNE, "cfg": 5}, 5),
        ({_PROVENANCE_KEY: _PROVENANCE_AUTOTUNE}, None),
        ({_PROVENANCE_KEY: "override", "cfg": {"block": 7}}, None),
        ({_PROVENANCE_KEY: ["autotune"], "cfg": {"block": 7}}, None),
        ({_PROVENANCE_KEY: None, "cfg": {"block": 7}}, None),
        ({"block": 7}, {"block": 7}),
        (None, None),
    ],
)
def test_entries_are_read_if_their_provenance_is_a_tuning(entry, found, tmp_path):
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"d|o@v0|k": entry}))
    assert PersistentCache(path=file).get("d", "o@v0", "k") == found


def test_a_put_may_say_who_made_the_config(tmp_path):
    store = PersistentCache("a")
    store.put("d", "o@v0", "k", 1, provenance=_PROVENANCE_AUTOTUNE)
    assert PersistentCache("a").get("d", "o@v0", "k") == 1
    store.put("d", "o@v0", "k", 2, provenance="override")
    assert store.get("d", "o@v0", "k") is None and PersistentCache("a").get("d", "o@v0", "k") is None


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\0\0", '"x"'])
def test_a_broken_file_holds_nothing_and_stays(text, tmp_path, caplog):
    file = tmp_path / "x.json"
    file.write_text(text)
    store = PersistentCache(path=str(file))
    assert store.get("d", "o@v0", "k") is None
    store.put("d", "o@v0", "k", 1)
    assert PersistentCache(path=str(file)).get("d", "o@v0", "k") == 1
    assert file.read_text() == text


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    PersistentCache(path="~/cache/configs").put("key", 3)
    assert (tmp_path / "cache/configs").is_dir()
    assert PersistentCache(path="~/cache/configs").get("key") == 3


def test_json_of_configs():
    config = Config(32, Inner((1,), Kind.fast))
    assert from_json(to_json(FwdParams(num_warps=2)), FwdParams) == FwdParams(num_warps=2)
    assert from_json(to_json(Model()), Model) == Model()
    assert from_json('{"a":1}') == {"a": 1}
    assert from_json("3", int) == 3
    assert stable_json(config) == stable_json(Config(32, Inner((1,), Kind.fast)))
    with pytest.raises(ValueError, match="unknown field"):
        from_json('{"nothing": 1}', Config)


def test_objects_of_configs_that_are_gone_are_not_kept():
    class Weak:
        pass

    class NoWeak:
        __slots__ = ("part",)

    class Part:
        pass

    parts = []
    for number in range(2000):
        part, held = Part(), Weak() if number % 2 else NoWeak()
        held.part = part
        parts.append(weakref.ref(part))
        ConfigCache().put("d", "configs.gone@v0", str(number), {"held": held})
    del part, held
    gc.collect()
    assert sum(part() is not None for part in parts[1::2]) == 0
    assert sum(part() is not None for part in parts) < 300
