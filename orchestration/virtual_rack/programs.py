"""Programs that the guest runs for a caller outside of the rack: streams, terminal, signals."""

from __future__ import annotations

import base64
import fcntl
import os
import pty
import select
import signal
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from orchestration.virtual_rack.messages import PIECE_BYTES, Message

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
# The numbers of standard output and standard error in messages.
STDOUT, STDERR = 1, 2
_DEFAULT_IN_PROGRAMS = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT)

Send = Callable[[Message], None]


class GuestProgram:
    """One program that runs in the rack, with the caller's input, and output sent to the caller.

    The program has a pseudo-terminal of its own, or pipes. It leads a process group, to which
    signals are sent. Whoever owns this object watches the descriptors `outputs` and calls `read`
    for one that is readable. While `blocked` is true, it watches `input` and calls `flush` when
    that is writable.
    """

    def __init__(self, number: int, request: Message, send: Send) -> None:
        self._number, self._send = number, send
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
                _exec_program(request, mask)
        # one descriptor per direction, so that each can be watched and closed by itself
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
                _exec_program(request, mask)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        self.outputs = {out: STDOUT, err: STDERR}
        return pid

    @property
    def blocked(self) -> bool:
        """True while there is input that the program has not accepted yet."""
        return self.input >= 0 and bool(self._unwritten)

    def read(self, fd: int) -> bool:
        """Send a piece of the output that is at descriptor `fd`; return False at its end."""
        try:
            piece = os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # a pseudo-terminal reports its end like this
            piece = b""
        if piece:
            data = base64.b64encode(piece).decode()
            self._send({"id": self._number, "out": self.outputs[fd], "data": data})
        return bool(piece)

    def drop(self, fd: int) -> None:
        """Close the output `fd`. It must not be watched any more."""
        del self.outputs[fd]
        os.close(fd)

    def control(self, message: Message) -> None:
        """Handle the caller's message: a signal, input (empty at its end), or a new window size."""
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
        """Send the remaining output and close, even if child processes hold the other ends open."""
        for fd in tuple(self.outputs):
            while select.select([fd], [], [], 0)[0] and self.read(fd):
                pass
            self.drop(fd)
        if self.input >= 0:
            os.close(self.input)
            self.input = -1


@contextmanager
def _signals_held() -> Iterator[set[int]]:
    """Block all signals while the context lasts, and yield the earlier signal mask.

    Between fork and exec a child still has this process's handlers. They would catch a signal that
    is meant for the program.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _exec_program(request: Message, mask: set[int]) -> NoReturn:
    """Execute the program in this child process, or report why that fails; never return."""
    argv = request["argv"]
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)) or number in _DEFAULT_IN_PROGRAMS:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.chdir(request["cwd"])
    except OSError as error:
        _report_failure(request["cwd"], os.strerror(error.errno or 0))
        os._exit(_NOT_EXECUTABLE)
    try:
        os.execvpe(argv[0], argv, request["env"])
    except FileNotFoundError:
        _report_failure(argv[0], "no such program in the rack")
        os._exit(_NOT_FOUND)
    except BaseException as error:
        _report_failure(argv[0], str(error))
        os._exit(_NOT_EXECUTABLE)


def _report_failure(what: str, why: str) -> None:
    os.write(STDERR, f"closloop rack: {what}: {why}\n".encode())


def exit_code(status: int) -> int:
    """Return the exit code that a shell reports for a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
