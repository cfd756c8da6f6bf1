"""How rack's parts talk: one JSON object a line, after a mark on the guest's line.

Requests carry a number `id`, and so does all that answers them, until one with `end`.
"""

from __future__ import annotations

import json
from typing import Any

MARK = b"@rack "
# A line that never ends is not ours.
_MAX_LINE_BYTES = 1 << 26


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as a line."""
    return MARK + json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Splits a stream into messages; lines without the mark are left out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Take in a piece; return the messages that are complete.

        Raises ValueError for a marked line that is not a JSON object.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ValueError("a line without end")
        messages = []
        for line in lines:
            if line.startswith(MARK):
                message = json.loads(line[len(MARK) :])
                if not isinstance(message, dict):
                    raise ValueError("a message that is no object")
                messages.append(message)
        return messages
