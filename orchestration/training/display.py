"""What a training shows while it runs, and the table of its results."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from orchestration.render.numbers import clock_text, percents

if TYPE_CHECKING:
    from rich.progress import TaskID

    from orchestration.training.files import Round
    from orchestration.training.outcome import Gain, Result, Verdict


class Display:
    """The progress of trainings: a bar for each on a terminal, a line per round elsewhere.

    `unit` is what is counted: `episode` or `decision`.
    """

    def __init__(self, unit: str) -> None:
        from rich import progress
        from rich.console import Console

        self._unit = unit
        self._live = sys.stderr.isatty()
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._begins: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def round(self, name: str, done: Round, total: int) -> None:
        """Show the figures of a training's last round. `total` is the training's length."""
        text = (
            f"reward {done.reward:.3f}  loss {done.loss:.4f}  explore {done.explore:.2f}  "
            f"act {done.act_s:.1f} s  learn {done.learn_s:.1f} s"
        )
        self.step(name, done.episodes if self._unit == "episode" else done.decisions, total, text)

    def step(self, name: str, done: int, total: int, text: str) -> None:
        """Show how much of a training is done, and a text about the last round."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total)
            self._begins[name] = (time.monotonic(), done)
        shown = min(done, total)
        self._progress.update(self._tasks[name], completed=shown, description=f"{name}: {text}")
        if not self._live:
            left = self._left(name, done, total)
            print(f"{name}: {self._unit} {shown:,}/{total:,}  {text}{left}", file=sys.stderr)
            sys.stderr.flush()

    def note(self, name: str, text: str) -> None:
        """Show a line about a training; with an empty name, about all of them."""
        line = f"{name}: {text}" if name else text
        if self._live:
            self._progress.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def _left(self, name: str, done: int, total: int) -> str:
        """Return a text about the time left, from a training's pace since it was first shown."""
        begin_s, done_before = self._begins[name]
        if done <= done_before or done >= total:
            return ""
        left_s = (time.monotonic() - begin_s) * (total - done) / (done - done_before)
        return f"  {clock_text(left_s)} left"


def show_results(results: dict[str, Result], verdict: Verdict) -> None:
    """Print the result of each training seed, and that of all together."""
    from orchestration.render.table import Row, table
    from orchestration.render.terminal import show

    statics = ", ".join(dict.fromkeys(result.best_static for result in results.values()))
    rows: list[list[str] | Row] = [
        [
            name,
            f"{result.decisions:,}{'' if result.stopped == 'budget' else ' (patience)'}",
            f"{result.kept_at:,}",
            _gain(result.over_placebo),
            _gain(result.over_static),
            f"{result.wall_s / 60:.1f}",
        ]
        for name, result in results.items()
    ]
    gains = (_gain(verdict.over_placebo), _gain(verdict.over_static))
    rows.append(Row([f"all {verdict.seeds}", "", "", *gains, ""], section=True))
    show(
        table(
            ("network",),
            ("decisions", "kept at", "placebo", f"static {statics}", "min"),
            rows,
            "how much lower the slowdown on held-out traffic is than that of the",
            f"Intervals are 95 % over seeds. {verdict.in_words()}.",
        )
    )


def _gain(gain: Gain) -> str:
    low, high = (gain.low, gain.high) if gain.n >= 2 else (math.nan, math.nan)
    return percents(gain.mean, low, high, digits=1)
