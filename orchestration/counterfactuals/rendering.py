"""The results of `closloop whatif` and `closloop credit` for a terminal, as page, JSON and CSV."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from orchestration.core.units import format_duration, format_size
from orchestration.counterfactuals.ask import Answer
from orchestration.counterfactuals.credit import Credit
from orchestration.counterfactuals.decisions import Setting
from orchestration.counterfactuals.effects import FlowTotals, Paths, QueueMetrics, totals
from orchestration.counterfactuals.ranking import (
    OUTCOMES,
    REWARDS,
    MeasuredCase,
    Ranking,
    consistency,
)
from orchestration.render.csv import Data, csv_text
from orchestration.render.figure import Figure, scatter
from orchestration.render.figure_style import FAINT, base_figure
from orchestration.render.html import page_html
from orchestration.render.json import plain
from orchestration.render.numbers import NOTHING, Estimate, quantity, signed
from orchestration.render.page import (
    Block,
    CaptionedFigure,
    FigureGrid,
    Items,
    Page,
    Paragraph,
    rows_of,
)
from orchestration.render.table import Table, Value, table


def answer_blocks(answer: Answer, maximum: int) -> list[Block]:
    """Return what the change did: over all flows, at the queue, and to at most `maximum` flows."""
    prepared = answer.prepared
    decision = prepared.variant.decision
    lasting = f"{format_duration(decision.at_ns, 6)} to {format_duration(prepared.until_ns, 6)}"
    parts: list[Block] = [
        Paragraph(f"{decision.target.label}, {lasting}, then {prepared.then}"),
        Items([f"was {_setting(decision.setting)}", f"is {_setting(prepared.variant.setting)}"]),
        _totals(answer),
    ]
    if answer.before and answer.after:
        parts.append(_queue(answer))
    if len(answer.flows.largest_changes(maximum)):
        parts.append(_flows(answer, maximum))
    if answer.verified:
        differing = ", ".join(answer.verified)
        text = f"NOT REPEATED: with the decision unchanged, these columns differ: {differing}"
        parts.append(Paragraph(text))
    elif answer.verified is not None:
        text = "verified: with the decision unchanged, all tables equal the parent's to the bit"
        parts.append(Paragraph(text))
    if (ratio := _ratio(answer)) is not None:
        parts.append(Paragraph(f"the counterfactual took {ratio:.2f} times as long as its parent"))
    return parts


def answer_to_json(answer: Answer, maximum: int) -> dict[str, Any]:
    """Return the answer as JSON-ready data; unknown values are null."""
    prepared, flows = answer.prepared, answer.flows
    decision = prepared.variant.decision
    paths = Paths(prepared.decisions.trial.testbed)
    data = {
        "parent": str(prepared.decisions.trial.folder),
        "trial": str(answer.trial.folder),
        "valid": answer.trial.stamp.valid,
        "then": prepared.then,
        "decision": {
            "knob": decision.target.knob.name,
            "target": decision.target.label,
            "at_ns": decision.at_ns,
            "until_ns": prepared.until_ns,
            "was": decision.setting,
            "is": prepared.variant.setting,
        },
        "flows": asdict(totals(flows)),
        "under_way": asdict(
            totals(flows, flows.running_between(decision.at_ns, prepared.until_ns))
        ),
        "most_changed": [
            {
                "flow_id": int(flows.flow_id[row]),
                "src": flows.src[row],
                "dst": flows.dst[row],
                "bytes": int(flows.size_bytes[row]),
                "class": flows.klass[row],
                "start_ns": int(flows.start_ns[row]),
                "before_ns": int(flows.before_ns[row]),
                "after_ns": int(flows.after_ns[row]),
                "slowdown_before": float(flows.slowdown_before[row]),
                "slowdown_after": float(flows.slowdown_after[row]),
                "passes": _passes(answer, paths, int(row)),
            }
            for row in flows.largest_changes(maximum)
        ],
        "queue": None
        if answer.before is None or answer.after is None
        else {"before": _queue_json(answer.before), "after": _queue_json(answer.after)},
        "same_as_parent": None if answer.verified is None else not answer.verified,
        "differing": list(answer.verified or ()),
        "wall_ratio": _ratio(answer),
    }
    return dict(plain(data))


def _queue_json(queue: QueueMetrics) -> dict[str, Any]:
    data = asdict(queue)
    data["most_bytes"] = data.pop("max_bytes")
    return data


def _setting(setting: Setting) -> str:
    shown = {"bytes": format_size, "ns": format_duration}
    words = []
    for name, value in setting.items():
        stem, _, unit = name.rpartition("_")
        words.append(f"{stem} {shown[unit](value)}" if unit in shown else f"{name} {value:g}")
    return ", ".join(words)


def _totals(answer: Answer) -> Table:
    decision, flows = answer.prepared.variant.decision, answer.flows
    near = flows.running_between(decision.at_ns, answer.prepared.until_ns)
    rows = [["all", *_cells(totals(flows))], ["running then", *_cells(totals(flows, near))]]
    heads = ("flows", "changed", "better", "worse", "sum of FCT", "mean", "mean slowdown")
    caption = "changes are over the flows that were completed in both trials"
    return table(("",), heads, rows, "Flows", caption)


def _cells(total: FlowTotals) -> list[Value]:
    lost = f" (+{total.no_longer} not completed)" if total.no_longer else ""
    return [
        f"{total.flows:,}",
        f"{total.changed:,}{lost}",
        f"{total.better:,}",
        f"{total.worse:,}",
        signed(total.sum_fct_ns, "ns"),
        signed(total.mean_fct_ns, "ns"),
        signed(total.mean_slowdown, "ratio", 4),
    ]


def _queue(answer: Answer) -> Table:
    rows = [
        [
            name,
            *(_count(count) for count in (queue.marked_packets, queue.dropped_packets)),
            format_size(queue.sent_bytes) if queue.sent_bytes >= 0 else NOTHING,
            quantity(queue.mean_bytes, "bytes"),
            quantity(queue.max_bytes, "bytes"),
        ]
        for name, queue in (("was", answer.before), ("is", answer.after))
        if queue is not None
    ]
    title = f"At {answer.prepared.variant.decision.target.label} in that time"
    return table(("",), ("marked", "dropped", "sent", "mean queue", "longest"), rows, title)


def _count(value: int) -> str:
    return f"{value:,}" if value >= 0 else NOTHING


def _flows(answer: Answer, maximum: int) -> Table:
    flows, paths = answer.flows, Paths(answer.prepared.decisions.trial.testbed)
    rows = [
        [
            str(flows.flow_id[row]),
            flows.src[row],
            flows.dst[row],
            _passes(answer, paths, int(row)) or NOTHING,
            format_size(flows.size_bytes[row]),
            format_duration(flows.start_ns[row]),
            format_duration(flows.before_ns[row]),
            format_duration(flows.after_ns[row]),
            f"{flows.slowdown_before[row]:.2f} -> {flows.slowdown_after[row]:.2f}",
        ]
        for row in flows.largest_changes(maximum)
    ]
    caption = "through: do the flow's packets pass the queue, by its shortest paths?"
    words = ("flow", "from", "to", "through")
    figures = ("size", "start", "was", "is", "slowdown")
    return table(words, figures, rows, "Largest changes", caption)


def _passes(answer: Answer, paths: Paths, row: int) -> str | None:
    target = answer.prepared.variant.decision.target
    if target.knob.scope != "queue":
        return None
    return paths.passes(target.index, answer.flows.src[row], answer.flows.dst[row])


def _ratio(answer: Answer) -> float | None:
    trials = (answer.prepared.decisions.trial, answer.trial)
    before, after = (trial.facts.get("wall_s") for trial in trials)
    return after / before if before and after else None


_COLOURS = {True: "#D55E00", False: "#0072B2"}
_SHORT = {"reward": "next interval", "returned": "discounted", "fabric": "all queues"}
_HEADINGS = {
    "returned": "return",
    "slowdown": "slowdown",
    "slowdown_near": "running",
    "fct_small_ns": "small FCT",
    "fct_rest_ns": "other FCT",
}
_SYMBOLS = {True: "triangle-up", False: "triangle-down"}


def credit_blocks(credit: Credit, maximum: int) -> list[Block]:
    """Return the rank correlations, the mean changes, and at most `maximum` misleading cases."""
    return [
        Items(_lines(credit)),
        _rankings(credit),
        _changes(credit),
        _misleading(credit, maximum),
    ]


def credit_page(credit: Credit, maximum: int) -> str:
    """Return the same as an HTML page, with figures of two rewards against mean slowdown."""
    tuner = credit.plan.decisions.trial.spec.tuner.name
    lines, *tables = credit_blocks(credit, maximum)
    drawn = FigureGrid([_picture(credit, name) for name in ("returned", "fabric")])
    title = f"Does {tuner}'s reward rank decisions as flow completion does?"
    return page_html(Page(title, "closloop credit", [lines], [drawn, *tables]))


def _lines(credit: Credit) -> list[str]:
    spec = credit.plan.decisions.trial.spec
    count = len({measured.case.number for measured in credit.measured})
    moved = sum(measured.changed > 0 for measured in credit.measured)
    lines = [
        f"{spec.tuner.name}: {len(credit.measured)} alternatives to {count} decisions, "
        f"one at a time, then {credit.plan.then}",
        f"{moved} of them changed the completion time of some flow",
        f"NOT REPEATED: unchanged, these columns differ: {', '.join(credit.differing)}"
        if credit.differing
        else "unchanged, all tables equal the parent's to the bit",
    ]
    for name in ("returned", "slowdown"):
        same, opposite = consistency(credit.measured, name)
        label = (REWARDS | OUTCOMES)[name]
        lines.append(
            f"of similar alternatives to one decision, {same} pairs move {label} the same way, "
            f"{opposite} opposite ways"
        )
    if credit.invalid:
        lines.append(f"{credit.invalid} more are invalid or failed, and are not counted")
    if not math.isnan(credit.wall_ratio):
        lines.append(f"a counterfactual took {credit.wall_ratio:.2f} times as long as its parent")
    return lines


def _rankings(credit: Credit) -> Table:
    rows = []
    keys = dict.fromkeys((ranking.group, ranking.reward) for ranking in credit.rankings)
    for group, reward in keys:
        own = [one for one in credit.rankings if (one.group, one.reward) == (group, reward)]
        cases = own[0].correlation.cases
        rows.append([f"{group} ({cases})", _SHORT[reward], *map(_rank_text, own)])
    return table(
        ("cases", "reward"),
        [_HEADINGS[name] for name in OUTCOMES],
        rows,
        "Does the reward rank decisions as flow completion does?",
        "Kendall's tau-b with its 95 % interval over decisions; below, in how many cases reward "
        "and completion agree:oppose. 1: as flow completion does, 0: at random, -1: the opposite",
    )


def _rank_text(ranking: Ranking) -> str:
    """Return tau-b, its interval, and in how many cases reward and outcome agree and oppose."""
    tau = ranking.correlation
    span = NOTHING if math.isnan(tau.low) else f"{tau.low:.2f}..{tau.high:.2f}"
    return f"{signed(tau.tau, 'ratio')}\n{span}\n{ranking.agree}:{ranking.oppose}"


def _changes(credit: Credit) -> Table:
    names = ("returned", *OUTCOMES)
    rows = []
    for group in dict.fromkeys(change.group for change in credit.changes):
        own = [change for change in credit.changes if change.group == group]
        means = {change.figure: change.estimate for change in own}
        rows.append([group, *(_estimate(name, means[name]) for name in names)])
    heads = [_HEADINGS[name] for name in names]
    caption = "means over decisions with 95 % intervals"
    return table(("cases",), heads, rows, "Mean changes by the alternatives", caption)


def _estimate(name: str, estimate: Estimate) -> str:
    if math.isnan(estimate.mean):
        return NOTHING
    unit, digits, scale = ("us", 2, 1e-3) if name.endswith("_ns") else ("", 4, 1.0)
    mean = f"{scale * estimate.mean:+.{digits}f}{unit}"
    if math.isnan(estimate.low):
        return mean
    return f"{mean}\n±{scale * (estimate.high - estimate.mean):.{digits}f}"


def _misleading(credit: Credit, maximum: int) -> Table:
    cases = credit.misleading
    harmful = sum(case.slowdown > 0 for case in cases)
    rows = [
        [
            measured.case.decision.target.label,
            _short(measured.case.decision.setting),
            _short(measured.case.setting),
            format_duration(measured.case.decision.at_ns, 6),
            format_size(measured.case.queue_bytes, 1),
            signed(measured.returned, "ratio", 3),
            signed(measured.slowdown, "ratio", 4),
            signed(measured.fct_small_ns, "ns", 1),
            signed(measured.fct_rest_ns, "ns", 1),
        ]
        for measured in cases[:maximum]
    ]
    title = (
        f"Where the return misleads: {len(cases)} cases, in {harmful} of them it rises with "
        "slowdown"
    )
    heads = ("at", "queue length", "return", "slowdown", "FCT small", "rest")
    return table(("queue", "was", "is"), heads, rows, title)


def _short(setting: Setting) -> str:
    low, high = (format_size(setting[name], 1) for name in ("kmin_bytes", "kmax_bytes"))
    return f"{low}-{high} {setting['pmax']:.2g}"


def credit_to_json(credit: Credit) -> dict[str, Any]:
    """Return all results as JSON-ready data; unknown values are null."""
    plan = credit.plan
    data = {
        "parent": str(plan.decisions.trial.folder),
        "tuner": plan.decisions.trial.spec.tuner.name,
        "then": plan.then,
        "seed": plan.seed,
        "discount": plan.tuner.discount,
        "decisions": len({measured.case.number for measured in credit.measured}),
        "counterfactuals": len(credit.measured),
        "invalid": credit.invalid,
        "same_as_parent": not credit.differing,
        "wall_ratio": credit.wall_ratio,
        "rankings": [
            {
                "cases": ranking.group,
                "reward": ranking.reward,
                "judged_by": ranking.outcome,
                **vars(ranking.correlation),
                "agree": ranking.agree,
                "oppose": ranking.oppose,
            }
            for ranking in credit.rankings
        ],
        "consistency": {
            name: dict(zip(("same", "opposite"), consistency(credit.measured, name), strict=True))
            for name in ("returned", *OUTCOMES)
        },
        "mean_changes": [
            {"cases": change.group, "of": change.figure, **vars(change.estimate)}
            for change in credit.changes
        ],
        "measured": [_row(measured) for measured in credit.measured],
    }
    return dict(plain(data))


def _row(measured: MeasuredCase) -> dict[str, Any]:
    decision, case = measured.case.decision, measured.case
    return {
        "label": case.label,
        "decision": case.number,
        "at_ns": decision.at_ns,
        "queue": decision.target.label,
        "queue_bytes": case.queue_bytes,
        **{f"was_{name}": value for name, value in decision.setting.items()},
        **{f"is_{name}": value for name, value in case.setting.items()},
        "deeper": case.deeper,
        **{name: getattr(measured, name) for name in (*REWARDS, *OUTCOMES)},
        "changed": measured.changed,
        "unfinished": measured.unfinished,
    }


def credit_csv(credit: Credit) -> str:
    """Return a row for each counterfactual as CSV."""
    return csv_text(_data(credit))


def _data(credit: Credit) -> Data:
    return rows_of(_row(measured) for measured in credit.measured)


def _picture(credit: Credit, reward: str) -> CaptionedFigure:
    (ranking,) = (
        ranking
        for ranking in credit.rankings
        if (ranking.group, ranking.reward, ranking.outcome) == ("all", reward, "slowdown")
    )
    figure = Figure()
    base_figure(height=420, figure=figure)
    style = {"size": 8, "opacity": 0.75}
    for queue_nonempty in (False, True):
        for deeper in (False, True):
            kind = (queue_nonempty, deeper)
            own = [m for m in credit.measured if (m.case.queue_nonempty, m.case.deeper) == kind]
            at = [(m.case.decision.target.label, m.case.decision.at_ns) for m in own]
            figure.add_trace(
                scatter(
                    x=[getattr(one, reward) for one in own],
                    y=[one.slowdown for one in own],
                    mode="markers",
                    marker={**style, "color": _COLOURS[queue_nonempty], "symbol": _SYMBOLS[deeper]},
                    text=[f"{label} at {format_duration(at_ns, 6)}" for label, at_ns in at],
                    hovertemplate="%{text}<br>%{x:.3f}, slowdown %{y:+.4f}<extra></extra>",
                )
            )
    figure.add_hline(0.0, {"color": FAINT, "width": 1})
    figure.add_vline(0.0, {"color": FAINT, "width": 1})
    figure.update_xaxes(title={"text": f"change of {REWARDS[reward]}"})
    figure.update_yaxes(title={"text": "change of mean slowdown"})
    tau = ranking.correlation.tau
    title = f"{REWARDS[reward].capitalize()}: tau-b {tau:+.2f}"
    caption = (
        "The points of a reward that ranks as flow completion does fall from top left to bottom "
        "right. Orange: there were packets in the queue; blue: it was empty. Triangles up: deeper "
        "thresholds; down: shallower."
    )
    return CaptionedFigure(title, caption, figure, f"credit-{reward}", _data(credit))
