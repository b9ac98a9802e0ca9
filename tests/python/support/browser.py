"""A headless Chromium, driven by the DevTools protocol over a pair of pipes: no port and no client library."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

LIMIT = 60.0  # seconds for one reply
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Descriptors of the pipes in the browser, as --remote-debugging-pipe expects them.
READS, WRITES = 3, 4

# Resolves once the expression is true, or rejects after this many milliseconds.
WHEN = """new Promise((resolve, reject) => {
  const end = Date.now() + LIMIT;
  const look = () => {
    const found = (() => EXPRESSION)();
    if (found) resolve(found);
    else if (Date.now() > end) reject(new Error("never true: " + TEXT));
    else setTimeout(look, 20);
  };
  look();
})"""


class Browser:
    """One page of one browser. Requests and errors of the page are kept in `requests` and `errors`."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        assert program, "no Chromium is installed: run tools/setup.sh browser"
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._rest = b""
        self._session = ""
        self._start(program, profile, f"{width},{height}")
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _start(self, program: str, profile: Path, size: str) -> None:
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        # Above the two numbers that dup2() then replaces.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, WRITES + 1) for fd in (commands, answers)]

        def place() -> None:
            os.dup2(ends[0], READS)
            os.dup2(ends[1], WRITES)

        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                     "--hide-scrollbars", f"--window-size={size}", f"--user-data-dir={profile}",
                     "--remote-debugging-pipe"]  # fmt: skip
        self._process = subprocess.Popen(
            [program, *arguments], pass_fds=(READS, WRITES), preexec_fn=place, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (*ends, commands, answers):
            os.close(fd)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = monotonic() + LIMIT
        while True:
            answer = self._read(end, method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _read(self, end: float, method: str) -> dict[str, Any]:
        """Returns the next message. Raises AssertionError after the limit or if the browser has ended."""
        while b"\0" not in self._rest:
            readable, _, _ = select([self._in], [], [], max(0, end - monotonic()))
            assert readable, f"{method}: no answer of the browser in {LIMIT:.0f} s"
            piece = os.read(self._in, 1 << 20)
            assert piece, f"{method}: the browser has ended ({self._process.poll()})"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(parameters["exceptionDetails"].get("text", "exception"))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(
                    f"{parameters['entry']['text']} {parameters['entry'].get('url')}"
                )
        self._events.append(event)

    def open(self, address: str) -> None:
        """Loads a page, with its scripts and pictures."""
        self._events.clear()
        failed = self.call("Page.navigate", url=address).get("errorText")
        assert not failed, f"{address}: {failed}"
        end = monotonic() + LIMIT
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._note(self._read(end, address))

    def run(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression; waits for a promise."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def when(self, expression: str) -> Any:
        """Returns the value of the expression once it is true."""
        text = WHEN.replace("LIMIT", str(int(LIMIT * 1000 / 2)))
        return self.run(
            text.replace("TEXT", json.dumps(expression)).replace("EXPRESSION", expression)
        )

    def type(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, file: Path) -> None:
        picture = self.call("Page.captureScreenshot", format="png")["data"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=LIMIT)
        os.close(self._in)
        os.close(self._out)
