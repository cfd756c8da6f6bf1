"""A report's first screen: the answer in a sentence, the scorecard, and whether to believe it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from inventory.variant import brief_name, grouped, short_name
from orchestration.analysis.answer import (
    Answer,
    answer_of,
    answers_of,
    headline,
    is_better,
    matters,
    metric_words,
)
from orchestration.analysis.arm_differences import Comparison
from orchestration.analysis.metrics import METRICS, SCORECARD
from orchestration.analysis.summary import Condition, Summary, Trial
from orchestration.core.pattern import PatternSpec
from orchestration.core.units import format_size
from orchestration.render.numbers import change, count, percent_change, quantity
from orchestration.render.scorecard import (
    Headline,
    Scorecard,
    ScoreCell,
    ScoreRow,
    Trust,
    TrustItem,
    Verdict,
)
from orchestration.results.stamp import Severity

# More rows do not fit on one screen.
MAX_ROWS = 6
# A load of which less than this share is delivered is reported as not delivered.
_DELIVERED = 0.9
# With less than this an answer is tentative, as flows that did not finish count in no slowdown: the
# bound of the stamp's finding `overload`.
_TENTATIVE = 0.8
# A backlog that grows by more than this share of the offered load is not stationary.
_STATIONARY = 0.05
_SLOPE = "backlog_slope_share"
# Nobody would miss a smaller difference.
_MIN_RESOLUTION = 0.001
_LEGEND = (
    "In brackets: 95% intervals. Grey: not significant, after correction for many comparisons."
)
# How many kinds of findings the line of trust names.
_MAX_CODES = 2


def first_screen(summary: Summary) -> list[Headline | Scorecard | Trust]:
    """Return the blocks of a report's first screen."""
    card = scorecard(summary)
    blocks: list[Headline | Scorecard | Trust] = [Headline(kicker(summary), sentence(summary))]
    return [*blocks, *([card] if card else []), trust(summary)]


def kicker(summary: Summary) -> str:
    """Return what was compared, where, under which traffic, and how often: one line."""
    first = summary.trials[0].spec
    testbeds = grouped({short_name(trial.spec.testbed) for trial in summary.trials})
    backends = sorted({trial.spec.backend for trial in summary.trials})
    loads = {trial.spec.traffic for trial in summary.trials}
    traffic = [_traffic_words(pattern, varies=len(loads) > 1) for pattern in first.traffic]
    repeats = len({trial.spec.repeat for trial in summary.trials})
    paired = "paired " if len(summary.arms) > 1 and repeats > 1 else ""
    where = f"{', '.join(map(brief_name, testbeds[:3]))} on {', '.join(backends)}"
    parts = [summary.campaign, where, ", ".join(traffic[:3]), count(repeats, f"{paired}repeat")]
    return " · ".join(filter(None, parts))


def _traffic_words(pattern: PatternSpec, *, varies: bool) -> str:
    """Return a pattern in a few words: `WebSearch 60%`, `incast of 16 x 64KB`.

    Figures are left out if they vary.
    """
    workload, load = getattr(pattern, "workload", ""), getattr(pattern, "load", 0.0)
    fan_in, size = getattr(pattern, "fan_in", 0), getattr(pattern, "size_bytes", 0)
    if workload:
        return (
            f"{workload.rpartition('/')[2]} {f'{load:.0%}' if load and not varies else ''}".strip()
        )
    words = pattern.label
    if fan_in and size and not varies:
        words += f" of {fan_in} x {format_size(size, 0)}"
    return words


def scorecard(summary: Summary) -> Scorecard | None:
    """Return the scorecard: arms by metrics or, with several conditions, by conditions.

    None if there are fewer than two arms, or no trial is valid.
    """
    if len(summary.conditions) == 1:
        return condition_scorecard(summary.conditions[0], summary)
    baseline, *arms = summary.arms
    # a condition that lacks the baseline is compared with another arm, so it is no row
    conditions = [
        one for one in summary.conditions if one.comparisons and one.arms[0].name == baseline
    ]
    if not conditions:
        return None
    judge = summary.judge[0]
    shown = conditions[:MAX_ROWS]
    more = len(summary.conditions) - len(shown)
    caption = f"And {count(more, 'more condition')} below. {_LEGEND}" if more else _LEGEND
    rows = [_row(one, judge, arms, one.label, answer_of(one, judge)) for one in shown]
    return Scorecard(baseline, tuple(arms), tuple(rows), metric_words(judge), caption)


def condition_scorecard(condition: Condition, summary: Summary) -> Scorecard | None:
    """Return the scorecard of one condition, None without comparisons."""
    if not condition.comparisons:
        return None
    baseline, *arms = [arm.name for arm in condition.arms]
    rows = []
    for key in _row_keys(condition, summary.judge):
        answer = answer_of(condition, key) if key in summary.judge else None
        rows.append(_row(condition, key, arms, METRICS[key].label, answer))
        rows[-1] = dataclasses.replace(rows[-1], judged=answer is not None)
    return Scorecard(baseline, tuple(arms), tuple(rows), caption=_LEGEND)


def _row_keys(condition: Condition, judge: Sequence[str]) -> list[str]:
    """Return the metrics of the rows: those that judge, then those in which arms differ."""
    chosen = list(judge)
    # where all traffic is incasts, how long they take says it; a window may end within one
    traffic = condition.arms[0].trials[0].spec.traffic
    left_out = {"goodput_bps"} if traffic and all(pattern.incasts for pattern in traffic) else set()
    own = [metric.key for metric in METRICS.own if metric.compared]
    for key in (*own, *SCORECARD):
        differ = any(c.metric == key and not c.identical for c in condition.comparisons)
        if key not in chosen and key not in left_out and differ:
            chosen.append(key)
    return chosen[:MAX_ROWS]


def _row(
    condition: Condition, key: str, arms: Sequence[str], label: str, answer: Answer | None
) -> ScoreRow:
    """Return a row; `answer` is that by its metric, None if the metric does not judge."""
    found = {item.arm: item for item in condition.comparisons if item.metric == key}
    baseline, metric = condition.arms[0], METRICS[key]
    best = answer.best if answer else _best_arms(list(found.values()), condition)
    value = quantity(baseline.estimates[key].mean, metric.unit)
    value += " ★" if baseline.name in best else ""
    cells = tuple(_cell(found.get(name), best) for name in arms)
    return ScoreRow(label, "", metric.better, False, value, cells)


def _best_arms(items: Sequence[Comparison], condition: Condition) -> Sequence[str]:
    """Return the best arm of those that are surely better than the baseline.

    It is the baseline if all others are surely worse, and none if neither is known.
    """
    verdicts = [_verdict(item) for item in items]
    if items and set(verdicts) == {"worse"} and len(items) == len(condition.arms) - 1:
        return [items[0].baseline]
    better = [item for item, verdict in zip(items, verdicts, strict=True) if verdict == "better"]
    if not better:
        return []
    pick = min if METRICS[better[0].metric].better == "lower" else max
    return [pick(better, key=lambda item: item.difference.mean).arm]


def _cell(item: Comparison | None, best: Sequence[str]) -> ScoreCell:
    if item is None or not item.difference.n:
        return ScoreCell("–")
    difference, verdict = item.difference, _verdict(item)
    point, *bounds = (
        100 * value if math.isfinite(value) else None
        for value in (difference.relative, difference.relative_low, difference.relative_high)
    )
    text, interval_text = _change_text(item), _interval_text(item)
    if item.identical:
        text, interval_text = "same", ""
    elif verdict == "unclear" and difference.n > 1:
        text, interval_text = _unclear_texts(item, text, interval_text)
    low, high = bounds
    return ScoreCell(text, interval_text, point, low, high, verdict, item.arm in best)


def _unclear_texts(item: Comparison, text: str, interval_text: str) -> tuple[str, str]:
    """Return the texts of a difference that is not significant, given those of one that is.

    It leans to one side where only the correction for many comparisons makes it so. Otherwise it
    says how large it may be, if that is not more than the baseline's whole value.
    """
    low, high = item.difference.relative_low, item.difference.relative_high
    bound = max(abs(low), abs(high), _MIN_RESOLUTION)
    if low * high > 0:
        return f"leans {text}", interval_text
    return (f"within {percent_change(bound)}" if bound <= 1 else "undecided"), ""


def _change_text(item: Comparison) -> str:
    relative = item.difference.relative
    if not math.isfinite(relative):
        return change(item.difference.mean, METRICS[item.metric].unit)
    sign = "+" if relative > 0 else "−" if relative < 0 else ""
    return f"{sign}{percent_change(relative)}"


def _interval_text(item: Comparison) -> str:
    """Return the interval with its signs, `[−24, −12]`; "" if there is none in percent."""
    ends = [item.difference.relative_low, item.difference.relative_high]
    if not all(map(math.isfinite, ends)):
        return ""
    shown = [f"{100 * end:+.{0 if abs(end) >= 0.0995 else 1}f}".replace("-", "−") for end in ends]
    return f"[{', '.join(shown)}]"


def _verdict(item: Comparison) -> Verdict:
    if item.identical:
        return "same"
    if not item.real:
        return "unclear"
    if not matters(item.difference):
        return "same"
    return "better" if is_better(item.difference, item.metric) else "worse"


def trust(summary: Summary) -> Trust:
    """Return whether the answer can be believed: valid trials, load, stationarity, resolution."""
    total, invalid = len(summary.trials), len(summary.invalid)
    why = _codes(summary, summary.invalid, "invalid")
    valid = TrustItem(
        f"{total - invalid} of {total}",
        f"trials valid{why and f': {why}'}",
        "bad" if invalid else "plain",
    )
    items = [valid, *_load(summary), *_stationary(summary), *_resolution(summary)]
    return Trust((*items, *_warnings(summary)))


def _by_arm(summary: Summary, key: str) -> dict[str, float]:
    """Return a metric's mean over the valid trials of each arm; arms without it are left out."""
    values: dict[str, float] = {}
    for name in summary.arms:
        valid = [t for t in summary.trials if t.arm == name and t.stamp.valid]
        known = [t.metrics.scalars.get(key, math.nan) for t in valid]
        known = [value for value in known if math.isfinite(value)]
        if known:
            values[name] = float(np.mean(known))
    return values


def _delivered_shares(summary: Summary) -> dict[str, float]:
    """Return the share of the offered load that was delivered, by arm."""
    offered, delivered = (_by_arm(summary, f"{name}_load") for name in ("offered", "delivered"))
    both = [name for name in offered if offered[name] and name in delivered]
    return {name: delivered[name] / offered[name] for name in both}


def _load(summary: Summary) -> Iterator[TrustItem]:
    """Yield how much of the offered load was delivered, of the arm that delivered least."""
    shares = _delivered_shares(summary)
    if not shares:
        return
    lowest = min(shares, key=lambda name: shares[name])
    enough = shares[lowest] >= _DELIVERED
    where = "" if len(shares) < 2 or enough else f", least with {lowest}"
    of_line_rate = ""
    if len(summary.conditions) == 1:
        loads = [_by_arm(summary, f"{name}_load")[lowest] for name in ("delivered", "offered")]
        of_line_rate = f" ({' of '.join(quantity(load, 'share') for load in loads)} of line rate)"
    yield TrustItem(
        f"{shares[lowest]:.0%}",
        f"of the offered load delivered{of_line_rate}{where}",
        "plain" if enough else "warning",
    )


def sentence(summary: Summary) -> str:
    """Return the answer in one sentence, with the reservation that the load did not get through."""
    text = headline(summary)
    decided = any(one.outcome in ("winner", "leaders", "none") for one in answers_of(summary))
    lowest = min(_delivered_shares(summary).values(), default=1.0)
    if decided and lowest < _TENTATIVE:
        return f"{text.removesuffix('.')}; tentative, as only {lowest:.0%} of the load got through."
    return text


def _stationary(summary: Summary) -> Iterator[TrustItem]:
    """Yield in how many arms the backlog does not grow, by its slope with its interval."""
    slopes = [
        arm.estimates[_SLOPE]
        for condition in summary.conditions
        for arm in condition.arms
        if _SLOPE in arm.estimates and math.isfinite(arm.estimates[_SLOPE].mean)
    ]
    if not slopes:
        return
    growing = sum(one.mean > _STATIONARY and not one.low <= 0 for one in slopes)
    if growing:
        what = "arm" if len(summary.conditions) == 1 else "case"
        where = f" in {growing} of {count(len(slopes), what)}" if len(slopes) > 1 else ""
        yield TrustItem("not stationary", f"(the backlog grows{where})", "warning")
    else:
        yield TrustItem("stationary", "(the backlog does not grow)")


def _resolution(summary: Summary) -> Iterator[TrustItem]:
    """Yield which differences the judging comparisons may have missed.

    It is half the widest interval of those that are not significant. Nothing where an arm wins.
    """
    if all(answer.outcome == "winner" for answer in answers_of(summary)):
        return
    halves = [
        (item.difference.relative_high - item.difference.relative_low) / 2
        for condition in summary.conditions
        for item in condition.comparisons
        if item.judged and _verdict(item) == "unclear"
    ]
    known = [half for half in halves if math.isfinite(half)]
    if known and max(known) >= _MIN_RESOLUTION:
        yield TrustItem(f"differences below {percent_change(max(known))}", "may go unseen")


def _warnings(summary: Summary) -> Iterator[TrustItem]:
    """Yield how many valid trials have warnings, and which."""
    valid = [trial for trial in summary.trials if trial.stamp.valid]
    if warned := [trial for trial in valid if _codes(summary, [trial], "warning")]:
        codes = _codes(summary, warned, "warning")
        yield TrustItem(f"{len(warned)} of {len(valid)}", f"trials warn: {codes}", "warning")


def _codes(summary: Summary, trials: Sequence[Trial], severity: Severity) -> str:
    """Return the findings of a severity in words, the most frequent first: `flows starved`."""
    found = Counter(
        code
        for trial in trials
        for code in {one.code for one in summary.reasons(trial) if one.severity == severity}
    )
    names = [code.replace("-", " ") for code, _ in found.most_common()]
    more = len(names) - _MAX_CODES
    return ", ".join([*names[:_MAX_CODES], *([f"{more} more"] if more > 0 else [])])


def answer_to_json(summary: Summary) -> dict[str, Any]:
    """Return the first screen as JSON-ready data: sentence, answers, scorecard, trust."""
    card = scorecard(summary)
    return {
        "sentence": sentence(summary),
        "compare": summary.compare,
        "baseline": summary.baseline,
        "judge": list(summary.judge),
        "by_condition": [dataclasses.asdict(answer) for answer in answers_of(summary)],
        "scorecard": dataclasses.asdict(card) if card else None,
        "trust": [dataclasses.asdict(item) for item in trust(summary).items],
    }
