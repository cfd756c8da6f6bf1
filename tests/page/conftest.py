"""Headless Chromium, driven by its DevTools protocol over a pipe: no port, driver or library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str:
    """Return the program's path, "" if there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), "")


class Browser:
    """One page in a browser of its own. What it asked for and complained about is kept."""

    def __init__(self, folder: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        argv = [
            find_browser(), "--headless", "--remote-debugging-pipe", "--disable-gpu",
            "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
            f"--user-data-dir={folder}",
        ]  # fmt: skip
        if os.geteuid() == 0:  # Chromium refuses its sandbox to root
            argv.append("--no-sandbox")
        command = ["sh", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "sh", *argv]
        self.process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._count, self._session = b"", 0, ""
        self.events: list[dict] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters):
        """Call a method of the protocol and return its result."""
        self._count += 1
        call = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            call["sessionId"] = self._session
        os.write(self._write, json.dumps(call).encode() + b"\0")
        while True:
            message = self._message(60)
            if message.get("id") == self._count:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def _message(self, timeout_s: float) -> dict:
        deadline = time.monotonic() + timeout_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Open a file in a window of this size, in CSS pixels, and wait until it is loaded."""
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.events.clear()
        self("Page.navigate", url=path.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(60))

    def run(self, script: str):
        """Return what an expression is, promises awaited."""
        got = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code,
            )  # fmt: skip

    def picture(self, path: Path) -> None:
        """Save the whole page as it looks."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        got = self("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(got["data"]))

    @property
    def complaints(self) -> list[str]:
        """What the console has: errors and warnings, and exceptions that nobody caught."""
        found = []
        for event in self.events:
            what = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(what["exceptionDetails"]["text"])
            if event["method"] == "Log.entryAdded":
                found.append(what["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and what["type"] != "log":
                found.append(f"{what['type']}: {what['args']}")
        return found

    @property
    def requests(self) -> list[str]:
        """What was asked for since the page was opened, data inside the page not counted."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith("data:")]

    def close(self) -> None:
        """End the browser."""
        for handle in (self._write, self._read):
            os.close(handle)
        self.process.terminate()
        self.process.wait(20)


@contextmanager
def browsing(folder: Path):
    """Return a browser whose profile is in `folder`."""
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
