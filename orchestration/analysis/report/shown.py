"""Which parts of a condition are drawn: the tuners, the repeat shown over time, its spans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.metrics import fct_key
from orchestration.analysis.summary import Arm, Condition, Trial
from orchestration.core.records import Floats, Ints
from orchestration.results.reader import TrialResult, read_trial

# More lines than colours and more rows than a screen are unreadable; the tables have all tuners.
MOST_TUNERS = 6


def shown_arms(condition: Condition) -> list[Arm]:
    """Return arms with valid trials; if there are many, the first and those of lowest mean FCT."""
    arms = [arm for arm in condition.arms if arm.valid]
    if len(arms) <= MOST_TUNERS:
        return arms
    best = sorted(arms[1:], key=_mean_fct)[: MOST_TUNERS - 1]
    return [arm for arm in arms if arm is arms[0] or arm in best]


def _mean_fct(arm: Arm) -> float:
    mean = arm.estimates[fct_key("all")].mean
    return mean if math.isfinite(mean) else math.inf


@dataclass(frozen=True)
class ShownRepeat:
    """One repeat that all shown tuners ran, with the tables of their trials."""

    repeat: int
    trials: tuple[Trial, ...]
    results: tuple[TrialResult, ...]

    @property
    def sampled(self) -> bool:
        """Whether ports were sampled over time; some imports have lengths without times."""
        return all(len(result.ports.t_ns) for result in self.results)


def shown_repeat(condition: Condition) -> ShownRepeat | None:
    """Return the first repeat that every shown tuner has; None without a valid trial.

    If no repeat is common to all, the first tuner's first. Raises InputError for an unreadable
    table.
    """
    arms = shown_arms(condition)
    if not arms:
        return None
    common = set.intersection(*({trial.spec.seed for trial in arm.valid} for arm in arms))
    if not common:
        arms, common = arms[:1], {arms[0].valid[0].spec.seed}
    seed = next(trial.spec.seed for trial in arms[0].valid if trial.spec.seed in common)
    trials = tuple(next(trial for trial in arm.valid if trial.spec.seed == seed) for arm in arms)
    results = tuple(read_trial(trial.folder) for trial in trials)
    return ShownRepeat(trials[0].spec.repeat, trials, results)


@dataclass(frozen=True)
class Spans:
    """Spans of time: `edges_ns` (spans + 1,). Samples are inside of spans, not on their edges."""

    edges_ns: Floats

    @property
    def begins_ns(self) -> Ints:
        """When each begins, shape (spans,)."""
        return self.edges_ns[:-1].astype(np.int64)

    @property
    def span_ns(self) -> float:
        """The length of a span."""
        return float(self.edges_ns[1] - self.edges_ns[0])

    @property
    def middle_ms(self) -> Floats:
        """The middle of each, in ms, shape (spans,)."""
        return np.round((self.begins_ns + self.span_ns / 2) / 1e6, 4)

    def binned(
        self,
        t_ns: Ints,
        values: Floats,
        reduced: Callable[..., Floats] = np.nanmax,
    ) -> Floats:
        """Return one value for each span: (samples, rows) to (rows, spans), NaN without samples."""
        found = np.full((values.shape[1], len(self.edges_ns) - 1), math.nan)
        place = np.clip(
            np.searchsorted(self.edges_ns, t_ns, side="left") - 1, 0, len(self.edges_ns) - 2
        )
        for span in np.unique(place):
            part = values[place == span]
            known = ~np.isnan(part).all(axis=0)
            found[known, span] = reduced(part[:, known], axis=0)
        return found


def spans_of(times_ns: Sequence[Ints], most: int) -> Spans:
    """Return at most `most` spans for samples taken at each of `times_ns`, shapes (samples,)."""
    first, last = times_ns[0][0], min(float(t_ns[-1]) for t_ns in times_ns)
    samples = min(len(t_ns) for t_ns in times_ns)
    count, half_ns = min(most, samples), (last - first) / max(1, samples - 1) / 2
    return Spans(np.linspace(max(0.0, first - half_ns), last + half_ns + 1, count + 1))


def spans_between(times_ns: Sequence[Ints], most: int) -> Spans:
    """Return at most `most` spans that each end with a sample, the first of which begins one."""
    first, last = float(times_ns[0][0]), min(float(t_ns[-1]) for t_ns in times_ns)
    count = min(most, min(len(t_ns) for t_ns in times_ns) - 1)
    return Spans(np.linspace(first, last + 1, count + 1))
