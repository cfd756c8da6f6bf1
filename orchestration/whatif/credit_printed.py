"""What `closloop credit` found: tables for a terminal, JSON, CSV, and a page with pictures."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from rich.console import Group
from rich.text import Text

from orchestration.analysis.document import Pictures, csv_text, html_document
from orchestration.analysis.figure_style import FAINT, Data, Picture, base_figure
from orchestration.analysis.plot import Figure, scatter
from orchestration.analysis.statistics import Estimate
from orchestration.analysis.tables import plain_table
from orchestration.model.units import format_duration, format_size
from orchestration.whatif.credit import Credit
from orchestration.whatif.decisions import Setting
from orchestration.whatif.ranking import OUTCOMES, REWARDS, Measured, Ranking, consistency

_COLOURS = {True: "#D55E00", False: "#0072B2"}
_SHORT = {"reward": "next interval", "returned": "discounted", "fabric": "all queues"}
_HEADINGS = {
    "returned": "return",
    "slowdown": "slowdown",
    "slowdown_near": "under way",
    "fct_small_ns": "small FCT",
    "fct_rest_ns": "other FCT",
}
_SYMBOLS = {True: "triangle-up", False: "triangle-down"}


def credit_tables(credit: Credit, most: int) -> Group:
    """Return the rankings, and the `most` misleading cases."""
    spec = credit.plan.decisions.trial.spec
    count = len({one.case.number for one in credit.measured})
    moved = sum(one.changed > 0 for one in credit.measured)
    lines = [
        f"{spec.tuner.name}: {len(credit.measured)} alternatives to {count} decisions, "
        f"one at a time, then {credit.plan.then}",
        f"{moved} of them changed the completion of some flow",
        _same(credit),
    ]
    for name in ("returned", "slowdown"):
        alike = ":".join(map(str, consistency(credit.measured, name)))
        what = (REWARDS | OUTCOMES)[name]
        lines.append(f"like alternatives to one decision move {what} the same:opposite way {alike}")
    if credit.invalid:
        lines.append(f"{credit.invalid} more are invalid or failed, and count nowhere")
    if not math.isnan(credit.wall_ratio):
        lines.append(f"a counterfactual took {credit.wall_ratio:.2f} times as long as its parent")
    table = plain_table(
        "Does the reward rank decisions as flows' completion does?",
        "Kendall's tau-b, its 95 % interval over decisions, and in how many cases reward and "
        "completion agree:oppose. 1: as flows do, 0: at random, -1: the opposite",
    )
    table.add_column("cases", min_width=11)
    table.add_column("reward", no_wrap=True)
    for name in OUTCOMES:
        table.add_column(_HEADINGS[name], justify="right", no_wrap=True)
    for group, reward in dict.fromkeys((one.group, one.reward) for one in credit.rankings):
        own = [one for one in credit.rankings if (one.group, one.reward) == (group, reward)]
        cases = own[0].correlation.cases
        table.add_row(f"{group} ({cases})", _SHORT[reward], *("\n".join(_cell(o)) for o in own))
    return Group(*map(Text, lines), table, _changes(credit), _misleading(credit, most))


def _changes(credit: Credit) -> Any:
    table = plain_table(
        "What the alternatives did, on average", "means over decisions with 95 % intervals"
    )
    names = ("returned", *OUTCOMES)
    table.add_column("cases", min_width=11)
    for name in names:
        table.add_column(_HEADINGS[name], justify="right", no_wrap=True)
    for group in dict.fromkeys(one.group for one in credit.changes):
        found = {one.figure: one.estimate for one in credit.changes if one.group == group}
        table.add_row(group, *(_estimate(name, found[name]) for name in names))
    return table


def _estimate(name: str, found: Estimate) -> str:
    if math.isnan(found.mean):
        return "-"
    unit, digits, scale = ("us", 2, 1e-3) if name.endswith("_ns") else ("", 4, 1.0)
    half = "" if math.isnan(found.low) else f"\n±{scale * (found.high - found.mean):.{digits}f}"
    return f"{scale * found.mean:+.{digits}f}{unit}{half}"


def _same(credit: Credit) -> str:
    if not credit.differing:
        return "unchanged, all tables are the parent's to the bit"
    return f"NOT THE SAME: unchanged, these differ: {', '.join(credit.differing)}"


def _cells(one: Ranking) -> tuple[str, ...]:
    cases = f"{one.group} ({one.correlation.cases})"
    return (cases, REWARDS[one.reward], OUTCOMES[one.outcome], *_cell(one))


def _cell(one: Ranking) -> tuple[str, str, str]:
    """Return tau-b, its interval, and the counts of signs."""
    found = one.correlation
    return (
        "-" if math.isnan(found.tau) else f"{found.tau:+.2f}",
        "-" if math.isnan(found.low) else f"{found.low:.2f}..{found.high:.2f}",
        f"{one.agree}:{one.oppose}",
    )


def _misleading(credit: Credit, most: int) -> Any:
    found = credit.misleading
    harm = sum(one.slowdown > 0 for one in found)
    table = plain_table(
        f"Where the return misleads: {len(found)} cases, {harm} in which it rises with slowdown",
    )
    for heading in ("at", "queue", "held", "was", "is", "return", "slowdown", "FCT small", "rest"):
        words = ("queue", "was", "is")
        table.add_column(heading, justify="left" if heading in words else "right")
    for one in found[:most]:
        decision = one.case.decision
        table.add_row(
            format_duration(decision.at_ns, 6),
            decision.target.label,
            format_size(one.case.queue_bytes, 1),
            _short(decision.setting),
            _short(one.case.setting),
            f"{one.returned:+.3f}",
            f"{one.slowdown:+.4f}",
            _signed(one.fct_small_ns),
            _signed(one.fct_rest_ns),
        )
    return table


def _short(setting: Setting) -> str:
    low, high = (format_size(setting[name], 1) for name in ("kmin_bytes", "kmax_bytes"))
    return f"{low}-{high} {setting['pmax']:.2g}"


def _signed(ns: float) -> str:
    if math.isnan(ns):
        return "-"
    return f"{'+' if ns >= 0 else '-'}{format_duration(abs(ns), 1)}"


def credit_to_json(credit: Credit) -> dict[str, Any]:
    """Return all that was found as JSON-ready data; what is not known is null."""
    plan = credit.plan
    return {
        "parent": str(plan.decisions.trial.folder),
        "tuner": plan.decisions.trial.spec.tuner.name,
        "then": plan.then,
        "seed": plan.seed,
        "discount": plan.tuner.discount,
        "decisions": len({one.case.number for one in credit.measured}),
        "counterfactuals": len(credit.measured),
        "invalid": credit.invalid,
        "same_as_parent": not credit.differing,
        "wall_ratio": _known(credit.wall_ratio),
        "rankings": [
            {
                "cases": one.group,
                "reward": one.reward,
                "judged_by": one.outcome,
                **{name: _known(value) for name, value in vars(one.correlation).items()},
                "agree": one.agree,
                "oppose": one.oppose,
            }
            for one in credit.rankings
        ],
        "consistency": {
            name: dict(zip(("same", "opposite"), consistency(credit.measured, name), strict=True))
            for name in ("returned", *OUTCOMES)
        },
        "mean_changes": [
            {
                "cases": one.group,
                "of": one.figure,
                **{name: _known(value) for name, value in vars(one.estimate).items()},
            }
            for one in credit.changes
        ],
        "measured": [
            {name: _known(value) for name, value in _row(one).items()} for one in credit.measured
        ],
    }


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _row(one: Measured) -> dict[str, Any]:
    decision, case = one.case.decision, one.case
    return {
        "label": case.label,
        "decision": case.number,
        "at_ns": decision.at_ns,
        "queue": decision.target.label,
        "queue_bytes": case.queue_bytes,
        **{f"was_{name}": value for name, value in decision.setting.items()},
        **{f"is_{name}": value for name, value in case.setting.items()},
        "deeper": case.deeper,
        **{name: getattr(one, name) for name in (*REWARDS, *OUTCOMES)},
        "changed": one.changed,
        "unfinished": one.unfinished,
    }


def credit_data(credit: Credit) -> Data:
    """Return a row for each counterfactual, as columns."""
    rows = [_row(one) for one in credit.measured]
    return {name: [row[name] for row in rows] for name in rows[0]}


def credit_csv(credit: Credit) -> str:
    """Return a row for each counterfactual as CSV."""
    return csv_text(credit_data(credit))


def credit_page(credit: Credit) -> str:
    """Return a page: each reward's change against that of mean slowdown, and the rankings."""
    tuner = credit.plan.decisions.trial.spec.tuner.name
    pictures = Pictures()
    drawn = pictures.grid([_picture(credit, name) for name in ("returned", "fabric")])
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(one)) + "</tr>"
        for one in credit.rankings
    )
    heads = "".join(
        f"<th>{name}</th>"
        for name in ("cases", "reward", "judged by", "tau-b", "95 %", "agree:oppose")
    )
    title = f"Does {tuner}'s reward rank decisions as flows' completion does?"
    said = escape(
        f"{len(credit.measured)} alternatives, one decision changed at a time, then "
        f"{credit.plan.then}. {_same(credit).capitalize()}."
    )
    body = (
        f"<header><h1>{escape(title)}</h1><p>{said}</p></header>{drawn}"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{pictures.script()}"
    )
    return html_document(f"{title} · closloop", body)


def _picture(credit: Credit, reward: str) -> Picture:
    (ranking,) = (
        one
        for one in credit.rankings
        if (one.group, one.reward, one.outcome) == ("all", reward, "slowdown")
    )
    figure = Figure()
    base_figure(height=420, figure=figure)
    for standing in (False, True):
        for deeper in (False, True):
            own = [
                one
                for one in credit.measured
                if (one.case.standing, one.case.deeper) == (standing, deeper)
            ]
            figure.add_trace(
                scatter(
                    x=[getattr(one, reward) for one in own],
                    y=[one.slowdown for one in own],
                    mode="markers",
                    marker={
                        "color": _COLOURS[standing],
                        "symbol": _SYMBOLS[deeper],
                        "size": 8,
                        "opacity": 0.75,
                    },
                    text=[
                        f"{one.case.decision.target.label} at "
                        f"{format_duration(one.case.decision.at_ns, 6)}"
                        for one in own
                    ],
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
        "A reward that ranks as flows do falls from top left to bottom right. Orange: packets "
        "stood in the queue; blue: it was empty. Triangles up: deeper thresholds; down: shallower."
    )
    return Picture(title, caption, figure, f"credit-{reward}", credit_data(credit))
