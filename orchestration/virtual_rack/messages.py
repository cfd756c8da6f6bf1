"""Messages between a rack's parts: the program that uses it, supervisor, guest and devices.

A message is a JSON object on a line of its own, after a prefix. Messages to the guest are files
instead. A request has a number `id`, and so have all answers to it. The last answer has `end`.

The guest's kernel sees the connection to it as a terminal. More than 4096 unread bytes would
throttle the terminal until a timer fires, which never happens while virtual time stands still. So
messages to the guest are files in a folder, and only their numbers are sent over the connection. A
file appears complete, by a rename, and under a new name, so that the guest has nothing cached for
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestration.core.files import write_whole

Message = dict[str, Any]

LINE_PREFIX = b"@rack "
# How many numbers may be on the connection to the guest that it has not read yet.
MAX_UNREAD = 64
# The size of one read of a stream.
PIECE_BYTES = 1 << 16
# A longer line is an error: no message is that long.
_MAX_LINE_BYTES = 1 << 26


def encode(message: Message) -> bytes:
    """Return a message as a line of bytes."""
    return LINE_PREFIX + json.dumps(message, separators=(",", ":")).encode() + b"\n"


class MessageDecoder:
    """Splits a stream into messages; lines without the mark are ignored."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Message]:
        """Add a piece of the stream; return the messages that are complete now.

        Raises ValueError for a line with the prefix that is not a JSON object.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ValueError("a line without end")
        messages = [
            json.loads(line[len(LINE_PREFIX) :]) for line in lines if line.startswith(LINE_PREFIX)
        ]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a message that is not a JSON object")
        return messages


class GuestOutbox:
    """The supervisor's side of the messages to the guest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def put(self, message: Message) -> bytes:
        """Write a message to a file; return the bytes to send over the connection."""
        self._number += 1
        write_whole(self._folder / str(self._number), json.dumps(message))
        return b"%d\n" % self._number


class GuestInbox:
    """The guest's side of the messages to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rest = b""

    def take(self, piece: bytes) -> Iterator[Message]:
        """Add a piece of what arrived over the connection; yield the messages that it announces."""
        *numbers, self._rest = (self._rest + piece).split(b"\n")
        for number in numbers:
            file = self._folder / str(int(number))
            message: Message = json.loads(file.read_text())
            file.unlink()
            yield message
