"""A headless Chromium, driven over its debugging pipe: what a page does in a real browser.

Chromium's DevTools protocol over two inherited pipes needs no driver, no port and no package. The
pages are this project's own files.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD, fcntl
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which containers do not allow; no page of others is opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--no-first-run",
)
PATIENCE = 120.0  # seconds for one answer; a browser on a busy machine takes its time


def find_browser() -> str | None:
    """Return the path of a Chromium or Chrome, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end both.

    Raises:
        ConfigError: there is none.
    """
    path = find_browser()
    if path is None:
        raise ConfigError(f"no browser: none of {', '.join(NAMES)} is on the PATH; install one")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(path, profile)
        try:
            yield browser
        finally:
            browser.close()


class Browser:
    """The process and its pipes."""

    def __init__(self, path: str, profile: str) -> None:
        """Start it; it reads commands at descriptor 3 and answers at 4."""
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        high = [fcntl(end, F_DUPFD, 10) for end in (their_in, their_out)]
        actions = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
        duplicates = [(os.POSIX_SPAWN_DUP2, end, 3 + n) for n, end in enumerate(high)]
        self._pid = os.posix_spawn(
            path,
            [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            os.environ,
            file_actions=[*actions, *duplicates],
            setpgroup=0,
        )
        for end in (their_in, their_out, *high):
            os.close(end)
        self._count, self._rest, self._events = 0, b"", list[dict[str, Any]]()

    def open(self, page: Path, width: int = 1200, height: int = 900) -> Page:
        """Open a file from disk in a tab of its own, and wait until it is loaded and drawn."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2,
            mobile=False,
        )
        tab.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired", tab.session)
        tab.settle()
        return tab

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        """Send a command and return its result.

        Raises:
            RuntimeError: the browser refuses it, or is gone.
            TimeoutError: it does not answer.
        """
        self._count += 1
        command = {"id": self._count, "method": method, "params": params}
        if session is not None:
            command["sessionId"] = session
        _write(self._out, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._count:
            self._events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def wait_for(self, method: str, session: str) -> None:
        """Read until such an event has come."""
        while not self.events(session, method):
            self._events.append(self._next())

    def events(self, session: str, method: str) -> list[dict[str, Any]]:
        """Return what has been told of a tab so far."""
        return [
            event["params"]
            for event in self._events
            if event.get("sessionId") == session and event.get("method") == method
        ]

    def close(self) -> None:
        """End the browser and whatever it started."""
        with suppress(RuntimeError, TimeoutError, OSError):
            self.call("Browser.close")
            while True:  # until the pipe ends: it has left in order
                self._next()
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError(f"the browser has not answered for {PATIENCE:g} s")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser ended")
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Page:
    """A loaded page."""

    def __init__(self, browser: Browser, session: str) -> None:
        """Belong to a tab of the browser."""
        self._browser, self.session = browser, session

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, but for the page's own and what is written in it."""
        sent = self._browser.events(self.session, "Network.requestWillBeSent")
        addresses = [event["request"]["url"] for event in sent if event.get("type") != "Document"]
        return [one for one in addresses if not one.startswith(("data:", "blob:"))]

    @property
    def errors(self) -> list[str]:
        """Errors on the console: exceptions, `console.error`, what the policy refused."""
        said = self._browser.events(self.session, "Runtime.consoleAPICalled")
        logged = self._browser.events(self.session, "Log.entryAdded")
        thrown = self._browser.events(self.session, "Runtime.exceptionThrown")
        return [
            *(str(event["args"]) for event in said if event["type"] in ("error", "assert")),
            *(event["entry"]["text"] for event in logged if event["entry"]["level"] == "error"),
            *(str(event["exceptionDetails"]) for event in thrown),
        ]

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send a command of the DevTools protocol to the tab."""
        return self._browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401  (whatever JSON can say)
        """Return the value of a JavaScript expression, of a promise when it is kept.

        Raises:
            RuntimeError: it throws.
        """
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has been drawn twice: whatever was begun has happened."""
        frame = "requestAnimationFrame"
        self.evaluate(f"new Promise((done) => {frame}(() => {frame}(() => done(true))))")

    def picture(self, selector: str) -> bytes:
        """Return a PNG of the first element that the selector finds, two dots a CSS pixel."""
        box = self.evaluate(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return {x: box.x + scrollX, y: box.y + scrollY,"
            " width: box.width, height: box.height}; })()"
        )
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**box, "scale": 1}
        )
        return base64.b64decode(shot["data"])


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
