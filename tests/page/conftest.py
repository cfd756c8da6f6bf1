"""Headless Chromium, driven by its DevTools protocol over a pipe: no port, driver or library."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

CLOSLOOP = "from orchestration.cli.main import main; main()"
CAMPAIGN = """
campaign: page
testbed: graphcc
tuners: [secn1, secn2, amt]
traffic:
  - {kind: poisson, workload: WebSearch, load: $load}
factors:
  load: [0.3, 0.6]
repeats: 3
seed: 1
duration: 4ms
drain: 200ms
"""
# Chromium reads calls from file 3 and writes answers to file 4.
LAUNCH = """
import fcntl, os, sys
calls, answers = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3])
os.dup2(calls, 3)
os.dup2(answers, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""

# As a reader does, a screen at a time; pictures are drawn when they come near.
SCROLL = """(async () => {
  for (let y = 0; y < document.body.scrollHeight; y += 400) {
    scrollTo(0, y);
    await new Promise((done) => setTimeout(done, 30));
  }
  const open = () => [...document.querySelectorAll(".picture")].filter((p) => !p.data);
  for (let i = 0; i < 100 && open().length; i++) await new Promise((r) => setTimeout(r, 50));
})()"""

UNDRAWN = """[...document.querySelectorAll(".picture")].filter((place) => {
  const wide = (box) => Math.max(box.width, box.height) > 1;
  const marks = place.querySelectorAll(".trace path, .points path, .heatmaplayer image, .hm image");
  const seen = [...marks].some((mark) => wide(mark.getBoundingClientRect()));
  return !place.querySelector(".main-svg") || !seen;
}).map((place) => place.previousElementSibling.textContent)"""

# Text that leaves its picture is cut off; tick labels of one axis that meet cannot be read.
CUT = """[...document.querySelectorAll(".picture")].flatMap((place) => {
  const frame = place.getBoundingClientRect();
  return [...place.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 ||
      box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
  }).map((text) => `${place.id}: ${text.textContent}`);
})"""
MEETING = """[...document.querySelectorAll(".picture")].flatMap((place) => {
  const groups = {};
  for (const text of place.querySelectorAll(".xtick text, .ytick text, .cbaxis text")) {
    if (/rotate\\((?!0)/.test(text.getAttribute("transform") || "")) continue;
    const axis = [...text.parentNode.classList].join(".");
    const box = text.getBoundingClientRect();
    const where = `${axis} ${text.closest("[class*=tick]").parentNode.className.baseVal}`;
    (groups[where] ||= []).push([text.textContent, box]);
  }
  return Object.values(groups).flatMap((items) => items.flatMap(([one, a], at) =>
    items.slice(at + 1).filter(([, b]) =>
      a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3
    ).map(([other]) => `${place.id}: ${one} on ${other}`)));
})"""

# WCAG 2.2, 1.4.3, for every text on the page, in pictures as well.
FAINT = """(() => {
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const behind = (node) => {
    for (let at = node; at && at.nodeType === 1; at = at.parentNode) {
      const [r, g, b, alpha = 1] = parse(getComputedStyle(at).backgroundColor);
      if (alpha === 1 && r !== undefined) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  let seen = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("script, style, noscript")) continue;
    const style = getComputedStyle(node);
    if (!node.getBoundingClientRect().width || style.visibility === "hidden") continue;
    seen += 1;
    const ink = parse(node.closest("svg") ? style.fill : style.color);
    const [one, two] = [light(ink), light(behind(node))].sort((a, b) => b - a);
    if ((one + 0.05) / (two + 0.05) < 4.5) found.push(`${walker.currentNode.data} ${ink}`);
  }
  return { seen, found };
})()"""


class Browser:
    """One page in a browser of its own. What it asked for and complained about is kept."""

    def __init__(self, folder: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        argv = [
            "chromium", "--headless", "--remote-debugging-pipe", "--disable-gpu",
            "--no-first-run", "--disable-renderer-backgrounding",
            "--disable-backgrounding-occluded-windows", "--disable-background-timer-throttling",
            "--disable-background-networking", "--hide-scrollbars",
            f"--user-data-dir={folder}",
        ]  # fmt: skip
        if os.geteuid() == 0:  # Chromium refuses its sandbox to root
            argv.append("--no-sandbox")
        pipes = (to_browser, from_browser)
        command = [sys.executable, "-c", LAUNCH, *(str(pipe) for pipe in pipes), *argv]
        self.process = subprocess.Popen(command, pass_fds=pipes, stderr=subprocess.DEVNULL)
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

    def unfold(self) -> None:
        """Open all folds of the page."""
        self.run("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")

    def read(self) -> None:
        """Open all folds, scroll through the page, and wait for its pictures."""
        self.unfold()
        self.run(SCROLL)

    @property
    def undrawn(self) -> list[str]:
        """The titles of pictures in which nothing is to be seen."""
        return self.run(UNDRAWN)

    @property
    def misplaced(self) -> list[str]:
        """Text that is cut off or on top of other text, and how much wider the page is."""
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        more = self.run(wide)
        return [*self.run(CUT), *self.run(MEETING), *([f"{more} pixels"] if more > 0 else [])]

    @property
    def contrasts(self) -> dict:
        """How many texts are `seen`, and those with too little contrast, `found`."""
        return self.run(FAINT)

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


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser, whose page is that of whoever opened one last."""
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A campaign of two conditions and three tuners, one of which acts; with its page."""
    place = tmp_path_factory.mktemp("page")
    file = place / "page.yml"
    file.write_text(CAMPAIGN)
    run = ["run", str(file), "--on", "fluid", "--out", str(place / "runs")]
    subprocess.run([sys.executable, "-c", CLOSLOOP, *run], check=True)
    return place / "runs" / "page"
