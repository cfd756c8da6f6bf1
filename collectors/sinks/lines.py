"""InfluxDB's line protocol: columns of a measurement as lines of text, one per point.

A point has a measurement (like a table), tags (indexed text), fields (values) and a time. Points
with the same measurement and tags form a series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchestration.core.knobs import ECN, KNOBS
from orchestration.core.signals import TABLE_OF, TARGET_COLUMNS, Scope, names, sampled_scopes

# The types of fields. "int?" is an integer that may be missing, which is -1 in the tables.
Kind = Literal["int", "int?", "float", "text", "bool"]

# The tags of every point: the campaign, the trial's id, and the run of the trial (`run_tag`).
COMMON_TAGS = ("campaign", "trial", "run")
# The field with a row's number, for tables whose rows are in the order of events.
ROW = "row"


@dataclass(frozen=True)
class Measurement:
    """A measurement: the table that it is made from ("" if none), its tags and its fields.

    `tags` are those besides `COMMON_TAGS`. `time` is the field from which a point's time is made,
    in ns of the trial's clock.
    """

    name: str
    table: str
    tags: tuple[str, ...]
    fields: Mapping[str, Kind]
    time: str = "t_ns"


# By scope, the name of the measurement of samples, after "closloop_".
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
# The measurements of changes, by knob. That of ECN is older than the other knobs, hence its name.
ACTIONS = {
    knob.name: Measurement(
        "closloop_action" if knob is ECN else f"closloop_action_{knob.name}",
        knob.table,
        TARGET_COLUMNS[knob.scope],
        {
            **dict.fromkeys(("t_ns", "decided_ns", "applied_ns"), "int"),
            **{c.name: "int" if c.dtype == "int64" else "float" for c in knob.columns},
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
# The measurements that are made from tables, in the order in which an archive is sent.
OF_TABLES = (*SAMPLES.values(), *ACTIONS.values(), FLOW, EVENT)
# This point is written last: a trial that has it is complete in the database. The fields `rows_…`
# are the numbers of rows of its tables.
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
        **{f"rows_{measurement.table}": "int" for measurement in OF_TABLES},
        "parts": "int",
    },
    time="",
)
MEASUREMENTS = {measurement.name: measurement for measurement in (*OF_TABLES, FILE, TRIAL)}


def run_tag(started_ns: int) -> str:
    """Return the tag `run` of a trial that started at `started_ns`, ns since 1970 (UTC).

    It distinguishes the runs of a trial: a failed trial may run again. Only the last run is
    archived.
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
    """Return the beginning of all lines of a series: measurement and tags, without empty tags."""
    words = [f"{key}={_tag(value)}" for key, value in tags.items() if value]
    return ",".join([measurement, *words])


def _tag(value: str) -> str:
    escaped = value.translate(_TAG)
    # A backslash at the end would escape the comma that follows.
    return escaped + r"\ " if escaped.endswith("\\") else escaped


def text_field(value: str) -> str:
    """Return a text as the value of a field, cut after `TEXT_BYTES`."""
    if len(value) > TEXT_BYTES // 4:
        value = value.encode()[:TEXT_BYTES].decode(errors="ignore")
    return f'"{value.translate(_TEXT)}"'


def unique_times(t_ns: Column, codes: Column) -> Column:
    """Return the times of points, made unique within each series, shape (rows,).

    `codes` has the number of each row's series. A point that is not later than the point before it
    gets the next ns; the others keep their times. In the database, a point replaces another point
    of the same series and time.
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
    """Return a line for each row, without fields that are missing or NaN.

    `begins[codes[i]]` is the `series` of row i, and `times_ns` are times since 1970.
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
        present = np.stack([~absent[name] for name in kinds], axis=1)
        return _some_absent(kinds, begins, codes, shown, present, times_ns)
    heads = [begin.replace("%", "%%") + " " for begin in begins]
    fields = ",".join(f"{name}={_format(kind)}" for name, kind in kinds.items())
    formats = [f"{head}{fields} %d" for head in heads]
    rows = zip(*shown.values(), times_ns.tolist(), strict=True)
    if len(begins) == 1:
        line_format = formats[0]
        return [line_format % row for row in rows]
    return [formats[code] % row for code, row in zip(codes.tolist(), rows, strict=True)]


def _some_absent(
    kinds: Mapping[str, Kind],
    begins: Sequence[str],
    codes: Column,
    shown: Mapping[str, list[Any]],
    present: Column,
    times_ns: Column,
) -> list[str]:
    """Return the lines of rows some of which lack fields; `present` (rows, fields) says which.

    Rows with the same fields have the same format. A row without any field gives no line.
    """
    names = list(kinds)
    values = list(zip(*shown.values(), strict=True))
    patterns, pattern_of = np.unique(present, axis=0, return_inverse=True)
    fields = [np.flatnonzero(pattern).tolist() for pattern in patterns]
    formats = [
        ",".join(f"{names[field]}={_format(kinds[names[field]])}" for field in some)
        for some in fields
    ]
    return [
        f"{begins[code]} {formats[pattern] % tuple(values[row][f] for f in fields[pattern])} {t_ns}"
        for row, (pattern, code, t_ns) in enumerate(
            zip(pattern_of.ravel().tolist(), codes.tolist(), times_ns.tolist(), strict=True)
        )
        if fields[pattern]
    ]


def _absent(values: Column, kind: Kind) -> Column:
    if kind == "int?":
        return np.equal(values, _MISSING)
    if kind == "float":
        return ~np.isfinite(values)
    return np.zeros(len(values), dtype=bool)


def _format(kind: Kind) -> str:
    return {"int": "%di", "int?": "%di", "float": "%r", "text": "%s", "bool": "%s"}[kind]


def _shown(values: Column, kind: Kind) -> list[Any]:
    plain: list[Any] = np.asarray(values).tolist()
    if kind == "text":
        return [text_field(value) for value in plain]
    if kind == "bool":
        return ["true" if value else "false" for value in plain]
    return plain
