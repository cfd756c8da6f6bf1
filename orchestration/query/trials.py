"""The tables `trials` and `reasons`: what `trial.json` says, a row a trial, a row a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestration.artifacts.found import Found

if TYPE_CHECKING:
    import duckdb

IDENTITY = ("run", "campaign", "trial")

_TEXT, _LIST = "VARCHAR", ["VARCHAR"]
_TRIALS: Mapping[str, Any] = {
    **dict.fromkeys(IDENTITY, _TEXT),
    "folder": _TEXT,
    "tuner": _TEXT,
    "backend": _TEXT,
    "testbed": _TEXT,
    "seed": "BIGINT",
    "repeat": "BIGINT",
    "valid": "BOOLEAN",
    "reasons": _LIST,
    "checked": _LIST,
    "duration_ns": "BIGINT",
    "drain_ns": "BIGINT",
    "sample_period_ns": "BIGINT",
    "action_period_ns": "BIGINT",
    "decision_latency_ns": "BIGINT",
    "congestion_control": _TEXT,
    "min_rto_ns": "BIGINT",
    "parent": _TEXT,
    "wall_s": "DOUBLE",
    "tuner_params": "JSON",
    "traffic": "JSON",
    "faults": "JSON",
    "facts": "JSON",
    "versions": "JSON",
}
_REASONS = {**dict.fromkeys(IDENTITY, _TEXT), "code": _TEXT, "severity": _TEXT, "text": _TEXT}


def create_trials(connection: duckdb.DuckDBPyConnection, found: Sequence[Found]) -> None:
    """Create the tables `trials` and `reasons` in `connection`."""
    cell = cell_types(found)
    shape = {**_TRIALS, "cell": cell} if cell else {**_TRIALS, "cell": "JSON"}
    _create(connection, "trials", shape, [_trial(trial) for trial in found])
    reasons = [
        {**identity(trial), "code": item.code, "severity": item.severity, "text": item.text}
        for trial in found
        for item in trial.result.stamp.reasons
    ]
    _create(connection, "reasons", _REASONS, reasons)


def identity(trial: Found) -> dict[str, str]:
    """Return the columns that tell a row's trial in every table."""
    return {"run": trial.run, "campaign": trial.result.spec.campaign, "trial": trial.trial}


def cell_types(found: Sequence[Found]) -> dict[str, str]:
    """Return factor -> SQL type of all trials' cells: a number or a truth if it always is one."""
    values: dict[str, list[Any]] = {}
    for trial in found:
        for name, value in trial.result.spec.cell.items():
            values.setdefault(name, []).append(value)
    return {name: _type(of) for name, of in values.items()}


def _type(values: Sequence[Any]) -> str:
    if all(isinstance(value, bool) for value in values):
        return "BOOLEAN"
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return "DOUBLE"
    return _TEXT


def _trial(trial: Found) -> dict[str, Any]:
    result, spec = trial.result, trial.result.spec
    said = spec.to_json()
    return {
        **identity(trial),
        "folder": str(result.folder),
        "tuner": spec.tuner.name,
        "valid": result.stamp.valid,
        "reasons": [reason.code for reason in result.stamp.reasons],
        "checked": list(result.stamp.checked),
        **{
            name: getattr(spec, name)
            for name in (
                "backend",
                "testbed",
                "seed",
                "repeat",
                "duration_ns",
                "drain_ns",
                "sample_period_ns",
                "action_period_ns",
                "decision_latency_ns",
                "cell",
                "parent",
            )
        },
        "congestion_control": spec.host.congestion_control,
        "min_rto_ns": spec.host.min_rto_ns,
        "wall_s": result.facts.get("wall_s"),
        "tuner_params": spec.tuner.params,
        "traffic": said["traffic"],
        "faults": said["faults"],
        "facts": dict(result.facts),
        "versions": dict(result.versions),
    }


def _create(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    shape: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Create a table of `rows` in one statement; `shape` is the structure as `from_json` has it."""
    connection.execute(
        f"create table {name} as select unnest(item) from "
        "(select unnest(from_json(?::JSON, ?)) as item)",
        [json.dumps(list(rows)), json.dumps([shape])],
    )
