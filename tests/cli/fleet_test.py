# SPDX-License-Identifier: Apache-2.0
"""Many copies of the tool that tune the recorded calls together."""

import datetime
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest
from tool import PLUGINS, ROOT, TOOL, entry, measured, record, wait_for

TUNE = ["tune", "--recorded", "--json", "--budget-per-call", "0.2"]


def call(size, op="plugin.shifted@v1"):
    """A call of one array of so many elements to another, as `record` and `entry` take it."""
    array = {"dtype": "float32", "shape": [size]}
    spec = {"args_spec": [array], "batch_axes": None, "kwargs_spec": {}, "method": None, "outputs_spec": [array]}
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return {"op": op, "spec": spec, "key": hashlib.sha256(text.encode()).hexdigest()[:16]}


def record_calls(folder, device, sizes, **changes):
    """One recorded call for each size, the first one worth most; their keys."""
    keys = []
    for worth, size in enumerate(reversed(sizes), start=1):
        made = call(size, **({"op": changes["op"]} if "op" in changes else {}))
        array = {"dtype": "float32", "shape": [size]}
        data = {"mean": 0.0, "deviation": 1.0, "seed": 7}
        record(folder, device, made, seconds=float(worth), **{"arguments": [{**array, "data": data}, array], **changes})
        keys.append(made["key"])
    return keys[::-1]


class Copies:
    """Processes of the tool, each on a machine of its own if there is a database."""

    def __init__(self, start, tmp_path, server=None):
        self.start_process, self.folder, self.server, self.count = start, tmp_path, server, 0
        self.url = None if server is None else server.url()
        if server is None:
            self.recorded = tmp_path / "store/recorded"
        else:
            self.recorded = tmp_path / "recorder/recorded"

    def environment(self, name):
        out = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home")}
        if self.url is None:
            return {**out, "EJKERNEL_PERSISTENT_CACHE_DIR": str(self.folder / "store")}
        return {**out, "EJKERNEL_PERSISTENT_CACHE_DIR": str(self.folder / name), "EJKERNEL_PERSISTENT_CACHE_URL": self.url}

    def start(self, *arguments, **more):
        self.count += 1
        env = {**self.environment(f"machine{self.count}"), **more}
        return self.start_process([TOOL, *arguments], env=env, cwd=self.folder)

    def run(self, *arguments, expect=0):
        copy = self.start(*arguments, "--json")
        out, err = copy.communicate(timeout=600)
        assert copy.returncode == expect, (out, err)
        return json.loads(out)

    def send(self):
        """What is recorded goes to the database."""
        if self.url is not None:
            subprocess.run([TOOL, "store", "push", "--all"], env=self.environment("recorder"), check=True, capture_output=True)

    def expire_leases(self):
        """As a minute without a sign of their holders does; a directory's are gone with them."""
        if self.url is not None:
            self.sql("UPDATE ejk.leases SET expires = clock_timestamp() - interval '1 second'")

    def sql(self, text):
        self.server.psql("postgres", "-c", text)


@pytest.fixture(params=["directory", "database"])
def copies(request, ejk, start, tmp_path):
    if request.param == "directory":
        return Copies(start, tmp_path)
    out = Copies(start, tmp_path, request.getfixturevalue("server"))
    ejk("store", "init", out.url)
    out.sql("TRUNCATE ejk.entries, ejk.leases, ejk.calls, ejk.call_counts")
    return out


@pytest.fixture
def slow():
    (library,) = PLUGINS.glob("*slow.so")
    return ["--plugin", library]


def test_each_call_is_tuned_once_by_whichever_copy(copies, device, plugin):
    keys = record_calls(copies.recorded, device, range(100, 109))
    copies.send()
    running = [copies.start(*TUNE, "--share", *plugin, *shard) for shard in (["--shard", "0/3"], ["--shard", "1/3"], [])]
    here, everywhere = [], []
    for copy in running:
        out, err = copy.communicate(timeout=600)
        assert copy.returncode == 0, err
        tuned = json.loads(out)["tuned"]
        here += [t["key"] for t in tuned if not t["already"]]
        everywhere.append(sorted(t["key"] for t in tuned))
        assert all(t["already"] for t in tuned if t["elsewhere"])
    assert sorted(here) == sorted(keys)
    assert everywhere == [sorted(keys)] * 3, "a copy ends when all of them are stored"
    (status,) = copies.run("fleet", "status")["devices"]
    assert (status["recorded"], status["tuned"] + status["cut_short"], status["left"], status["leased"]) == (9, 9, 0, 0)


def first_line(copy, word):
    """Waits until the copy says it."""
    said = ""
    for line in copy.stderr:
        said += line
        if word in line:
            return line
    pytest.fail(f"{word!r} was not said: {said}")


def test_the_call_of_a_killed_copy_is_tuned_by_another(copies, device, slow):
    (key,) = record_calls(copies.recorded, device, [64], op="plugin.slow@v1")
    copies.send()
    begun = time.time()
    first = copies.start(*TUNE[:2], "--share", "--budget-per-call", "3000", *slow)
    first_line(first, "plugin.slow@v1")
    status = copies.run("fleet", "status")
    assert [d["leased"] for d in status["devices"]] == [1] and status["devices"][0]["left"] == 1
    (lease,) = status["leases"]
    by = "role postgres" if copies.url else f"process {first.pid} on {os.uname().nodename}"
    assert (lease["key"], lease["holder"]) == (key, by)
    since = datetime.datetime.strptime(lease["since"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    assert int(begun) <= since.timestamp() <= time.time()

    second, third = (copies.start(*TUNE, "--share", *slow) for _ in range(2))
    first_line(second, "others tune it; waiting for them")
    first_line(third, "others tune it; waiting for them")
    third.send_signal(signal.SIGINT)
    out, err = third.communicate(timeout=600)
    assert third.returncode == 130 and json.loads(out)["interrupted"], err

    first.kill()
    first.wait()
    copies.expire_leases()
    out, err = second.communicate(timeout=600)
    (tuned,) = json.loads(out)["tuned"]
    assert second.returncode == 0 and tuned["key"] == key and not tuned["already"], err
    (status,) = copies.run("fleet", "status")["devices"]
    assert (status["leased"], status["left"]) == (0, 0)


def test_an_interrupted_copy_gives_its_call_back(copies, device, slow):
    record_calls(copies.recorded, device, [64], op="plugin.slow@v1")
    copies.send()
    copy = copies.start(*TUNE[:3], "--share", "--budget-per-call", "3000", *slow)
    first_line(copy, "plugin.slow@v1")
    copy.send_signal(signal.SIGINT)
    out, err = copy.communicate(timeout=600)
    assert copy.returncode == 130 and json.loads(out)["interrupted"], err
    assert copies.run("fleet", "status")["leases"] == []


def test_a_call_that_fails_everywhere_ends_every_copy(start, device, bad, tmp_path):
    copies = Copies(start, tmp_path)
    (good,) = record_calls(copies.recorded, device, [64])
    record_calls(copies.recorded, device, [64], op="bad.hook.exit@v1")
    record_calls(copies.recorded, device, [64], op="nobody.knows@v1")
    running = [copies.start(*TUNE, "--share", *bad) for _ in range(2)]
    here = []
    for copy in running:
        out, err = copy.communicate(timeout=600)
        assert copy.returncode == 1, err
        done = json.loads(out)
        here += [t["key"] for t in done["tuned"] if not t["already"]]
        assert sorted((s["op"], s["lost"]) for s in done["skipped"]) == [("bad.hook.exit@v1", True), ("nobody.knows@v1", False)]
    assert here == [good]


def test_a_copy_whose_worker_never_starts_fails_although_other_calls_are_tuned(ejk, device, plugin, tmp_path):
    record_calls(tmp_path / "store/recorded", device, [64])
    ejk(*TUNE, "--share", *plugin)
    sketch = {"python": "mine:Norm", "kernel": {}, "args": [], "kwargs": {}}
    record_calls(tmp_path / "store/recorded", device, [64], op="my.norm@v0", arguments=[sketch])
    result = ejk(*TUNE, "--share", *plugin, "--worker", "exit 3", expect=1).json
    assert [t["op"] for t in result["tuned"]] == ["plugin.shifted@v1"] and "before it was ready" in result["skipped"][0]["why"]


def plan(ejk, *arguments, env=None, expect=0):
    return [p["key"] for p in ejk("tune", "--recorded", "--dry-run", "--json", *arguments, env=env, expect=expect).json["plan"]]


def test_each_copy_begins_at_its_own_place(ejk, device, tmp_path):
    keys = record_calls(tmp_path / "store/recorded", device, range(10, 17))
    assert plan(ejk) == keys
    in_order = {
        (1, 3): [1, 4, 2, 5, 0, 3, 6],
        (3, 0): [3, 4, 5, 6, 0, 1, 2],
    }
    slurm = {"SLURM_ARRAY_TASK_ID": "11", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "10"}
    kubernetes = {"JOB_COMPLETION_INDEX": "3"}
    assert plan(ejk, "--share", "--shard", "1/3") == [keys[i] for i in in_order[1, 3]]
    assert plan(ejk, "--share", env=slurm) == [keys[i] for i in in_order[1, 3]]
    assert plan(ejk, "--share", "--shard", "1/3", env=kubernetes) == [keys[i] for i in in_order[1, 3]]
    assert plan(ejk, "--share", env=kubernetes) == [keys[i] for i in in_order[3, 0]]
    begun = plan(ejk, "--share")
    assert begun == keys[keys.index(begun[0]) :] + keys[: keys.index(begun[0])]
    assert plan(ejk, env=slurm) == keys, "without --share a job array says nothing"


def test_shards_without_sharing_are_disjoint(ejk, device, plugin, tmp_path):
    keys = record_calls(tmp_path / "store/recorded", device, range(10, 20))

    def shard_of(key, size, count):
        spec = json.dumps(call(size)["spec"], sort_keys=True, separators=(",", ":"))
        name = json.dumps([device["fingerprint"], "plugin.shifted@v1", key, spec], separators=(",", ":"))
        return int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) % count

    for index in range(3):
        wanted = [key for key, size in zip(keys, range(10, 20), strict=True) if shard_of(key, size, 3) == index]
        assert plan(ejk, "--shard", f"{index}/3", expect=0 if wanted else 3) == wanted
    # One call alone: the other shard has nothing to do, which is no failure.
    alone = tmp_path / "alone"
    (key,) = record_calls(alone, device, [10])
    own = shard_of(key, 10, 2)
    empty = ejk("tune", "--recorded", "--recorded-in", alone, "--shard", f"{1 - own}/2", *plugin)
    assert f"belongs to shard {1 - own}/2" in empty.stdout
    (tuned,) = ejk(*TUNE, "--recorded-in", alone, "--shard", f"{own}/2", *plugin).json["tuned"]
    assert tuned["key"] == key


@pytest.mark.parametrize("bad_shard", ["", "3", "3/3", "4/3", "0/0", "-1/3", "a/b", "1/3/3", "1 /3"])
def test_bad_shards_are_usage_errors(ejk, bad_shard):
    told = ejk("tune", "--recorded", "--share", f"--shard={bad_shard}", expect=2)
    assert "I/N" in told.stderr


def test_options_that_make_no_sense_are_a_usage_error(ejk):
    assert "--recorded" in ejk("tune", "plugin.shifted", "--arg", "1", "--share", expect=2).stderr
    assert "--recorded" in ejk("tune", "plugin.shifted", "--arg", "1", "--shard", "0/2", expect=2).stderr
    assert "--shard I/N --retune" in ejk("tune", "--recorded", "--share", "--retune", expect=2).stderr
    assert "status" in ejk("fleet", expect=2).stderr


def test_the_state_of_each_device(ejk, device, tmp_path):
    store = tmp_path / "store"
    now = time.time()

    def stored(size, seconds_ago, **members):
        at = datetime.datetime.fromtimestamp(now - seconds_ago, datetime.UTC)
        made = call(size)
        measured(store, {**entry(device, op=made["op"], spec=json.dumps(made["spec"], sort_keys=True, separators=(",", ":")),
                                 time=at.strftime("%Y-%m-%dT%H:%M:%SZ"), **members)})  # fmt: skip

    record_calls(store / "recorded", device, range(10, 20))
    record_calls(store / "recorded", {**device, "fingerprint": "cpu|other"}, range(10, 13))
    stored(10, 60), stored(11, 40), stored(12, 20)
    stored(13, 90_000)  # yesterday
    stored(14, 90_000, complete=False)
    stored(15, 90_000, outcome="failed", config=None)
    told = ejk("fleet", "status", "--json").json
    states = {d["device"]: d for d in told["devices"]}
    this, other = states[device["fingerprint"]], states["cpu|other"]
    numbers = ["recorded", "tuned", "cut_short", "failed", "leased", "left"]
    assert [this[n] for n in numbers] == [10, 4, 1, 1, 0, 4]
    assert [other[n] for n in numbers] == [3, 0, 0, 0, 0, 3]
    assert 3600 * 2 / 600 < this["per_hour"] <= 3600 * 2 / 59, "of the last ten minutes"
    assert this["seconds_left"] == pytest.approx(4 * 3600 / this["per_hour"])
    assert other["per_hour"] is None and other["seconds_left"] is None
    assert told["leases"] == [] and told["problems"] == []

    text = ejk("fleet", "status", "--wide").stdout.splitlines()
    assert text[0].split() == ["DEVICE", "RECORDED", "TUNED", "CUT", "SHORT", "FAILED", "LEASED", "LEFT", "PER", "HOUR", "TIME", "LEFT"]
    assert len(text) == 3 and "min" in text[1 if device["fingerprint"] < "cpu|other" else 2]
    (alone,) = ejk("fleet", "status", "--device", "cpu|other", "--json").json["devices"]
    assert alone["recorded"] == 3
    assert "no matching calls are recorded" in ejk("fleet", "status", "--op", "nobody", expect=3).stderr


def test_a_lock_that_a_dead_process_left_is_no_lease(ejk, device, tmp_path):
    record_calls(tmp_path / "store/recorded", device, [10])
    made = call(10)
    spec = json.dumps(made["spec"], sort_keys=True, separators=(",", ":"))
    name = json.dumps([device["fingerprint"], made["op"], made["key"], spec], separators=(",", ":"))
    (tmp_path / "store/leases").mkdir(parents=True)
    lock = tmp_path / "store/leases" / (hashlib.sha256(name.encode()).hexdigest()[:32] + ".lock")
    lock.write_text("1 host 1\n")
    assert ejk("fleet", "status", "--json").json["leases"] == []
    # Of an older version, and held.
    with subprocess.Popen(["flock", lock, "sh", "-c", "echo held; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        (lease,) = ejk("fleet", "status", "--json").json["leases"]
        assert lease["key"] == made["key"] and lease["since"] == ""
        assert made["key"] in ejk("fleet", "status").stdout
        holder.stdin.close()


def test_nothing_recorded_is_said(ejk):
    for arguments in (["fleet", "status"], ["tune", "--recorded", "--share"]):
        assert ejk(*arguments, "--json", expect=3).stdout


def test_a_database_that_is_away_is_an_error(ejk, tmp_path):
    away = "postgresql://ann:s3cret@127.0.0.1:1/d"
    for arguments in (["fleet", "status"], ["tune", "--recorded", "--share"]):
        told = ejk(*arguments, "--store", away, "--json", expect=1)
        assert "127.0.0.1" in told.json["error"] and "ejk store check" in told.json["error"]
        assert "s3cret" not in told.stdout + told.stderr


def test_a_role_that_only_reads_sees_the_state_and_tunes_nothing(ejk, start, device, server, tmp_path):
    copies = Copies(start, tmp_path, server)
    ejk("store", "init", copies.url)
    copies.sql("TRUNCATE ejk.entries, ejk.leases, ejk.calls, ejk.call_counts")
    record_calls(copies.recorded, device, [10])
    copies.send()
    copies.sql("CREATE ROLE looks LOGIN; GRANT ejk_reader TO looks")
    reader = copies.url.replace("postgres:s3cret@", "looks@")
    assert ejk("fleet", "status", "--store", reader, "--json").json["devices"][0]["left"] == 1
    assert "ejk_writer" in ejk("tune", "--recorded", "--share", "--store", reader, expect=1).stderr


# ---- the launchers of examples/fleet


def test_the_job_for_kubernetes_is_one_of_its_api():
    import kubernetes_validate
    import yaml

    (job,) = yaml.safe_load_all((ROOT / "examples/fleet/tune-job.yaml").read_text())
    for version in ("1.29", "1.37"):
        kubernetes_validate.validate(job, version, strict=True)
    wrong = {**job, "spec": {**job["spec"], "completion": 16}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.29", strict=True)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    (container,) = pod["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"], "guaranteed"
    mounts = {m["name"] for m in container["volumeMounts"]}
    assert mounts == {v["name"] for v in pod["volumes"]}


def test_the_tool_takes_the_command_of_the_job_for_kubernetes(ejk, plugin, device, tmp_path):
    import yaml

    job = yaml.safe_load((ROOT / "examples/fleet/tune-job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = [str(plugin[1]) if word.endswith(".so") else word for word in container["command"]]
    assert command[0] == "ejk" and str(plugin[1]) in command
    (key,) = record_calls(tmp_path / "store/recorded", device, [64])
    done = ejk(*command[1:], "--json", env={"JOB_COMPLETION_INDEX": "3"}, timeout=600)
    assert [t["key"] for t in done.json["tuned"]] == [key]


@pytest.fixture
def slurm(tmp_path):
    """The environment of a cluster of one host, on loopback, that can run four jobs at once."""
    daemons = ["munged", "slurmctld", "slurmd"]
    path = f"{os.environ['PATH']}:/usr/sbin"
    if missing := [name for name in [*daemons, "sbatch"] if shutil.which(name, path=path) is None]:
        pytest.skip(f"Slurm is not installed: no {missing[0]} (Debian: slurm-wlm)")
    if os.getuid() != 0:
        pytest.skip("only root starts the daemons of Slurm")
    # The daemons look up the name of their host, which not every machine knows: there they have one that all know.
    host = "localhost"
    named = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh"]
    if subprocess.run([*named, "true"], capture_output=True).returncode != 0:
        pytest.skip("there can be no namespace for the name of a host here")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ejk_slurm_"))
    folder.chmod(0o755)  # MUNGE wants all users to reach its socket
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    (folder / "slurm.conf").write_text(f"""
ClusterName=ejk
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
NodeName={host} NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
""")
    # Nothing here uses control groups; looking for their version fails where they are not mounted.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    env = {"PATH": path, "HOME": str(tmp_path / "home"), "SLURM_CONF": str(folder / "slurm.conf")}
    files = {"--key-file": "key", "--socket": "munge", "--pid-file": "pid", "--log-file": "munge.log", "--seed-file": "seed"}
    commands = [
        ["munged", "--foreground", *(f"{option}={folder / name}" for option, name in files.items())],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]
    with open(folder / "said", "w") as said:
        running = []

        def all_run():
            assert all(daemon.poll() is None for daemon in running), (folder / "said").read_text()
            return True

        try:
            for command in commands:
                running.append(subprocess.Popen([*named, *command], env=env, stdout=said, stderr=subprocess.STDOUT))
                if command[0] == "munged":
                    wait_for(lambda: all_run() and (folder / "munge").exists(), "its socket")
            idle = ["sinfo", "--noheader", "--states=idle", "--format=%n"]
            wait_for(
                lambda: all_run() and host in subprocess.run(idle, env=env, capture_output=True, text=True).stdout,
                "an idle host",
            )
            yield env
        finally:
            for daemon in reversed(running):
                daemon.terminate()
                daemon.wait()
    shutil.rmtree(folder)


def test_the_script_for_slurm_tunes_each_call_once(slurm, device, plugin, tmp_path):
    keys = record_calls(tmp_path / "store/recorded", device, range(100, 107))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ejk").symlink_to(TOOL)
    env = {**slurm, "PATH": f"{tmp_path}/bin:{slurm['PATH']}", "EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    # Three at once on one host, which the script's own --exclusive would keep apart.
    script = ROOT / "examples/fleet/tune.sbatch"
    submitted = subprocess.run(["sbatch", "--wait", "--array=1-3", "--exclusive=user", script, "--json", *plugin],
                               cwd=tmp_path, env=env, capture_output=True, text=True)  # fmt: skip
    logs = sorted(tmp_path.glob("ejk-tune-*_[123].log"))
    said = [log.read_text() for log in logs]
    assert submitted.returncode == 0 and len(logs) == 3, (submitted, said)
    documents = [json.loads(text[text.index("{\n") :]) for text in said]
    here = [t["key"] for d in documents for t in d["tuned"] if not t["already"]]
    assert sorted(here) == sorted(keys)
    assert all(len(d["tuned"]) == len(keys) for d in documents)
