"""Opens the runs to compare, and pairs their trials.

A cell is a combination of factor levels and tuner. Backend and campaign name are not part of it:
they are what is compared. Within each run one factor is compared, often the tuner, whose levels are
its arms (`orchestration.results.question`). If folders hold several campaigns, those with the same
name below the folder are paired first.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestration.analysis.sequential import FIXED, AnalysisPlan, InterimAnalysis
from orchestration.analysis.summary import tuner_label
from orchestration.core.condition import TUNER, factors_of, labels_of
from orchestration.core.errors import InputError, Problem, gather
from orchestration.results.interim_analyses import read_interim_analyses
from orchestration.results.question import read_question
from orchestration.results.reader import TrialResult, campaign_below, read_each, trial_folders

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class _Cell:
    """A cell of a run. `campaign` is below the run's folder, `compare` the factor it compares."""

    campaign: str
    factors: tuple[tuple[str, str], ...]
    tuner: str
    compare: str

    @property
    def arm(self) -> str:
        return dict(self.factors).get(self.compare, self.tuner)

    @property
    def others(self) -> tuple[tuple[str, str], ...]:
        """Every factor but the compared one, each with its level."""
        return tuple(item for item in self.factors if item[0] != self.compare)


_Trials = dict[_Cell, list[TrialResult]]


@dataclass(frozen=True)
class Run:
    """One run of a comparison. `trials` are the valid ones, in the order of their folders' names.

    `invalid` trials were excluded by their stamps; `problems` are trials that could not be read.
    """

    letter: str
    folder: Path
    trials: tuple[TrialResult, ...]
    invalid: tuple[TrialResult, ...]
    problems: tuple[Problem, ...]

    @property
    def backend(self) -> str:
        """The backends of the trials, usually one."""
        every = (*self.trials, *self.invalid)
        return ", ".join(sorted({trial.spec.backend for trial in every}))

    @property
    def name(self) -> str:
        """The run's name: `A, quickstart on emulated`."""
        return f"{self.letter}, {self.folder.resolve().name} on {self.backend}"


@dataclass(frozen=True)
class PairedCell:
    """The pairs (A, B) of one cell, and by what they were paired; `shared` if all have one A."""

    label: str
    pairs: tuple[tuple[TrialResult, TrialResult], ...]
    paired_by: str
    shared: bool = False

    @property
    def interim(self) -> InterimAnalysis:
        """The interim analysis at which intervals are read: that of the more cautious run."""
        sides = []
        for side in zip(*self.pairs, strict=True):
            planned = read_interim_analyses(side[0].folder.parent)
            if planned is not None:
                repeats = max(trial.spec.repeat for trial in side)
                sides.append(AnalysisPlan(planned.sizes).at(repeats))
        return min(sides, key=lambda interim: interim.level, default=FIXED)


@dataclass(frozen=True)
class Pairing:
    """The cells that both runs have, and notes on unpaired trials."""

    cells: tuple[PairedCell, ...]
    unpaired: tuple[str, ...]


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs of `folders`, lettered in order.

    Raises InputError that names every folder without trials, and every one without readable trials.
    """
    if len(folders) < 2:
        raise InputError.single(
            "compare", "one run alone cannot be compared", "give two or more: closloop compare A B"
        )
    if len(folders) > len(_LETTERS):
        raise InputError.single("compare", f"{len(folders)} runs are too many", "give at most 26")
    return gather(lambda one: _open(*one), zip(_LETTERS, folders, strict=False))


def _open(letter: str, folder: Path) -> Run:
    folders = trial_folders(folder)
    if not folders:
        if folder.is_dir():
            what, remedy = (
                "holds no finished trial",
                "run the campaign first: closloop run CAMPAIGN",
            )
        else:
            what = "there is no such folder"
            remedy = "give a run folder: runs/<campaign>, or one trial's"
        raise InputError.single(str(folder), what, remedy)
    trials, problems = read_each(folders)
    if not trials:
        raise InputError(problems)
    return Run(
        letter=letter,
        folder=folder,
        trials=tuple(trial for trial in trials if trial.stamp.valid),
        invalid=tuple(trial for trial in trials if not trial.stamp.valid),
        problems=tuple(problems),
    )


def without_tables(trial: TrialResult) -> TrialResult:
    """Return a copy of the trial without its cached tables, so that their memory can be freed."""
    return dataclasses.replace(trial)


def pair_trials(a: Run, b: Run) -> Pairing:
    """Return the pairs of the valid trials of two runs.

    A replay is paired with its parent. Other trials are paired within matching cells. Cells match
    by the first rule that finds exactly one on each side: the same campaign, factors and tuner; the
    same factors and tuner; the same factors; the same arm and other factors, whatever the compared
    factor is called; the same other factors; the only cell of each run. Within a cell, trials with
    the same seed are paired; if no seed is common, repeats are paired in order.
    """
    return _Pairs(a, b).pairing()


class _Pairs:
    """Pairs two runs. If a run has several campaigns, labels include their names."""

    def __init__(self, a: Run, b: Run) -> None:
        self._runs = (a, b)
        self._several = any(
            len({campaign_below(run.folder, trial.folder) for trial in run.trials}) > 1
            for run in self._runs
        )
        self._notes: list[str] = []
        self._compare = cache(lambda folder: read_question(folder).compare)
        tuners: dict[tuple[str, str], set[str]] = {}
        for side, run in enumerate(self._runs):
            for trial in run.trials:
                cell = self._cell(side, trial)
                tuners.setdefault((cell.compare, cell.arm), set()).add(cell.tuner)
        self._several_tuners = {arm for arm, names in tuners.items() if len(names) > 1}

    def pairing(self) -> Pairing:
        a, b = self._runs
        replayed = [
            (first, second)
            for second in b.trials
            for first in a.trials
            if _is_parent(first, second) or _is_parent(second, first)
        ]
        cells = self._of_parents(replayed)
        ours = self._grouped(0, [t for t in a.trials if not any(t is p[0] for p in replayed)])
        theirs = self._grouped(1, [t for t in b.trials if not any(t is p[1] for p in replayed)])
        keys: tuple[Callable[[_Cell], object], ...] = (
            lambda cell: (cell.campaign, cell.factors, cell.tuner),
            lambda cell: (cell.factors, cell.tuner),
            lambda cell: cell.factors,
            lambda cell: (cell.arm, cell.others),
            lambda cell: cell.others,
            lambda cell: "",
        )
        for key in keys:
            for first, second in _common(ours, theirs, key):
                cells.append(self._within((first, second), ours.pop(first), theirs.pop(second)))
        if not replayed:
            self._notes += [f"{self._label(cell)}: only in A" for cell in ours]
        self._notes += [f"{self._label(cell)}: only in B" for cell in theirs]
        return Pairing(tuple(cells), tuple(self._notes))

    def _cell(self, side: int, trial: TrialResult) -> _Cell:
        spec = trial.spec
        levels = sorted((name, str(level)) for name, level in factors_of(labels_of(spec)).items())
        tuner = str(spec.cell.get(TUNER, tuner_label(spec.tuner)))
        campaign = campaign_below(self._runs[side].folder, trial.folder)
        return _Cell(campaign, tuple(levels), tuner, self._compare(trial.folder.parent))

    def _grouped(self, side: int, trials: Sequence[TrialResult]) -> _Trials:
        groups: _Trials = {}
        for trial in trials:
            groups.setdefault(self._cell(side, trial), []).append(trial)
        return groups

    def _of_parents(self, replayed: Sequence[tuple[TrialResult, TrialResult]]) -> list[PairedCell]:
        groups: dict[object, list[tuple[TrialResult, TrialResult]]] = {}
        for a, b in replayed:
            key = (self._cell(0, a), self._cell(1, b).campaign, tuner_label(b.spec.tuner))
            groups.setdefault(key, []).append((a, b))
        cells = []
        for pairs in groups.values():
            a, b = pairs[0]
            shared = len({first.spec.id for first, _ in pairs}) == 1 and len(pairs) > 1
            label = self._labels(self._cell(0, a), self._cell(1, b))
            cells.append(PairedCell(label, tuple(pairs), "the replay's parent", shared))
        return cells

    def _within(
        self, cells: tuple[_Cell, _Cell], a: list[TrialResult], b: list[TrialResult]
    ) -> PairedCell:
        label = self._labels(*cells)
        seeds = {trial.spec.seed: trial for trial in b}
        pairs = [(trial, seeds[trial.spec.seed]) for trial in a if trial.spec.seed in seeds]
        paired_by = "seed"
        if not pairs:
            ordered = (sorted(group, key=lambda trial: trial.spec.repeat) for group in (a, b))
            pairs = list(zip(*ordered, strict=False))
            paired_by = "the order of their repeats, because no seed is in both"
        for side, group in (("A", a), ("B", b)):
            alone = len(group) - len(pairs)
            if alone:
                word = "trial has" if alone == 1 else "trials have"
                self._notes.append(f"{label}: {alone} {word} no partner, only in {side}")
        return PairedCell(label, tuple(pairs), paired_by)

    def _label(self, cell: _Cell) -> str:
        """Return a cell in words, without its tuner where that follows from the arm."""
        where = [cell.campaign] if self._several and cell.campaign else []
        says_tuner = cell.compare == TUNER or (cell.compare, cell.arm) in self._several_tuners
        tuner = [cell.tuner] if says_tuner else []
        return ", ".join([*where, *tuner, *(f"{name} {level}" for name, level in cell.factors)])

    def _labels(self, a: _Cell, b: _Cell) -> str:
        first, second = self._label(a), self._label(b)
        return first if first == second else f"{first} against {second}"


def _is_parent(trial: TrialResult, replay: TrialResult) -> bool:
    """Whether the replay's parent, recorded as `run/trial sha256:...`, is this trial."""
    named = replay.spec.parent.partition(" sha256:")[0].rstrip("/").rpartition("/")[2]
    return bool(named) and named in (trial.spec.id, trial.folder.resolve().name)


def _common(
    ours: _Trials, theirs: _Trials, key: Callable[[_Cell], object]
) -> list[tuple[_Cell, _Cell]]:
    """Return pairs of cells whose key is unique on both sides."""
    count = Counter(map(key, ours)), Counter(map(key, theirs))
    by_key = {key(cell): cell for cell in theirs}
    return [
        (cell, by_key[key(cell)]) for cell in ours if all(side[key(cell)] == 1 for side in count)
    ]
