"""A SONiC switch's queues: reads counters, and sets WRED profiles through Redis.

    sonic.capabilities {}          what the switch offers (`queue_objects.capabilities`)
    sonic.open {queues: [[port, queue, profile], ...]}   -> {..., "about": capabilities}
    sonic.read {}                  -> a reading of the opened queues
    sonic.set {changes: [[index, kmin_bytes, kmax_bytes, pmax], ...]}   -> a reading afterwards

SONiC keeps its state in Redis databases: CONFIG_DB has the configuration, orchagent translates it
into objects of the ASIC in ASIC_DB, syncd applies these to the ASIC, and writes the ASIC's counters
into COUNTERS_DB at intervals (polls).

A reading has `rows`, one per queue: [qlen_bytes, tx_bytes, tx_packets, marked_packets,
dropped_packets, kmin_bytes, kmax_bytes, percent], null where the switch does not offer a number.
Thresholds are those in ASIC_DB, which are requests, because syncd reads none back from the ASIC.
`t_ns` is when each row's counters were read from the ASIC, on this device's CLOCK_MONOTONIC, with
which SONiC stamps them. `marks_t_ns` and `depth_t_ns` are the same for marks and depths, which are
polled separately. Where SONiC does not stamp, times are those of `poll_times`, null until a poll
was seen. A depth is one of High Frequency Telemetry if a later one was streamed than polled; the
indices of those queues are in `streamed`.

`peak_bytes` are watermarks: the highest depths in the interval of the watermarks' last poll.
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
_PAUSES = [
    f"SAI_PORT_STAT_PFC_{p}_{direction}_PKTS" for direction in ("RX", "TX") for p in _PRIORITIES
]
# The columns of a row that each group of counters fills.
_GROUPS = {"QUEUE": (1, 2, 4), "WRED_ECN_QUEUE": (3,), "PFCWD": (0,)}
_ATTRIBUTES = ("MIN_THRESHOLD", "MAX_THRESHOLD", "DROP_PROBABILITY")

# orchagent and syncd apply a change in well below a second; longer means that it was refused.
APPLY_TIMEOUT_S = 3.0
_POLL_INTERVAL_S = 0.001
_RETRY_S = 0.1

# Never creates a row: a lost profile would come back with thresholds only. Writes only fields that
# differ, all in one command, since each write makes orchagent set all fields of a profile.
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


class _GoneError(OperationError):
    """An object of the switch that was there when the queues were opened is missing."""


class Queues:
    """Opened queues. Their objects are looked up again after a restart of Redis or the daemons."""

    def __init__(
        self, redis: Redis, queues: Sequence[Any], stream: DepthStream, cell_bytes: int | None
    ) -> None:
        self._redis, self._stream = redis, stream
        self._queues = list(queues)
        self._cell_bytes = cell_bytes
        self._restarts = redis.restarts
        self._edit_ns = 0
        self._objects: list[QueueObjects] = []
        self._poll_times: dict[str, PollTimes] = {}
        self._find_objects()

    def _find_objects(self) -> None:
        self._objects = find_queues(self._redis, self._queues)
        self._polls_ms = polls_ms(self._redis)
        self._ports = {queue.port: queue.port_oid for queue in self._objects}
        self._poll_times = {group: PollTimes(len(self._objects)) for group in _GROUPS}
        self._stream.subscribe([queue.oid for queue in self._objects], self._cell_bytes)

    def open(self) -> dict[str, Any]:
        """Read all queues. Waits up to 3 s for counters and streams that were just turned on."""
        deadline = time.monotonic() + APPLY_TIMEOUT_S
        while True:
            reading = self.read()
            complete = all(
                (row[0] is not None or not queue.depth) and (row[3] is not None or not queue.marks)
                for queue, row in zip(self._objects, reading["rows"])
            )
            complete = complete and self._stream.queues <= {*reading["streamed"]}
            if complete or time.monotonic() > deadline:
                return reading
            time.sleep(_RETRY_S)

    def read(self) -> dict[str, Any]:
        """Read all queues. Raises OperationError if a queue no longer has counters."""
        return self._with_retries(self._read)

    def set(self, changes: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Set thresholds, wait until they are in ASIC_DB, and read all queues."""
        requested = {int(index): self._values(int(index), *rest) for index, *rest in changes}
        return self._with_retries(lambda: self._set(requested))

    def _with_retries(self, operation: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call `operation` and return its result; repeat it if Redis or the daemons restarted."""
        deadline = time.monotonic() + APPLY_TIMEOUT_S
        while True:
            try:
                result = operation()
                if self._redis.restarts == self._restarts:
                    return result
            except RedisError:
                raise
            except OperationError as error:
                lost = isinstance(error, _GoneError) or self._redis.restarts != self._restarts
                if not lost or time.monotonic() > deadline:
                    raise
            self._find_again(deadline)

    def _find_again(self, deadline: float) -> None:
        while True:
            try:
                self._find_objects()
            except RedisError:
                raise
            except OperationError:
                # the daemons may not have filled the databases yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)
            else:
                self._restarts = self._redis.restarts
                return

    def _values(self, index: int, kmin: Any, kmax: Any, pmax: Any) -> Values:
        if not 0 <= index < len(self._objects):
            raise OperationError(f"there is no queue {index}: {len(self._objects)} are open")
        low, high, share = int(kmin), int(kmax), float(pmax)
        if not (0 <= low <= high < 2**31 and 0 <= share <= 1):
            queue = self._objects[index]
            raise OperationError(
                f"{queue.port}|{queue.queue} cannot have kmin {low}, kmax {high}, pmax {share}",
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
            (COUNTERS_DB, ("HMGET", f"COUNTERS:{queue.oid}", *fields)) for queue in self._objects
        ]
        commands += [
            (COUNTERS_DB, ("HMGET", f"COUNTERS:{oid}", *_PAUSES)) for oid in self._ports.values()
        ]
        commands += self._asic_commands(range(len(self._objects)))
        stamped, *replies = self._redis.run(commands)
        stamps = _stamps(stamped)
        count, ports = len(self._objects), len(self._ports)
        asic = replies[count + ports :]
        rows, peaks = [], []
        first = 0
        for queue, values in zip(self._objects, replies):
            rows.append(self._row(queue, values, asic[first]))
            first += len(queue.colours)
            peaks.append(parse_number(values[5]) if "QUEUE_WATERMARK" in self._polls_ms else None)
        times = {group: self._times(group, rows, stamps, now_ns) for group in _GROUPS}
        return {
            "t_ns": times["QUEUE"],
            "marks_t_ns": times["WRED_ECN_QUEUE"],
            **self._depths(rows, times["PFCWD"]),
            "rows": rows,
            "peak_bytes": peaks,
            "pauses": _pause_counts(self._ports, replies[count : count + ports]),
            "restarts": self._redis.restarts,
            "edit_ns": self._edit_ns,
        }

    def _row(
        self, queue: QueueObjects, values: Sequence[str | None], asic: Sequence[str | None]
    ) -> list[int | None]:
        sent, packets, dropped, marked, depth, _ = (parse_number(value) for value in values)
        thresholds = [parse_number(value) for value in asic]
        if None in (sent, packets, dropped, *thresholds):
            raise _GoneError(
                f"the counters or the WRED object of queue {queue.queue} of {queue.port} are gone",
                "check that the switch's containers swss, syncd and database run",
            )
        return [
            depth if queue.depth else None,
            sent,
            packets,
            marked if queue.marks else None,
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
        """Return the poll time of each queue's numbers of a group, None where it is unknown."""
        numbers = [tuple(row[column] for column in _GROUPS[group]) for row in rows]
        if group in stamps:
            times: list[int | None] = [stamps[group]] * len(rows)
        else:
            times = self._poll_times[group].update(numbers, now_ns)
        return [None if None in number else at for number, at in zip(numbers, times)]

    def _depths(
        self, rows: Sequence[list[int | None]], polled_ns: Sequence[int | None]
    ) -> dict[str, Any]:
        """Put streamed depths into `rows` if they are later than the polled ones; return times."""
        times, streamed = list(polled_ns), []
        for index, depth in enumerate(self._stream.depths()):
            at = times[index]
            if depth is not None and (at is None or depth[1] > at):
                rows[index][0], times[index] = depth
                streamed.append(index)
        return {"depth_t_ns": times, "streamed": streamed, "stream": self._stream.status()}

    # Setting

    def _set(self, requested: dict[int, Values]) -> dict[str, Any]:
        if requested:
            start_ns = time.monotonic_ns()
            self._write(requested)
            self._wait_until_applied(requested)
            self._edit_ns = max(self._edit_ns, time.monotonic_ns() - start_ns)
        return self._read()

    def _write(self, requested: dict[int, Values]) -> None:
        """Write each profile's fields in one command, so that no daemon sees kmin above kmax."""
        commands = []
        for index, (kmin, kmax, percent) in requested.items():
            queue = self._objects[index]
            fields: list[Any] = []
            for colour in queue.colours:
                fields += [f"{colour}_min_threshold", kmin, f"{colour}_max_threshold", kmax]
                fields += [f"{colour}_drop_probability", percent]
            key = f"WRED_PROFILE|{queue.profile}"
            commands.append((CONFIG_DB, ("EVAL", _SET_EXISTING, 1, key, *fields)))
        for index, done in zip(requested, self._redis.run(commands)):
            if not done:
                raise OperationError(
                    f"the switch has lost WRED profile {self._objects[index].profile}",
                    "its database was restarted or reloaded: run `closloop provision`",
                )

    def _wait_until_applied(self, requested: dict[int, Values]) -> None:
        """Wait until ASIC_DB, from which syncd takes them, has exactly the requested values."""
        start = time.monotonic()
        pending = set(requested)
        while pending:
            elapsed_s = time.monotonic() - start
            now = self._asic(pending)
            for index in sorted(pending):
                if now[index] == [*requested[index]] * len(self._objects[index].colours):
                    pending.discard(index)
            if pending and elapsed_s > APPLY_TIMEOUT_S:
                index = min(pending)
                queue, values = self._objects[index], now[index]
                raise OperationError(
                    f"WRED profile {queue.profile} was asked for kmin, kmax, percent of "
                    f"{requested[index]}, but after {APPLY_TIMEOUT_S:.0f} s ASIC_DB has "
                    f"{tuple(values[:3])}",
                    "look for what orchagent refused in the switch's /var/log/syslog",
                )
            if pending:
                time.sleep(_POLL_INTERVAL_S)

    def _asic(self, indices: Iterable[int]) -> dict[int, list[int]]:
        """Return the requested kmin, kmax and percent of each colour, by queue."""
        order = list(indices)
        replies = self._redis.run(self._asic_commands(order))
        result: dict[int, list[int]] = {}
        at = 0
        for index in order:
            colours = len(self._objects[index].colours)
            values = [
                parse_number(value) for reply in replies[at : at + colours] for value in reply
            ]
            at += colours
            if None in values:
                raise _GoneError(
                    f"the ASIC no longer has a WRED object for {self._objects[index].profile}",
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
                    f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{self._objects[index].wred}",
                    *(f"SAI_WRED_ATTR_{colour.upper()}_{name}" for name in _ATTRIBUTES),
                ),
            )
            for index in indices
            for colour in self._objects[index].colours
        ]


def _stamps(flat: Sequence[str]) -> dict[str, int]:
    """Return when each group of counters was last read; groups without stamps are left out."""
    times: dict[str, int] = {}
    for name, value in zip(flat[::2], flat[1::2]):
        for group, (prefix, _, _) in GROUPS.items():
            at = parse_number(value)
            if at is not None and name.startswith(f"{prefix}_") and name.endswith("_time_stamp"):
                times[group] = min(at, times.get(group, at))
    return times


def _pause_counts(
    ports: Iterable[str], replies: Sequence[Any]
) -> dict[str, list[list[int | None]]]:
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
        about = capabilities(redis, version_file, constants)
        cells = cells_of(about["asic"], about["platform"], about["cell_bytes"])
        opened[:] = [Queues(redis, request["queues"], stream, cells.cell_bytes)]
        return {**opened[0].open(), "about": about}

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
