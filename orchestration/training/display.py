"""What a training shows while it runs: a bar for each on a terminal, lines elsewhere."""

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
    """Progress bars on a terminal, a line per round elsewhere; the unit is what is counted."""

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
        """Show a round's figures of a training."""
        text = (
            f"reward {done.reward:.3f}  loss {done.loss:.4f}  explore {done.explore:.2f}  "
            f"act {done.act_s:.1f} s  learn {done.learn_s:.1f} s"
        )
        self.step(name, done.episodes if self._unit == "episode" else done.decisions, total, text)

    def step(self, name: str, done: int, total: int, text: str) -> None:
        """Show how much of a training is done, and a line about the last."""
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
        """Show a line about a training, or about all."""
        said = f"{name}: {text}" if name else text
        if self._live:
            self._progress.console.print(said, highlight=False, markup=False)
        else:
            print(said, file=sys.stderr, flush=True)

    def _left(self, name: str, done: int, total: int) -> str:
        """Return the time left of a training, from its pace since it was first seen."""
        begin_s, before = self._begins[name]
        if done <= before or done >= total:
            return ""
        left_s = (time.monotonic() - begin_s) * (total - done) / (done - before)
        return f"  {clock_text(left_s)} left"


def show_results(results: dict[str, Result], verdict: Verdict) -> None:
    """Print the results of all training seeds, and what they are together."""
    from orchestration.render.table import Row, table
    from orchestration.render.terminal import show

    statics = ", ".join(dict.fromkeys(one.best_static for one in results.values()))
    rows: list[list[str] | Row] = [
        [
            name,
            f"{one.decisions:,}{'' if one.stopped == 'budget' else ' (patience)'}",
            f"{one.kept_at:,}",
            _gain(one.over_placebo),
            _gain(one.over_static),
            f"{one.wall_s / 60:.1f}",
        ]
        for name, one in results.items()
    ]
    both = (_gain(verdict.over_placebo), _gain(verdict.over_static))
    rows.append(Row([f"all {verdict.seeds}", "", "", *both, ""], section=True))
    show(
        table(
            ("network",),
            ("decisions", "kept at", "placebo", f"static {statics}", "min"),
            rows,
            "held-out slowdown: how much lower than that of",
            f"95% intervals over seeds. {verdict.in_words()}.",
        )
    )


def _gain(gain: Gain) -> str:
    low, high = (gain.low, gain.high) if gain.n >= 2 else (math.nan, math.nan)
    return percents(gain.mean, low, high, digits=1)
