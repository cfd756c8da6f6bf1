"""Frames between controller and agent: four bytes of length, then JSON."""

from __future__ import annotations

import json
import struct
from typing import Any

# More than any answer needs; a length beyond it is no frame but somebody's banner.
MAX_FRAME_BYTES = 256 << 20


class FrameError(ValueError):
    """The stream carries something that is no frame; `start` is how it begins."""

    def __init__(self, start: bytes) -> None:
        super().__init__(f"no frame: {start!r}")
        self.start = start


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as one frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack(">I", len(body)) + body


class Decoder:
    """Turns a stream's pieces into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Take the next piece; return the messages that are complete. Raises FrameError."""
        pending = self._pending
        pending += piece
        messages = []
        at = 0
        while len(pending) - at >= 4:
            (length,) = struct.unpack_from(">I", pending, at)
            if length > MAX_FRAME_BYTES:
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
