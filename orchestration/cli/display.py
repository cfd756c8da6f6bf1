"""The progress and the result of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestration.cli.terminal import in_real_time
from orchestration.core import machine
from orchestration.core.plugins import load
from orchestration.core.problems import in_words, message_and_remedy
from orchestration.render.numbers import clock_text
from orchestration.render.table import Span, Style, strong, table
from orchestration.run.runner import Listener
from orchestration.run.state import RunningTrial, TrialCounts, status_line

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Group

    from orchestration.core.repeats import ConditionStatus, StoppingRule
    from orchestration.core.trial import TrialSpec
    from orchestration.render.table import Table, Value
    from orchestration.run.runner import Summary
    from orchestration.run.worker import Failed, Finished, Progressed

_REFRESH_S = 0.1
_HEARTBEAT_S = 15.0
_CONSOLE_LINES = 12
_BAR_CELLS = 12


class Display(Listener):
    """Listens to a run: counts its trials, and prints each that ends.

    `say` prints a text; `show` draws the counts, and is called several times a second.
    """

    def __init__(
        self,
        title: str,
        say: Callable[[str], None],
        show: Callable[[TrialCounts], None],
        clock: Callable[[], float] = machine.monotonic_wall_s,
    ) -> None:
        self.title = title
        self.counts = TrialCounts()
        # reasons of invalid trials that were printed -> the first trial that had them
        self._printed_reasons: dict[tuple[str, ...], str] = {}
        self._say = say
        self._show = show
        self._clock = clock

    def planned(self, trials: int, finished: int, jobs: int) -> None:
        """Print how many trials the run has, and how many an earlier run finished."""
        self.counts = TrialCounts(trials=trials, earlier=finished, jobs=jobs)
        before = f", {finished} of them finished earlier" if finished else ""
        self._say(f"{self.title}: {trials} trials{before}, {jobs} side by side")

    def started(self, trial: TrialSpec) -> None:
        """Add a running trial."""
        self.counts.running[trial.id] = RunningTrial(self._clock(), end_ns=trial.duration_ns)

    def progressed(self, trial: TrialSpec, progress: Progressed) -> None:
        """Update a trial's progress."""
        running = self.counts.running[trial.id]
        running.virtual_ns, running.end_ns = progress.virtual_ns, progress.end_ns
        running.wall_s = progress.wall_s

    def finished(self, trial: TrialSpec, result: Finished) -> None:
        """Count a finished trial."""
        self._ended(trial, result.wall_s)
        self.counts.finished += 1
        self.counts.invalid += not result.valid
        verdict = "done" if result.valid else f"INVALID: {self._why(trial.id, result.reasons)}"
        self._say(f"{self._count()} {trial.id} {verdict} ({_took(trial, result)})")

    def failed(self, trial: TrialSpec, failure: Failed) -> None:
        """Count a failed trial, and show the end of its console output."""
        self._ended(trial, failure.wall_s)
        self.counts.failed += 1
        lines = [f"    | {line}" for line in failure.console.splitlines()[-_CONSOLE_LINES:]]
        failed = f"{self._count()} {trial.id} FAILED: {in_words(failure.problems)}"
        self._say("\n".join([failed, *lines]))

    def on_interim_analysis(
        self, statuses: Sequence[ConditionStatus], rule: StoppingRule, trials: int, finished: int
    ) -> None:
        """Print how precisely each condition is known, and count the trials that are due now."""
        self.counts.trials, self.counts.earlier = trials, finished
        for status in statuses:
            self._say(f"interim analysis: {status.in_words(rule)}")

    def tick(self) -> None:
        """Show the current state."""
        self._show(self.counts)

    def _why(self, trial: str, reasons: tuple[str, ...]) -> str:
        """Return why a trial is invalid: its reasons, or an earlier trial that had the same."""
        first = self._printed_reasons.setdefault(reasons, trial)
        return "; ".join(reasons) if first == trial else f"as {first}"

    def _ended(self, trial: TrialSpec, wall_s: float) -> None:
        del self.counts.running[trial.id]
        self.counts.spent_s += wall_s

    def _count(self) -> str:
        return f"[{self.counts.done + self.counts.failed}/{self.counts.trials}]"


@contextmanager
def open_display(title: str, watched: Path | None = None) -> Iterator[Listener]:
    """Show a run on standard error while the context lasts.

    On a terminal, `watched` is the run folder whose fabric is shown full-screen.
    """
    if not sys.stderr.isatty():

        def beat(counts: TrialCounts, now_s: float) -> None:
            _say_plainly(status_line(counts, now_s))

        yield Display(title, _say_plainly, _Every(_HEARTBEAT_S, beat, at_once=False))
        return
    if watched is not None:
        open_screen = load("fabric", "closloop.displays")
        with open_screen(watched) as (say_afterwards, show):
            yield Display(title, say_afterwards, show)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    # Refreshed by the run's ticks: a refresh thread would exist while the workers are forked.
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def say(text: str) -> None:
            console.print(text, highlight=False, markup=False)

        def draw(counts: TrialCounts, now_s: float) -> None:
            live.update(live_view(title, counts, now_s), refresh=True)

        yield Display(title, say, _Every(_REFRESH_S, draw, at_once=True))


def _say_plainly(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Every:
    """Calls `show` at most once every `seconds`."""

    def __init__(
        self, seconds: float, show: Callable[[TrialCounts, float], None], *, at_once: bool
    ) -> None:
        self._seconds, self._show = seconds, show
        self._shown_s = float("-inf") if at_once else machine.monotonic_wall_s()

    def __call__(self, counts: TrialCounts) -> None:
        now_s = machine.monotonic_wall_s()
        if now_s - self._shown_s >= self._seconds:
            self._shown_s = now_s
            self._show(counts, now_s)


def live_view(title: str, counts: TrialCounts, now_s: float) -> Group:
    """Return the live display: a line for the run, a row for each running trial."""
    from rich.console import Group

    from orchestration.render.terminal import renderable

    rows = [_running(name, trial, now_s) for name, trial in counts.running.items()]
    shown = table(("trial", "", "virtual time"), ("speed", "wall"), rows)
    line = f"{title}: {status_line(counts, now_s)}"
    return Group(renderable(strong(line)), renderable(shown))


def _running(name: str, trial: RunningTrial, now_s: float) -> list[Value]:
    from orchestration.core.units import format_duration

    done = min(1.0, trial.virtual_ns / max(1, trial.end_ns))
    full = round(_BAR_CELLS * done)
    virtual_ms_per_s = trial.virtual_ns / 1e6 / trial.wall_s if trial.wall_s else 0.0
    draining = " draining" if trial.virtual_ns >= trial.end_ns else ""
    return [
        name,
        (strong("━" * full), Span("━" * (_BAR_CELLS - full), "faint")),
        f"{format_duration(trial.virtual_ns, 1)} of {format_duration(trial.end_ns)}{draining}",
        f"{virtual_ms_per_s:.3g} ms/s" if virtual_ms_per_s else "",
        f"{now_s - trial.began_s:.0f} s",
    ]


def _took(trial: TrialSpec, result: Finished) -> str:
    """Return how long a trial took: its wall time, and its virtual time if it had one."""
    from orchestration.core.units import format_duration

    if in_real_time(trial):
        return f"{result.wall_s:.1f} s of wall time"
    return f"{format_duration(result.virtual_ns, 1)} of virtual time in {result.wall_s:.1f} s"


def summary_table(summary: Summary, *, warnings: bool = True) -> Table:
    """Return the result of a run: counts, then each problem with the trials that have it.

    `warnings` is False where a report follows, which has them.
    """
    from orchestration.results import stamp

    good = summary.finished + summary.skipped - len(summary.invalid)
    rows: list[list[Value]] = [["valid", f"{good} of {summary.trials} trials"]]
    if summary.skipped:
        rows.append(["finished earlier", str(summary.skipped)])
    rows += [["repeats", repeats] for repeats in summary.repeat_messages]
    failed = {
        trial: (message_and_remedy(item.problems)["message"],)
        for trial, item in summary.failed.items()
    }
    invalid = {trial: ("; ".join(reasons),) for trial, reasons in summary.invalid.items()}
    kinds: tuple[tuple[str, Style, Mapping[str, tuple[str, ...]]], ...] = (
        ("invalid", "warning", invalid),
        ("failed", "bad", failed),
        ("warning", "warning", summary.warned if warnings else {}),
    )
    for kind, style, texts_by_trial in kinds:
        for group in stamp.grouped_texts(texts_by_trial):
            rows.append([Span(kind, style), stamp.in_words(group, summary.trials)])
    rows.append(["wall time", clock_text(summary.wall_s)])
    return table(("", ""), (), rows, heads=False)
