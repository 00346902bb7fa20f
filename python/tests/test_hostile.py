# SPDX-License-Identifier: Apache-2.0
"""Stores, records and labels are data: whatever they say, nothing is imported, opened, started or called.

The programs below run in processes of their own, in which an audit hook notes what Python does while a hostile
document is read.
"""

import json
import subprocess
import sys

from conftest import run_program

WATCHED = """
import collections, dataclasses, decimal, enum, fractions, json, logging, os, pathlib, pickle, subprocess, sys, typing
import numpy as np
import pydantic
from ejk import _configs, _core
from ejk.ops import *

noted, armed = [], False
FORBIDDEN = ("exec", "compile", "import", "open", "os.", "subprocess.", "shutil.", "socket.", "ctypes.", "pickle.",
             "marshal.", "pty.", "winreg.", "webbrowser.", "tempfile.", "signal.", "syslog.", "urllib.")

def hook(event, args):
    if armed and event.startswith(FORBIDDEN):
        noted.append((event, str(args)[:200]))

sys.addaudithook(hook)

class watched:
    def __enter__(self):
        global armed
        noted.clear()
        armed = True
    def __exit__(self, *exc):
        global armed
        armed = False
        assert not noted, noted

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
    inner: typing.Optional[Inner] = None
    extra: object = None

@dataclasses.dataclass
class Elsewhere:  # of another kernel
    block: int = 1

class Other(Kernel[Elsewhere, object]):
    op_id = "other"
    def run(self, x, *, cfg):
        return cfg
    def heuristic_cfg(self, inv):
        return Elsewhere()

class Op(Kernel):
    op_id = "op"
    def run(self, x, *, cfg, mode: Kind = Kind.fast):
        return cfg
    def heuristic_cfg(self, inv):
        return Config()
    def candidate_cfgs(self, inv):
        return [Config(), Config(32, Inner())]

x = np.zeros(3)
kernel, policy = Op(), AutotunePolicy(allow_autotune=False)
label = Executor(ConfigSelectorChain(policy=policy)).label(kernel, x)
place = (device_fingerprint(), "op@v0", label.rpartition(":")[2])
warnings = []

class Said(logging.Handler):
    def emit(self, record):
        if "a call waits for its tuning" not in record.getMessage():  # that depends on how busy the machine is
            warnings.append(record.getMessage())

logging.getLogger("ejk").addHandler(Said())
logging.getLogger("ejk").propagate = False

def plant(store, document, where=place):
    '''Writes a document as the config of an entry, as someone would who has the store's format.'''
    encode, _configs.encode = _configs.encode, lambda config, *whose: config
    try:
        store._store.put(*where, document)
    finally:
        _configs.encode = encode

def parts(value):
    yield value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from parts(item)

DATA = (type(None), bool, int, float, str, bytes, complex, list, tuple, dict, set, frozenset)
OWN = (Config, Inner, Kind)

def ask(store):
    '''What a call is run with, and that this is data or of the kernel's own types.'''
    warnings.clear()
    executor = Executor(ConfigSelectorChain(policy=policy, persistent=store))
    with watched():
        config = executor(kernel, x)
        found = store.get(*place)
        labelled = labels_to_configs([label], executor.chooser)
    for value in (config, found, labelled[0][1]):
        for part in parts(value):
            known = isinstance(part, DATA + OWN + (np.dtype, np.generic)) or type(part).__name__ == "SimpleNamespace"
            assert known, (part, value)
    return config

Executor(ConfigSelectorChain(policy=policy, persistent=PersistentCache(path=sys.argv[1] + "/warm")))(kernel, x)
Executor(ConfigSelectorChain(policy=policy))(Other(), x)
"""

HOSTILE = {
    "process": {"$type": "subprocess:Popen", "args": ["mkdir", "PLANTED"]},
    "path": {"$type": "pathlib:Path"},
    "another kernel's": {"$type": "__main__:Elsewhere", "block": 2},
    "not loaded": {"$type": "antigravity:Config"},
    "function": {"$object": "os:system"},
    "method": {"$object": "pathlib:Path.mkdir"},
    "module": {"$object": "os:path"},
    "class": {"$class": "subprocess:Popen"},
    "class as a type": {"$type": "__main__:Kind", "value": 1},
    "enum": {"$enum": "signal:Signals", "name": "SIGKILL"},
    "enum's attribute": {"$enum": "__main__:Kind", "name": "__class__"},
    "opaque": {"$opaque": "object 0 of one process"},
    "dtype": {"$dtype": "bfloat16"},
    "dtype of objects": {"$dtype": "O,O"},
    "numpy": {"$numpy": "object", "value": {"$type": "subprocess:Popen", "args": ["mkdir", "PLANTED"]}},
    "nested": {"$type": "__main__:Config", "block": 1, "inner": None, "extra": {"$object": "os:system"}},
    "in a tuple": {"$tuple": [{"$type": "subprocess:Popen", "args": ["mkdir", "PLANTED"]}]},
    "in a namespace": {"$namespace": {"a": {"$class": "decimal:Decimal"}}},
    "class of a namespace": {"$namespace": {"$dict": [["__class__", 1]]}},
    "namespace of a list": {"$namespace": {"$tuple": [1]}},
    "namespace of numbers": {"$namespace": {"$dict": [[1, 2]]}},
    "field more": {"$type": "__main__:Config", "block": 1, "inner": None, "extra": None, "__class__": 3},
    "field less": {"$type": "__main__:Config", "block": 1},
    "name that is no text": {"$type": ["subprocess:Popen"], "args": ["true"]},
    "name that is a type": {"$type": {"$type": "subprocess:Popen", "args": ["true"]}},
    "builtin": {"$type": "builtins:exec", "source": "import os"},
    "pydantic": {"$type": "pydantic:BaseModel"},
    "tuple that is a number": {"$tuple": 3},
    "set of lists": {"$set": [[1]], "frozen": True},
    "bytes that are a number": {"$bytes": 3},
    "unknown": {"$pickle": "gASVIQAAAAAAAACMBXBvc2l4"},
}  # fmt: skip


def run(program, tmp_path, *words):
    (tmp_path / "program.py").write_text(WATCHED + program)
    command = [sys.executable, tmp_path / "program.py", tmp_path, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_a_stored_config_of_another_kernel_is_a_miss_and_said_once(tmp_path):
    program = """
for name, document in json.loads(sys.argv[2]).items():
    store = PersistentCache(path=f"{sys.argv[1]}/{name}")
    plant(store, document)
    assert store.entry(*place)["config"] == document
    assert ask(store) == Config(), name
    assert len([w for w in warnings if "is not used" in w]) == 1, (name, warnings)
"""
    run(program, tmp_path, json.dumps(HOSTILE).replace("PLANTED", str(tmp_path / "planted")))
    assert not (tmp_path / "planted").exists()


def test_warnings_quote_names_escaped_and_cut(tmp_path):
    program = """
store = PersistentCache(path=sys.argv[1] + "/store")
plant(store, {"$type": "\\x1b[2J\\u202e" + 5000 * "x"})
assert ask(store) == Config()
assert len(warnings) == 2  # of the call and of the get
for warning in warnings:
    assert warning.isprintable() and "x1b[2J" in warning and len(warning) < 1200, warning
"""
    run(program, tmp_path)


def test_a_tuning_goes_on_where_a_hostile_config_is_stored(tmp_path):
    program = """
store = PersistentCache(path=sys.argv[1] + "/store")
plant(store, {"$type": "subprocess:Popen", "args": ["true"]})
with watched():
    tuned = Executor(ConfigSelectorChain(persistent=store, policy=AutotunePolicy()))(kernel, x)
assert len(warnings) == 1, warnings
frozen = AutotunePolicy(allow_autotune=False, allow_heuristics=False)
assert Executor(ConfigSelectorChain(persistent=store, policy=frozen))(kernel, x) == tuned == Config()
"""
    run(program, tmp_path)


def test_a_file_of_the_original_cannot_name_what_is_run(tmp_path):
    program = """
file = sys.argv[1] + "/ops.json"
hostile = {"$type": "subprocess:Popen", "args": ["true"]}
pathlib.Path(file).write_text(json.dumps({f"cpu|cpu|op@v0|{place[2]}": hostile}))
assert ask(PersistentCache(path=file)) == Config()
assert len(warnings) == 2, warnings  # of the call and of the get
"""
    run(program, tmp_path)


STRATEGIES = """
from hypothesis import HealthCheck, given, settings, strategies as st

TAGS = ["$type", "$enum", "$class", "$object", "$opaque", "$tuple", "$dict", "$set", "$bytes", "$complex",
        "$namespace", "$dtype", "$numpy", "$none", "$array", "$pickle"]
names = st.sampled_from([
    "subprocess:Popen", "os:system", "os:path", "builtins:eval", "builtins:open", "builtins:exec", "builtins:dict",
    "pathlib:Path", "decimal:Decimal", "fractions:Fraction", "collections:Counter", "importlib:import_module",
    "antigravity:Config", "this:s", "ejk.as_ejkernel:x", "pickle:loads", "pydantic:BaseModel", "signal:Signals",
    "__main__:Config", "__main__:Inner", "__main__:Kind", "__main__:Elsewhere", "__main__:Op", "__main__:Other",
    "__main__:Config.__init__", "object", "O", "U8", "M8[ns]", "float32", "bfloat16", "i4,O", "fast", "safe",
    "__class__", "run", "numpy:float32", "jax.numpy:float32", "numpy:load",
]) | st.text(max_size=8)
members = st.sampled_from([
    "block", "inner", "extra", "sizes", "kind", "name", "value", "frozen", "args", "shell", "__class__", "__dict__",
    "__init__", "__reduce__", "run", "shape", "numpy", "python", "kernel", "kwargs", "mode", "op_id", "key_builder",
]) | st.text(max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | names
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(members, inner, max_size=4)
    | st.builds(lambda tag, name, rest: {tag: name, **rest}, st.sampled_from(TAGS), names | inner,
                st.dictionaries(members, inner, max_size=4))
    | st.builds(lambda block, inside, extra: {"$type": "__main__:Config", "block": block, "inner": inside,
                                              "extra": extra}, inner, inner, inner)
    | st.builds(lambda sizes, kind: {"$type": "__main__:Inner", "sizes": sizes, "kind": kind}, inner, inner),
    max_leaves=12,
)
often = settings(max_examples=int(sys.argv[2]), deadline=None, database=None, derandomize=True,
                 suppress_health_check=list(HealthCheck))
"""


def test_random_documents_in_a_store_run_nothing(tmp_path):
    program = STRATEGIES + """
count = 0

@often
@given(documents)
def check(document):
    global count
    count += 1
    store = PersistentCache(path=f"{sys.argv[1]}/{count}")
    plant(store, document)
    ask(store)
    assert len([w for w in warnings if "is not used" in w]) <= 1, warnings

check()
print(count)
"""
    assert int(run(program, tmp_path, "300")) >= 300


RECORDED = """
import glob
os.environ["EJKERNEL_OPS_RECORD"] = "1"
os.environ["EJKERNEL_OPS_RECORD_DIR"] = sys.argv[1] + "/recorded"
Executor(ConfigSelectorChain(policy=policy))(kernel, x, mode=Kind.safe)
assert len(get_invocations()) == 1
clear_invocations()
os.environ["EJKERNEL_OPS_RECORD"] = "0"
(path,) = glob.glob(sys.argv[1] + "/recorded/**/*.json", recursive=True)
record = json.loads(pathlib.Path(path).read_text())
(sketch,) = record["arguments"]

def read(arguments):
    # The calls that a record says, and what was said of it.
    pathlib.Path(path).write_text(json.dumps(record | {"arguments": arguments}))
    warnings.clear()
    from ejk import _log
    _log._said.clear()
    with watched():
        found = get_invocations()
    assert len(found) + len(warnings) <= 1, (found, warnings)
    return found
"""

HOSTILE_SKETCHES = """
bad = [
    {"python": "subprocess:Popen"},
    {"python": "antigravity:Kernel"},
    {"python": "ejk.as_ejkernel:x"},
    {"python": "__main__:Config"},
    {"python": ["__main__:Op"]},
    {"kernel": {"run": {"$object": "os:system"}}},
    {"kernel": {"run": 3}},
    {"kernel": {"run_cpu": {"$class": "__main__:Kind"}}},
    {"kernel": {"__class__": {"$class": "__main__:Other"}}},
    {"kernel": {"_ejk_compiled": 3}},
    {"kernel": {"op_id": "other"}},
    {"kernel": {"op_id": "of nobody"}},
    {"kernel": {"op_id": ["op"]}},
    {"kernel": {"version": "7"}},
    {"kernel": 3},
    {"args": [{"$type": "subprocess:Popen", "args": ["true"]}]},
    {"args": [{"$object": "os:system"}]},
    {"args": [{"$array": "object", "shape": [3], "numpy": True}]},
    {"args": [{"$array": "O,O", "shape": [3]}]},
    {"args": [{"$array": "float32", "shape": [3]}]},  # needs JAX, which nothing here has asked for
    {"args": [{"$array": "float64", "shape": [1 << 60], "numpy": True}]},
    {"args": [{"$array": "float64", "shape": [-1], "numpy": True}]},
    {"args": [{"$array": "float64", "shape": "ab", "numpy": True}]},
    {"args": {"a": 1}},
    {"kwargs": {"mode": {"$enum": "signal:Signals", "name": "SIGKILL"}}},
    {"kwargs": {"mode": {"$tuple": [{"$class": "decimal:Decimal"}]}}},
]
"""


def test_a_record_that_names_what_the_process_has_not_used_is_left_out_and_said(tmp_path):
    program = RECORDED + HOSTILE_SKETCHES + """
(call,) = read([sketch])
assert type(call.kernel) is Op and call.kwargs == {"mode": Kind.safe} and call.args[0].shape == (3,)
for change in bad:
    assert read([sketch | change]) == [] and len(warnings) == 1, (change, warnings)
"""
    run(program, tmp_path)


def test_a_record_cannot_give_a_kernel_the_name_of_another(tmp_path):
    program = RECORDED + """
class Named(Op):
    def __init__(self, name, version="0"):
        super().__init__(name)
        self.version = version

def named(op, version="0"):
    return sketch | {"python": "__main__:Named", "kernel": {"op_id": op, "version": version}}

for own in (named("op"), named("mine"), named("op", "2"), named("mine", "2"), named("other", "2")):
    (call,) = read([own])
    assert type(call.kernel) is Named and vars(call.kernel) == own["kernel"]
for op, version in (("other", "0"), (3, "0"), ("mine", ["2"])):
    assert read([named(op, version)]) == [] and "goes by" in warnings[0], (op, version, warnings)
"""
    run(program, tmp_path)


def test_records_take_no_more_than_a_quarter_of_the_memory_together(tmp_path):
    program = RECORDED + """
def floats(*shape, **more):
    return sketch | {"args": [{"$array": "float32", "shape": list(shape), "numpy": True, **more}]}

sysconf, os.sysconf = os.sysconf, lambda name: {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4000}[name]
assert len(read([floats(80_000)])) == 1
assert read([floats(90_000)]) == [] and "quarter" in warnings[0]  # with what they are made of
assert len(read([floats(*64 * [1])])) == 1
assert read([floats(*65 * [1])]) == [] and "axes" in warnings[0]
read([sketch])
os.environ["EJKERNEL_OPS_RECORD"] = "1"
for size in (60_000, 50_000):
    Executor(ConfigSelectorChain(policy=policy))(kernel, np.zeros(size, np.float32))
clear_invocations()
warnings.clear()
assert len(get_invocations()) == 2 and len(warnings) == 1 and "quarter" in warnings[0], warnings
"""
    run(program, tmp_path)


def test_random_records_run_nothing(tmp_path):
    program = RECORDED + STRATEGIES + """
count = 0

@often
@given(st.sampled_from([None, *sketch]), documents)
def check(member, document):
    global count
    count += 1
    read([sketch | {member: document}] if member else document)

check()
print(count)
"""
    assert int(run(program, tmp_path, "300")) >= 300


def test_a_worker_refuses_hostile_records_and_goes_on(tmp_path):
    program = RECORDED + HOSTILE_SKETCHES + """
from ejk import _worker as worker
answer, hostile = worker._answer, False

def watched_answer(line, stop, say):
    if not hostile:
        return answer(line, stop, say)
    with watched():
        return answer(line, stop, say)

worker._answer = watched_answer
bad = [b for b in bad if "$array" not in str(b) or "numpy" in str(b)]  # for others the worker itself asks for JAX
requests = [record | {"arguments": [sketch]}, *(record | {"arguments": [sketch | change]} for change in bad)]

class Lines:
    def __iter__(self):
        global hostile
        for request in requests:
            yield json.dumps({"record": request, "store": sys.argv[1] + "/tuned", "budget_seconds": 0.1}).encode()
            hostile = True

class Input:
    buffer = Lines()

sys.stdin = Input()
sys.exit(worker.serve([]))
"""
    events = map(json.loads, run(program, tmp_path).splitlines())
    ready, good, *bad = (event for event in events if event["event"] != "progress")
    assert (ready["event"], good["event"]) == ("ready", "tuned") and len(bad) > 20
    assert all(b["event"] == "failed" and b["kind"] == "invalid_argument" for b in bad), bad


# ---- what is the kernel's own comes back ---------------------------------------------------------

OWN_TYPES = """
import collections, dataclasses, enum, sys, typing
import numpy as np
import pydantic
from ejk.ops import *

class Kind(enum.Enum):
    fast = 1
    safe = "s"

class Level(enum.IntEnum):
    low = 1
    high = 2

@dataclasses.dataclass(frozen=True)
class Inner:
    sizes: tuple = (1, 2)
    kind: typing.Optional[Kind] = None

@dataclasses.dataclass(frozen=True)
class Config:
    block: int = 64
    inner: typing.Optional[Inner] = None
    extra: object = None

class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    rows: int = 3
    inner: typing.Optional["Model"] = None

Point = collections.namedtuple("Point", "x y")

class Listed(Kernel):
    # says by its candidates what its configs are
    op_id = "listed"
    def run(self, x, *, cfg):
        return cfg
    def candidate_cfgs(self, inv):
        return CONFIGS

class Guessed(Kernel):
    op_id = "guessed"
    def run(self, x, *, cfg):
        return cfg
    def heuristic_cfg(self, inv):
        return Config(1, Inner(kind=Kind.fast))

class Declared(Kernel[Config, object]):
    op_id = "declared"
    def run(self, x, *, cfg):
        return cfg

class Annotated(Kernel):
    op_id = "annotated"
    def run(self, x, *, cfg: Config | Model):
        return cfg

CONFIGS = [Config(2, Inner((4,), Kind.safe), np.dtype("int8")), Config(extra=len), Config(extra=dict), Kind.safe,
           Level.high, Model(rows=1, inner=Model(rows=2, note="x")), Point(1, Config()), (Config(),), np.float32(0.5),
           {"a": Inner()}, {1: Kind.fast}]
x = np.zeros(3)
selector = ConfigSelectorChain(
    persistent=PersistentCache(path=sys.argv[1]), policy=AutotunePolicy(allow_autotune=False, allow_heuristics=False)
)
executor = Executor(selector)

def cases():
    yield Guessed(), [Config(2, Inner((4,), Kind.safe))]
    yield Declared(), [Config(2, Inner((4,), Kind.safe)), {"block": 7}]
    yield Annotated(), [Config(2, Inner((4,), Kind.safe)), Model(rows=4, inner=Model())]
    yield Listed(), CONFIGS

def places():
    for kernel, configs in cases():
        op, _, key = executor.label(kernel, x).partition("#")[2].rpartition(":")
        for i, config in enumerate(configs):
            y = np.zeros(3 + i)
            yield kernel, y, executor.label(kernel, y), config
"""


def test_configs_of_the_kernels_own_types_are_found_in_another_process_also_when_frozen(tmp_path):
    (tmp_path / "own_types.py").write_text(OWN_TYPES)
    write = """
from own_types import *
for kernel, y, label, config in places():
    selector.persistent.put(label, config)
"""
    read = """
from own_types import *
for kernel, y, label, config in places():
    found = executor(kernel, y)
    expected = Config(7) if config == {"block": 7} else config
    assert type(found) is type(expected) and found == expected, (kernel, found, expected)
    assert selector.persistent.get(label) in (found, config)
"""
    for program in (write, read):
        words = [sys.executable, "-c", program, tmp_path / "store"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


WRITE = """
from own_types import *
for kernel, y, label, config in places():
    selector.persistent.put(label, config)
"""


def test_cfg_type_says_what_the_configs_of_a_chain_are(tmp_path, monkeypatch):
    (tmp_path / "own_types.py").write_text(OWN_TYPES)
    monkeypatch.chdir(tmp_path)
    head = f"import sys; sys.argv = ['', {str(tmp_path / 'store')!r}]\n"
    silent = """
class Silent(Kernel):
    op_id = "guessed"  # which it says nothing of
    def run(self, x, *, cfg):
        return cfg
chain = ConfigSelectorChain(persistent=PersistentCache(path=sys.argv[1], cfg_type=Config), policy=selector.policy)
assert Executor(chain)(Silent(), np.zeros(3)) == Config(2, Inner((4,), Kind.safe))
"""
    run_program(head + WRITE)
    assert run_program(head + "from own_types import *" + silent).stderr == ""


def test_a_config_that_was_put_is_found_by_get_in_another_process(tmp_path, monkeypatch):
    (tmp_path / "own_types.py").write_text(OWN_TYPES)
    monkeypatch.chdir(tmp_path)
    head = f"import sys; sys.argv = ['', {str(tmp_path / 'store')!r}]\n"
    run_program(head + WRITE)
    read = """
from own_types import *
for kernel, y, label, config in places():
    if isinstance(kernel, (Declared, Annotated)):
        assert selector.persistent.get(label) == config, (label, config)
"""
    assert run_program(head + read).stderr == ""
    read = """
from own_types import *
label, config = next((label, config) for kernel, y, label, config in places() if isinstance(kernel, Guessed))
assert selector.persistent.get(label) is None
"""
    assert "pass cfg_type=..." in run_program(head + read).stderr
    typed = "\nassert PersistentCache(path=sys.argv[1], cfg_type=Config).get(label) == config\n"
    assert run_program(head + read.replace("selector.persistent.get(label) is None", "True") + typed).stderr == ""
    flat = """
from own_types import *
selector.persistent.put("d", "o@v0", "k", Config(5))
"""
    run_program(head + flat)
    load = """
from own_types import *
store = PersistentCache(path=sys.argv[1], loader=lambda fields: Config(**fields))
assert store.get("d", "o@v0", "k") == Config(5)
"""
    assert run_program(head + load).stderr == ""


def test_recorded_arguments_of_types_that_the_kernel_names_are_made_again(tmp_path, monkeypatch):
    (tmp_path / "own_arguments.py").write_text(
        """
import dataclasses, enum, functools, typing
import numpy as np
from ejk.ops import ConfigSelectorChain, Executor, Kernel

if typing.TYPE_CHECKING:
    from elsewhere import Thing

class Mode(enum.Enum):
    fast = 1
    safe = 2

class Kind(enum.Enum):
    left = 1
    right = 2

class Side(enum.Enum):
    top = 1
    bottom = 2

@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    side: Side
    mode: Mode
    thing: "Thing | None" = None

def double(x):
    return 2 * x

class Op(Kernel):
    op_id = "op"
    run_limit = 3
    def __init__(self, shape: Shape, run_count=0):
        super().__init__()
        self.shape, self.run_count = shape, run_count
    def run(self, x: "Thing", mode, kind: "Kind", *, cfg, again: "Mode" = Mode.fast, f=double, dtype=None) -> "Thing":
        return f(x)
    def heuristic_cfg(self, inv):
        return 1

@dataclasses.dataclass(eq=False)
class OfFields(Kernel):
    dtype: object = np.float32
    after: object = double
    op_id = "of_fields"
    @functools.cached_property
    def size(self):
        return np.dtype(self.dtype).itemsize
    def run(self, x, *, cfg):
        return self.size * x
    def heuristic_cfg(self, inv):
        return 1

def call():
    of_fields = OfFields(np.int8)
    assert of_fields.size == 1
    Executor(ConfigSelectorChain(autotune=False))(of_fields, np.ones(3))
    Executor(ConfigSelectorChain(autotune=False))(
        Op(Shape(3, Side.top, Mode.safe), 4), np.ones(3), Mode.safe, Kind.left, again=Mode.safe, f=double, dtype=np.float32
    )
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("EJKERNEL_OPS_RECORD_DIR", str(tmp_path / "recorded"))
    run_program("import own_arguments; own_arguments.call()", EJKERNEL_OPS_RECORD="1")
    again = """
import own_arguments as o, numpy as np
from ejk.ops import get_invocations
of_fields, call = sorted(get_invocations(), key=lambda call: call.op_id)
assert vars(of_fields.kernel) == {"dtype": np.int8, "after": o.double, "size": 1}
assert call.kernel.shape == o.Shape(3, o.Side.top, o.Mode.safe) and call.kernel.run_count == 4
assert call.args[1:] == (o.Mode.safe, o.Kind.left)
assert call.kwargs == {"again": o.Mode.safe, "f": o.double, "dtype": np.float32}
"""
    run_program(again)


def test_a_long_warning_keeps_its_beginning_and_its_end(caplog):
    from ejk import _log

    for filler in ("x", "é", "\x1b"):
        _log.warn(f"[op] begins {3000 * filler} and ends with the reason")
        said = caplog.messages[-1].removeprefix("ejk: ")
        assert said.startswith("[op] begins") and said.endswith("the reason") and "bytes in all" in said
        assert 990 < len(said.encode()) <= 1000 and said.isprintable()
