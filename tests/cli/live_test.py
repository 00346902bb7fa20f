# SPDX-License-Identifier: Apache-2.0
"""The live page: a store, or a tuning while it goes on, and who may read it."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sys
import tempfile
import urllib.parse

import pytest
from browser import Page
from tool import SPEC, TOOL, entry, measured, record, wait_for

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Served:
    """A tool that serves a page, and a client of it."""

    def __init__(self, process, url):
        self.process, self.url = process, url
        parts = urllib.parse.urlsplit(url)
        self.port, self.token = parts.port, urllib.parse.parse_qs(parts.query).get("token", [None])[0]
        self.host = "::1" if parts.hostname == "::1" else "127.0.0.1"

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.text = answer.read().decode()
        connection.close()
        return answer

    def json(self, path):
        answer = self.ask(path)
        assert answer.status == 200, answer.text
        return json.loads(answer.text, parse_constant=pytest.fail)

    def said_once(self, is_so, what):
        """What /state says as soon as this is so."""
        return wait_for(lambda: state if is_so(state := self.json("/state")) else None, what)

    def raw(self, data):
        """What comes back for these bytes until the other side closes."""
        with socket.create_connection((self.host, self.port), timeout=60) as connection:
            connection.sendall(data)
            out = b""
            while piece := connection.recv(65536):
                out += piece
            return out


@pytest.fixture
def started(start, tmp_path):
    """Starts the tool; it says where its page is in its first document or its first message."""

    def serving(*arguments):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
        process = start([TOOL, *arguments], env=env, cwd=tmp_path)
        for line in process.stdout if arguments[0] == "serve" else process.stderr:
            if url := re.search(r"http://\S+?(?=[\"\s])", line):
                return Served(process, url.group())
        raise AssertionError(process.stderr.read())

    return serving


def interrupted(served):
    served.process.send_signal(signal.SIGINT)
    out, err = served.process.communicate(timeout=60)
    return served.process.returncode, out, err


def figures(text):
    page = Page()
    page.feed(text)
    return page.figures


def test_serve_shows_the_report_of_a_store_and_what_is_added_to_it(ejk, store, device, started):
    served = started("serve", "--json")
    assert served.url == f"http://127.0.0.1:{served.port}/"
    document = served.json("/report.json")
    reported = ejk("report", "r.html", "--json").json
    assert document == {name: value for name, value in reported.items() if name not in ("file", "problems")}
    page = figures(served.ask("/").text)
    assert page["entries", "speedup"] == [e["speedup"] for e in document["entries"]]
    for name, value in document["summary"].items():
        assert page["summary", name] == [value]
    before = served.json("/state")
    assert before["state"] == {"stage": "store"} and before["html"] == ""
    measured(store, entry(device, op="added@v1"))
    now = served.said_once(lambda said: said["report_version"] != before["report_version"], "a new report")
    assert "added@v1" in [e["op"] for e in served.json("/report.json")["entries"]] and now["report_version"] == 2
    code, out, err = interrupted(served)
    assert (code, err) == (0, "")


def test_while_the_database_is_away_the_report_stays_as_it_was(ejk, database, device, started, tmp_path):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ejk_"))  # names of sockets are short
    url = f"postgresql://postgres:s3cret@/postgres?host={folder}/server"
    link = folder / "server"
    link.symlink_to(database.split("host=")[1])
    ejk("store", "init", url)
    measured(tmp_path / "origin", entry(device))
    ejk("store", "push", url, "--all", "--store", tmp_path / "origin")
    served = started("serve", "--json", "--store", url)
    before = served.json("/report.json")
    assert [e["op"] for e in before["entries"]] == ["gemm@v1"]
    link.unlink()
    away = served.said_once(lambda said: "problems" in said["state"], "that the database is away")
    assert "cannot be read" in away["state"]["problems"][0] and "cannot be read" in away["html"]
    assert served.json("/report.json") == before and away["report_version"] == 1
    link.symlink_to(database.split("host=")[1])
    back = served.said_once(lambda said: "problems" not in said["state"], "that the database is back")
    assert back["html"] == "" and back["report_version"] == 1
    shutil.rmtree(folder)


def test_an_empty_store_is_served_too(started):
    assert started("serve", "--json").json("/report.json")["entries"] == []


def test_the_page_can_only_be_read(store, started):
    served = started("serve", "--json")
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"]:
        assert served.ask("/", method).status == 405
    assert served.ask("/", "HEAD").status == 200
    paths = ["/nothing", "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/report/../state", "/..%5c", "/state/"]
    assert [served.ask(path).status for path in paths] == [404] * len(paths)


def test_another_name_for_this_machine_is_refused(store, started):
    """A page of another site that gets its name to lead here reads nothing (DNS rebinding)."""
    served = started("serve", "--json")
    for host in ["evil.example", f"evil.example:{served.port}", "localhost", f"localhost:{served.port}.evil.example",
                 f"127.0.0.1:{served.port + 1}", ""]:  # fmt: skip
        refused = served.ask("/report.json", Host=host)
        assert refused.status == 421 and "entries" not in refused.text, host
    assert b" 421 " in served.raw(b"GET /report.json HTTP/1.0\r\n\r\n")
    for host in [f"localhost:{served.port}", f"127.0.0.1:{served.port}"]:
        assert served.ask("/report.json", Host=host).status == 200


def test_an_address_that_others_reach_asks_for_a_token(store, started):
    served = started("serve", "--json", "--listen", "0.0.0.0:0")
    assert re.fullmatch("[0-9a-f]{32}", served.token)
    wrong = served.token[:-1] + ("0" if served.token[-1] != "0" else "1")
    for path, headers in [("/", {}), ("/state", {}), ("/report.json", {"Cookie": f"ejk_token_{served.port}={wrong}"}), (f"/?token={wrong}", {}),
                          (f"/state?token={served.token}", {}), ("/state", {"Authorization": f"Bearer {served.token}x"}),
                          ("/state", {"Cookie": f"ejk_token_{served.port}="}), (f"/?token={served.token[:-1]}", {})]:  # fmt: skip
        refused = served.ask(path, **headers)
        assert refused.status == 401 and "gemm" not in refused.text, path
    welcome = served.ask(f"/?token={served.token}")
    assert welcome.status == 303 and welcome.headers["Location"] == "/"
    cookie = welcome.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert "gemm@v1" in served.ask("/", Cookie=f"other=1; {cookie.split(';')[0]}").text
    assert served.ask("/state", Authorization=f"Bearer {served.token}").status == 200
    other = started("serve", "--json", "--listen", "0.0.0.0:0")
    assert other.token != served.token
    second = other.ask(f"/?token={other.token}").headers["Set-Cookie"].split("=")[0]
    assert second != cookie.split("=")[0], "browsers send cookies to every port of a host"


def test_pages_are_sent_whole_and_not_compressed(store, started):
    served = started("serve", "--json")
    whole = served.ask("/report.json").text
    asked = served.ask("/report.json", Accept_Encoding="br, gzip", Range="bytes=0-1,0-,0-,-1")
    assert asked.status == 200 and asked.text == whole and "Content-Encoding" not in asked.headers


def test_requests_are_limited(store, started):
    served = started("serve", "--json")
    endless = socket.create_connection((served.host, served.port), timeout=60)
    sent, limit = 0, 10_000_000
    with contextlib.suppress(ConnectionError):
        endless.sendall(b"GET / HTTP/1.1\r\n")
        while sent < limit:
            sent += endless.send(b"X-More: " + b"x" * 1000 + b"\r\n")
    endless.close()
    assert sent < limit
    assert b" 414 " in served.raw(b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HTTP/1.1 200" not in served.raw(b"\0" * 100 + b"\r\n\r\n")
    assert served.ask("/state").status == 200


def test_answers_forbid_what_they_do_not_need(store, started):
    served = started("serve", "--json")
    for path in ["/", "/live.js", "/state", "/report", "/report.json", "/nothing"]:
        headers = served.ask(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


def test_an_address_that_is_taken_is_an_error(ejk, store, started):
    served = started("serve", "--json")
    assert "cannot serve at" in ejk("serve", "--listen", f"127.0.0.1:{served.port}", expect=1).stderr


# A worker that tells of its candidates, and goes on when the test writes to a pipe.
WORKER = r"""
import json, os, subprocess, sys
tool, pipe, export = sys.argv[1:]
print(json.dumps({"event": "ready", "protocol": 1, "device": "any", "process": os.getpid()}), flush=True)
counts = {"candidates": 5, "racing": 2, "round": 7, "clock": "device", "best_seconds": 0.001, "speedup": 2.0, "elapsed": 1.5, "remaining": 8.5}
for line in sys.stdin:
    request = json.loads(line)
    told = json.loads(open(export + ".told").read())
    for tried, progress in enumerate(told, 1):
        rejected = sum(1 for p in told[:tried] if p["kind"] == "candidate" and p.get("message"))
        print(json.dumps({"event": "progress", **counts, "tried": tried, "rejected": rejected, **progress}), flush=True)
    with open(pipe) as go:
        fails = go.read() == "fail"
    if fails:
        print(json.dumps({"event": "failed", "kind": "invalid_argument", "message": "told to fail"}), flush=True)
        continue
    subprocess.run([tool, "import", export, "--store", request["store"]], check=True, stdout=subprocess.DEVNULL)
    entry = json.loads(open(export).read().splitlines()[1])
    print(json.dumps({"event": "tuned", "entry": {name: value for name, value in entry.items() if name != "candidates"}}), flush=True)
"""


class Watched:
    """A tuning by that worker, which waits."""

    def __init__(self, started, device, tmp_path, name):
        tuned = entry(device, op=f"{name}@v1", spec=SPEC.replace("8,4", "5,4"), heuristic_seconds=2e-3)
        configs = [{name: 16}, {name: 32}, {name: 64}, {name: 128}]
        for candidate, config in zip(tuned["candidates"], configs, strict=True):
            candidate["config"] = config
        tuned["config"] = configs[0]
        told = [{"kind": "candidate", "config": configs[1]}, {"kind": "measured", "config": configs[1], "seconds": 0.004}, {"kind": "candidate", "config": configs[3], "message": f"crashed: {name}"},
                {"kind": "candidate", "config": configs[0]}, {"kind": "candidate", "config": configs[2]},
                {"kind": "measured", "config": configs[2], "seconds": 0.0016},
                {"kind": "best", "config": configs[1], "best_seconds": 0.002}, {"kind": "best", "config": configs[0]},
                {"kind": "eliminated", "config": configs[2], "message": "takes 1.5 ms, the best 1 ms", "seconds": 0.0015}]  # fmt: skip
        self.entry, self.pipe = tuned, tmp_path / "go"
        export = tmp_path / "export"
        export.write_text(json.dumps({"ejk_export": 1}) + "\n" + json.dumps(tuned) + "\n")
        (tmp_path / "export.told").write_text(json.dumps(told))
        (tmp_path / "worker.py").write_text(WORKER)
        os.mkfifo(self.pipe)
        record(tmp_path / "recorded", device, {"op": f"{name}@v1", "key": tuned["key"], "spec": tuned["spec"]},
               arguments=[{"python": "mine:Kernel"}])  # fmt: skip
        # Killed with the tool: it may wait at the pipe.
        command = " ".join(map(str, ["exec setpriv --pdeathsig KILL", sys.executable, tmp_path / "worker.py", TOOL, self.pipe, export]))
        self.served = started("tune", "--recorded", "--recorded-in", tmp_path / "recorded", "--worker", command, "--serve", "--json",
                              "--store", tmp_path / "kept")  # fmt: skip
        self.served.said_once(self._has_told_all, "all candidates")

    @staticmethod
    def _has_told_all(said):
        listed = (said["state"]["now"] or {}).get("list") or []
        return len(listed) >= 4 and listed[3]["status"] == "slower"

    def go_on(self, word="go"):
        self.pipe.write_text(word)


def test_a_tuning_is_shown_while_it_goes_on_and_its_report_afterwards(ejk, started, device, tmp_path):
    watched = Watched(started, device, tmp_path, "block")
    said = watched.served.json("/state")
    state = said["state"]
    assert (state["stage"], state["done"], state["planned"], state["skipped"]) == ("tuning", 0, 1, 0)
    now = state["now"]
    assert [(c["config"]["block"], c["status"], c["seconds"]) for c in now["list"]] == [
        (32, "racing", 0.002), (128, "rejected", 0), (16, "best", 0.001), (64, "slower", 0.0015)]  # fmt: skip
    assert [c["why"] for c in now["list"]] == ["", "crashed: block", "", "takes 1.5 ms, the best 1 ms"]
    assert [p["seconds"] for p in now["history"]] == [0.001, 0.002, 0.001]
    assert now["clock"] == "device"
    shown = figures(f'<div id="now">{said["html"]}</div>')
    for name in ["tried", "candidates", "rejected", "racing", "round", "best_seconds", "speedup", "remaining"]:
        assert shown["now", name][-1] == now[name], name
    for name in ["done", "planned", "skipped", "elapsed"]:
        assert shown["now", name] == [state[name]], name
    assert "takes 1.5 ms" in said["html"] and "<polyline" in said["html"]
    watched.go_on()
    result = json.loads("".join(iter(watched.served.process.stdout.readline, "}\n")) + "}")
    assert [t["op"] for t in result["tuned"]] == ["block@v1"] and result["tuned"][0]["kept"]
    after = watched.served.json("/state")["state"]
    assert (after["stage"], after["done"], after["now"], after["remaining"]) == ("finished", 1, None, 0)
    report = watched.served.json("/report.json")
    reported = ejk("report", "r.html", "--store", tmp_path / "kept", "--json").json
    assert report["entries"] == [{**e, "where": "", "hidden": False} for e in reported["entries"]]
    assert report["summary"] == reported["summary"] and report["gains"] == reported["gains"]
    assert interrupted(watched.served)[0] == 0


def test_a_call_that_cannot_be_tuned_is_shown_with_its_reason(started, device, tmp_path):
    watched = Watched(started, device, tmp_path, "block")
    watched.go_on("fail")
    state = watched.served.said_once(lambda said: said["state"]["stage"] == "finished", "the end of the tuning")
    assert state["state"]["skipped"] == 1 and "told to fail" in state["html"]
    assert interrupted(watched.served)[0] == 1


def test_ctrl_c_ends_a_watched_tuning_at_once(started, device, tmp_path):
    watched = Watched(started, device, tmp_path, "block")
    watched.served.process.send_signal(signal.SIGINT)
    watched.served.process.communicate(timeout=60)
    assert watched.served.process.returncode == 130


def fits(browser):
    return browser.value(
        """[document.documentElement.scrollWidth <= document.documentElement.clientWidth,
        [...document.querySelectorAll("data, .state, code, small, a, ol li")].filter(e => { const r = e.getBoundingClientRect();
        return r.width > 0 && (r.left < 0 || r.right > innerWidth) && !e.closest(".what"); }).map(e => e.outerHTML)]"""
    ) == [True, []]


@pytest.mark.parametrize("width, colours", [(380, "dark"), (1200, "light")])
def test_a_browser_follows_a_tuning(browser, started, device, tmp_path, width, colours):
    watched = Watched(started, device, tmp_path, "block")
    served = watched.served
    browser.open(served.url, width, touch=width < 500, colours=colours)
    browser.wait_for("document.body.dataset.stage === 'tuning'")
    page = Page()
    page.feed(browser.value("document.documentElement.outerHTML"))
    now = served.json("/state")["state"]["now"]
    for name in ["tried", "candidates", "rejected", "racing", "round", "best_seconds", "speedup"]:
        assert page.figures["now", name] == [now[name]], name
    for place, candidate in enumerate(now["list"]):
        assert page.figures[f"candidate-{place}", "seconds"] == [candidate["seconds"]], candidate
    assert fits(browser)
    back = browser.value("getComputedStyle(document.body).backgroundColor")
    assert back == {"dark": "rgb(20, 25, 29)", "light": "rgb(255, 255, 255)"}[colours]

    # The keyboard reaches every candidate, which tells all, and stays there when the page changes.
    told = "document.activeElement.querySelector('.what')?.checkVisibility() && document.activeElement.innerText.includes('takes 1.5 ms')"
    for _ in range(4):
        browser.press("Tab", 9)
        if browser.value(f"({told}) || false"):
            break
    assert browser.value(told)
    focused = browser.value("document.activeElement.id")
    browser.wait_for("document.querySelector('#now .elapsed').innerText !== '" + browser.value("document.querySelector('#now .elapsed').innerText") + "'")
    assert browser.value("document.activeElement.id") == focused and focused.startswith("candidate-")

    watched.go_on()
    browser.wait_for("document.body.dataset.stage === 'finished' && document.querySelector('#entry-0')")
    page = Page()
    page.feed(browser.value("document.documentElement.outerHTML"))
    report = served.json("/report.json")
    for name in ["seconds", "heuristic_seconds", "speedup", "speedup_low", "speedup_high", "noise", "samples"]:
        assert page.figures["entry-0", name] == [report["entries"][0][name]], name
    for name, value in report["summary"].items():
        assert page.figures["summary", name] == [value]
    assert fits(browser)
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.tagName") in ["A", "LI", "SUMMARY"]
    assert browser.said == []


def test_hostile_names_stay_text(browser, started, device, tmp_path):
    watched = Watched(started, device, tmp_path, EVIL)
    said = watched.served.json("/state")
    assert "<script" not in said["html"] and "<img" not in said["html"] and "&lt;script&gt;" in said["html"]
    browser.open(watched.served.url, 1200)
    browser.wait_for("document.body.dataset.stage === 'tuning'")
    watched.go_on()
    browser.wait_for("document.body.dataset.stage === 'finished' && document.querySelector('#entry-0')")
    assert browser.value("[document.querySelectorAll('script').length, document.querySelectorAll('img').length]") == [1, 0]
    assert EVIL in browser.value("document.querySelector('#report').innerText")
    assert browser.said == []
