"""An index over runs, `closloop report` of several: the question of each run, and its results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestration.analysis.arm_differences import (
    VERDICTS_NOTE,
    Comparison,
    describe_difference,
)
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.report.report_tables import SEVERITIES, findings
from orchestration.analysis.summary import Summary, Trial
from orchestration.core.condition import ARM, TUNER, factors_of, labels_of
from orchestration.render.html import page_html
from orchestration.render.json import plain
from orchestration.render.numbers import count, quantity
from orchestration.render.page import Block, Page, Paragraph
from orchestration.render.table import Column, Row, Span, Table, Text, joined
from orchestration.results.stamp import in_words

INDEX_FORMAT = 1
# Of a commit, as git shows them.
_COMMIT_DIGITS = 7


@dataclass(frozen=True)
class History:
    """What a run's journal records beyond its finished trials. Times are in s since 1970, or NaN.

    `planned` counts all trials of the run as it was last started. `failed` maps trials without a
    result to the reason. `state` is `finished`, `interrupted`, or "" while that is not known.
    """

    planned: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    began_s: float = math.nan
    ended_s: float = math.nan
    state: str = ""


@dataclass(frozen=True)
class PrimaryResult:
    """An arm compared with the baseline under a condition, on a metric that decides."""

    condition: str
    comparison: Comparison

    @property
    def sentence(self) -> str:
        """`acc against secn1, 6 pairs: mean FCT +17us [-9us to 43us], no difference shown`.

        The interval is that of the difference, in the metric's unit.
        """
        item = self.comparison
        where = f"{self.condition}: " if self.condition else ""
        pairs = count(item.difference.n, "pair")
        difference = f"{METRICS[item.metric].label} {describe_difference(item)}"
        return f"{where}{item.arm} against {item.baseline}, {pairs}: {difference}, {item.verdict}"


@dataclass(frozen=True)
class Entry:
    """A run in an index. `problem` says why the run could not be read; it is "" if it could be.

    `compare` is the factor that is compared, whose levels are the `arms`, the baseline first;
    `asks` has each other factor with its levels, `judge` the metrics that decide. Counts are of
    trials; a trial that is not finished is failed or missing. `alone` has the figures of conditions
    with a single arm. Times are in s since 1970 and NaN if unknown; `wall_s` is the trials' wall
    time.
    """

    folder: Path
    name: str
    problem: str = ""
    asks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    compare: str = TUNER
    arms: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()
    repeats: int = 0
    replays: tuple[str, ...] = ()
    planned: int = 0
    finished: int = 0
    invalid: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    state: str = ""
    primary_results: tuple[PrimaryResult, ...] = ()
    alone: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    began_s: float = math.nan
    ended_s: float = math.nan
    wall_s: float = math.nan
    testbeds: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """Trials that were planned and neither finished nor failed."""
        return max(0, self.planned - self.finished - len(self.failed))

    @property
    def when(self) -> str:
        """`2026-11-24 02:27`, in UTC: when its last trial ended."""
        if not math.isfinite(self.ended_s):
            return ""
        return datetime.fromtimestamp(self.ended_s, UTC).strftime("%Y-%m-%d %H:%M")

    @property
    def question(self) -> str:
        """What the run compares: `load_balancing: ecmp, spray; by load (0.3, 0.6); 6 repeats`.

        Tuners and `arms` are not called by the name of their factor.
        """
        named = self.compare not in (TUNER, ARM)
        parts = [f"{self.compare}: {', '.join(self.arms)}" if named else ", ".join(self.arms)]
        if self.asks:
            factors = [f"{name} ({', '.join(levels)})" for name, levels in self.asks.items()]
            parts.append(f"by {' and '.join(factors)}")
        parts.append(f"{self.repeats} repeat{'s' * (self.repeats != 1)}")
        parts += [f"replays {parent}" for parent in self.replays]
        return "; ".join(parts)

    @property
    def trials(self) -> str:
        """`36 done`, or `34 of 36 done, 1 invalid, 1 failed`."""
        total = max(self.planned, self.finished + len(self.failed))
        done = f"{self.finished}" if self.finished == total else f"{self.finished} of {total}"
        parts = [f"{done} done"]
        return ", ".join([*parts, *_wrong([self])])

    @property
    def sound(self) -> bool:
        """Whether all that was planned is done and valid."""
        return not (self.problem or self.invalid or self.failed or self.missing)

    @property
    def shown(self) -> list[PrimaryResult]:
        """The primary results: significant ones first, then by judge and size of difference."""

        def rank(result: PrimaryResult) -> tuple[bool, int, float]:
            item = result.comparison
            size = abs(item.difference.relative)
            metric = self.judge.index(item.metric)
            return not item.real, metric, -size if math.isfinite(size) else 0.0

        return sorted(self.primary_results, key=rank)

    def to_json(self, report: str) -> dict[str, Any]:
        """Return the entry as JSON-ready data; `report` is the path of its page, "" if none."""
        separate = ("folder", "primary_results", "failed")
        return {
            "folder": str(self.folder),
            **plain({name: value for name, value in vars(self).items() if name not in separate}),
            "missing": self.missing,
            "failed": self.failed,
            "headlines": [
                {"condition": item.condition, **plain(item.comparison)}
                for item in self.primary_results
            ],
            "report": report,
        }


def entry_of(folder: Path, summary: Summary, history: History) -> Entry:
    """Return the entry of a run that has finished trials."""
    trials = summary.trials
    began_s = [start_ns / 1e9 for start_ns in _facts(trials, "started_ns")]
    ended_s = [
        start_ns / 1e9 + wall_s
        for trial in trials
        for start_ns in _facts([trial], "started_ns")
        for wall_s in _facts([trial], "wall_s")
    ]
    walls_s = _facts(trials, "wall_s")
    several = len(summary.conditions) > 1
    finished = {trial.id for trial in trials}
    return Entry(
        folder=folder,
        name=summary.campaign,
        asks=_asks(trials, summary.compare),
        compare=summary.compare,
        arms=summary.arms,
        judge=summary.judge,
        repeats=max(trial.spec.repeat for trial in trials),
        replays=summary.parents,
        planned=max(history.planned, len(trials)),
        finished=len(trials),
        invalid=len(summary.invalid),
        failed={name: why for name, why in history.failed.items() if name not in finished},
        state=history.state,
        primary_results=tuple(
            PrimaryResult(condition.label if several else "", comparison)
            for condition in summary.conditions
            for comparison in condition.comparisons
            if comparison.judged
        ),
        alone=tuple(_alone(summary, several)),
        warnings=tuple(
            f"{severity} {in_words(finding, len(trials))}"
            for severity in SEVERITIES
            for finding in findings(summary, severity)
        ),
        # the journal has wall-clock times, on a virtual rack too; imports have no journal
        began_s=_known(history.began_s, min(began_s, default=math.nan)),
        ended_s=_known(history.ended_s, max(ended_s, default=math.nan)),
        wall_s=sum(walls_s) if walls_s else math.nan,
        testbeds=_each(trial.spec.testbed for trial in trials),
        backends=_each(
            f"{trial.spec.backend}, in real time" if trial.spec.clock else trial.spec.backend
            for trial in trials
        ),
        kernels=_each(kernel for trial in trials for kernel in _kernels(trial)),
        versions=_each(_version(trial.versions) for trial in trials),
    )


def unread_entry(folder: Path, problem: str, history: History) -> Entry:
    """Return the entry of a run of which no trial could be read, and why."""
    return Entry(folder, folder.resolve().name, problem, **vars(history))


def index_to_json(entries: Iterable[tuple[Entry, str]]) -> dict[str, Any]:
    """Return an index as JSON-ready data, of entries with the paths of their reports."""
    return {
        "format": INDEX_FORMAT,
        "runs": [entry.to_json(report) for entry, report in entries],
    }


def _alone(summary: Summary, several: bool) -> Iterable[str]:
    """Yield the figures of conditions with one arm."""
    alone = (condition for condition in summary.conditions if not condition.comparisons)
    for condition, arm in ((one, arm) for one in alone for arm in one.arms if arm.valid):
        figures = [
            f"{METRICS[key].label} {quantity(arm.estimates[key].mean, METRICS[key].unit)}"
            for key in summary.judge
        ]
        where = f"{condition.label}: " if several else ""
        yield f"{where}{arm.name}: {', '.join(figures)}"


def _asks(trials: Iterable[Trial], compare: str) -> dict[str, tuple[str, ...]]:
    """Return each factor but the compared one with its levels, sorted.

    Factors are in the order of the trials. Tuners are among them if another factor is compared and
    an arm has several.
    """
    asks: dict[str, dict[str, None]] = {}
    tuners: dict[str, set[str]] = {}
    for trial in trials:
        tuners.setdefault(trial.arm, set()).add(trial.tuner)
        levels = {TUNER: trial.tuner, **factors_of(labels_of(trial.spec))}
        for name, level in levels.items():
            asks.setdefault(name, {})[str(level)] = None
    unasked = {compare, *([] if any(len(names) > 1 for names in tuners.values()) else [TUNER])}
    return {name: tuple(sorted(levels)) for name, levels in asks.items() if name not in unasked}


def _each(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))


def _kernels(trial: Trial) -> list[str]:
    """Return the releases of a trial's kernels; on a rack each device has its own."""
    known = trial.facts.get("kernel", "")
    return list(map(str, known.values())) if isinstance(known, dict) else [str(known)]


def _version(versions: dict[str, str]) -> str:
    """Return `0.2.0 (b1aa3d6+changes)`."""
    commit, _, changes = versions.get("commit", "").partition("+")
    mark = f" ({commit[:_COMMIT_DIGITS]}{'+' * bool(changes)}{changes})" if commit else ""
    return f"{versions.get('closloop', '')}{mark}"


def _known(first: float, second: float) -> float:
    return first if math.isfinite(first) else second


def _facts(trials: Iterable[Trial], name: str) -> list[float]:
    """Return a fact of all trials that have it as a number."""
    values = (trial.facts.get(name) for trial in trials)
    return [float(one) for one in values if isinstance(one, int | float) and math.isfinite(one)]


# How many of them an index shows of a run; the rest is in its report and in index.json.
_MAX_RESULTS, _MAX_WARNINGS = 4, 3

Shown = Sequence[tuple[Entry, str]]


def index_page(title: str, shown: Shown, data: str) -> str:
    """Return the page; `data` is the name of its JSON file.

    Each entry comes with its report's path relative to the page, "" if it has none.
    """
    about = (
        f"Differences are those of the means, paired by seed. {VERDICTS_NOTE} 'Ended' is when the "
        "last trial ended, in UTC. The same data for programs: ",
        Span(data, link=data),
        ".",
    )
    sound = all(entry.sound for entry, _ in shown)
    opening = [Paragraph(validity_text(shown), "ok" if sound else "bad")]
    blocks: list[Block] = [index_table(shown), Paragraph(about, "caption")]
    return page_html(Page(title, "closloop report · an index of runs", opening, blocks))


def index_blocks(title: str, shown: Shown) -> list[Block]:
    """Return the index for a terminal."""
    return [Paragraph(f"{title}: {validity_text(shown)}", "ok"), index_table(shown)]


def validity_text(shown: Shown) -> str:
    """Return how many runs and trials there are, and how many are invalid, failed or not run."""
    entries = [entry for entry, _ in shown]
    runs = f"{len(entries)} run{'s' * (len(entries) != 1)}"
    done = f"{sum(entry.finished for entry in entries):,} trials done"
    return f"{', '.join([runs, done, *(_wrong(entries) or ['all valid'])])}."


def _wrong(entries: Sequence[Entry]) -> list[str]:
    """Return how many trials are invalid, failed or were not run, without counts of 0."""
    counts = {
        "invalid": sum(entry.invalid for entry in entries),
        "failed": sum(len(entry.failed) for entry in entries),
        "not run": sum(entry.missing for entry in entries),
    }
    return [f"{count:,} {word}" for word, count in counts.items() if count]


def index_table(shown: Shown) -> Table:
    """Return a row per run, with a note of what it varies, its results and its problems."""
    rows = [
        Row(
            [
                Span(entry.name, "strong", report),
                Span(entry.trials, "" if entry.sound else "bad"),
                ", ".join(entry.testbeds),
                ", ".join(entry.backends),
                ", ".join(f"Linux {kernel}" for kernel in entry.kernels),
                ", ".join(entry.versions),
                entry.when,
            ],
            note=_note(entry),
        )
        for entry, report in shown
    ]
    details = ("testbed", "kernel", "closloop")
    heads = ("run", "trials", "testbed", "backend", "kernel", "closloop", "ended, UTC")
    return Table([Column(head, detail=head in details) for head in heads], rows)


def _note(entry: Entry) -> Text:
    """Return what a run varies, its results and its problems."""
    parts: list[Text] = [Span(entry.problem, "bad")] if entry.problem else []
    parts += [f"compares {entry.question}"] if entry.arms else []
    parts += [f"• {sentence}" for sentence in _results(entry)]
    failed = list(entry.failed.items())[:_MAX_WARNINGS]
    parts += [Span(f"failed {trial}: {why}", "bad") for trial, why in failed]
    for warning in entry.warnings[:_MAX_WARNINGS]:
        parts.append(Span(warning, "bad" if warning.startswith("invalid") else "warning"))
    more = max(0, len(entry.warnings) - _MAX_WARNINGS)
    more += max(0, len(entry.failed) - _MAX_WARNINGS)
    return joined([*parts, f"and {more} more findings" if more else ""])


def _results(entry: Entry) -> list[str]:
    """Return the results as sentences: the first comparisons, and how many more there are."""
    sentences = [result.sentence for result in entry.shown] or list(entry.alone)
    more = len(sentences) - _MAX_RESULTS
    rest = [f"and {more} more in its report"] if more > 0 else []
    return [*sentences[:_MAX_RESULTS], *rest]
