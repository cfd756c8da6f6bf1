"""Messages to the guest: files in a folder, whose numbers go over the guest's line.

The line is a terminal's to the guest's kernel. More than its 4096 bytes unread would throttle it,
and what lets it go on is a timer, which never fires while virtual time stands still. A file appears
whole, by being renamed, and under a name that was never used before, so that nothing that the guest
has cached can be taken for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Numbers that may be on the line without having been read.
UNREAD = 64


class Outgoing:
    """The supervisor's end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def put(self, message: dict[str, Any]) -> bytes:
        """Write a message; return what to send over the line."""
        self._number += 1
        staged = self._folder / "new"
        staged.write_text(json.dumps(message))
        staged.rename(self._folder / str(self._number))
        return b"%d\n" % self._number


class Incoming:
    """The guest's end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rest = b""

    def take(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Take in a piece of what comes over the line; yield the messages that it announces."""
        *numbers, self._rest = (self._rest + piece).split(b"\n")
        for number in numbers:
            file = self._folder / str(int(number))
            message: dict[str, Any] = json.loads(file.read_text())
            file.unlink()
            yield message
