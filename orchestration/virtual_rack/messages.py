"""How a rack's parts talk: JSON objects, one a line after a mark, or to the guest in files.

Requests carry a number `id`, and so does all that answers them, until one with `end`.

The line to the guest is a terminal to its kernel. More than 4096 unread bytes would throttle it,
and a timer lets it go on, which never fires while virtual time stands still. So messages to the
guest are files in a folder, and only their numbers go over the line. A file appears whole, by being
renamed, under a name that was never used before: nothing that the guest has cached is taken for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestration.model.files import write_whole

Message = dict[str, Any]

MARK = b"@rack "
# Numbers that may be on the line to the guest without having been read.
UNREAD = 64
# What is read of a stream at a time.
PIECE_BYTES = 1 << 16
# A line that never ends is not ours.
_MAX_LINE_BYTES = 1 << 26


def encode(message: Message) -> bytes:
    """Return a message as a line."""
    return MARK + json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Splits a stream into messages; lines without the mark are left out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Message]:
        """Take in a piece; return the messages that are complete.

        Raises ValueError for a marked line that is not a JSON object.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ValueError("a line without end")
        messages = [json.loads(line[len(MARK) :]) for line in lines if line.startswith(MARK)]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a message that is no object")
        return messages


class Outgoing:
    """Messages to the guest, at the supervisor's end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def put(self, message: Message) -> bytes:
        """Write a message; return what to send over the line."""
        self._number += 1
        write_whole(self._folder / str(self._number), json.dumps(message))
        return b"%d\n" % self._number


class Incoming:
    """Messages to the guest, at its own end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rest = b""

    def take(self, piece: bytes) -> Iterator[Message]:
        """Take in a piece of what comes over the line; yield the messages that it announces."""
        *numbers, self._rest = (self._rest + piece).split(b"\n")
        for number in numbers:
            file = self._folder / str(int(number))
            message: Message = json.loads(file.read_text())
            file.unlink()
            yield message
