"""The answer of a campaign: which arm is best by the metric that judges, by how much, and if so.

An arm other than the baseline wins if it is surely better than the baseline, by the judged
comparison with its Holm correction, and better than each other arm: the p-value of the paired
t-test against it, multiplied by the number of judged comparisons (Bonferroni), is below 0.05. The
baseline wins if each other arm is surely worse. Differences below `MATTERS` count for nobody. So
with two arms the winner is what the judged comparison says. The probability that an arm wins that
is not truly the best is at most 5 %: to win, it has to be found better than the arm that is the
best, and the corrections pay for every arm that could be (an intersection-union test: Berger,
Technometrics 24, 1982). That is of one condition; conditions are not corrected for each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestration.analysis.arm_differences import (
    SIGNIFICANCE,
    Comparison,
    bounds_text,
    side_word,
    size_words,
)
from orchestration.analysis.counters import why_identical
from orchestration.analysis.metrics import METRICS, SCORECARD, SIZE_CLASSES
from orchestration.analysis.statistics import PairedDifference, paired_difference
from orchestration.analysis.summary import Arm, Condition, Summary
from orchestration.render.numbers import NOTHING, count, interval, percent_change, quantity

# Smaller relative differences do not matter, however sure they are: nobody would act on them.
MATTERS = 0.01
# Beyond this, an interval says nothing about how large a difference may be.
_MAX_BOUND = 10.0
# A wider interval leaves room for differences that would matter to anybody.
_ENOUGH = 0.2
# A sentence names so many arms at most, and counts more.
_MAX_NAMES = 4
# How many arms that are worse than the baseline, and how many outcomes, a sentence names.
_MAX_WORSE, _MAX_OUTCOMES = 2, 3

# What can be said about a condition: an arm wins; some arms lead, surely better than the baseline,
# but not than each other; none is surely better; all are identical; there is one arm only; there
# are no two pairs of trials with the baseline; or there is no valid trial.
Outcome = Literal["winner", "leaders", "none", "identical", "alone", "untested", "void"]


@dataclass(frozen=True)
class Answer:
    """What a condition answers by the metric `judge`.

    `best` has the winner, or the arms that lead. `sentence` says it with figures; `bound`
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
        sentence = _alone(arms[0], judge, others=len(condition.arms) > 1)
        return Answer(condition.label, judge, "alone", (), sentence)
    compared = [item for item in condition.comparisons if item.judged and item.metric == judge]
    if len(compared) == len(condition.arms) - 1 and all(item.identical for item in compared):
        return Answer(condition.label, judge, "identical", (), _identical(condition, compared))
    if max((item.difference.n for item in compared), default=0) < 2:
        sentence = _untested(condition, arms, judge, pairs=bool(compared))
        return Answer(condition.label, judge, "untested", (), sentence)
    real = [item for item in compared if _is_sure(item)]
    better = [item.arm for item in real if is_better(item.difference, judge)]
    bound = _bound([item for item in compared if item not in real])
    # Without an arm that is better, the baseline alone can win, if all others are worse.
    lead = _best([arm for arm in arms if arm.name in better] or arms[:1], judge)
    worse = {item.arm for item in real if item.arm not in better}
    unbeaten = [
        arm.name
        for arm in condition.arms[1:]
        if arm is not lead
        and not (_beats(lead, arm, condition, judge) if better else arm.name in worse)
    ]
    if not unbeaten:
        sentence = _winner(condition, lead.name, compared)
        return Answer(condition.label, judge, "winner", (lead.name,), sentence, bound)
    if not better:
        sentence = _no_winner(condition, compared, judge)
        return Answer(condition.label, judge, "none", (), sentence, bound)
    leaders = (lead.name, *(name for name in unbeaten if name in better))
    others = [name for name in unbeaten if name not in better]
    sentence = _leaders(condition, leaders, others, compared)
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
    found = Counter(_in_short(answer) for answer in answers)
    what = "cases" if len(summary.judge) > 1 else "conditions"
    judges = " and ".join(metric_words(key) for key in summary.judge)
    if len(found) == 1:
        text = f"{next(iter(found))} in all {len(answers)} {what}"
        if answers[0].outcome in ("none", "untested"):
            text = f"{next(iter(found))} in any of {len(answers)} {what}"
            text += _all_close(summary, answers)
        elif sizes := _range_words(summary, answers):
            return f"{text}: {sizes}."
    else:
        (first, times), *rest = found.most_common()
        parts = [f"{first} in {times} of {len(answers)} {what}"]
        parts += [f"{outcome} in {number}" for outcome, number in rest[: _MAX_OUTCOMES - 1]]
        others = sum(number for _, number in rest[_MAX_OUTCOMES - 1 :])
        text = ", ".join([*parts, *([f"something else in {others}"] if others else [])])
    text = f"{text}; judged by {judges}."
    return text[0].upper() + text[1:] if text.startswith("no") else text


def _all_close(summary: Summary, answers: Sequence[Answer]) -> str:
    """Return `: a is within 4% of b; c is worse` if each arm is the same everywhere; else ""."""
    judged = [item for one in summary.conditions for item in one.comparisons if item.judged]
    bound = max(answer.bound for answer in answers)
    if {item.baseline for item in judged} != {summary.baseline} or not bound <= _MAX_BOUND:
        return ""
    sure: dict[str, set[bool]] = {}
    for item in judged:
        sure.setdefault(item.arm, set()).add(_is_sure(item))
    close = [arm for arm, found in sure.items() if found == {False}]
    worse = [arm for arm, found in sure.items() if found == {True}]
    if not close or len(close) + len(worse) < len(sure):
        return ""
    text = f": {_are(close)} within {percent_change(bound)} of {summary.baseline}"
    return f"{text}; {_are(worse)} worse" if worse else text


def _are(names: Sequence[str]) -> str:
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'}"


def _range_words(summary: Summary, answers: Sequence[Answer]) -> str:
    """Return `mean slowdown 12% to 31% lower than dcqcn's` if one arm wins everywhere; else ""."""
    if len(summary.judge) > 1 or answers[0].outcome != "winner":
        return ""
    winner, judge = answers[0].best[0], summary.judge[0]
    found = [
        item.difference.relative
        for condition in summary.conditions
        for item in condition.comparisons
        if item.judged and item.arm == winner and item.baseline == summary.baseline
    ]
    if len(found) < len(answers) or not all(map(math.isfinite, found)):
        return ""
    low, high = (percent_change(pick(map(abs, found))) for pick in (min, max))
    side = side_word(judge, higher=METRICS[judge].better == "higher")
    return f"{metric_words(judge)} {low} to {high} {side} than {summary.baseline}'s"


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
    """Return a metric's name in a sentence: `small flows' p99 slowdown`, `goodput (all hosts)`."""
    metric = METRICS[key]
    if metric.klass == "all" or metric.klass not in SIZE_CLASSES:
        name, _, of = metric.label.partition(", ")
        return f"{name} ({of})" if of else name
    label = metric.label.removesuffix(f", {SIZE_CLASSES[metric.klass]}")
    return f"{metric.klass} flows' {label}"


def matters(difference: PairedDifference) -> bool:
    """Return whether a difference is large enough to matter; one from 0 always is."""
    return not abs(difference.relative) < MATTERS


def is_better(difference: PairedDifference, key: str) -> bool:
    """Return whether a difference is to the better."""
    return (difference.mean < 0) == (METRICS[key].better == "lower")


def _best(arms: Sequence[Arm], judge: str) -> Arm:
    pick = min if METRICS[judge].better == "lower" else max
    return pick(arms, key=lambda arm: arm.estimates[judge].mean)


def _is_sure(item: Comparison) -> bool:
    return item.real and matters(item.difference)


def _paired(lead: Arm, other: Arm, condition: Condition, judge: str) -> PairedDifference:
    """Return the difference of an arm from another one, on the seeds that both have."""
    rows = [
        {trial.spec.seed: trial.metrics.scalars[judge] for trial in one.valid}
        for one in (other, lead)
    ]
    seeds = sorted(set(rows[0]) & set(rows[1]))
    first, second = ([row[seed] for seed in seeds] for row in rows)
    return paired_difference(first, second, condition.interim, permuted=False)


def _beats(lead: Arm, other: Arm, condition: Condition, judge: str) -> bool:
    """Return whether an arm is surely better than another one."""
    difference = _paired(lead, other, condition, judge)
    family = next(item.family for item in condition.comparisons if item.judged)
    sure = difference.p_t * family < SIGNIFICANCE and matters(difference)
    return sure and is_better(difference, judge)


def _bound(compared: Sequence[Comparison]) -> float:
    """Return the largest relative difference that no interval of the comparisons excludes."""
    ends = [
        _extent(item.difference.relative_low, item.difference.relative_high) for item in compared
    ]
    return max(ends) if ends and all(map(math.isfinite, ends)) else math.nan


def _extent(low: float, high: float) -> float:
    return max(abs(low), abs(high)) if math.isfinite(low) and math.isfinite(high) else math.nan


def _winner(condition: Condition, winner: str, compared: Sequence[Comparison]) -> str:
    baseline, judge = condition.arms[0].name, compared[0].metric
    if winner == baseline:
        nearest = min(compared, key=lambda item: abs(item.difference.mean))
        of = f"the next best, {nearest.arm}" if len(compared) > 1 else nearest.arm
        words = _words(nearest.difference, judge)
        return f"{baseline} wins: with {of}, {metric_words(judge)} {words}."
    own = next(item.difference for item in compared if item.arm == winner)
    words = _words(own, judge, f" than {baseline}'s")
    words += _lead_over_next(condition, winner, judge)
    return f"{winner} wins: {metric_words(judge)} {words}{_price(condition, winner)}."


def _lead_over_next(condition: Condition, winner: str, judge: str) -> str:
    """Return `, and 6% lower than the next best, a [2, 9]`; "" if the baseline is the next best."""
    arms = {arm.name: arm for arm in condition.arms if arm.name != winner}
    known = [arm for arm in arms.values() if math.isfinite(arm.estimates[judge].mean)]
    following = _best(known, judge)
    if following is condition.arms[0]:
        return ""
    lead = next(arm for arm in condition.arms if arm.name == winner)
    difference = _paired(lead, following, condition, judge)
    return f", and {_words(difference, judge, f' than the next best, {following.name}')}"


def _words(difference: PairedDifference, key: str, than: str = "") -> str:
    """Return `31% lower than dcqcn's [27, 35]`."""
    return f"{size_words(difference, key)}{than} {bounds_text(difference)}".rstrip()


def _price(condition: Condition, arm: str, whose: str = "its") -> str:
    """Return the largest price that an arm pays: `; its price: goodput 2% lower [1, 3]`.

    A price is a metric of the scorecard by which it is surely worse than the baseline; "" if there
    is none.
    """
    worse = [
        item
        for item in condition.comparisons
        if item.arm == arm
        and item.metric in SCORECARD
        and _is_sure(item)
        and not is_better(item.difference, item.metric)
    ]
    if not worse:
        return ""
    # from 0 to something is the largest
    largest = max(worse, key=_relative_size)
    difference, key = largest.difference, largest.metric
    words = _words(difference, key)
    if not math.isfinite(difference.relative):
        now, before = (quantity(value, METRICS[key].unit) for value in (difference.mean, 0.0))
        words = f"{now} instead of {before}"
    return f"; {whose} price: {metric_words(key)} {words}"


def _relative_size(item: Comparison) -> float:
    relative = abs(item.difference.relative)
    return relative if math.isfinite(relative) else math.inf


def _leaders(
    condition: Condition,
    leaders: Sequence[str],
    others: Sequence[str],
    compared: Sequence[Comparison],
) -> str:
    """Return which arms are surely better than the baseline; of `others` that is not known."""
    prices = {
        arm: _price(condition, arm, f"{arm}'s" if len(leaders) > 1 else "its") for arm in leaders
    }
    # the one without a price stands for all
    named = next((arm for arm in leaders if not prices[arm]), leaders[0])
    own = next(item for item in compared if item.arm == named)
    words = _words(own.difference, own.metric, f" than {own.baseline}'s")
    words = f"{metric_words(own.metric)} {words}{prices[leaders[0]]}"
    if len(leaders) > 1:
        text = f"{_listed(leaders)} lead together, and no difference is shown between them: "
        text += f"with {named}, {words}"
    else:
        text = f"{named} leads: {words}"
    return f"{text}; {_listed(others)} may be as good." if others else f"{text}."


def _no_winner(condition: Condition, compared: Sequence[Comparison], judge: str) -> str:
    """Return how close the arms are that are not surely worse, and which arms are worse."""
    baseline = condition.arms[0].name
    worse = [item for item in compared if _is_sure(item)]
    close = [item for item in compared if item not in worse]
    known = {item.arm for item in compared}
    lost = [arm.name for arm in condition.arms[1:] if arm.name not in known]
    parts = [_closeness(close, judge)] if close else []
    if lost:
        verb = "has" if len(lost) == 1 else "have"
        parts.append(f"{_listed(lost)} {verb} no valid pair with {baseline}")
    parts += [f"{item.arm} is worse by {_by(item, judge)}" for item in worse[:_MAX_WORSE]]
    if len(worse) > _MAX_WORSE:
        parts.append(f"{count(len(worse) - _MAX_WORSE, 'more arm')} worse")
    return f"No winner by {metric_words(judge)}: {'; '.join(parts)}."


def _by(item: Comparison, judge: str) -> str:
    difference = item.difference
    if not math.isfinite(difference.relative):
        return quantity(abs(difference.mean), METRICS[judge].unit)
    return f"{percent_change(difference.relative)} {bounds_text(difference)}".rstrip()


def _closeness(close: Sequence[Comparison], judge: str) -> str:
    """Return how far arms may be from the baseline at most: `a and b are within 4% of c`."""
    names, baseline = _listed([item.arm for item in close]), close[0].baseline
    within = f"{_are([item.arm for item in close])} within"
    bound = _bound(close)
    ends = [_extent(item.difference.low, item.difference.high) for item in close]
    if bound <= _MAX_BOUND:
        hint = "" if bound <= _ENOUGH else ", which more repeats narrow"
        return f"{within} {percent_change(bound)} of {baseline}{hint}"
    if math.isnan(bound) and all(map(math.isfinite, ends)):
        return f"{within} {quantity(max(ends), METRICS[judge].unit)} of {baseline}"
    return f"too few repeats to tell {names} from {baseline}"


def _identical(condition: Condition, compared: Sequence[Comparison]) -> str:
    why = why_identical(trial.stamp for arm in condition.arms for trial in arm.valid)
    names = _listed([compared[0].baseline, *(item.arm for item in compared)])
    return f"No difference: {names} are identical in every pair{f': {why}' if why else ''}."


def _untested(condition: Condition, arms: Sequence[Arm], judge: str, *, pairs: bool) -> str:
    side = "lowest" if METRICS[judge].better == "lower" else "highest"
    best = _best(arms, judge)
    value = quantity(best.estimates[judge].mean, METRICS[judge].unit)
    why = "Not tested, with one pair of trials"
    if not pairs:
        why = (
            f"Not compared, as no seed has a valid trial of {condition.arms[0].name} and of another"
        )
    return (
        f"{why}: {best.name} has the {side} {metric_words(judge)} of {count(len(arms), 'arm')}, "
        f"{value}{', which may be chance; use more repeats' if pairs else ''}."
    )


def _alone(arm: Arm, judge: str, *, others: bool) -> str:
    estimate, unit = arm.estimates[judge], METRICS[judge].unit
    text = f"{arm.name}: {metric_words(judge)} {quantity(estimate.mean, unit)}"
    if math.isfinite(estimate.low):
        text += f" [{interval(estimate.low, estimate.high, unit)}]"
    why = "the others have no valid trial to compare" if others else "nothing is compared"
    return f"{text}; {why}."


def _by_judge(answers: Sequence[Answer]) -> str:
    """Return the answers of one condition by several metrics as one sentence."""
    found = {_in_short(answer) for answer in answers}
    if len(found) == 1 and answers[0].outcome != "none":
        if answers[0].outcome != "winner":
            return answers[0].sentence
        names = " and ".join(metric_words(answer.judge) for answer in answers)
        return f"{next(iter(found))} by {names}: {answers[0].sentence.partition(': ')[2]}"
    parts = [f"{_in_short(answer)} by {metric_words(answer.judge)}" for answer in answers]
    text = f"{'; '.join(parts)}."
    return text[0].upper() + text[1:] if text.startswith("no") else text


def _in_short(answer: Answer) -> str:
    """Return an answer in two or three words: `hpcc wins`."""
    match answer.outcome:
        case "winner":
            return f"{answer.best[0]} wins"
        case "leaders":
            return f"{_listed(answer.best)} {'leads' if len(answer.best) == 1 else 'lead'}"
        case "none":
            return "no winner"
        case "untested":
            return "not tested"
        case "identical":
            return "no difference"
        case "alone":
            return "nothing is compared"
    return "no answer"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{len(names)} arms"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else NOTHING
