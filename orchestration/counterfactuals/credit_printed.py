"""What `closloop credit` found: blocks for a terminal and a page, JSON and CSV."""

from __future__ import annotations

import math
from typing import Any

from orchestration.core.units import format_duration, format_size
from orchestration.counterfactuals.credit import Credit
from orchestration.counterfactuals.decisions import Setting
from orchestration.counterfactuals.ranking import OUTCOMES, REWARDS, Measured, Ranking, consistency
from orchestration.render.csv import Data, csv_text
from orchestration.render.figure import Figure, scatter
from orchestration.render.figure_style import FAINT, base_figure
from orchestration.render.html import page_html
from orchestration.render.json import plain
from orchestration.render.numbers import NOTHING, Estimate, signed
from orchestration.render.page import Block, Items, Page, Picture, Pictures, rows_of
from orchestration.render.table import Table, table

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


def credit_blocks(credit: Credit, most: int) -> list[Block]:
    """Return the rankings, and the `most` misleading cases."""
    return [Items(_lines(credit)), _rankings(credit), _changes(credit), _misleading(credit, most)]


def credit_page(credit: Credit, most: int) -> str:
    """Return the same as a page, with each reward's change against that of mean slowdown."""
    tuner = credit.plan.decisions.trial.spec.tuner.name
    lines, *tables = credit_blocks(credit, most)
    drawn = Pictures([_picture(credit, name) for name in ("returned", "fabric")])
    title = f"Does {tuner}'s reward rank decisions as flows' completion does?"
    return page_html(Page(title, "closloop credit", [lines], [drawn, *tables]))


def _lines(credit: Credit) -> list[str]:
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
    return lines


def _rankings(credit: Credit) -> Table:
    rows = []
    for group, reward in dict.fromkeys((one.group, one.reward) for one in credit.rankings):
        own = [one for one in credit.rankings if (one.group, one.reward) == (group, reward)]
        cases = own[0].correlation.cases
        rows.append([f"{group} ({cases})", _SHORT[reward], *map(_rank_text, own)])
    return table(
        ("cases", "reward"),
        [_HEADINGS[name] for name in OUTCOMES],
        rows,
        "Does the reward rank decisions as flows' completion does?",
        "Kendall's tau-b, its 95 % interval over decisions, and in how many cases reward and "
        "completion agree:oppose. 1: as flows do, 0: at random, -1: the opposite",
    )


def _rank_text(one: Ranking) -> str:
    """Return tau-b, its interval, and the counts of signs."""
    found = one.correlation
    span = NOTHING if math.isnan(found.low) else f"{found.low:.2f}..{found.high:.2f}"
    return f"{signed(found.tau, 'ratio')}\n{span}\n{one.agree}:{one.oppose}"


def _changes(credit: Credit) -> Table:
    names = ("returned", *OUTCOMES)
    rows = []
    for group in dict.fromkeys(one.group for one in credit.changes):
        found = {one.figure: one.estimate for one in credit.changes if one.group == group}
        rows.append([group, *(_estimate(name, found[name]) for name in names)])
    heads = [_HEADINGS[name] for name in names]
    caption = "means over decisions with 95 % intervals"
    return table(("cases",), heads, rows, "What the alternatives did, on average", caption)


def _estimate(name: str, found: Estimate) -> str:
    if math.isnan(found.mean):
        return NOTHING
    unit, digits, scale = ("us", 2, 1e-3) if name.endswith("_ns") else ("", 4, 1.0)
    half = "" if math.isnan(found.low) else f"\n±{scale * (found.high - found.mean):.{digits}f}"
    return f"{scale * found.mean:+.{digits}f}{unit}{half}"


def _same(credit: Credit) -> str:
    if not credit.differing:
        return "unchanged, all tables are the parent's to the bit"
    return f"NOT THE SAME: unchanged, these differ: {', '.join(credit.differing)}"


def _misleading(credit: Credit, most: int) -> Table:
    found = credit.misleading
    harm = sum(one.slowdown > 0 for one in found)
    rows = [
        [
            one.case.decision.target.label,
            _short(one.case.decision.setting),
            _short(one.case.setting),
            format_duration(one.case.decision.at_ns, 6),
            format_size(one.case.queue_bytes, 1),
            signed(one.returned, "ratio", 3),
            signed(one.slowdown, "ratio", 4),
            signed(one.fct_small_ns, "ns", 1),
            signed(one.fct_rest_ns, "ns", 1),
        ]
        for one in found[:most]
    ]
    title = f"Where the return misleads: {len(found)} cases, {harm} in which it rises with slowdown"
    figures = ("at", "held", "return", "slowdown", "FCT small", "rest")
    return table(("queue", "was", "is"), figures, rows, title)


def _short(setting: Setting) -> str:
    low, high = (format_size(setting[name], 1) for name in ("kmin_bytes", "kmax_bytes"))
    return f"{low}-{high} {setting['pmax']:.2g}"


def credit_to_json(credit: Credit) -> dict[str, Any]:
    """Return all that was found as JSON-ready data; what is not known is null."""
    plan = credit.plan
    data = {
        "parent": str(plan.decisions.trial.folder),
        "tuner": plan.decisions.trial.spec.tuner.name,
        "then": plan.then,
        "seed": plan.seed,
        "discount": plan.tuner.discount,
        "decisions": len({one.case.number for one in credit.measured}),
        "counterfactuals": len(credit.measured),
        "invalid": credit.invalid,
        "same_as_parent": not credit.differing,
        "wall_ratio": credit.wall_ratio,
        "rankings": [
            {
                "cases": one.group,
                "reward": one.reward,
                "judged_by": one.outcome,
                **vars(one.correlation),
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
                **vars(one.estimate),
            }
            for one in credit.changes
        ],
        "measured": [_row(one) for one in credit.measured],
    }
    return dict(plain(data))


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
    return rows_of(_row(one) for one in credit.measured)


def credit_csv(credit: Credit) -> str:
    """Return a row for each counterfactual as CSV."""
    return csv_text(credit_data(credit))


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
