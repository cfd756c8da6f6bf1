"""Terminal output of verbs: JSON, tables, written pages, progress, and the clock of a trial."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

# How often a phase that lasts has a line where there is no terminal.
_HEARTBEAT_S = 15.0

# Has "json" once this process has printed JSON: standard output must have a single document.
printed: set[str] = set()

if TYPE_CHECKING:
    from rich.progress import TaskID

    from orchestration.core.trial import TrialSpec


def print_json(data: object, indent: int | None = 1, **how: Any) -> None:
    """Print data as JSON; `how` is passed to json.dumps."""
    from orchestration.render.json import json_text

    printed.add("json")

    typer.echo(json_text(data, indent, **how))


def write_page(text: str, path: Path, what: str = "page") -> None:
    """Write a page, or another file (`what`), and print its path.

    Raises NotReadyError if it cannot be written.
    """
    from orchestration.core.outputs import write_output

    write_output(path, text)
    typer.echo(f"{what}: {path}", err=True)


def in_real_time(trial: TrialSpec) -> bool:
    """Return whether a trial's clock is the wall clock; on a virtual rack it is not."""
    from orchestration.core import machine
    from orchestration.core.capabilities import mode_of

    return mode_of(trial).real_time and not machine.is_virtual()


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """On a terminal, show `what` with a spinner; yield a function that shows progress text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ...") as status:
        yield lambda text: status.update(f"{what}: {text}")


class Phases:
    """Shows work in phases: a bar on a terminal, elsewhere lines. A context manager.

    Elsewhere than on a terminal, a phase has a line when it begins, and one now and then while it
    lasts, with the share that is done and the time since it began.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._live = sys.stderr.isatty()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._task: TaskID | None = None
        self._name = ""
        self._began_s = self._printed_s = 0.0

    def __enter__(self) -> Phases:
        self._progress.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._end()
        self._progress.stop()

    def phase(self, name: str) -> None:
        """End the present phase and begin the next one."""
        self._end()
        self._task = self._progress.add_task(name, total=None)
        if not self._live:
            self._name, self._began_s = name, time.monotonic()
            self._printed_s = self._began_s
            print(f"{name} ...", file=sys.stderr, flush=True)

    def step(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps of the phase are done."""
        if self._task is None:
            return
        self._progress.update(self._task, completed=done, total=total)
        now_s = time.monotonic()
        if not self._live and now_s - self._printed_s >= _HEARTBEAT_S:
            self._printed_s = now_s
            share = f"{done / max(1, total):.0%} after {now_s - self._began_s:.0f} s"
            print(f"{self._name}: {share}", file=sys.stderr, flush=True)

    def _end(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=1, total=1)
            self._task = None
