"""Messages between a rack's parts, and programs that the guest runs for a caller outside.

Messages are JSON objects, one per line after a mark, or files to the guest. Requests carry a number
`id`, and so do all answers to them. The last answer has `end`.

The guest's kernel sees the line to it as a terminal. More than 4096 unread bytes would throttle the
terminal until a timer fires, which never happens while virtual time stands still. So messages to
the guest are files in a folder, and only their numbers go over the line. A file appears complete,
by a rename, and under a new name, so that the guest has nothing cached for it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import select
import signal
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

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


_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
# The numbers of standard output and standard error in messages.
STDOUT, STDERR = 1, 2
_DEFAULT_IN_PROGRAMS = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT)

Say = Callable[[Message], None]


class Command:
    """One program. Its output goes to `say` piece by piece; input and signals come from the caller.

    It has a pseudo-terminal of its own, or pipes. It leads a process group, which gets the signals.
    Watch the descriptors `outputs` and call `read`; while `blocked`, watch `input` and call
    `flush`.
    """

    def __init__(self, number: int, request: Message, say: Say) -> None:
        self._number, self._say = number, say
        self._terminal = request.get("terminal")
        self.outputs: dict[int, int] = {}
        self.input = -1
        self._unwritten = b""
        self._input_ends = False
        self.pid = self._on_terminal(request) if self._terminal else self._on_pipes(request)
        for fd in {*self.outputs, self.input}:
            os.set_blocking(fd, False)

    def _on_terminal(self, request: Message) -> int:
        with _signals_held() as mask:
            pid, master = pty.fork()
            if pid == 0:
                _become(request, mask)
        # one descriptor per direction, so that each is watched and closed by itself
        self.outputs, self.input = {master: STDOUT}, os.dup(master)
        self._resize(request["terminal"])
        return pid

    def _on_pipes(self, request: Message) -> int:
        (stdin, self.input), (out, stdout), (err, stderr) = (os.pipe() for _ in range(3))
        with _signals_held() as mask:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                for fd, number in ((stdin, 0), (stdout, STDOUT), (stderr, STDERR)):
                    os.dup2(fd, number, inheritable=True)
                _become(request, mask)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        self.outputs = {out: STDOUT, err: STDERR}
        return pid

    @property
    def blocked(self) -> bool:
        """True while input is waiting for the program to take it."""
        return self.input >= 0 and bool(self._unwritten)

    def read(self, fd: int) -> bool:
        """Pass on a piece of an output; return False at its end."""
        try:
            piece = os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # a pseudo-terminal reports its end like this
            piece = b""
        if piece:
            data = base64.b64encode(piece).decode()
            self._say({"id": self._number, "out": self.outputs[fd], "data": data})
        return bool(piece)

    def drop(self, fd: int) -> None:
        """Close an output, which must no longer be watched."""
        del self.outputs[fd]
        os.close(fd)

    def control(self, message: Message) -> None:
        """Handle a message: a signal, input (empty at its end), or a new window size."""
        if "signal" in message:
            self._signal(int(message["signal"]))
        if "terminal" in message and self._terminal:
            self._resize(message["terminal"])
        if "input" in message:
            data = base64.b64decode(message["input"])
            self._unwritten += data
            self._input_ends = self._input_ends or not data
            self.flush()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it does not lead a group yet
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def flush(self) -> None:
        """Write as much input as the program accepts."""
        if self.input < 0:
            return
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self.input, self._unwritten) :]
        except BlockingIOError:
            return
        except OSError:  # it has closed its input
            self._input_ends = True
        # closing a terminal would hang up the program; Ctrl-D ends its input instead
        if self._input_ends and not self._terminal:
            os.close(self.input)
            self.input = -1

    def _resize(self, size: list[int]) -> None:
        rows, columns = (max(1, min(int(n), 65_535)) for n in size)
        packed = struct.pack("HHHH", rows, columns, 0, 0)
        with suppress(OSError):
            fcntl.ioctl(self.input, termios.TIOCSWINSZ, packed)

    def close(self) -> None:
        """Pass on the remaining output and close, even if child processes hold the other ends."""
        for fd in tuple(self.outputs):
            while select.select([fd], [], [], 0)[0] and self.read(fd):
                pass
            self.drop(fd)
        if self.input >= 0:
            os.close(self.input)
            self.input = -1


@contextmanager
def _signals_held() -> Iterator[set[int]]:
    """Hold back signals; give the mask to return to.

    Between fork and exec a child still has this process's handlers, which would swallow a signal
    that is meant for the program.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become(request: Message, mask: set[int]) -> NoReturn:
    """In the child: execute the program with this signal mask, or report why that fails."""
    argv = request["argv"]
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)) or number in _DEFAULT_IN_PROGRAMS:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.chdir(request["cwd"])
    except OSError as error:
        _complain(request["cwd"], os.strerror(error.errno or 0))
        os._exit(_NOT_EXECUTABLE)
    try:
        os.execvpe(argv[0], argv, request["env"])
    except FileNotFoundError:
        _complain(argv[0], "no such program in the rack")
        os._exit(_NOT_FOUND)
    except BaseException as error:
        _complain(argv[0], str(error))
        os._exit(_NOT_EXECUTABLE)


def _complain(what: str, why: str) -> None:
    os.write(STDERR, f"closloop rack: {what}: {why}\n".encode())


def exit_code(status: int) -> int:
    """Return the exit code that a shell reports for a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
