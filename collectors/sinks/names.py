"""What is written to InfluxDB: measurements, their tags, their fields. The one list of the names.

Tags are bounded by the testbed and the campaign: devices, ports, hosts, traffic classes, trials.
Flows are told apart by a field and by their time, never by a tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

# int, int that may be missing (-1 in the tables), float, text, bool.
Kind = Literal["int", "int?", "float", "text", "bool"]

# Every point has these: the campaign, the trial's id, and which run of the trial it is (`run_tag`).
COMMON_TAGS = ("campaign", "trial", "run")
_QUEUE = ("device", "port", "queue")
# A row's number in the table, where its order is that of what happened.
ROW = "row"


@dataclass(frozen=True)
class Measurement:
    """A measurement: the table that it holds ("" if none), its own tags, its fields.

    `time` is the field that a point's time is made of, ns of the trial's clock.
    """

    name: str
    table: str
    tags: tuple[str, ...]
    fields: Mapping[str, Kind]
    time: str = "t_ns"


PORT = Measurement(
    "closloop_port",
    "ports",
    _QUEUE,
    {
        "t_ns": "int",
        "qlen_bytes": "int?",
        "tx_bytes": "int?",
        "tx_packets": "int?",
        "marked_packets": "int?",
        "dropped_packets": "int?",
    },
)
HOST = Measurement(
    "closloop_host",
    "hosts",
    ("host",),
    {
        "t_ns": "int",
        "retransmits": "int?",
        "timeouts": "int?",
        "out_of_order": "int?",
        "tx_bytes": "int?",
    },
)
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
ACTION = Measurement(
    "closloop_action",
    "actions",
    _QUEUE,
    {
        "t_ns": "int",
        "decided_ns": "int",
        "applied_ns": "int",
        "kmin_bytes": "int",
        "kmax_bytes": "int",
        "pmax": "float",
        ROW: "int",
    },
)
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
# Written last: a trial that has it is in the database as a whole. `rows_…` say how much that is.
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
        "rows_ports": "int",
        "rows_hosts": "int",
        "rows_flows": "int",
        "rows_actions": "int",
        "rows_events": "int",
        "parts": "int",
    },
    time="",
)
MEASUREMENTS = {one.name: one for one in (PORT, HOST, FLOW, ACTION, EVENT, FILE, TRIAL)}


def run_tag(started_ns: int) -> str:
    """Return the tag `run` of a trial that started at `started_ns`, ns since 1970 (UTC).

    It tells a trial's runs apart: of one that failed and was run again, only the last is archived.
    """
    seconds, rest = divmod(started_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{rest:09}Z"
