"""The answer to a counterfactual, as blocks for a terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestration.core.units import format_duration, format_size
from orchestration.counterfactuals.ask import Answer
from orchestration.counterfactuals.decisions import Setting
from orchestration.counterfactuals.effects import FlowTotals, Paths, totals
from orchestration.render.json import plain
from orchestration.render.numbers import NOTHING, quantity, signed
from orchestration.render.page import Block, Items, Paragraph
from orchestration.render.table import Table, Value, table


def answer_blocks(answer: Answer, most: int) -> list[Block]:
    """Return what the change did: in all, at the queue, and the `most` changed flows."""
    asked = answer.asked
    decision = asked.variant.decision
    lasting = f"{format_duration(decision.at_ns, 6)} to {format_duration(asked.until_ns, 6)}"
    parts: list[Block] = [
        Paragraph(f"{decision.target.label}, {lasting}, then {asked.then}"),
        Items([f"was {_setting(decision.setting)}", f"is {_setting(asked.variant.setting)}"]),
        _totals(answer),
    ]
    if answer.before and answer.after:
        parts.append(_queue(answer))
    if len(answer.flows.most_changed(most)):
        parts.append(_flows(answer, most))
    if answer.verified:
        differing = ", ".join(answer.verified)
        text = f"NOT THE SAME: with the decision unchanged, these differ: {differing}"
        parts.append(Paragraph(text))
    elif answer.verified is not None:
        text = "verified: with the decision unchanged, all tables are the parent's to the bit"
        parts.append(Paragraph(text))
    if (ratio := _ratio(answer)) is not None:
        parts.append(Paragraph(f"it took {ratio:.2f} times as long as its parent"))
    return parts


def answer_to_json(answer: Answer, most: int) -> dict[str, Any]:
    """Return the answer as JSON-ready data; what is not known is null."""
    asked, flows = answer.asked, answer.flows
    decision = asked.variant.decision
    paths = Paths(asked.decisions.trial.testbed)
    data = {
        "parent": str(asked.decisions.trial.folder),
        "trial": str(answer.trial.folder),
        "valid": answer.trial.stamp.valid,
        "then": asked.then,
        "decision": {
            "knob": decision.target.knob.name,
            "target": decision.target.label,
            "at_ns": decision.at_ns,
            "until_ns": asked.until_ns,
            "was": decision.setting,
            "is": asked.variant.setting,
        },
        "flows": asdict(totals(flows)),
        "under_way": asdict(totals(flows, flows.around(decision.at_ns, asked.until_ns))),
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
            for row in flows.most_changed(most)
        ],
        "queue": None
        if answer.before is None or answer.after is None
        else {"before": asdict(answer.before), "after": asdict(answer.after)},
        "same_as_parent": None if answer.verified is None else not answer.verified,
        "differing": list(answer.verified or ()),
        "wall_ratio": _ratio(answer),
    }
    return dict(plain(data))


def _setting(setting: Setting) -> str:
    shown = {"bytes": format_size, "ns": format_duration}
    words = []
    for name, value in setting.items():
        stem, _, unit = name.rpartition("_")
        words.append(f"{stem} {shown[unit](value)}" if unit in shown else f"{name} {value:g}")
    return ", ".join(words)


def _totals(answer: Answer) -> Table:
    decision, flows = answer.asked.variant.decision, answer.flows
    near = flows.around(decision.at_ns, answer.asked.until_ns)
    rows = [["all", *_cells(totals(flows))], ["under way then", *_cells(totals(flows, near))]]
    heads = ("flows", "changed", "better", "worse", "sum of FCT", "mean", "mean slowdown")
    caption = "changes are over the flows that were done in both trials"
    return table(("",), heads, rows, "Flows", caption)


def _cells(found: FlowTotals) -> list[Value]:
    lost = f" (+{found.no_longer} not done)" if found.no_longer else ""
    return [
        f"{found.flows:,}",
        f"{found.changed:,}{lost}",
        f"{found.better:,}",
        f"{found.worse:,}",
        signed(found.sum_fct_ns, "ns"),
        signed(found.mean_fct_ns, "ns"),
        signed(found.mean_slowdown, "ratio", 4),
    ]


def _queue(answer: Answer) -> Table:
    rows = [
        [
            name,
            *(f"{n:,}" if n >= 0 else NOTHING for n in (one.marked_packets, one.dropped_packets)),
            format_size(one.sent_bytes) if one.sent_bytes >= 0 else NOTHING,
            quantity(one.mean_bytes, "bytes"),
            quantity(one.most_bytes, "bytes"),
        ]
        for name, one in (("was", answer.before), ("is", answer.after))
        if one is not None
    ]
    title = f"At {answer.asked.variant.decision.target.label} in that time"
    return table(("",), ("marked", "dropped", "sent", "mean queue", "longest"), rows, title)


def _flows(answer: Answer, most: int) -> Table:
    flows, paths = answer.flows, Paths(answer.asked.decisions.trial.testbed)
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
        for row in flows.most_changed(most)
    ]
    caption = "through: whether the flow's packets pass the queue, by its shortest paths"
    words = ("flow", "from", "to", "through")
    figures = ("size", "start", "was", "is", "slowdown")
    return table(words, figures, rows, "Most changed", caption)


def _passes(answer: Answer, paths: Paths, row: int) -> str | None:
    target = answer.asked.variant.decision.target
    if target.knob.scope != "queue":
        return None
    return paths.passes(target.index, answer.flows.src[row], answer.flows.dst[row])


def _ratio(answer: Answer) -> float | None:
    trials = (answer.asked.decisions.trial, answer.trial)
    before, after = (trial.facts.get("wall_s") for trial in trials)
    return after / before if before and after else None
