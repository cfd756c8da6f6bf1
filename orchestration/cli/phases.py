"""A display of work in phases: a bar on a terminal, a line a phase elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID


class Phases:
    """Shows the phase at work. Use it as a context manager."""

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

    def __enter__(self) -> Phases:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._end()
        self._progress.stop()

    def phase(self, name: str) -> None:
        """Begin a phase."""
        self._end()
        self._task = self._progress.add_task(name, total=None)
        if not self._live:
            print(f"{name} ...", file=sys.stderr, flush=True)

    def step(self, done: int, total: int) -> None:
        """Show how far the phase is."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def _end(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=1, total=1)
            self._task = None
