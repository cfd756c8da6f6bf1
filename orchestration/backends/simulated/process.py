"""The ns-3 program as a process: requests and answers over its pipes, and its end in any case.

ns-3 ends its process at any error. So it runs in a process of its own, and the first lines of its
output become the trial's error.
"""

from __future__ import annotations

import selectors
import subprocess
import time
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from orchestration.backends.simulated.program import Program
from orchestration.core.errors import TrialError
from orchestration.core.records import Ints

# A request asks for at most one sampling period: without an answer for so long, the program hangs.
SILENCE_S = 900.0
_CONSOLE = "ns3.log"
_CONSOLE_LINES = 40
_WORD = 8


class Operation(IntEnum):
    """The requests to the program; `ns3/wire.h` has the same numbers."""

    BUILD = 1
    RUN = 2
    READ = 3
    THRESHOLDS = 4
    LINKS = 5
    ROUTES = 6
    FLOWS = 7
    FLOW_TABLE = 8
    NICS = 9
    BUFFERS = 10
    INCIDENTS = 11
    PAUSE = 12
    PARAMETERS = 13
    COUNTERS = 14
    PATHS = 15
    PAIRS = 16


class Simulation:
    """A running program, as a context manager that ends it. `folder` gets its output.

    `library` is a library with a policy that takes the place of the trial's, and what it is told.
    """

    def __init__(
        self,
        program: Program,
        folder: Path,
        silence_s: float = SILENCE_S,
        library: tuple[Path, str] | None = None,
    ) -> None:
        self._argv = [str(program.path), *map(str, library or ())]
        self._console = folder / _CONSOLE
        self._silence_s = silence_s

    def __enter__(self) -> Simulation:
        """Start the program."""
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                bufsize=0,
            )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        """End the program."""
        self._selector.close()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._process.pid

    def ask(self, operation: Operation, *arrays: ArrayLike) -> Ints:
        """Send a request with these arrays of integers; return the answer, shape (words,).

        Raises TrialError, with the output of ns-3, if the program ends or hangs instead.
        """
        parts = [np.atleast_1d(np.asarray(array, dtype=np.int64)) for array in arrays]
        words = sum(1 + len(part) for part in parts)
        request = np.empty(2 + words, dtype=np.int64)
        request[:2] = operation, words
        at = 2
        for part in parts:
            request[at] = len(part)
            request[at + 1 : at + 1 + len(part)] = part
            at += 1 + len(part)
        self._send(request.tobytes())
        (count,) = np.frombuffer(self._receive(_WORD), dtype=np.int64)
        return np.frombuffer(self._receive(_WORD * int(count)), dtype=np.int64)

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self, size: int) -> bytes:
        assert self._process.stdout is not None
        chunks = []
        while size:
            begin = time.monotonic()
            if not self._selector.select(self._silence_s):
                if time.monotonic() - begin < self._silence_s:
                    continue
                raise TrialError(
                    f"ns-3 hangs: it has not answered for {self._silence_s:.0f} s",
                    "use fewer hosts, a lower rate or a shorter sampling period",
                    self._said(),
                )
            chunk = self._process.stdout.read(size)
            if not chunk:
                raise self._ended()
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def _ended(self) -> TrialError:
        code = self._process.wait()
        said = self._said()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        first = next((line for line in said.splitlines() if line.strip()), "it said nothing")
        return TrialError(
            f"ns-3 {how}: {first}",
            "if memory was short, run fewer trials side by side with --jobs; an assertion is a "
            "fault of ns-3's: the same campaign runs with --on emulated",
            said,
        )

    def _said(self) -> str:
        text = self._console.read_text(errors="replace")
        return "\n".join(text.splitlines()[:_CONSOLE_LINES])
