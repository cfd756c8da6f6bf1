"""A whole comparison of two runs: pairs, verdicts, places and likely causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestration.analysis.comparison.causes import Cause, Settings, causes_of, read_settings
from orchestration.analysis.comparison.equivalence import DIFFERENT, EQUIVALENT, UNDECIDED, Verdict
from orchestration.analysis.comparison.estimates import CellEstimates
from orchestration.analysis.comparison.judge import Judged, judge
from orchestration.analysis.comparison.margins import Margins
from orchestration.analysis.comparison.places import Places, find_places
from orchestration.analysis.comparison.runs import PairedCell, Run, fresh, open_runs, pair_trials
from orchestration.analysis.comparison.trials import (
    PairFigures,
    Speed,
    reduce_pair,
    speed_of,
)
from orchestration.analysis.marks import why_identical
from orchestration.analysis.metric import Metric
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.packet_hops import told_hops
from orchestration.core.errors import InputError, Problem, raise_any
from orchestration.core.records import Floats
from orchestration.results.reader import TrialResult

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ComparedCell:
    """One cell of both runs: its pairs, verdicts, places and causes.

    `left_out` are the metrics that only one run has.
    """

    label: str
    how: str
    pairs: tuple[PairFigures, ...]
    judged: tuple[Judged, ...]
    left_out: tuple[tuple[Metric, str], ...]
    places: Places
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class RunComparison:
    """Run B compared with run A. Each of `notes` says once what was left out or not comparable."""

    a: Run
    b: Run
    margins: Margins
    cells: tuple[ComparedCell, ...]
    speed_a: Speed
    speed_b: Speed
    notes: tuple[str, ...]

    @property
    def judged(self) -> tuple[Judged, ...]:
        """All verdicts, cell by cell."""
        return tuple(item for cell in self.cells for item in cell.judged)

    @property
    def verdict(self) -> Verdict:
        """The overall verdict: different if any is, equivalent if all are and none is missing."""
        found = {item.verdict for item in self.judged}
        if DIFFERENT in found:
            return DIFFERENT
        missing = any(cell.left_out for cell in self.cells)
        return EQUIVALENT if found == {EQUIVALENT} and not missing else UNDECIDED

    def count(self, verdict: Verdict) -> int:
        """Return how many metrics have a verdict."""
        return sum(item.verdict == verdict for item in self.judged)


def compare_runs(
    folders: Sequence[Path], margins: Margins, progress: Progress = lambda done, total: None
) -> list[RunComparison]:
    """Compare each run with the first. `progress` is called with pairs read and pairs in all.

    Raises InputError if there is nothing to compare: no folder, no valid trial, no common cell.
    """
    reference, *others = open_runs(folders)
    pairings = [pair_trials(reference, other) for other in others]
    problems = [
        _nothing(reference, other)
        for other, pairing in zip(others, pairings, strict=True)
        if not pairing.cells
    ]
    raise_any(problems)
    total = sum(len(cell.pairs) for pairing in pairings for cell in pairing.cells)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    return [
        _Work(reference, other, margins, step).result(pairing.cells, pairing.left_over)
        for other, pairing in zip(others, pairings, strict=True)
    ]


def _nothing(a: Run, b: Run) -> Problem:
    for run in (a, b):
        if not run.trials:
            return Problem(
                str(run.folder),
                f"none of its {len(run.invalid)} trials is valid: nothing can be compared",
                f"`closloop report {run.folder}` says why; run the campaign again",
            )
    return Problem(
        f"{a.folder} and {b.folder}",
        "have no cell in common: other factors, and several tuners each",
        "compare two trials by their own folders",
    )


class _Work:
    """One comparison in progress. Trials are read pair by pair, and their tables released."""

    def __init__(self, a: Run, b: Run, margins: Margins, step: Callable[[], None]) -> None:
        self._a, self._b, self._margins, self._step = a, b, margins, step
        self._notes: list[str] = []
        self._hops: tuple[list[tuple[TrialResult, int, str]], ...] = ([], [])

    def result(self, cells: Sequence[PairedCell], left_over: Sequence[str]) -> RunComparison:
        self._notes += [note for run in (self._a, self._b) for note in _about(run)]
        self._notes += left_over
        read = [self._read(cell) for cell in cells]
        looks = [cell.look for cell in cells]
        estimates = [
            CellEstimates(pairs, look) for (pairs, _, _), look in zip(read, looks, strict=True)
        ]
        self._notes += [
            f"{cell.label}: {look.in_words}"
            for cell, look in zip(cells, looks, strict=True)
            if look.planned
        ]
        labels = [cell.label for cell in cells]
        judged = judge(list(zip(labels, estimates, strict=True)), self._margins)
        if not judged:
            raise InputError([Problem("compare", note) for note in dict.fromkeys(self._notes)])
        compared = []
        for cell, known, (pairs, edges, settings) in zip(cells, estimates, read, strict=True):
            mine = tuple(item for item in judged if item.cell == cell.label)
            sides = [(metric, known.on_one_side(metric)) for metric in METRICS.between_runs]
            compared.append(
                ComparedCell(
                    cell.label,
                    cell.how,
                    tuple(pairs),
                    mine,
                    tuple((metric, side) for metric, side in sides if side),
                    find_places(pairs, known, edges),
                    tuple(causes_of(*settings, mine)),
                )
            )
        speeds = [speed_of(trials) for trials in self._hops]
        notes = tuple(dict.fromkeys(self._notes))
        return RunComparison(
            self._a, self._b, self._margins, tuple(compared), speeds[0], speeds[1], notes
        )

    def _read(
        self, cell: PairedCell
    ) -> tuple[list[PairFigures], Floats, tuple[Settings, Settings]]:
        pairs: list[PairFigures] = []
        edges: Floats | None = None
        settings: list[Settings] = []
        for pair in cell.pairs:
            trials = (fresh(pair[0]), fresh(pair[1]))
            figures, edges = reduce_pair(trials, edges)
            pairs.append(figures)
            self._notes += figures.notes
            for trial, hops in zip(trials, self._hops, strict=True):
                if len(settings) < 2:
                    settings.append(read_settings(trial))
                hops.append((fresh(trial), *told_hops(trial)))
            self._step()
        assert edges is not None
        if why := why_identical(trial.stamp for pair in cell.pairs for trial in pair):
            self._notes.append(f"{cell.label}: {why}, so thresholds make no difference")
        if cell.shared:
            self._notes.append(
                f"{cell.label}: all replays have one parent: the intervals are of the replays alone"
            )
        if len(pairs) == 1:
            self._notes.append(
                f"{cell.label}: one pair of trials: intervals are a block bootstrap over eight "
                "parts of its time, and do not know how much repeats differ"
            )
        return pairs, edges, (settings[0], settings[1])


def _about(run: Run) -> list[str]:
    """Return notes on the trials of a run that were left out."""
    notes = [f"{run.letter}: {problem.text}" for problem in run.problems]
    for trial in run.invalid:
        reasons = "; ".join(r.text for r in trial.stamp.reasons if r.severity == "invalid")
        notes.append(f"{run.letter}: {trial.folder.name} is invalid and left out: {reasons}")
    return notes
