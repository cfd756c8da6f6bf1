"""The finished trials below some paths, as tables of a database.

`trials` and `reasons` come from `trial.json`, with a row per trial and per reason. The other tables
are views over the Parquet files of all trials, with columns that identify the trial. A view is
created when a query first names it, so that files that no query needs are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestration.core.condition import labels_of
from orchestration.core.signals import FLOW_SCOPE, TABLE_OF, names, sampled_scopes
from orchestration.core.trial import checkpoint_in
from orchestration.results.found import Found
from orchestration.results.load_fact import written_shares
from orchestration.results.tables import TABLES, check_file, is_absent, no_rows_arrow

if TYPE_CHECKING:
    import duckdb
IDENTITY = ("run", "campaign", "trial")
_TEXT, _LIST = "VARCHAR", ["VARCHAR"]
_TRIALS: Mapping[str, Any] = {
    **dict.fromkeys(IDENTITY, _TEXT),
    "folder": _TEXT,
    "tuner": _TEXT,
    "checkpoint": _TEXT,
    "backend": _TEXT,
    "testbed": _TEXT,
    "seed": "BIGINT",
    "repeat": "BIGINT",
    "valid": "BOOLEAN",
    "reasons": _LIST,
    "checked": _LIST,
    "warm_up_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "drain_ns": "BIGINT",
    "sample_period_ns": "BIGINT",
    "action_period_ns": "BIGINT",
    "decision_latency_ns": "BIGINT",
    "congestion_control": _TEXT,
    "min_rto_ns": "BIGINT",
    "parent": _TEXT,
    "wall_s": "DOUBLE",
    "offered_load": "DOUBLE",
    "delivered_load": "DOUBLE",
    "discarded_load": "DOUBLE",
    "tuner_params": "JSON",
    "traffic": "JSON",
    "faults": "JSON",
    "facts": "JSON",
    "versions": "JSON",
}
_REASONS = {**dict.fromkeys(IDENTITY, _TEXT), "code": _TEXT, "severity": _TEXT, "text": _TEXT}
# The schema of tables that only the views use. It must exist.
INTERNAL = "closloop"
# Columns in which -1 or null in a file means that there is no value. They are NULL in SQL.
_UNKNOWN = {
    "flows": ("sent_ns", "end_ns", "fct_ns", "retransmits"),
    **{TABLE_OF[scope]: names(scope) for scope in (*sampled_scopes(), FLOW_SCOPE)},
}


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
    """Return the columns that identify the trial of a row, in every table."""
    return {"run": trial.run, "campaign": trial.result.spec.campaign, "trial": trial.trial}


def cell_types(found: Sequence[Found]) -> dict[str, str]:
    """Return factor -> SQL type of its values: numeric or boolean if all values are, else text."""
    values: dict[str, list[Any]] = {}
    for trial in found:
        for name, value in labels_of(trial.result.spec).items():
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
        **{name: getattr(spec, name) for name in _TRIALS if hasattr(spec, name)},
        "cell": labels_of(spec),
        **identity(trial),
        "folder": str(result.folder),
        "tuner": spec.tuner.name,
        "checkpoint": checkpoint_in(spec) or None,
        "valid": result.stamp.valid,
        "reasons": [reason.code for reason in result.stamp.reasons],
        "checked": list(result.stamp.checked),
        "congestion_control": spec.host.congestion_control,
        "min_rto_ns": spec.host.min_rto_ns,
        "wall_s": result.facts.get("wall_s"),
        **written_shares(result),
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
    """Create a table of `rows` in one statement; `shape` is the structure for `from_json`."""
    connection.execute(
        f"create table {name} as select unnest(item) from "
        "(select unnest(from_json(?::JSON, ?)) as item)",
        [json.dumps(list(rows)), json.dumps([shape])],
    )


def create_view(connection: duckdb.DuckDBPyConnection, name: str, found: Sequence[Found]) -> None:
    """Create the view of table `name` over all trials.

    Columns that files of older versions lack are NULL there.
    Raises InputError, with the file, if one is missing, damaged or of a newer closloop.
    """
    file = TABLES[name].file
    # a trial lacks the table of a knob that nothing turned
    paths = [path for trial in found if not is_absent(path := trial.result.folder / file, name)]
    for path in paths:
        check_file(path, name)
    whole = f"{INTERNAL}.{name}"
    connection.register("no_rows", no_rows_arrow(name))
    connection.execute(
        f"create or replace table {whole} as select *, null::VARCHAR as _file from no_rows"
    )
    connection.unregister("no_rows")
    files = [str(path) for path in paths]
    of_files = (
        f"read_parquet([{', '.join(map(_text, files))}], union_by_name = true, filename = '_file')"
    )
    parts = [f"from {whole}", *([f"from {of_files}"] if files else [])]
    connection.execute(
        f"create view {name} as select {', '.join(IDENTITY)}, {_columns(name)} "
        f"from ({' union all by name '.join(parts)}) join (select {', '.join(IDENTITY)}, "
        f"folder || '/{file}' as _file from trials) using (_file)"
    )


def _columns(name: str) -> str:
    unknown = _UNKNOWN.get(name, ())
    return ", ".join(
        f'nullif("{key}", -1) as "{key}"' if key in unknown else f'"{key}"'
        for key in TABLES[name].columns
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
