# SPDX-License-Identifier: Apache-2.0
"""Pages as a browser shows them, and the figures in them."""

import html.parser
import json
import os
import select
import shutil
import subprocess

import pytest
from tool import wait_for


class Page(html.parser.HTMLParser):
    """Figures by section and class, and everything that could come from elsewhere."""

    def __init__(self):
        super().__init__()
        self.section, self.figures, self.outside, self.tags, self.text = "", {}, [], [], ""

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        if tag in ("section", "div", "li") and "id" in attributes:
            self.section = attributes["id"]
        if tag == "data":
            self.figures.setdefault((self.section, attributes["class"]), []).append(json.loads(attributes["value"]))
        for name in ("src", "href"):
            if not attributes.get(name, "#").startswith(("#", "data:")):
                self.outside.append(attributes[name])

    def handle_data(self, text):
        self.text += text


class Browser:
    """Chromium with one page, driven through its debugging pipe."""

    def __init__(self, folder):
        chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        if not chromium:
            pytest.skip("no Chromium is installed")
        to_read, self.to = os.pipe()
        self.answers, to_write = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                   f"--user-data-dir={folder}/profile", "about:blank"]  # fmt: skip
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", chromium, *options],
            pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self.folder, self.said, self.rest, self.last, self.session = folder, [], b"", 0, None
        try:
            page = wait_for(self.first_page, "Chromium's page")
            self.session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
            for domain in ["Page", "Log", "Runtime"]:
                self.ask(f"{domain}.enable")
        except BaseException:  # that of pytest.skip is no Exception
            self.end()
            raise

    def first_page(self):
        targets = self.ask("Target.getTargets")["targetInfos"]
        return next((target["targetId"] for target in targets if target["type"] == "page"), None)

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.answers, 65536) if select.select([self.answers], [], [], 60)[0] else b""
            if not more and self.session is None:
                pytest.skip("Chromium does not start here")
            assert more, "Chromium does not answer any more"
            self.rest += more
        text, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(text)
        if message.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.said.append(message["params"])
        return message

    def ask(self, method, **params):
        self.last += 1
        line = {"id": self.last, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(line).encode() + b"\0")
        while (answer := self.message()).get("id") != self.last:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def show(self, file, width, touch=False):
        self.open(f"file://{self.folder}/{file}", width, touch)

    def open(self, url, width, touch=False, colours="light"):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=touch)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        self.ask("Page.navigate", url=url)
        while self.message().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=f"JSON.stringify({expression})")["result"]
        assert result["type"] == "string", result
        return json.loads(result["value"])

    def wait_for(self, expression):
        """Until it is true, for 50 s at most."""
        promise = f"""new Promise(done => {{ const end = Date.now() + 50000; const look = () => ({expression}) ? done(true)
            : Date.now() > end ? done(false) : setTimeout(look, 20); look(); }})"""
        result = self.ask("Runtime.evaluate", expression=promise, awaitPromise=True)["result"]
        assert result["value"] is True, result

    def press(self, key, code):
        for kind in ["keyDown", "keyUp"]:
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                     **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))  # fmt: skip

    def middle(self, selector):
        """Where the first such element is, scrolled to."""
        return self.value(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center", behavior: "instant"}});
            const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"""
        )

    def tap(self, selector):
        x, y = self.middle(selector)
        self.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def point_at(self, selector):
        x, y = self.middle(selector)
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def end(self):
        os.close(self.to)
        try:
            self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.answers)
