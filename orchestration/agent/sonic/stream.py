"""Queue depths from SONiC's High Frequency Telemetry: which ones are streamed, and their values.

This follows sonic-swss (202511 and later): orchagent/high_frequency_telemetry puts a session's
templates into STATE_DB, the vendor's driver sends IPFIX records to a multicast group of generic
netlink, and crates/countersyncd reads them; this module is another reader. A field of a template is
one counter of one queue: its element is the queue's label in the session, and its enterprise number
has the types of object and counter. (The design document has an example with these two swapped, but
not the code.) The time of a record should be ns since 1970.

A stream may stop, for example when a port goes down. The last value then keeps its time. After a
second without records the sessions are looked up again, since they may have other templates then.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..linux import genetlink
from ..linux.genetlink import USERSOCK, group_id
from ..small_files import text
from . import ipfix
from .resp import CONFIG_DB, COUNTERS_DB, STATE_DB, Redis

CONSTANTS_FILE = "/etc/sonic/constants.yml"
PROFILES, GROUPS = "HIGH_FREQUENCY_TELEMETRY_PROFILE", "HIGH_FREQUENCY_TELEMETRY_GROUP"
FAMILY, GROUP = "sonic_stel", "ipfix"


def netlink_group(constants: str = CONSTANTS_FILE) -> tuple[str, str]:
    """Return the generic netlink family and its group, as the switch's constants name them."""
    part = text(constants).partition("high_frequency_telemetry:")[2]
    named = dict(re.findall(r"^\s+(genl_\w+):\s*['\"]?([^'\"\s#]+)", part, re.MULTILINE))
    return named.get("genl_family", FAMILY), named.get("genl_multicast_group", GROUP)


def can_stream(constants: str = CONSTANTS_FILE) -> bool:
    """Return whether the netlink family exists, which the release alone does not show.

    orchagent creates the channel at its start if the ASIC can stream (HFTelOrch::isSupportedHFTel),
    and the vendor's driver then registers the family.
    """
    name, group = netlink_group(constants)
    try:
        return name == USERSOCK or bool(group_id(name, group))
    except OSError:
        return False


SESSIONS = "HIGH_FREQUENCY_TELEMETRY_SESSION_TABLE"
# SAI_OBJECT_TYPE_QUEUE << 16, and SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES and _CELLS
DEPTH_BYTES, DEPTH_CELLS = 21 << 16 | 0x18, 21 << 16 | 0x29

_BUFFER_BYTES = 4 << 20  # countersyncd's
# The time of a record in the future, or older than this, is not of the switch's wall clock.
_MAX_RECORD_AGE_NS = 10 * 10**9
_SILENT_NS = 10**9
_NTP_S = 2_208_988_800  # from 1900 to 1970

Depth = tuple[int, int]  # bytes, ns on CLOCK_MONOTONIC


class RecordClock:
    """Converts the times of records to CLOCK_MONOTONIC.

    The times should be those of the switch's wall clock. If they cannot be, `is_own` is true: they
    are of a clock of their own. Then the record that arrived soonest after its time counts as
    arrived without delay.
    """

    def __init__(self) -> None:
        self.is_own = False
        self._wall_offset_ns = self._min_offset_ns = 0
        self._has_records = False

    def arrived(self, observed_ns: int, monotonic_ns: int, wall_ns: int) -> None:
        """Take the time of a record that has just arrived, and the switch's clocks now."""
        self.is_own = self.is_own or not 0 <= wall_ns - observed_ns < _MAX_RECORD_AGE_NS
        self._wall_offset_ns = wall_ns - monotonic_ns
        offset_ns = monotonic_ns - observed_ns
        self._min_offset_ns = (
            min(self._min_offset_ns, offset_ns) if self._has_records else offset_ns
        )
        self._has_records = True

    def monotonic_ns(self, observed_ns: int) -> int:
        """Return a record's time on CLOCK_MONOTONIC."""
        return (
            observed_ns + self._min_offset_ns if self.is_own else observed_ns - self._wall_offset_ns
        )


@dataclass
class _Columns:
    """The columns of a template's records that have the time and the depths of opened queues."""

    template: ipfix.Template
    times: tuple[int, ...]  # one column in ns, or one in s and one in ns
    depths: list[tuple[int, int, int]]  # column, index of the queue, bytes per unit

    def observed_ns(self, values: Sequence[Any]) -> int:
        first = int(values[self.times[0]])
        if len(self.times) == 2:
            return first * 10**9 + int(values[self.times[1]])
        if first >> 63:  # in NTP's format, as in RFC 7011, but not in SONiC's design
            return ((first >> 32) - _NTP_S) * 10**9 + ((first & 0xFFFFFFFF) * 10**9 >> 32)
        return first


class DepthStream:
    """Receives the depths of opened queues that a session streams; `close` ends that.

    `watch(fd, ready)` and `forget(fd)` are those of the agent. `records`, `broken` and `overruns`
    count records, damaged messages, and overflows of the socket's buffer.
    """

    def __init__(
        self,
        redis: Redis,
        watch: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
        constants: str = CONSTANTS_FILE,
    ) -> None:
        self._redis, self._watch, self._forget = redis, watch, forget
        self._constants = constants
        self._socket: socket.socket | None = None
        self._buffer = bytearray(genetlink.DATAGRAM_BYTES)
        self._columns: dict[int, _Columns] = {}
        self._templates: dict[int, ipfix.Template] = {}
        self._latest: dict[int, tuple[_Columns, Sequence[Any]]] = {}
        self._clock = RecordClock()
        self._oids: Sequence[str] = ()
        self._cell_bytes: int | None = None
        self._last_record_ns = 0
        self.records = self.broken = self.overruns = 0

    def subscribe(self, oids: Sequence[str], cell_bytes: int | None) -> None:
        """Subscribe to the sessions that stream depths of these queues, given by object ids."""
        self.close()
        self._oids, self._cell_bytes = oids, cell_bytes
        self._last_record_ns = time.monotonic_ns()
        self._columns = {}
        names = self._redis.hash(COUNTERS_DB, "COUNTERS_QUEUE_NAME_MAP")
        queue_index = {oid: queue for queue, oid in enumerate(oids)}
        # HFTelOrch replaces the last colon of the name
        queues = {
            "|".join(name.rsplit(":", 1)): queue_index[oid]
            for name, oid in names.items()
            if oid in queue_index
        }
        for _, row in sessions(self._redis):
            if row.get("stream_status") == "enabled" and row.get("session_type") == "ipfix":
                self._columns |= _columns(row, queues, cell_bytes)
        self._templates = {number: item.template for number, item in self._columns.items()}
        if self._columns:
            try:
                receiver = genetlink.subscribe(*netlink_group(self._constants), _BUFFER_BYTES)
            except OSError:
                return
            self._socket = receiver
            self._watch(receiver.fileno(), self.take)

    @property
    def queues(self) -> set[int]:
        """The indices of the queues whose depths are streamed."""
        if self._socket is None:
            return set()
        return {queue for columns in self._columns.values() for _, queue, _ in columns.depths}

    def take(self) -> None:
        """Process all records that have arrived."""
        while self._socket is not None:
            try:
                size = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self.overruns += 1
                    continue
                self.close()
                return
            now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
            for payload in genetlink.payloads(bytes(self._buffer[:size])):
                self._take_message(payload, now_ns, wall_ns)

    def _take_message(self, payload: bytes, now_ns: int, wall_ns: int) -> None:
        """Keep the latest record of each template in an IPFIX message.

        `now_ns` and `wall_ns` are this device's monotonic and wall clock at its arrival. The clock
        learns from them how the ASIC's time stamps relate to the monotonic clock.
        """
        try:
            for template, values in ipfix.records(payload, self._templates):
                columns = self._columns[template.number]
                self._clock.arrived(columns.observed_ns(values), now_ns, wall_ns)
                self._latest[template.number] = columns, values
                self._last_record_ns = now_ns
                self.records += 1
        except ipfix.IpfixError:
            self.broken += 1

    def depths(self) -> list[Depth | None]:
        """Return each queue's latest depth and its time; None if none was streamed yet."""
        self.take()
        if self._columns and time.monotonic_ns() - self._last_record_ns > _SILENT_NS:
            self.subscribe(self._oids, self._cell_bytes)
        latest: list[Depth | None] = [None] * len(self._oids)
        for columns, values in self._latest.values():
            t_ns = self._clock.monotonic_ns(columns.observed_ns(values))
            for column, queue, unit in columns.depths:
                known = latest[queue]
                if known is None or known[1] < t_ns:
                    latest[queue] = int(values[column]) * unit, t_ns
        return latest

    def status(self) -> dict[str, Any]:
        """Return the stream's counters, JSON-ready."""
        return {
            "queues": len(self.queues),
            "records": self.records,
            "broken": self.broken,
            "overruns": self.overruns,
            "own_clock": self._clock.is_own,
        }

    def close(self) -> None:
        """Stop receiving."""
        if self._socket is not None:
            self._forget(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._latest.clear()
        self._clock = RecordClock()


def sessions(redis: Redis) -> list[tuple[str, dict[str, str]]]:
    """Return the profile and the row of STATE_DB of each session for queues."""
    rows = redis.rows(STATE_DB, f"{SESSIONS}|*|QUEUE")
    return [(key.split("|")[1], row) for key, row in rows.items()]


def telemetry(redis: Redis, constants: str = CONSTANTS_FILE) -> dict[str, Any]:
    """Return whether the switch can stream, and its sessions for queues, JSON-ready."""
    rows = []
    for profile, row in sessions(redis):
        fields = redis.hash(CONFIG_DB, f"{PROFILES}|{profile}")
        templates = _templates(row).values()
        numbers = {field.enterprise for template in templates for field in template.fields}
        rows.append(
            {
                "profile": profile,
                "on": row.get("stream_status") == "enabled",
                "poll_us": fields.get("poll_interval", ""),
                "depth": bool(numbers & {DEPTH_BYTES, DEPTH_CELLS}),
            }
        )
    return {"offered": can_stream(constants), "sessions": rows}


def _templates(row: dict[str, str]) -> dict[int, ipfix.Template]:
    try:
        return ipfix.templates(row.get("session_config", "").encode(errors="surrogateescape"))
    except ipfix.IpfixError:
        return {}


def _columns(
    row: dict[str, str], queues: dict[str, int], cell_bytes: int | None
) -> dict[int, _Columns]:
    """Return the columns of a session's templates, by number, that have depths of `queues`.

    `queues` has the index of each opened queue by its name.
    """
    units = {DEPTH_BYTES: 1, DEPTH_CELLS: cell_bytes}
    names, labels = row.get("object_names", "").split(","), row.get("object_ids", "").split(",")
    queue_index = {label: queues.get(name) for name, label in zip(names, labels)}
    result = {}
    for number, template in _templates(row).items():
        times = [
            [at for at, field in enumerate(template.fields) if field == wanted] for wanted in _TIMES
        ]
        depths = []
        for at, field in enumerate(template.fields):
            queue, unit = queue_index.get(str(field.element)), units.get(field.enterprise or 0)
            if queue is not None and unit and field.length in (1, 2, 4, 8):
                depths.append((at, queue, unit))
        nanoseconds, seconds, fractions = times
        stamp = nanoseconds[:1] or (seconds[:1] + fractions[:1] if seconds and fractions else [])
        if stamp and depths:
            result[number] = _Columns(template, tuple(stamp), depths)
    return result


_TIMES = (
    ipfix.Field(ipfix.NANOSECONDS, None, 8),
    ipfix.Field(ipfix.SECONDS, None, 4),
    ipfix.Field(ipfix.NANOSECONDS, None, 4),
)
