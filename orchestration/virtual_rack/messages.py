"""Messages between a rack's parts: JSON objects, one per line after a mark, or files to the guest.

Requests carry a number `id`, and so do all answers to them. The last answer has `end`.

The guest's kernel sees the line to it as a terminal. More than 4096 unread bytes would throttle the
terminal until a timer fires, which never happens while virtual time stands still. So messages to
the guest are files in a folder, and only their numbers go over the line. A file appears complete,
by a rename, and under a new name, so that the guest has nothing cached for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestration.core.files import write_whole

Message = dict[str, Any]

MARK = b"@rack "
# The most unread numbers on the line to the guest.
UNREAD = 64
# The size of one read of a stream.
PIECE_BYTES = 1 << 16
# A longer line is none of our messages.
_MAX_LINE_BYTES = 1 << 26


def encode(message: Message) -> bytes:
    """Return a message as a line."""
    return MARK + json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Splits a stream into messages; lines without the mark are ignored."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Message]:
        """Add a piece; return the messages now complete.

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
    """The supervisor's side of the messages to the guest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def put(self, message: Message) -> bytes:
        """Write a message; return the bytes to send over the line."""
        self._number += 1
        write_whole(self._folder / str(self._number), json.dumps(message))
        return b"%d\n" % self._number


class Incoming:
    """The guest's side of the messages to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rest = b""

    def take(self, piece: bytes) -> Iterator[Message]:
        """Add a piece of the line's data; yield the messages that it announces."""
        *numbers, self._rest = (self._rest + piece).split(b"\n")
        for number in numbers:
            file = self._folder / str(int(number))
            message: Message = json.loads(file.read_text())
            file.unlink()
            yield message
