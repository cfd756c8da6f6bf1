"""Arms and conditions of trials: which trials are compared with each other.

One factor of a campaign is compared; its levels are the arms. Trials that agree in everything else
but seed and repeat are under one condition. For tuners that is what `core.condition` says. Other
factors change fields of a trial, so the arms of a condition differ in these fields: only what
differs among the trials of one arm makes another condition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from inventory import variant
from orchestration.analysis.metrics import METRICS, fct_key, slowdown_key
from orchestration.core.condition import (
    ARM,
    TUNER,
    campaign_tuner_name,
    condition_key,
    condition_settings,
    factors_of,
    labels_of,
)
from orchestration.core.errors import InputError, Problem, suggest
from orchestration.core.pattern import PatternSpec
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.results.question import Question, arm_of, compared_factor

Item = TypeVar("Item")
# How many metrics a message names that are called like an unknown one.
_MAX_ALIKE = 6

FIXED_TUNERS = ("secn1", "secn2", "static", "letflow", "timeout")
# Metrics of the papers that reports have under another name.
_SAME_IN_REPORTS = {
    "slowdown_mean": slowdown_key("mean", "all"),
    "slowdown_p99": slowdown_key("p99", "all"),
    "fct_mean": fct_key("all"),
}


def chosen_factor(name: str, trials: Iterable[TrialSpec]) -> str:
    """Return the factor of these trials that a user calls `name`.

    Raises InputError if there is none, or if some of the trials lack it.
    """
    cells = [labels_of(trial) for trial in trials]
    factors = list(dict.fromkeys(label for cell in cells for label in factors_of(cell)))
    factor = compared_factor(name, factors)
    if not factor:
        known = ["tuners", *factors]
        close = suggest(name, [*known, *(factor.rpartition(".")[2] for factor in factors)])
        remedy = f"{close}use one of {', '.join(known)}"
        raise InputError.single("--compare", f"no factor {name!r} here", remedy)
    if factor != TUNER and (lack := sum(factor not in cell for cell in cells)):
        raise InputError.single(
            "--compare",
            f"{lack} of {len(cells)} trials have no factor {name!r}",
            "name a folder whose trials all have it",
        )
    return factor


def by_condition(
    items: Sequence[Item], spec_of: Callable[[Item], TrialSpec], compare: str
) -> list[list[Item]]:
    """Return items of trials in groups, one for each condition; all are of one campaign."""
    specs = [spec_of(item) for item in items]
    if compare == TUNER:
        keys = [condition_key(spec) for spec in specs]
    else:
        keys = list(_keys(specs, compare))
    groups: dict[str, list[Item]] = {}
    for key, item in zip(keys, items, strict=True):
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def _keys(specs: Sequence[TrialSpec], compare: str) -> Iterator[str]:
    settings = [_settings(spec, compare) for spec in specs]
    seen: dict[tuple[Scalar | None, str], str] = {}
    varying: set[str] = set()
    for spec, fields in zip(specs, settings, strict=True):
        arm = labels_of(spec).get(compare)
        for name, value in fields.items():
            if seen.setdefault((arm, name), value) != value:
                varying.add(name)
    for fields in settings:
        yield json.dumps([[name, fields.get(name)] for name in sorted(varying)])


def _settings(spec: TrialSpec, compare: str) -> dict[str, str]:
    """Return everything that determines a trial except seed and repeat: value by path of field."""
    labels = {name: level for name, level in labels_of(spec).items() if name != compare}
    settings = json.loads(condition_settings(spec))
    # field by field, as several factors may each replace another one
    settings["testbed"] = variant.fields_of(settings["testbed"])
    return dict(_flat({"cell": labels, "settings": settings}, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping | list):
        # lists entry by entry: another factor may vary the field beside the compared one
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flat(inner, f"{path}.{name}")
    else:
        yield path, json.dumps(value)


def order_arms(tuners: Mapping[str, str], listed: Sequence[str], compare: str) -> list[str]:
    """Return the arms' names: the baseline, then those in the campaign's file, then others, sorted.

    `tuners` has the name of each arm's tuner, `listed` the arms in the order of the file. Of
    tuners, which are sorted, the baseline is one with fixed settings, published ones before others;
    without any, it is the first in the file.
    """
    order = [name for name in listed if name in tuners]
    rest = sorted(set(tuners).difference(order))
    if compare != TUNER:
        return [*order, *rest]
    fixed = [name for name in sorted(tuners) if tuners[name] in FIXED_TUNERS]
    first = sorted(fixed, key=lambda name: FIXED_TUNERS.index(tuners[name]))[:1] or order[:1]
    return [*first, *(name for name in sorted(tuners) if name not in first)]


def shared_factors(trials: Iterable[TrialSpec], compare: str) -> dict[str, Scalar]:
    """Return the factors that have one level in all these trials; not tuner and compared one."""
    cells = [labels_of(trial) for trial in trials]
    first = cells[0]
    same = {
        name: level for name, level in first.items() if all(c.get(name) == level for c in cells)
    }
    return {name: level for name, level in same.items() if name not in (compare, TUNER)}


def default_judges(traffic: Sequence[PatternSpec]) -> tuple[str, ...]:
    """Return the metric that decides which arm is best, by the kind of traffic.

    Incasts alone are judged by how long they take, long-lived flows by their goodput, flows that
    finish by their mean slowdown.
    """
    if traffic and all(pattern.lasts for pattern in traffic):
        return ("goodput_bps",)
    if traffic and all(pattern.kind == "incast" for pattern in traffic):
        return ("incast_completion_ratio",)
    return ("slowdown_mean_all",)


def known_judges(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the keys of metrics that a campaign names; raise InputError for unknown ones."""
    wrong = [name for name in names if not METRICS.canonical(name)]
    if wrong:
        raise InputError([_unknown_metric(name, where) for name in wrong])
    keys = [METRICS.canonical(name) for name in names]
    return tuple(dict.fromkeys(_SAME_IN_REPORTS.get(key, key) for key in keys))


def _unknown_metric(name: str, where: str) -> Problem:
    """Return the problem of a metric that does not exist, with those that are called alike."""
    parts = {part for part in re.split(r"[^a-z0-9]+", name.lower()) if len(part) > 2}
    alike = get_close_matches(name, METRICS.of_a_trial, _MAX_ALIKE, 0.5)
    alike += [key for key in METRICS.of_a_trial if parts & set(key.split("_"))]
    named = list(dict.fromkeys(alike))[:_MAX_ALIKE]
    hint = f"did you mean one of {', '.join(named)}? " if named else ""
    remedy = f"{hint}docs/generated/metrics.md has all, such as mean_slowdown"
    return Problem(where, f"no metric is called {name!r}", remedy)


@dataclass(frozen=True)
class PlannedComparison:
    """What a campaign compares: the factor, its arms, the baseline first, and what judges them.

    `factors` are the campaign's factors besides the tuner; `judge_named` says whether its file
    names the metrics that judge.
    """

    compare: str
    arms: tuple[str, ...]
    judge: tuple[str, ...]
    judge_named: bool
    factors: tuple[str, ...]

    @classmethod
    def of(cls, trials: Sequence[TrialSpec], question: Question) -> PlannedComparison:
        """Return the comparison of a campaign's trials, whose question is known to be right."""
        compare = question.compare
        tuners = {
            arm_of(trial, campaign_tuner_name(trial), compare): trial.tuner.name for trial in trials
        }
        return cls(
            compare,
            tuple(order_arms(tuners, question.arms, compare)),
            known_judges(question.judge, "judge") or default_judges(trials[0].traffic),
            bool(question.judge),
            tuple(factors_of(trials[0].cell)),
        )

    @property
    def sentence(self) -> str:
        """What is compared, or that nothing is and how to, as a sentence without a full stop."""
        baseline, *others = self.arms
        compare = {TUNER: "tuners", ARM: "arms"}.get(self.compare, self.compare)
        if not others:
            factor = next(iter(self.factors), "host.congestion_control")
            return (
                f"nothing is compared: the only level of {compare} is {baseline}. To compare the "
                f"levels of a factor, write compare: {factor}; or list several tuners, or arms"
            )
        judge = ", ".join(METRICS[key].label for key in self.judge)
        why = "" if self.judge_named else ", which suits the traffic; judge: names another"
        return f"compares {compare}: {', '.join(others)} with {baseline}, judged by {judge}{why}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        arms = list(self.arms)
        return {
            "compare": self.compare,
            "baseline": arms[0],
            "arms": arms,
            "judge": list(self.judge),
        }
