"""The line to a rack's supervisor, and a program that runs at its other end."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from orchestration.model.errors import NotReadyError
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.frames import Lines, encode

_READ_BYTES = 1 << 16

# Told the stage, how many of it are done, and of how many.
Progress = Callable[[str, int, int], None]


class RackProcess:
    """A program that runs in a rack. Whoever starts one waits for it."""

    def __init__(self, line: socket.socket, out: IO[bytes], err: IO[bytes]) -> None:
        self.line = line
        self._sinks = {1: out, 2: err}
        self._lines = Lines()
        self._code: int | None = None

    def kill(self, number: int) -> None:
        """Send a signal to the program and all in its process group."""
        self.send({"signal": int(number)})

    def send(self, message: dict[str, Any]) -> None:
        """Send what belongs to it: input, a window size."""
        with suppress(OSError):
            self.line.sendall(encode(message))

    def take(self) -> bool:
        """Take in what it says, waiting for something; return False once it has ended.

        Raises NotReadyError if the rack goes down.
        """
        for message in _messages(self.line, self._lines):
            if "out" in message:
                sink = self._sinks[message["out"]]
                sink.write(base64.b64decode(message["data"]))
                sink.flush()
            if message.get("end"):
                self._code = _checked(message)["code"]
        return self._code is None

    def wait(self) -> int:
        """Wait for its end, passing on its output; return its exit code (128 + n by signal n)."""
        while self._code is None:
            self.take()
        self.line.close()
        return self._code


def connect(folder: RackFolder) -> socket.socket:
    """Connect to a rack's supervisor. Raises NotReadyError if the rack is not up.

    By a name that is short enough for a socket's, however deep the folder is.
    """
    line = socket.socket(socket.AF_UNIX)
    try:
        place = os.open(folder.path, os.O_PATH | os.O_DIRECTORY)
        try:
            line.connect(f"/proc/self/fd/{place}/{folder.socket.name}")
        finally:
            os.close(place)
    except OSError as error:
        line.close()
        raise NotReadyError(
            f"the rack {folder.name} is not up", "start it: closloop rack up"
        ) from error
    return line


def call(folder: RackFolder, request: dict[str, Any]) -> socket.socket:
    """Send a rack's supervisor a request; return the line that the answers come on."""
    line = connect(folder)
    line.sendall(encode(request))
    return line


def ask(folder: RackFolder, request: dict[str, Any], progress: Progress = lambda *_: None) -> Any:
    """Send a rack's supervisor a request, wait for its end and return its result.

    Raises NotReadyError with what the rack says if it fails.
    """
    with call(folder, request) as line:
        lines = Lines()
        while True:
            for message in _messages(line, lines):
                if message.get("end"):
                    return _checked(message).get("ok")
                if "stage" in message:
                    progress(message["stage"], message.get("done", 0), message.get("of", 0))


def _messages(line: socket.socket, lines: Lines) -> list[dict[str, Any]]:
    piece = line.recv(_READ_BYTES)
    if not piece:
        raise NotReadyError("the rack went down", "start it again: closloop rack up")
    return lines.feed(piece)


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    if "error" in message:
        raise NotReadyError(message["error"], message.get("remedy", ""))
    return message
