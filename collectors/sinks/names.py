"""The names in InfluxDB: measurements, their tags and their fields.

Those of samples and actions are derived from the declared signals and knobs.

The number of tag values is bounded by testbed and campaign: devices, ports, hosts, traffic classes,
trials. Flows are distinguished by a field and by their time, never by a tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

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
