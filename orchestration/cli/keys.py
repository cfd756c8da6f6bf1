"""Keys of a terminal, one at a time, without waiting; the terminal is as before afterwards."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LEFT, _RIGHT = ("\x1b[D", "\x1bOD", "p"), ("\x1b[C", "\x1bOC", "n")
_ENDS = ("q", "Q", "\x04")


class Keys:
    """What was typed: "next", "previous", "newest", "quit"; other keys are passed over."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def wait(self, seconds: float) -> list[str]:
        """Return what is typed within `seconds`, as soon as something is."""
        handles = [] if self._handle is None else [self._handle]
        ready, _, _ = select.select(handles, [], [], seconds)
        if not ready or self._handle is None:
            return []
        typed = os.read(self._handle, 256).decode(errors="replace")
        if not typed:  # the terminal is gone
            return ["quit"]
        return meanings(typed)


def meanings(typed: str) -> list[str]:
    """Return what the keys of `typed` mean, in their order."""
    found = []
    while typed:
        for keys, meaning in ((_LEFT, "previous"), (_RIGHT, "next"), (_ENDS, "quit")):
            if key := next((key for key in keys if typed.startswith(key)), ""):
                found.append(meaning)
                break
        else:
            key = typed[0]
            if key == "a":
                found.append("newest")
        typed = typed[len(key) :]
    return found


@contextmanager
def open_keys() -> Iterator[Keys]:
    """Read single keys from standard input while the context lasts; none if it is no terminal.

    Ctrl-C stays what it is.
    """
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSANOW)
        yield Keys(handle)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
