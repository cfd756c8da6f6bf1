"""High Frequency Telemetry of the virtual rack's SONiC-like switch, for queues.

High Frequency Telemetry streams counters from the ASIC as IPFIX records over netlink. This module
follows sonic-swss, orchagent/high_frequency_telemetry. A profile sets whether records are sent and
how often, and its group QUEUE sets which counters of which queues. A session with the IPFIX
template is written to STATE_DB, and then records are sent.

On a real switch the vendor's driver sends the records in a family of generic netlink. A program in
user space cannot create a family. So the same messages are sent to a group of NETLINK_USERSOCK
here, and constants.yml names that in place of the family.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from orchestration.agent.linux.genetlink import GENL_HEADER, USERSOCK
from orchestration.agent.linux.netlink import HEADER
from orchestration.agent.sonic.ipfix import NANOSECONDS, TEMPLATE_SET, VERSION
from orchestration.agent.sonic.stream import GROUPS, PROFILES, SESSIONS
from orchestration.virtual_rack.sonic_model import QUEUES, ForwardingPlane, QueueCounts, SwitchModel

TABLES = (PROFILES, GROUPS)
# The multicast group of NETLINK_USERSOCK, in the switch's network namespace.
USERS_GROUP = 3

_QUEUE_TYPE = 21
# sai_queue_stat_t by the names that the group QUEUE uses. Nvidia's ASICs stream depths in cells
# only.
_STATS = {
    "PACKETS": 0,
    "BYTES": 1,
    "DROPPED_PACKETS": 2,
    "CURR_OCCUPANCY_BYTES": 0x18,
    "WRED_ECN_MARKED_PACKETS": 0x22,
    "CURR_OCCUPANCY_CELLS": 0x29,
}
_NVIDIA = ("BYTES", "PACKETS", "CURR_OCCUPANCY_CELLS", "WRED_ECN_MARKED_PACKETS")
_FIRST_TEMPLATE = 256
_FAMILY_TYPE = 0x20
_NETLINK_USERSOCK = 2
_NO_QUEUE = QueueCounts()


@dataclass
class _Session:
    """A profile with its group.

    `number` is that of the IPFIX template, `labels` are the numbers of the queues in it by
    `PORT|QUEUE`, and `next_ns` is when the next record is due (CLOCK_MONOTONIC).
    """

    number: int
    poll_ns: int
    on: bool
    labels: dict[str, int]
    counters: list[str]
    next_ns: int = 0
    sequence: int = 0
    queue_keys: list[tuple[str, int]] = field(default_factory=list)


class Telemetry:
    """orchagent's HFTelOrch, the vendor's driver and the ASIC.

    `write(key, row)` sets a row of STATE_DB; a row of None removes it. `send(message)` sends one
    IPFIX message. `log` is called with a message for each refused row.
    """

    def __init__(
        self,
        model: SwitchModel,
        plane: ForwardingPlane,
        write: Callable[[str, Mapping[str, str | bytes] | None], None],
        send: Callable[[bytes], None],
        log: Callable[[str], None],
    ) -> None:
        self._model, self._plane = model, plane
        self._write, self._send, self._log = write, send, log
        self._rows: dict[str, dict[str, str]] = {}
        self._sessions: dict[str, _Session] = {}
        self._sessions_made = 0

    def apply_row(self, key: str, row: Mapping[str, str] | None, now_ns: int) -> None:
        """Apply the present content of a row of CONFIG_DB, None if it has been removed."""
        if key.partition("|")[0] not in TABLES or not self._model.streams:
            return
        if row is None:
            self._rows.pop(key, None)
        else:
            # swss-common removes the mark of a list, `@`, from a field's name
            self._rows[key] = {name.partition("@")[0]: value for name, value in row.items()}
        profile = key.split("|")[1]
        requested = self._requested_session(profile)
        if requested is None:
            if self._sessions.pop(profile, None) is not None:
                self._write(f"{SESSIONS}|{profile}|QUEUE", None)
            return
        known = self._sessions.get(profile)
        same = known is not None and known.labels == requested.labels
        if known is not None and same and known.counters == requested.counters:
            known.on, known.poll_ns = requested.on, requested.poll_ns
        else:
            # with other queues or counters a new stream begins, with another template
            self._sessions_made += 1
            requested.number = _FIRST_TEMPLATE + self._sessions_made
            self._sessions[profile] = known = requested
        known.next_ns = now_ns
        self._write(f"{SESSIONS}|{profile}|QUEUE", self._session_row(known))

    def _requested_session(self, profile: str) -> _Session | None:
        """Return the session that the present rows request; None if one is missing or wrong."""
        profile_row = self._rows.get(f"{PROFILES}|{profile}")
        group = self._rows.get(f"{GROUPS}|{profile}|QUEUE")
        if profile_row is None or group is None:
            return None
        names = sorted(set(group.get("object_names", "").split(",")))
        counters = sorted(set(group.get("object_counters", "").split(",")))
        ports = {port.name for port in self._model.ports}
        known = {f"{port}|{queue}" for port in ports for queue in range(QUEUES)}
        offered = _NVIDIA if self._model.traits.asic == "mellanox" else _STATS
        if not set(names) <= known or not set(counters) <= set(offered):
            self._log(f"{GROUPS}|{profile}|QUEUE: refused: there is no such queue or counter")
            return None
        return _Session(
            number=0,
            poll_ns=int(profile_row.get("poll_interval", "0")) * 1000,
            on=profile_row.get("stream_state") == "enabled",
            labels={name: label for label, name in enumerate(names, 1)},
            counters=sorted(counters, key=lambda name: _STATS[name]),
            queue_keys=[(name.split("|")[0], int(name.split("|")[1])) for name in names],
        )

    def _session_row(self, session: _Session) -> dict[str, str | bytes]:
        return {
            "stream_status": "enabled" if session.on else "disabled",
            "object_names": ",".join(session.labels),
            "object_ids": ",".join(map(str, session.labels.values())),
            "session_type": "ipfix",
            "session_config": template_message(session.number, _fields(session)),
        }

    def next_ns(self) -> int | None:
        """Return the time of the next record (CLOCK_MONOTONIC), or None if there is none."""
        times = [
            session.next_ns for session in self._sessions.values() if session.on and session.poll_ns
        ]
        return min(times, default=None)

    def poll(self, now_ns: int, wall_ns: int) -> None:
        """Send the records that are due at `now_ns`, with the time `wall_ns` of the wall clock."""
        due = [s for s in self._sessions.values() if s.on and s.poll_ns and s.next_ns <= now_ns]
        queues = self._plane.queues() if due else {}
        for session in due:
            values = [
                self._counter(queues.get(queue_key, _NO_QUEUE), counter)
                for queue_key in session.queue_keys
                for counter in session.counters
            ]
            self._send(record_message(session.number, session.sequence, wall_ns, values))
            session.sequence = session.sequence + 1 & 0xFFFFFFFF
            session.next_ns += (1 + (now_ns - session.next_ns) // session.poll_ns) * session.poll_ns

    def _counter(self, counts: QueueCounts, counter: str) -> int:
        return {
            "PACKETS": counts.tx_packets,
            "BYTES": counts.tx_bytes,
            "DROPPED_PACKETS": counts.dropped_packets,
            "CURR_OCCUPANCY_BYTES": counts.depth_bytes,
            "WRED_ECN_MARKED_PACKETS": counts.marked_packets,
            "CURR_OCCUPANCY_CELLS": -(-counts.depth_bytes // self._model.traits.cell_bytes),
        }[counter]


def _fields(session: _Session) -> Iterator[tuple[int, int]]:
    """Yield label and enterprise number of each counter of a record, in their order."""
    for label in session.labels.values():
        for counter in session.counters:
            yield label, _QUEUE_TYPE << 16 | _STATS[counter]


def template_message(number: int, fields: Iterator[tuple[int, int]]) -> bytes:
    """Return an IPFIX message with a session's template: time in ns, then the counters."""
    parts = [struct.pack(">HH", NANOSECONDS, 8)]
    parts += [struct.pack(">HHI", label | 0x8000, 8, enterprise) for label, enterprise in fields]
    return _message(TEMPLATE_SET, struct.pack(">HH", number, len(parts)) + b"".join(parts), 0, 0)


def record_message(number: int, sequence: int, observed_ns: int, values: list[int]) -> bytes:
    """Return an IPFIX message with one record: `number` is that of its template."""
    content = struct.pack(f">{1 + len(values)}Q", observed_ns, *values)
    return _message(number, content, observed_ns // 10**9 & 0xFFFFFFFF, sequence)


def _message(number: int, content: bytes, export_s: int, sequence: int) -> bytes:
    size = 4 + len(content)
    head = struct.pack(">HHIII", VERSION, 16 + size, export_s, sequence, 0)
    return head + struct.pack(">HH", number, size) + content


def constants_file() -> str:
    """Return the part of /etc/sonic/constants.yml that is about this telemetry."""
    return (
        "constants:\n    high_frequency_telemetry:\n"
        f'        genl_family: "{USERSOCK}"\n        genl_multicast_group: "{USERS_GROUP}"\n'
    )


class Sender:
    """Sends messages to all listeners, as the driver does."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_USERSOCK)
        self._socket.bind((0, 0))

    def send(self, message: bytes) -> None:
        """Send one message. It is lost if nobody listens."""
        size = HEADER.size + GENL_HEADER.size + len(message)
        head = HEADER.pack(size, _FAMILY_TYPE, 0, 0, 0) + GENL_HEADER.pack(1, 1, 0)
        # the kernel has no socket of its own for this protocol. After it has delivered the message
        # to the group, it reports that as an error
        with suppress(ConnectionRefusedError):
            self._socket.sendto(head + message + bytes(-size % 4), (0, 1 << (USERS_GROUP - 1)))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
