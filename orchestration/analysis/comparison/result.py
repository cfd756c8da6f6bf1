"""A comparison of two runs: pairs of trials, verdicts, subgroups, and likely causes.

The subgroups are flow sizes, ports and parts of the time in which the runs differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestration.analysis.comparison.causes import Cause, Settings, causes_of, read_settings
from orchestration.analysis.comparison.equivalence import (
    DIFFERENT,
    EQUIVALENT,
    UNDECIDED,
    Interval,
    Margins,
    Verdict,
    interval_of,
)
from orchestration.analysis.comparison.estimates import CellEstimates
from orchestration.analysis.comparison.hypothesis_tests import MetricVerdict, assess_metrics
from orchestration.analysis.comparison.ports import AlignedTimeline, align
from orchestration.analysis.comparison.runs import (
    PairedCell,
    Run,
    open_runs,
    pair_trials,
    without_tables,
)
from orchestration.analysis.comparison.trials import PairMetrics, Speed, reduce_pair, speed_of
from orchestration.analysis.counters import why_marks_ignored
from orchestration.analysis.metric_types import Metric
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.port_metrics import trial_packet_hops
from orchestration.core.engines import PROCESS, engine_of, in_words
from orchestration.core.errors import InputError, Problem, raise_any
from orchestration.core.records import Floats
from orchestration.results.reader import TrialResult

_EIGHTHS = 8


@dataclass(frozen=True)
class SizeGroup:
    """A group of flow sizes, up to `upto_bytes`: its flows in A, mean slowdowns, the difference."""

    upto_bytes: float
    flows: int
    a: float
    b: float
    interval: Interval

    @property
    def surely_differs(self) -> bool:
        """Whether the interval of the relative difference is on one side of 0."""
        return self.interval.relative_low > 0 or self.interval.relative_high < 0


@dataclass(frozen=True)
class PortGap:
    """One queue's mean length and marks in both runs, averaged over the pairs."""

    label: str
    kind: str
    queue_a_bytes: float
    queue_b_bytes: float
    marked_a: float
    marked_b: float

    @property
    def gap_bytes(self) -> float:
        """B's mean length minus A's."""
        return self.queue_b_bytes - self.queue_a_bytes


@dataclass(frozen=True)
class Subgroups:
    """Where the pairs of a cell differ: by flow size, by port, over time.

    `sizes` are ordered by flow size, `ports` by the difference of their queues, largest first.
    `diverged_ns` is the median time at which queues first differ, over the `diverged_pairs` pairs
    in which they do; `diverged_at` is the queue at which most pairs first do. `apart_ns` is the
    eighth of the time in which the queued bytes differ most, None without ports; `apart_bytes` is
    the mean difference in it.
    """

    sizes: tuple[SizeGroup, ...]
    ports: tuple[PortGap, ...]
    timelines: tuple[AlignedTimeline, ...]
    diverged_ns: float
    diverged_pairs: int
    diverged_at: str
    apart_ns: tuple[float, float] | None
    apart_bytes: float


def find_subgroups(
    pairs: Sequence[PairMetrics], estimates: CellEstimates, size_edges: Floats
) -> Subgroups:
    """Return where the pairs differ."""
    times = [
        (pair.divergence.diverged_ns, pair.divergence.diverged_at)
        for pair in pairs
        if pair.divergence is not None and pair.divergence.diverged_ns is not None
    ]
    lines = [(p.a.ports.timeline, p.b.ports.timeline) for p in pairs if p.a.ports and p.b.ports]
    timelines = tuple(align(lines, estimates.interim))
    apart_ns, apart_bytes = _widest_eighth(timelines)
    names = [name for _, name in times]
    return Subgroups(
        sizes=tuple(_sizes(pairs, estimates, size_edges)),
        ports=tuple(_ports(pairs)),
        timelines=timelines,
        diverged_ns=float(np.median([t for t, _ in times])) if times else math.nan,
        diverged_pairs=len(times),
        diverged_at=max(dict.fromkeys(names), key=names.count) if names else "",
        apart_ns=apart_ns,
        apart_bytes=apart_bytes,
    )


def _sizes(
    pairs: Sequence[PairMetrics], estimates: CellEstimates, edges: Floats
) -> list[SizeGroup]:
    groups = []
    for group, upto in enumerate(edges):
        means = estimates.by_size(group)
        if means is not None and math.isfinite(upto):
            flows = sum(
                int(p.a.flows.group_count[:, group].sum()) for p in pairs if p.a.flows is not None
            )
            interval = interval_of(means, estimates.interim)
            groups.append(SizeGroup(float(upto), flows, means.a, means.b, interval))
    return groups


def _ports(pairs: Sequence[PairMetrics]) -> list[PortGap]:
    known = [pair for pair in pairs if pair.divergence is not None]
    divergences = [pair.divergence for pair in known if pair.divergence is not None]
    if not known or any(item.labels != divergences[0].labels for item in divergences):
        return []
    columns = [
        np.mean([getattr(getattr(pair, side).ports, name) for pair in known], axis=0).tolist()
        for name in ("queue_mean_bytes", "marked")
        for side in ("a", "b")
    ]
    rows = zip(divergences[0].labels, divergences[0].kinds, *columns, strict=True)
    gaps = [PortGap(label, kind, *values) for label, kind, *values in rows]
    sure = [gap for gap in gaps if math.isfinite(gap.gap_bytes)]
    return sorted(sure, key=lambda gap: -abs(gap.gap_bytes))


def _widest_eighth(
    timelines: Sequence[AlignedTimeline],
) -> tuple[tuple[float, float] | None, float]:
    """Return in which eighth of the time the queued bytes differ most, and by how much."""
    queued = next((line for line in timelines if line.name == "queued_bytes"), None)
    if queued is None or len(queued.t_ns) < _EIGHTHS:
        return None, math.nan
    parts = np.array_split(np.arange(len(queued.t_ns)), _EIGHTHS)
    gaps = [float(queued.difference[part].mean()) for part in parts]
    maximum = int(np.argmax(np.abs(gaps)))
    half = float(queued.t_ns[1] - queued.t_ns[0]) / 2
    span = (queued.t_ns[parts[maximum][0]] - half, queued.t_ns[parts[maximum][-1]] + half)
    return (float(span[0]), float(span[1])), gaps[maximum]


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ComparedCell:
    """One cell of both runs: its pairs, verdicts, subgroups and likely causes.

    `paired_by` says by what trials were paired. `not_compared` are the metrics that only one run
    has, with the run's letter.
    """

    label: str
    paired_by: str
    pairs: tuple[PairMetrics, ...]
    metrics: tuple[MetricVerdict, ...]
    not_compared: tuple[tuple[Metric, str], ...]
    subgroups: Subgroups
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class RunComparison:
    """Run B compared with run A. `notes` say what was excluded or could not be compared."""

    a: Run
    b: Run
    margins: Margins
    cells: tuple[ComparedCell, ...]
    speed_a: Speed
    speed_b: Speed
    notes: tuple[str, ...]

    @property
    def metrics(self) -> tuple[MetricVerdict, ...]:
        """All verdicts, cell by cell."""
        return tuple(item for cell in self.cells for item in cell.metrics)

    @property
    def verdict(self) -> Verdict:
        """The overall verdict.

        It is "different" if any metric is, and "equivalent" if all are and both runs have them all.
        """
        verdicts = {item.verdict for item in self.metrics}
        if DIFFERENT in verdicts:
            return DIFFERENT
        missing = any(cell.not_compared for cell in self.cells)
        return EQUIVALENT if verdicts == {EQUIVALENT} and not missing else UNDECIDED

    def count(self, verdict: Verdict) -> int:
        """Return how many metrics have a verdict."""
        return sum(item.verdict == verdict for item in self.metrics)


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
    done = itertools.count(1)
    return [
        _ComparisonInProgress(
            reference, other, margins, lambda: progress(next(done), total)
        ).result(pairing.cells, pairing.unpaired)
        for other, pairing in zip(others, pairings, strict=True)
    ]


def _nothing(a: Run, b: Run) -> Problem:
    for run in (a, b):
        if not run.trials:
            return Problem(
                str(run.folder),
                f"none of its {len(run.invalid)} trials is valid, so nothing can be compared",
                f"`closloop report {run.folder}` gives the reasons; run the campaign again",
            )
    return Problem(
        f"{a.folder} and {b.folder}",
        "have no cell in common: their factors differ, and each has several arms",
        "to compare two trials, give the folders of the trials",
    )


class _ComparisonInProgress:
    """Compares one run with the reference.

    Trials are read pair by pair; the tables of a pair are released before the next one is read.
    """

    def __init__(self, a: Run, b: Run, margins: Margins, step: Callable[[], None]) -> None:
        self._a, self._b, self._margins, self._step = a, b, margins, step
        self._notes: list[str] = []
        self._hops: tuple[list[tuple[TrialResult, int, str]], ...] = ([], [])

    def result(self, cells: Sequence[PairedCell], unpaired: Sequence[str]) -> RunComparison:
        self._notes += [*_about(self._a), *_about(self._b), *_engines(self._a, self._b), *unpaired]
        read = [self._read(cell) for cell in cells]
        estimates = [
            CellEstimates(pairs, cell.interim)
            for cell, (pairs, _, _) in zip(cells, read, strict=True)
        ]
        labels = [cell.label for cell in cells]
        self._notes += [
            f"{label}: {known.interim.in_words}"
            for label, known in zip(labels, estimates, strict=True)
            if known.interim.planned
        ]
        tested = assess_metrics(list(zip(labels, estimates, strict=True)), self._margins)
        if not tested:
            raise InputError([Problem("compare", note) for note in dict.fromkeys(self._notes)])
        compared = []
        for cell, known, (pairs, edges, settings) in zip(cells, estimates, read, strict=True):
            of_cell = tuple(item for item in tested if item.cell == cell.label)
            sides = [(metric, known.on_one_side(metric)) for metric in METRICS.between_runs]
            compared.append(
                ComparedCell(
                    cell.label,
                    cell.paired_by,
                    tuple(pairs),
                    of_cell,
                    tuple((metric, side) for metric, side in sides if side),
                    find_subgroups(pairs, known, edges),
                    tuple(causes_of(*settings, of_cell)),
                )
            )
        speeds = [speed_of(trials) for trials in self._hops]
        notes = tuple(dict.fromkeys(self._notes))
        return RunComparison(
            self._a, self._b, self._margins, tuple(compared), speeds[0], speeds[1], notes
        )

    def _read(
        self, cell: PairedCell
    ) -> tuple[list[PairMetrics], Floats, tuple[Settings, Settings]]:
        pairs: list[PairMetrics] = []
        edges: Floats | None = None
        settings: list[Settings] = []
        for a, b in cell.pairs:
            trials = (without_tables(a), without_tables(b))
            figures, edges = reduce_pair(trials, edges)
            pairs.append(figures)
            self._notes += figures.notes
            settings = settings or [read_settings(trial) for trial in trials]
            for trial, hops in zip(trials, self._hops, strict=True):
                hops.append((without_tables(trial), *trial_packet_hops(trial)))
            self._step()
        assert edges is not None
        if why := why_marks_ignored(trial.stamp for pair in cell.pairs for trial in pair):
            self._notes.append(f"{cell.label}: {why}, so thresholds make no difference")
        if cell.shared:
            self._notes.append(
                f"{cell.label}: all replays have the same parent, so the intervals include the "
                "variation between replays only"
            )
        if len(pairs) == 1:
            self._notes.append(
                f"{cell.label}: there is one pair of trials. Its intervals come from a block "
                "bootstrap over eight parts of the trials' time. They do not include the variation "
                "between repeats"
            )
        return pairs, edges, (settings[0], settings[1])


def _about(run: Run) -> list[str]:
    """Return notes on the trials of a run that are excluded: unreadable and invalid ones."""
    notes = [f"{run.letter}: {problem.text}" for problem in run.problems]
    for trial in run.invalid:
        reasons = "; ".join(r.text for r in trial.stamp.reasons if r.severity == "invalid")
        notes.append(f"{run.letter}: {trial.folder.name} is invalid and excluded: {reasons}")
    return notes


def _engines(a: Run, b: Run) -> list[str]:
    """Return a warning if trials ran in different engines, or versions of the packet engine."""
    ran = [sorted({_ran_in(trial) for trial in run.trials} - {""}) for run in (a, b)]
    if not all(ran) or len({*ran[0], *ran[1]}) == 1:
        return []
    return [
        f"warning: {a.letter} ran {' and '.join(ran[0])}, {b.letter} {' and '.join(ran[1])}: "
        "events of one nanosecond may have another order, and the same trial may differ in detail"
    ]


def _ran_in(trial: TrialResult) -> str:
    """Return a trial's engine in words, with the version of the packet engine; "" if unknown."""
    engine, version = engine_of(trial.facts)
    if engine == PROCESS:
        return f"{in_words(engine)} (packet engine {version})"
    return in_words(engine) if engine else ""
