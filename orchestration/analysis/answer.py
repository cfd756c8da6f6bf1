"""The answer of a campaign: which arm is best by the metric that judges, by how much, and if so.

An arm wins if it is better than every other arm: the paired t-test's p-value against each of them,
multiplied by the number of other arms (Bonferroni), is below 0.05, and so much better that it
matters (`MATTERS`). The correction pays for having picked the best arm by the same results: a truly
worse arm can then win with a probability of at most 5 %. Differences from the baseline are those of
the comparisons, with Holm's correction over the arms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestration.analysis.arm_differences import SIGNIFICANCE, Comparison
from orchestration.analysis.counters import why_identical
from orchestration.analysis.metrics import METRICS, SCORECARD, SIZE_CLASSES
from orchestration.analysis.statistics import PairedDifference, paired_difference
from orchestration.analysis.summary import Arm, Condition, Summary
from orchestration.render.numbers import NOTHING, interval, percent_change, quantity

# Smaller relative differences do not matter, however sure they are: nobody would act on them.
MATTERS = 0.01
# Beyond this, an interval says nothing about how large a difference may be.
_MAX_BOUND = 10.0
# A wider interval leaves room for differences that would matter to anybody.
_ENOUGH = 0.2
# How many arms that are worse than the baseline a sentence names.
_MAX_WORSE = 2

# What can be said about a condition: an arm wins; several lead the baseline; none is shown to
# differ from the baseline for the better; all are identical; there is one arm only, one pair of
# trials only, or no valid trial.
Outcome = Literal["winner", "leaders", "none", "identical", "alone", "untested", "void"]


@dataclass(frozen=True)
class Answer:
    """What a condition answers by the metric `judge`.

    `best` has the winner, or the arms that lead together. `sentence` says it with figures; `bound`
    is the largest relative difference from the baseline that the intervals do not exclude, NaN if
    there is none.
    """

    condition: str
    judge: str
    outcome: Outcome
    best: tuple[str, ...]
    sentence: str
    bound: float = math.nan


def answer_of(condition: Condition, judge: str) -> Answer:
    """Return what a condition answers by the metric `judge`."""
    arms = [arm for arm in condition.arms if math.isfinite(arm.estimates[judge].mean)]
    if not arms:
        why = "no trial is valid" if not any(arm.valid for arm in condition.arms) else ""
        why = why or f"no trial has the metric {METRICS[judge].label}"
        return Answer(condition.label, judge, "void", (), f"No answer: {why}.")
    if len(arms) == 1:
        return Answer(condition.label, judge, "alone", (), _alone(arms[0], judge))
    compared = [item for item in condition.comparisons if item.judged and item.metric == judge]
    if compared and all(item.identical for item in compared):
        return Answer(condition.label, judge, "identical", (), _identical(condition, compared))
    best = _best(arms, judge)
    if max((item.difference.n for item in compared), default=0) < 2:
        return Answer(condition.label, judge, "untested", (), _untested(best, arms, judge))
    rivals = {arm.name: _against(arm, best, judge, condition) for arm in arms if arm is not best}
    beaten = [name for name, difference in rivals.items() if _beats(difference, len(rivals))]
    bound = _bound(compared)
    if len(beaten) == len(rivals):
        sentence = _winner(condition, best, rivals, compared)
        return Answer(condition.label, judge, "winner", (best.name,), sentence, bound)
    leaders = (best.name, *(name for name in rivals if name not in beaten))
    if condition.arms[0].name in leaders or not _real(compared, best.name):
        sentence = _no_winner(condition, compared, judge)
        return Answer(condition.label, judge, "none", (), sentence, bound)
    sentence = _leaders(leaders, compared, judge)
    return Answer(condition.label, judge, "leaders", leaders, sentence, bound)


def answers_of(summary: Summary) -> list[Answer]:
    """Return the answers of each condition by each metric that judges."""
    return [answer_of(one, judge) for one in summary.conditions for judge in summary.judge]


def headline(summary: Summary) -> str:
    """Return the answer of the whole campaign in one sentence."""
    answers = answers_of(summary)
    if len(answers) == 1:
        return answers[0].sentence
    if len(summary.judge) > 1 and len(summary.conditions) == 1:
        return _by_judge(answers)
    found = Counter(_in_words(answer) for answer in answers)
    what = "cases" if len(summary.judge) > 1 else "conditions"
    if len(found) == 1:
        parts = [f"{next(iter(found))} in all {len(answers)} {what}"]
    else:
        (first, times), *rest = found.most_common()
        parts = [f"{first} in {times} of {len(answers)} {what}"]
        parts += [f"{words} in {count}" for words, count in rest]
    judges = " and ".join(metric_words(key) for key in summary.judge)
    text = f"{', '.join(parts)}; judged by {judges}."
    return text[0].upper() + text[1:] if text.startswith("no ") else text


def validity_text(summary: Summary) -> str:
    """Return how many trials are valid: `All 10 trials are valid.`"""
    total, invalid = len(summary.trials), len(summary.invalid)
    if not invalid:
        return f"All {total} trials are valid." if total > 1 else "The one trial is valid."
    verb = "is" if invalid == 1 else "are"
    pronoun = "It is" if invalid == 1 else "They are"
    return (
        f"{invalid} of {total} trials {verb} invalid. {pronoun} listed below and excluded from all "
        "figures."
    )


def metric_words(key: str) -> str:
    """Return a metric's name within a sentence: `small flows' p99 slowdown`."""
    metric = METRICS[key]
    if metric.klass == "all" or metric.klass not in SIZE_CLASSES:
        return metric.label
    label = metric.label.removesuffix(f", {SIZE_CLASSES[metric.klass]}")
    return f"{metric.klass} flows' {label}"


def matters(difference: PairedDifference) -> bool:
    """Return whether a difference is large enough to matter; one from 0 always is."""
    return not abs(difference.relative) < MATTERS


def is_better(difference: PairedDifference, key: str) -> bool:
    """Return whether a difference is to the better."""
    return (difference.mean < 0) == (METRICS[key].better == "lower")


def bounds_text(difference: PairedDifference) -> str:
    """Return a relative difference's interval: `[27, 35]` in percent, of the sizes if it can."""
    low, high = difference.relative_low, difference.relative_high
    if not math.isfinite(low):
        return ""
    ends = sorted((abs(low), abs(high))) if low * high >= 0 else [low, high]
    shown = [percent_change(end).removesuffix("%") for end in ends]
    if low * high < 0:
        shown[0] = f"-{shown[0]}"
    return f"[{', '.join(shown)}]"


def _best(arms: Sequence[Arm], judge: str) -> Arm:
    pick = min if METRICS[judge].better == "lower" else max
    return pick(arms, key=lambda arm: arm.estimates[judge].mean)


def _against(arm: Arm, best: Arm, judge: str, condition: Condition) -> PairedDifference:
    """Return the difference of an arm from the best one, on their common seeds."""
    rows = [
        {trial.spec.seed: trial.metrics.scalars[judge] for trial in one.valid}
        for one in (best, arm)
    ]
    seeds = sorted(set(rows[0]) & set(rows[1]))
    first, second = ([row[seed] for seed in seeds] for row in rows)
    return paired_difference(first, second, condition.interim)


def _beats(difference: PairedDifference, rivals: int) -> bool:
    return difference.p_t * rivals < SIGNIFICANCE and matters(difference)


def _real(compared: Sequence[Comparison], arm: str) -> bool:
    return any(item.arm == arm and item.real and matters(item.difference) for item in compared)


def _bound(compared: Sequence[Comparison]) -> float:
    """Return the largest relative difference that no interval of the comparisons excludes."""
    ends = [
        max(abs(item.difference.relative_low), abs(item.difference.relative_high))
        for item in compared
        if not (item.real and matters(item.difference))
    ]
    return max(ends, default=math.nan)


def _side(difference: PairedDifference) -> str:
    return "higher" if difference.mean > 0 else "lower"


def _size(difference: PairedDifference, key: str) -> str:
    """Return `31% lower`, or with a unit where the baseline is 0: `12.3KB higher`."""
    size = percent_change(difference.relative)
    if not math.isfinite(difference.relative):
        size = quantity(abs(difference.mean), METRICS[key].unit)
    return f"{size} {_side(difference)}"


def _winner(
    condition: Condition,
    best: Arm,
    rivals: Mapping[str, PairedDifference],
    compared: Sequence[Comparison],
) -> str:
    baseline, judge = condition.arms[0].name, compared[0].metric
    if best.name == baseline:
        nearest = min(rivals, key=lambda name: abs(rivals[name].mean))
        difference = rivals[nearest]
        words = f"{_size(difference, judge)} {bounds_text(difference)}".rstrip()
        return f"{best.name} wins: the next best, {nearest}, has a {metric_words(judge)} {words}."
    own = next(item.difference for item in compared if item.arm == best.name)
    words = f"{metric_words(judge)} is {_size(own, judge)} than {baseline}'s {bounds_text(own)}"
    return f"{best.name} wins: {words.rstrip()}{_price(condition, best.name)}."


def _price(condition: Condition, arm: str) -> str:
    """Return the largest price that an arm pays against the baseline: `, goodput 2% lower [1, 3]`.

    A price is a metric of the scorecard by which it is surely worse; "" if there is none.
    """
    worse = [
        item
        for item in condition.comparisons
        if item.arm == arm
        and item.metric in SCORECARD
        and item.real
        and matters(item.difference)
        and not is_better(item.difference, item.metric)
    ]
    if not worse:
        return ""
    largest = max(worse, key=lambda item: abs(item.difference.relative))
    bounds = bounds_text(largest.difference)
    words = (
        f"{metric_words(largest.metric)} is {_size(largest.difference, largest.metric)} {bounds}"
    )
    return f"; its price: {words.rstrip()}"


def _leaders(leaders: Sequence[str], compared: Sequence[Comparison], judge: str) -> str:
    own = next(item for item in compared if item.arm == leaders[0])
    words = f"{_size(own.difference, judge)} than {own.baseline}'s {bounds_text(own.difference)}"
    return (
        f"{_listed(leaders)} lead together: with {leaders[0]}, {metric_words(judge)} is "
        f"{words.rstrip()}; no difference is shown between them."
    )


def _no_winner(condition: Condition, compared: Sequence[Comparison], judge: str) -> str:
    """Return how close the arms are that are not surely worse, and which arms are worse."""
    baseline, bound = condition.arms[0].name, _bound(compared)
    real = [item for item in compared if item.real and matters(item.difference)]
    worse = [item for item in real if not is_better(item.difference, judge)]
    close = [item.arm for item in compared if item not in real]
    parts = []
    if close:
        verb = "is" if len(close) == 1 else "are"
        if math.isfinite(bound) and bound <= _MAX_BOUND:
            parts.append(f"{_listed(close)} {verb} within {percent_change(bound)} of {baseline}")
        else:
            parts.append(f"nothing is known of {_listed(close)} against {baseline}")
        if not bound <= _ENOUGH:
            parts[0] += ", which takes more repeats to narrow"
    parts += [
        f"{item.arm} is {percent_change(item.difference.relative)} worse "
        f"{bounds_text(item.difference)}".rstrip()
        for item in worse[:_MAX_WORSE]
    ]
    return f"No winner by {metric_words(judge)}: {'; '.join(parts)}."


def _identical(condition: Condition, compared: Sequence[Comparison]) -> str:
    why = why_identical(trial.stamp for arm in condition.arms for trial in arm.valid)
    names = _listed([compared[0].baseline, *(item.arm for item in compared)])
    return f"No difference: {names} are identical in every pair{f': {why}' if why else ''}."


def _untested(best: Arm, arms: Sequence[Arm], judge: str) -> str:
    side = "lowest" if METRICS[judge].better == "lower" else "highest"
    value = quantity(best.estimates[judge].mean, METRICS[judge].unit)
    return (
        f"Not tested, with one pair of trials: {best.name} has the {side} {metric_words(judge)} "
        f"of {len(arms)} arms, {value}, which may be chance; use more repeats."
    )


def _alone(arm: Arm, judge: str) -> str:
    estimate, unit = arm.estimates[judge], METRICS[judge].unit
    text = f"{arm.name}: {metric_words(judge)} {quantity(estimate.mean, unit)}"
    if math.isfinite(estimate.low):
        text += f" [{interval(estimate.low, estimate.high, unit)}]"
    return f"{text}; nothing is compared."


def _by_judge(answers: Sequence[Answer]) -> str:
    """Return the answers of one condition by several metrics as one sentence."""
    found = {_in_words(answer) for answer in answers}
    if len(found) == 1:
        names = " and ".join(metric_words(answer.judge) for answer in answers)
        if answers[0].outcome != "winner":
            return answers[0].sentence
        return f"{next(iter(found))} by {names}: {answers[0].sentence.partition(': ')[2]}"
    parts = [f"{_in_words(answer)} by {metric_words(answer.judge)}" for answer in answers]
    return f"{'; '.join(parts)}."


def _in_words(answer: Answer) -> str:
    """Return an answer in two or three words: `hpcc wins`."""
    match answer.outcome:
        case "winner":
            return f"{answer.best[0]} wins"
        case "leaders":
            return f"{_listed(answer.best)} lead"
        case "none" | "untested":
            return "no winner"
        case "identical":
            return "no difference"
        case "alone":
            return "nothing is compared"
    return "no answer"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else NOTHING
