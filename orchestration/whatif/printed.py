"""The answer to a counterfactual, as tables for a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestration.analysis.tables import plain_table
from orchestration.analysis.words import quantity
from orchestration.model.units import format_duration, format_size
from orchestration.whatif.ask import Answer
from orchestration.whatif.decisions import Setting
from orchestration.whatif.effects import FlowTotals, Paths, totals


def answer_tables(answer: Answer, most: int) -> Group:
    """Return what the change did: in all, at the queue, and the `most` changed flows."""
    asked = answer.asked
    decision = asked.variant.decision
    lasting = f"{format_duration(decision.at_ns, 6)} to {format_duration(asked.until_ns, 6)}"
    parts: list[RenderableType] = [
        Text(f"{decision.target.label}, {lasting}, then {asked.then}"),
        Text(f"  was  {_setting(decision.setting)}"),
        Text(f"  is   {_setting(asked.variant.setting)}"),
        _totals(answer),
    ]
    if answer.before and answer.after:
        parts.append(_queue(answer))
    if len(answer.flows.most_changed(most)):
        parts.append(_flows(answer, most))
    if answer.verified is not None:
        parts.append(Text(_verdict(answer.verified)))
    if (ratio := _ratio(answer)) is not None:
        parts.append(Text(f"it took {ratio:.2f} times as long as its parent"))
    return Group(*parts)


def answer_to_json(answer: Answer, most: int) -> dict[str, Any]:
    """Return the answer as JSON-ready data; what is not known is null."""
    asked, flows = answer.asked, answer.flows
    decision = asked.variant.decision
    paths = Paths(asked.decisions.trial.testbed)
    data: dict[str, Any] = {
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
    return dict(_known(data))


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _known(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_known(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _setting(setting: Setting) -> str:
    words = []
    for name, value in setting.items():
        if name.endswith("_bytes"):
            words.append(f"{name.removesuffix('_bytes')} {format_size(value)}")
        elif name.endswith("_ns"):
            words.append(f"{name.removesuffix('_ns')} {format_duration(value)}")
        else:
            words.append(f"{name} {value:g}")
    return ", ".join(words)


def _totals(answer: Answer) -> Table:
    table = plain_table("Flows", "changes are over the flows that were done in both trials")
    for heading in (
        "",
        "flows",
        "changed",
        "better",
        "worse",
        "sum of FCT",
        "mean",
        "mean slowdown",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    decision, flows = answer.asked.variant.decision, answer.flows
    near = flows.around(decision.at_ns, answer.asked.until_ns)
    for name, found in (("all", totals(flows)), ("under way then", totals(flows, near))):
        table.add_row(name, *_cells(found))
    return table


def _cells(found: FlowTotals) -> list[str]:
    lost = f" (+{found.no_longer} not done)" if found.no_longer else ""
    return [
        f"{found.flows:,}",
        f"{found.changed:,}{lost}",
        f"{found.better:,}",
        f"{found.worse:,}",
        _signed_ns(found.sum_fct_ns),
        _signed_ns(found.mean_fct_ns),
        "-" if math.isnan(found.mean_slowdown) else f"{found.mean_slowdown:+.4f}",
    ]


def _signed_ns(ns: float) -> str:
    if math.isnan(ns):
        return "-"
    return f"{'+' if ns >= 0 else '-'}{format_duration(abs(ns))}"


def _queue(answer: Answer) -> Table:
    table = plain_table(f"At {answer.asked.variant.decision.target.label} in that time")
    for heading in ("", "marked", "dropped", "sent", "mean queue", "longest"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, one in (("was", answer.before), ("is", answer.after)):
        if one is not None:
            table.add_row(
                name,
                *(f"{n:,}" if n >= 0 else "-" for n in (one.marked_packets, one.dropped_packets)),
                format_size(one.sent_bytes) if one.sent_bytes >= 0 else "-",
                *(
                    "-" if math.isnan(b) else quantity(b, "bytes")
                    for b in (one.mean_bytes, one.most_bytes)
                ),
            )
    return table


def _flows(answer: Answer, most: int) -> Table:
    flows = answer.flows
    caption = "through: whether the flow's packets pass the queue, by its shortest paths"
    table = plain_table("Most changed", caption)
    for heading in ("flow", "from", "to", "through", "size", "start", "was", "is", "slowdown"):
        words = ("flow", "from", "to", "through")
        table.add_column(heading, justify="left" if heading in words else "right")
    paths = Paths(answer.asked.decisions.trial.testbed)
    for row in flows.most_changed(most):
        table.add_row(
            str(flows.flow_id[row]),
            flows.src[row],
            flows.dst[row],
            _passes(answer, paths, int(row)) or "-",
            format_size(flows.size_bytes[row]),
            format_duration(flows.start_ns[row]),
            format_duration(flows.before_ns[row]),
            format_duration(flows.after_ns[row]),
            f"{flows.slowdown_before[row]:.2f} -> {flows.slowdown_after[row]:.2f}",
        )
    return table


def _passes(answer: Answer, paths: Paths, row: int) -> str | None:
    target = answer.asked.variant.decision.target
    if target.knob.scope != "queue":
        return None
    return paths.passes(target.index, answer.flows.src[row], answer.flows.dst[row])


def _verdict(differing: tuple[str, ...]) -> str:
    if not differing:
        return "verified: with the decision unchanged, all tables are the parent's to the bit"
    return f"NOT THE SAME: with the decision unchanged, these differ: {', '.join(differing)}"


def _ratio(answer: Answer) -> float | None:
    walls = [t.facts.get("wall_s") for t in (answer.asked.decisions.trial, answer.trial)]
    before, after = walls
    return after / before if before and after else None
