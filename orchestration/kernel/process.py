"""Runs programs one after another and logs their output; a failure or Ctrl-C ends what runs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from orchestration.core.errors import NotReadyError

_TAIL_LINES = 15
_CHUNK_BYTES = 1 << 20
_GRACE_S = 5


class LoggedRunner:
    """Runs programs and appends all their output to one log file."""

    def __init__(self, log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self._env = {**env, "LC_ALL": "C"}

    def run(
        self,
        argv: Sequence[str],
        *,
        activity: str,
        remedy: str = "",
        cwd: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        check: bool = True,
    ) -> str:
        """Run `argv` to its end and return its output, standard error included.

        `on_line` is called with each line of the output. If `check` is set and the program fails,
        raises NotReadyError, whose message says that `activity` failed and ends with the last lines
        of the output.
        """
        printed: list[str] = []
        with self._logging(argv) as log:
            process = self._start(argv, stdout=subprocess.PIPE, cwd=cwd)
            with _ended_on_error(process):
                assert process.stdout is not None
                for raw in process.stdout:
                    log.write(raw)
                    line = raw.decode(errors="replace")
                    printed.append(line)
                    if on_line:
                        on_line(line)
        if check:
            self._check(process, activity, "".join(deque(printed, _TAIL_LINES)), remedy)
        return "".join(printed)

    def feed(
        self,
        argv: Sequence[str],
        source: BinaryIO,
        *,
        activity: str,
        remedy: str = "",
        on_bytes: Callable[[int], None],
    ) -> None:
        """Run `argv` with `source` as its input; `on_bytes` gets the number of bytes fed so far.

        If the program fails, raises NotReadyError, whose message says that `activity` failed and
        names the log.
        """
        fed = 0
        with self._logging(argv) as log:
            process = self._start(argv, stdin=subprocess.PIPE, stdout=log)
            with _ended_on_error(process):
                assert process.stdin is not None
                # If the program dies before it has read everything, its exit code says so below.
                with suppress(BrokenPipeError):
                    while chunk := source.read(_CHUNK_BYTES):
                        process.stdin.write(chunk)
                        fed += len(chunk)
                        on_bytes(fed)
                with suppress(BrokenPipeError):
                    process.stdin.close()
        self._check(process, activity, "", remedy)

    def _start(
        self, argv: Sequence[str], stdin: int = subprocess.DEVNULL, **more: Any
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            env=self._env,
            stdin=stdin,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **more,
        )

    @contextmanager
    def _logging(self, argv: Sequence[str]) -> Iterator[BinaryIO]:
        with self.log.open("ab") as log:
            log.write(f"+ {shlex.join(argv)}\n".encode())
            log.flush()
            yield log

    def _check(
        self, process: subprocess.Popen[bytes], activity: str, printed: str, remedy: str
    ) -> None:
        if process.returncode:
            raise NotReadyError(
                f"{activity} failed with exit code {process.returncode}, log: {self.log}\n"
                f"{printed}".rstrip(),
                remedy,
            )


@contextmanager
def _ended_on_error(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Wait for `process`; if the body fails, end it and everything that it started."""
    with process:
        try:
            yield
            process.wait()
        except BaseException:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
            raise
