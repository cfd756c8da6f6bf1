"""A SONiC switch's queues: reads counters, and sets WRED profiles through Redis.

    sonic.capabilities {}          what the switch offers (`places.capabilities`)
    sonic.open {queues: [[port, queue, profile], ...]}   -> {..., "about": capabilities}
    sonic.read {}                  -> a reading of the opened queues
    sonic.set {changes: [[index, kmin_bytes, kmax_bytes, pmax], ...]}   -> a reading afterwards

A reading has `rows`, one per queue: [qlen_bytes, tx_bytes, tx_packets, marked_packets,
dropped_packets, kmin_bytes, kmax_bytes, percent], null where the switch does not offer a number.
Thresholds are those in ASIC_DB: requests, as syncd reads nothing of the ASIC back. `t_ns` is when
each row's counters were read from the ASIC, on this device's CLOCK_MONOTONIC, with which SONiC
stamps them; `marks_t_ns` and `depth_t_ns` are the same of marks and depths, which have polls of
their own. Where SONiC stamps nothing, times are those of `poll_times`, null until a poll was seen.
A depth is High Frequency Telemetry's where a later one was streamed than polled (`streamed`).

`peak_bytes` are the watermarks: not depths, but the highest ones within the watermarks' last poll.
`pauses` are PFC frames received and sent, by port and priority.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..main import Agent, Operation, OperationError
from .asics import cells_of
from .poll_times import PollTimes
from .queue_objects import (
    DEPTH,
    GROUPS,
    MARKS,
    VERSION_FILE,
    QueueObjects,
    capabilities,
    find_queues,
    parse_number,
    polls_ms,
)
from .resp import ASIC_DB, CONFIG_DB, COUNTERS_DB, SOCKET, Command, Redis, RedisError
from .stream import CONSTANTS_FILE, DepthStream

_COUNTERS = ("SAI_QUEUE_STAT_BYTES", "SAI_QUEUE_STAT_PACKETS", "SAI_QUEUE_STAT_DROPPED_PACKETS")
_PEAK = "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES"
_PRIORITIES = range(8)
_PAUSES = [f"SAI_PORT_STAT_PFC_{p}_{way}_PKTS" for way in ("RX", "TX") for p in _PRIORITIES]
# The columns of a row that each group of counters fills.
_GROUPS = {"QUEUE": (1, 2, 4), "WRED_ECN_QUEUE": (3,), "PFCWD": (0,)}
_ATTRIBUTES = ("MIN_THRESHOLD", "MAX_THRESHOLD", "DROP_PROBABILITY")

# orchagent and syncd apply a change in well below a second; longer means that it was refused.
APPLY_TIMEOUT_S = 3.0
_LOOK_EVERY_S = 0.001
_RETRY_S = 0.1

# Never creates a row: a lost profile would come back with thresholds only. Writes what differs, in
# one command, and nothing if nothing does: each write makes orchagent set all fields of a profile.
_SET_EXISTING = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local changed = {}
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then
    changed[#changed + 1] = ARGV[i]
    changed[#changed + 1] = ARGV[i + 1]
  end
end
if #changed > 0 then redis.call('HSET', KEYS[1], unpack(changed)) end
return 1
"""

Values = tuple[int, int, int]  # kmin and kmax in bytes, drop probability in percent


class _Gone(OperationError):  # noqa: N818 (names what is so)
    pass


class Queues:
    """The queues that were opened. They are looked up again after a restart of Redis."""

    def __init__(
        self, redis: Redis, queues: Sequence[Any], stream: DepthStream, cell_bytes: int | None
    ) -> None:
        self._redis, self._stream = redis, stream
        self._queues = list(queues)
        self._cell_bytes = cell_bytes
        self._restarts = redis.restarts
        self._edit_ns = 0
        self._places: list[QueueObjects] = []
        self._changes: dict[str, PollTimes] = {}
        self._find()

    def _find(self) -> None:
        self._places = find_queues(self._redis, self._queues)
        self._polls_ms = polls_ms(self._redis)
        self._ports = {place.port: place.port_oid for place in self._places}
        self._changes = {group: PollTimes(len(self._places)) for group in _GROUPS}
        self._stream.find([place.oid for place in self._places], self._cell_bytes)

    def open(self) -> dict[str, Any]:
        """Read all queues. Counters and streams that were just turned on get time to begin."""
        until = time.monotonic() + APPLY_TIMEOUT_S
        while True:
            reading = self.read()
            complete = all(
                (row[0] is not None or not place.depth) and (row[3] is not None or not place.marks)
                for place, row in zip(self._places, reading["rows"])
            )
            complete = complete and self._stream.queues <= {*reading["streamed"]}
            if complete or time.monotonic() > until:
                return reading
            time.sleep(_RETRY_S)

    def read(self) -> dict[str, Any]:
        """Read all queues. Raises OperationError if a queue has no counters any more."""
        return self._steadily(self._read)

    def set(self, changes: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Set thresholds, wait until orchagent has asked the ASIC for them, and read all queues."""
        wanted = {int(index): self._values(int(index), *rest) for index, *rest in changes}
        return self._steadily(lambda: self._set(wanted))

    def _steadily(self, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call `do`, and call it again if Redis or the switch's daemons were restarted."""
        until = time.monotonic() + APPLY_TIMEOUT_S
        while True:
            try:
                result = do()
                if self._redis.restarts == self._restarts:
                    return result
            except RedisError:
                raise
            except OperationError as error:
                lost = isinstance(error, _Gone) or self._redis.restarts != self._restarts
                if not lost or time.monotonic() > until:
                    raise
            self._find_again(until)

    def _find_again(self, until: float) -> None:
        while True:
            try:
                self._find()
            except RedisError:
                raise
            except OperationError:
                # the daemons may not have filled the databases yet
                if time.monotonic() > until:
                    raise
                time.sleep(_RETRY_S)
            else:
                self._restarts = self._redis.restarts
                return

    def _values(self, index: int, kmin: Any, kmax: Any, pmax: Any) -> Values:
        if not 0 <= index < len(self._places):
            raise OperationError(f"there is no queue {index}: {len(self._places)} are open")
        low, high, share = int(kmin), int(kmax), float(pmax)
        if not (0 <= low <= high < 2**31 and 0 <= share <= 1):
            place = self._places[index]
            raise OperationError(
                f"{place.port}|{place.queue} cannot have kmin {low}, kmax {high}, pmax {share}",
                "set 0 <= kmin <= kmax < 2 GiB, and pmax from 0 to 1",
            )
        # 0 stands for the whole buffer
        return max(1, low), max(1, high), int(share * 100 + 0.5)

    # Reading

    def _read(self) -> dict[str, Any]:
        now_ns = time.monotonic_ns()
        fields = (*_COUNTERS, MARKS, DEPTH, _PEAK)
        # the stamps first: syncd writes them after the counters, so none is later than its counters
        commands: list[Command] = [(COUNTERS_DB, ("HGETALL", "COUNTERS:TIME_STAMP"))]
        commands += [
            (COUNTERS_DB, ("HMGET", f"COUNTERS:{place.oid}", *fields)) for place in self._places
        ]
        commands += [
            (COUNTERS_DB, ("HMGET", f"COUNTERS:{oid}", *_PAUSES)) for oid in self._ports.values()
        ]
        commands += self._asic_commands(range(len(self._places)))
        stamped, *replies = self._redis.run(commands)
        stamps = _stamps(stamped)
        count, ports = len(self._places), len(self._ports)
        asic = replies[count + ports :]
        rows, peaks = [], []
        first = 0
        for place, values in zip(self._places, replies):
            rows.append(self._row(place, values, asic[first]))
            first += len(place.colours)
            peaks.append(parse_number(values[5]) if "QUEUE_WATERMARK" in self._polls_ms else None)
        times = {group: self._times(group, rows, stamps, now_ns) for group in _GROUPS}
        return {
            "t_ns": times["QUEUE"],
            "marks_t_ns": times["WRED_ECN_QUEUE"],
            **self._depths(rows, times["PFCWD"]),
            "rows": rows,
            "peak_bytes": peaks,
            "pauses": _pauses(self._ports, replies[count : count + ports]),
            "restarts": self._redis.restarts,
            "edit_ns": self._edit_ns,
        }

    def _row(
        self, place: QueueObjects, values: Sequence[str | None], asic: Sequence[str | None]
    ) -> list[int | None]:
        sent, packets, dropped, marked, depth, _ = (parse_number(value) for value in values)
        thresholds = [parse_number(value) for value in asic]
        if None in (sent, packets, dropped, *thresholds):
            raise _Gone(
                f"the counters or the WRED object of queue {place.queue} of {place.port} are gone",
                "see whether the switch's containers swss, syncd and database run",
            )
        return [
            depth if place.depth else None,
            sent,
            packets,
            marked if place.marks else None,
            dropped,
            *thresholds,
        ]

    def _times(
        self,
        group: str,
        rows: Sequence[Sequence[int | None]],
        stamps: dict[str, int],
        now_ns: int,
    ) -> list[int | None]:
        """Return when each queue's numbers of a group were polled, None where that is unknown."""
        numbers = [tuple(row[column] for column in _GROUPS[group]) for row in rows]
        if group in stamps:
            times: list[int | None] = [stamps[group]] * len(rows)
        else:
            times = self._changes[group].seen(numbers, now_ns)
        return [None if None in number else at for number, at in zip(numbers, times)]

    def _depths(
        self, rows: Sequence[list[int | None]], polled_ns: Sequence[int | None]
    ) -> dict[str, Any]:
        """Put streamed depths into rows where they are later than the polled ones."""
        times, streamed = list(polled_ns), []
        for index, depth in enumerate(self._stream.depths()):
            at = times[index]
            if depth is not None and (at is None or depth[1] > at):
                rows[index][0], times[index] = depth
                streamed.append(index)
        return {"depth_t_ns": times, "streamed": streamed, "stream": self._stream.about()}

    # Setting

    def _set(self, wanted: dict[int, Values]) -> dict[str, Any]:
        if wanted:
            start_ns = time.monotonic_ns()
            self._write(wanted)
            self._await(wanted)
            self._edit_ns = max(self._edit_ns, time.monotonic_ns() - start_ns)
        return self._read()

    def _write(self, wanted: dict[int, Values]) -> None:
        """Write each profile's fields together, so that no daemon can see kmin above kmax."""
        commands = []
        for index, (kmin, kmax, percent) in wanted.items():
            place = self._places[index]
            fields: list[Any] = []
            for colour in place.colours:
                fields += [f"{colour}_min_threshold", kmin, f"{colour}_max_threshold", kmax]
                fields += [f"{colour}_drop_probability", percent]
            key = f"WRED_PROFILE|{place.profile}"
            commands.append((CONFIG_DB, ("EVAL", _SET_EXISTING, 1, key, *fields)))
        for index, done in zip(wanted, self._redis.run(commands)):
            if not done:
                raise OperationError(
                    f"the switch has lost WRED profile {self._places[index].profile}",
                    "its database was restarted or reloaded: run `closloop provision`",
                )

    def _await(self, wanted: dict[int, Values]) -> None:
        """Poll ASIC_DB until it has the requests, exactly: it is where syncd takes them from."""
        start = time.monotonic()
        waiting = set(wanted)
        while waiting:
            waited = time.monotonic() - start
            now = self._asic(waiting)
            for index in sorted(waiting):
                if now[index] == [*wanted[index]] * len(self._places[index].colours):
                    waiting.discard(index)
            if waiting and waited > APPLY_TIMEOUT_S:
                index = min(waiting)
                place, values = self._places[index], now[index]
                raise OperationError(
                    f"WRED profile {place.profile} was asked for kmin, kmax, percent of "
                    f"{wanted[index]}, but after {APPLY_TIMEOUT_S:.0f} s ASIC_DB has "
                    f"{tuple(values[:3])}",
                    "look for what orchagent refused in the switch's /var/log/syslog",
                )
            if waiting:
                time.sleep(_LOOK_EVERY_S)

    def _asic(self, indices: Iterable[int]) -> dict[int, list[int]]:
        """Return the requested kmin, kmax and percent of each colour, by queue."""
        order = list(indices)
        replies = self._redis.run(self._asic_commands(order))
        result: dict[int, list[int]] = {}
        at = 0
        for index in order:
            colours = len(self._places[index].colours)
            values = [
                parse_number(value) for reply in replies[at : at + colours] for value in reply
            ]
            at += colours
            if None in values:
                raise _Gone(
                    f"the ASIC has no WRED object for {self._places[index].profile} any more",
                    "run `closloop provision`",
                )
            result[index] = [value for value in values if value is not None]
        return result

    def _asic_commands(self, indices: Iterable[int]) -> list[Command]:
        return [
            (
                ASIC_DB,
                (
                    "HMGET",
                    f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{self._places[index].wred}",
                    *(f"SAI_WRED_ATTR_{colour.upper()}_{name}" for name in _ATTRIBUTES),
                ),
            )
            for index in indices
            for colour in self._places[index].colours
        ]


def _stamps(flat: Sequence[str]) -> dict[str, int]:
    """Return when each group of counters was last read, without groups that are not stamped."""
    found: dict[str, int] = {}
    for name, value in zip(flat[::2], flat[1::2]):
        for group, (prefix, _, _) in GROUPS.items():
            at = parse_number(value)
            if at is not None and name.startswith(f"{prefix}_") and name.endswith("_time_stamp"):
                found[group] = min(at, found.get(group, at))
    return found


def _pauses(ports: Iterable[str], replies: Sequence[Any]) -> dict[str, list[list[int | None]]]:
    half = len(_PRIORITIES)
    numbers = [[parse_number(value) for value in reply] for reply in replies]
    return {port: [values[:half], values[half:]] for port, values in zip(ports, numbers)}


def operations(
    agent: Agent,
    path: str = SOCKET,
    version_file: str = VERSION_FILE,
    constants: str = CONSTANTS_FILE,
) -> dict[str, Operation]:
    """Return the service's operations."""
    redis = Redis(path)
    stream = DepthStream(redis, agent.watch, agent.forget, constants)
    opened: list[Queues] = []
    agent.at_end(redis.close)
    agent.at_end(stream.close)

    def open_queues(request: dict[str, Any]) -> dict[str, Any]:
        said = capabilities(redis, version_file, constants)
        cells = cells_of(said["asic"], said["platform"], said["cell_bytes"])
        opened[:] = [Queues(redis, request["queues"], stream, cells.cell_bytes)]
        return {**opened[0].open(), "about": said}

    def queues() -> Queues:
        if not opened:
            raise OperationError("no queues are open", "call sonic.open first")
        return opened[0]

    return {
        "sonic.capabilities": lambda _: capabilities(redis, version_file, constants),
        "sonic.open": open_queues,
        "sonic.read": lambda _: queues().read(),
        "sonic.set": lambda request: queues().set(request["changes"]),
    }
