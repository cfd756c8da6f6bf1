"""Run a program in a rack as if it ran locally, with its terminal or streams, and signals."""

from __future__ import annotations

import base64
import os
import selectors
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from orchestration.virtual_rack.control import RackHandle, RackProcess, find_rack, in_rack
from orchestration.virtual_rack.folder import RackFolder

_CLOSLOOP = "import sys; from orchestration.cli.main import main; sys.argv[0] = 'closloop'; main()"
_STDIN, _STDOUT = 0, 1
_READ_BYTES = 1 << 14
# How many signals are passed on. A program that ignores that many would ignore more of them, too.
_MAX_FORWARDED = 2
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_attached(
    rack: RackHandle,
    argv: Sequence[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program in the rack with this process's input, output and signals.

    The program gets a terminal if standard input and output are a terminal. Returns its exit code.
    """
    try:
        os.fstat(_STDIN)
    except OSError:  # it is closed: a file that is opened later must not get this number
        os.open(os.devnull, os.O_RDONLY)
    on_terminal = os.isatty(_STDIN) and os.isatty(_STDOUT)
    process = rack.start(argv, cwd, env, terminal=_window_size() if on_terminal else None)
    with _signals(process, on_terminal), _raw(on_terminal):
        return _relay(process)


def run_inside(inventory: Path, arguments: Sequence[str]) -> int | None:
    """Run `closloop ARGUMENTS` in the virtual rack of `inventory`; return its exit code.

    Returns None if the inventory does not belong to a virtual rack, or if this program already runs
    in a rack. Raises NotReadyError if the rack is not up.
    """
    if in_rack():
        return None
    folder = RackFolder(Path(inventory).expanduser().absolute().parent)
    if not folder.is_rack() or folder.inventory.name != Path(inventory).name:
        return None
    return run_attached(find_rack(folder.path), [sys.executable, "-c", _CLOSLOOP, *arguments])


def _relay(process: RackProcess) -> int:
    with selectors.DefaultSelector() as selector:
        selector.register(process.connection, selectors.EVENT_READ)
        input_watched = _watch_input(selector, process)
        while True:
            for key, _ in selector.select():
                if key.fileobj is process.connection:
                    if not process.forward_output():
                        return process.wait()
                elif not _forward(process, key.fd) and input_watched:
                    selector.unregister(key.fd)
                    input_watched = False


def _watch_input(selector: selectors.BaseSelector, process: RackProcess) -> bool:
    """Watch standard input, and return True. A file cannot be watched: it is sent at once."""
    try:
        selector.register(_STDIN, selectors.EVENT_READ)
        return True
    except (PermissionError, ValueError, OSError):
        while _forward(process, _STDIN):
            pass
        return False


def _forward(process: RackProcess, fd: int) -> bool:
    """Send a piece of standard input to the program; return False at the end of the input."""
    try:
        piece = os.read(fd, _READ_BYTES)
    except OSError:
        piece = b""
    process.send({"input": base64.b64encode(piece).decode()})
    return bool(piece)


def _window_size() -> tuple[int, int]:
    size = os.get_terminal_size(_STDOUT)
    return size.lines, size.columns


@contextmanager
def _signals(process: RackProcess, on_terminal: bool) -> Iterator[None]:
    """Pass signals on to the program while it runs; the third one ends this process instead."""
    forwarded: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        forwarded.append(number)
        if len(forwarded) > _MAX_FORWARDED:
            raise SystemExit(128 + number)
        process.kill(number)

    def resize(*_: Any) -> None:
        process.send({"terminal": list(_window_size())})

    handlers: dict[int, Any] = dict.fromkeys(_FORWARDED, forward)
    if on_terminal:
        handlers[signal.SIGWINCH] = resize
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _raw(on_terminal: bool) -> Iterator[None]:
    """Set this terminal to raw mode, so that keys such as Ctrl-C reach the rack's terminal."""
    if not on_terminal:
        yield
        return
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
