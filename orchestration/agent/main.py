"""The agent on a device: one loop that answers the controller's requests and runs timers.

The agent talks to the controller over its standard input and output, in frames: four bytes of
length, then JSON. A request is `{"id": n, "op": name, ...}`; its answer is `{"id": n, "ok":
result}` or `{"id": n, "error": what, "remedy": what to do}`. Events, `{"event": name, ...}`, are
sent without a request.

A service is a module with a function `operations(agent)` that returns its operations by name. An
operation takes the request and returns JSON-ready data or None. It may raise `OperationError`.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import selectors
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any

from . import SERVICES
from .linux.vrf import leave as leave_vrf

Operation = Callable[[dict[str, Any]], Any]
_READ_BYTES = 1 << 20
VERSION = 1
# More than any answer needs. A greater length means that this is not a frame but text, such as a
# login banner.
MAX_FRAME_BYTES = 256 << 20


class OperationError(Exception):
    """The error of an operation that cannot be done: what is wrong, and its remedy."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class FrameError(ValueError):
    """The error for a stream that has something other than frames; `start` is its first bytes."""

    def __init__(self, start: bytes) -> None:
        super().__init__(f"not a frame: {start!r}")
        self.start = start


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as one frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack(">I", len(body)) + body


class Decoder:
    """Decodes messages from the pieces of a stream."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._pending = bytearray()
        self._max_frame_bytes = max_frame_bytes

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Add the next piece; return the messages now complete. Raises FrameError."""
        pending = self._pending
        pending += piece
        messages = []
        at = 0
        while len(pending) - at >= 4:
            (length,) = struct.unpack_from(">I", pending, at)
            if length > self._max_frame_bytes:
                raise FrameError(bytes(pending[at : at + 200]))
            if len(pending) - at - 4 < length:
                break
            try:
                message = json.loads(bytes(pending[at + 4 : at + 4 + length]))
            except ValueError:
                raise FrameError(bytes(pending[at + 4 : at + 204])) from None
            if not isinstance(message, dict):
                raise FrameError(bytes(pending[at + 4 : at + 204]))
            messages.append(message)
            at += 4 + length
        del pending[:at]
        return messages


class Agent:
    """The event loop that services use. It ends at the end of its standard input."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._cleanups: list[Callable[[], None]] = []
        self._operations: dict[str, Operation] = {"hello": self._hello, "clock": _clock}
        self._decoder = Decoder()
        self._running = True

    def add(self, operations: dict[str, Operation]) -> None:
        """Offer a service's operations."""
        self._operations.update(operations)

    def send(self, message: dict[str, Any]) -> None:
        """Send an event to the controller."""
        data = memoryview(encode(message))
        while data:
            data = data[os.write(self._sink, data) :]

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever `fd` is readable, until `forget`."""
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`."""
        self._selector.unregister(fd)

    def at(self, monotonic_ns: int, action: Callable[[], None]) -> None:
        """Call `action` once, at the given CLOCK_MONOTONIC time."""
        self._timer_count += 1
        heappush(self._timers, (monotonic_ns, self._timer_count, action))

    def at_end(self, action: Callable[[], None]) -> None:
        """Call `action` when the agent ends for any reason but SIGKILL, the latest one first."""
        self._cleanups.append(action)

    def stop(self) -> None:
        """End after the current request."""
        self._running = False

    def run(self) -> None:
        """Serve until the controller closes the stream."""
        self.watch(self._source, self._receive)
        # The controller sends nothing before this: the process that starts the agent reads ahead,
        # and would consume it.
        self.send({"event": "ready"})
        try:
            while self._running:
                for key, _ in self._selector.select(self._wait_s()):
                    key.data()
                while self._timers and self._timers[0][0] <= time.monotonic_ns():
                    heappop(self._timers)[2]()
        finally:
            for cleanup in reversed(self._cleanups):
                try:
                    cleanup()
                except Exception:
                    traceback.print_exc()

    def _wait_s(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)

    def _receive(self) -> None:
        piece = os.read(self._source, _READ_BYTES)
        if not piece:
            self._running = False
            return
        for request in self._decoder.feed(piece):
            self._answer(request)

    def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": request.get("id")}
        operation = self._operations.get(str(request.get("op")))
        try:
            if operation is None:
                raise OperationError(f"the agent has no operation {request.get('op')!r}")
            answer["ok"] = operation(request)
        except OperationError as error:
            answer.update(error=error.what, remedy=error.remedy)
        except PermissionError as error:
            answer.update(error=str(error), remedy="log in as root, or let the user use sudo")
        except Exception as error:
            answer.update(error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        self.send(answer)

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        for name in request.get("services", ()):
            if name not in SERVICES:
                raise OperationError(f"the agent has no service {name!r}")
            module = importlib.import_module(f".{SERVICES[name]}", __package__)
            self.add(module.operations(self))
        return {
            "version": VERSION,
            "hostname": platform.node(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "uid": os.geteuid(),
            "pid": os.getpid(),
        }


def _clock(_: dict[str, Any]) -> dict[str, int]:
    return {"monotonic_ns": time.monotonic_ns(), "real_ns": time.time_ns()}


def main() -> None:
    """Serve on standard input and output; `print` goes to standard error."""
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    leave_vrf()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    with suppress(BrokenPipeError, SystemExit):
        Agent(source, sink).run()
