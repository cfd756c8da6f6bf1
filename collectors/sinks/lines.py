"""InfluxDB's line protocol: columns of a measurement as lines of text, one per point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import ECN, KNOBS
from orchestration.core.signals import TABLE_OF, TARGET_COLUMNS, Scope, names, sampled_scopes

# int, int that may be missing (-1 in the tables), float, text, bool.
Kind = Literal["int", "int?", "float", "text", "bool"]

# Every point has these: the campaign, the trial's id, and which run of the trial it is (`run_tag`).
COMMON_TAGS = ("campaign", "trial", "run")
# A row's number in its table, where rows are in order of events.
ROW = "row"


@dataclass(frozen=True)
class Measurement:
    """A measurement: the table that it holds ("" if none), its own tags, its fields.

    `time` is the field from which a point's time is made, in ns of the trial's clock.
    """

    name: str
    table: str
    tags: tuple[str, ...]
    fields: Mapping[str, Kind]
    time: str = "t_ns"


# The names, after "closloop_", of the measurements of samples.
_OF_SCOPE: dict[Scope, str] = {
    "queue": "port",
    "priority": "pause",
    "switch": "switch",
    "host": "host",
}
SAMPLES: dict[Scope, Measurement] = {
    scope: Measurement(
        f"closloop_{_OF_SCOPE[scope]}",
        TABLE_OF[scope],
        TARGET_COLUMNS[scope],
        {"t_ns": "int", **dict.fromkeys(names(scope), "int?")},
    )
    for scope in sampled_scopes()
}
PORT = SAMPLES["queue"]
FLOW = Measurement(
    "closloop_flow",
    "flows",
    ("class",),
    {
        "flow_id": "int",
        "start_ns": "int",
        "src": "text",
        "dst": "text",
        "bytes": "int",
        "sent_ns": "int?",
        "end_ns": "int?",
        "fct_ns": "int?",
        "ideal_ns": "int",
        "retransmits": "int",
        "status": "text",
    },
    time="start_ns",
)
# By knob. That of ECN keeps its name from before there were other knobs.
ACTIONS = {
    knob.name: Measurement(
        "closloop_action" if knob is ECN else f"closloop_action_{knob.name}",
        knob.table,
        TARGET_COLUMNS[knob.scope],
        {
            **dict.fromkeys(("t_ns", "decided_ns", "applied_ns"), "int"),
            **{one.name: "int" if one.dtype == "int64" else "float" for one in knob.columns},
            ROW: "int",
        },
    )
    for knob in KNOBS.values()
}
EVENT = Measurement(
    "closloop_event", "events", ("kind",), {"t_ns": "int", "detail": "text", ROW: "int"}
)
FILE = Measurement(
    "closloop_file",
    "",
    ("file",),
    {"part": "int", "parts": "int", "text": "text", "sha256": "text"},
    time="part",
)
# The measurements that hold tables, in the order in which an archive is sent.
OF_TABLES = (*SAMPLES.values(), *ACTIONS.values(), FLOW, EVENT)
# Written last: a trial that has this point is complete in the database. `rows_…` are its sizes.
TRIAL = Measurement(
    "closloop_trial",
    "",
    ("testbed", "backend", "tuner"),
    {
        "seed": "int",
        "repeat": "int",
        "started_ns": "int",
        "duration_ns": "int",
        "valid": "bool",
        "reasons": "text",
        "wall_s": "float",
        **{f"rows_{one.table}": "int" for one in OF_TABLES},
        "parts": "int",
    },
    time="",
)
MEASUREMENTS = {one.name: one for one in (*OF_TABLES, FILE, TRIAL)}


def run_tag(started_ns: int) -> str:
    """Return the tag `run` of a trial that started at `started_ns`, ns since 1970 (UTC).

    It distinguishes the runs of a trial. If one failed and was repeated, only the last is archived.
    """
    seconds, rest = divmod(started_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{rest:09}Z"


Column = NDArray[Any]
# A string field may hold 64 KB; beyond that the server refuses the point.
TEXT_BYTES = 60_000

_MISSING = -1
_TAG = str.maketrans({",": r"\,", " ": r"\ ", "=": r"\=", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
_TEXT = str.maketrans({'"': r"\"", "\\": "\\\\"})


def series(measurement: str, tags: Mapping[str, str]) -> str:
    """Return the beginning of a series' lines: measurement and tags, without empty tags."""
    words = [f"{key}={_tag(value)}" for key, value in tags.items() if value]
    return ",".join([measurement, *words])


def _tag(value: str) -> str:
    escaped = value.translate(_TAG)
    # A backslash at the end would escape the comma that follows.
    return escaped + r"\ " if escaped.endswith("\\") else escaped


def text_field(value: str) -> str:
    """Return a text as a field's value, cut at `TEXT_BYTES`."""
    if len(value) > TEXT_BYTES // 4:
        value = value.encode()[:TEXT_BYTES].decode(errors="ignore")
    return f'"{value.translate(_TEXT)}"'


def unique_times(t_ns: Column, codes: Column) -> Column:
    """Return the times of points, made unique within each series, shape (rows,).

    `codes` has each row's series. A point keeps its time unless that is not after the point before
    it; then it gets the next ns. Two points of one series and time would be one in the database.
    """
    times = np.array(t_ns, dtype=np.int64)
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    for rows in np.split(order, ends):
        number = np.arange(len(rows))
        times[rows] = np.maximum.accumulate(times[rows] - number) + number
    return times


def encode(
    measurement: Measurement,
    begins: Sequence[str],
    codes: Column,
    columns: Mapping[str, Column],
    times_ns: Column,
) -> list[str]:
    """Return a line for each row. `begins[codes[i]]` is row i's `series`, `times_ns` is absolute.

    A field that is missing or NaN is left out.
    """
    if not len(times_ns):
        return []
    kinds = {name: kind for name, kind in measurement.fields.items() if name in columns}
    absent = {name: _absent(columns[name], kind) for name, kind in kinds.items()}
    kinds = {name: kind for name, kind in kinds.items() if not absent[name].all()}
    if not kinds:
        return []
    shown = {name: _shown(columns[name], kind) for name, kind in kinds.items()}
    if any(absent[name].any() for name in kinds):
        there = np.stack([~absent[name] for name in kinds], axis=1)
        return _some_absent(kinds, begins, codes, shown, there, times_ns)
    heads = [begin.replace("%", "%%") + " " for begin in begins]
    fields = ",".join(f"{name}={_mark(kind)}" for name, kind in kinds.items())
    formats = [f"{head}{fields} %d" for head in heads]
    rows = zip(*shown.values(), times_ns.tolist(), strict=True)
    if len(begins) == 1:
        form = formats[0]
        return [form % row for row in rows]
    return [formats[code] % row for code, row in zip(codes.tolist(), rows, strict=True)]


def _some_absent(
    kinds: Mapping[str, Kind],
    begins: Sequence[str],
    codes: Column,
    shown: Mapping[str, list[Any]],
    there: Column,
    times_ns: Column,
) -> list[str]:
    """Return the lines of rows of which some lack fields; `there` (rows, fields) says which."""
    names = list(kinds)
    values = list(zip(*shown.values(), strict=True))
    patterns, which = np.unique(there, axis=0, return_inverse=True)
    chosen = [np.flatnonzero(pattern).tolist() for pattern in patterns]
    forms = [",".join(f"{names[i]}={_mark(kinds[names[i]])}" for i in some) for some in chosen]
    return [
        f"{begins[code]} {forms[kind] % tuple(values[row][i] for i in chosen[kind])} {time_ns}"
        for row, (kind, code, time_ns) in enumerate(
            zip(which.ravel().tolist(), codes.tolist(), times_ns.tolist(), strict=True)
        )
        if chosen[kind]
    ]


def _absent(values: Column, kind: Kind) -> Column:
    if kind == "int?":
        return np.equal(values, _MISSING)
    if kind == "float":
        return ~np.isfinite(values)
    return np.zeros(len(values), dtype=bool)


def _mark(kind: Kind) -> str:
    return {"int": "%di", "int?": "%di", "float": "%r", "text": "%s", "bool": "%s"}[kind]


def _shown(values: Column, kind: Kind) -> list[Any]:
    plain: list[Any] = np.asarray(values).tolist()
    if kind == "text":
        return [text_field(value) for value in plain]
    if kind == "bool":
        return ["true" if value else "false" for value in plain]
    return plain
