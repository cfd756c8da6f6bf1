"""Creates the ports of the data path, and reads and sets their queues.

It also reads shared buffers, pauses and the incidents that the PFC watchdog has found. The layouts
of structs are those in `port.h`, `buffer.h` and `watchdog.c`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from collectors.incidents import KINDS, incident, pfc_outcome
from collectors.readers.tc import QueueReading
from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.netlink import attribute
from orchestration.core.parts import WATCHDOG_ACTIONS, SwitchSpec
from orchestration.core.records import Event, Floats, Ints
from orchestration.core.topology import Testbed

QUEUES = "/proc/closloop/queues"
KIND, HOST_KIND = "closloop", "closloop_host"
MAX_CLASSES = 8
_OPTIONS = 1
_PORT = struct.Struct("=QQQIIIHH")
_HOST = struct.Struct("=QII")
_QUEUE = struct.Struct("=II")
# struct cl_buffer_options
_BUFFER = struct.Struct("=QQIIII8IIHBB8B")
# struct cl_queue_state
_TOTALS = ("tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
_LEVELS = ("qlen_bytes", "kmin_bytes", "kmax_bytes", "max_p")
QUEUE_STATE = np.dtype(
    [*((name, np.uint64) for name in _TOTALS), *((name, np.uint32) for name in _LEVELS)]
)
_COUNTERS = tuple(name for name in QUEUE_STATE.names or () if name != "max_p")


class BufferOptions(NamedTuple):
    """The settings of a switch's shared buffer for one port.

    `number` is the number of the switch, `pool_bytes` its buffer without the headroom of all ports,
    and `headroom_bytes` the headroom of this port.
    """

    switch: SwitchSpec
    number: int
    pool_bytes: int
    headroom_bytes: int

    def packed(self) -> bytes:
        """Return the settings as the struct that the kernel reads."""
        spec, unused = self.switch, [0] * (MAX_CLASSES - len(self.switch.alpha))
        return _BUFFER.pack(
            spec.detect_ns if spec.lossless else 0,
            spec.restore_ns,
            self.pool_bytes,
            self.headroom_bytes,
            spec.xoff_bytes,
            spec.xon_offset_bytes,
            *(round(alpha * _ALPHA_UNIT) for alpha in spec.alpha),
            *unused,
            self.number,
            spec.quanta,
            sum(1 << klass for klass in spec.lossless),
            WATCHDOG_ACTIONS.index(spec.action),
            *spec.priorities,
            *unused,
        )


_ALPHA_UNIT = 1 << 16


def host_request(ifindex: int, *, rate_bps: int, framing_bytes: int) -> bytes:
    """Return the netlink request that makes an interface the NIC of a TCP host."""
    options = attribute(1, _HOST.pack(rate_bps, framing_bytes, 0))
    root, handle = qdiscs.TC_H_ROOT, qdiscs.LEAF_HANDLE
    return qdiscs.qdisc(ifindex, handle, root, HOST_KIND, options, nested=True)


class QueueOptions(NamedTuple):
    """A queue of a port: its buffer, and the bytes that it may send in a round (its weight)."""

    limit_bytes: int
    quantum_bytes: int


def port_request(
    ifindex: int,
    queues: Sequence[QueueOptions],
    *,
    rate_bps: int,
    delay_ns: int,
    framing_bytes: int,
    first_queue: int,
    seed: int,
    marks_departures: bool,
    buffer: BufferOptions | None = None,
) -> bytes:
    """Return the netlink request that makes an interface a port of a switch.

    `delay_ns` is the delay of its cable, `first_queue` the number of its first queue in
    `QueueFile`, and `seed` (64 bits) that of the random stream for marks. With a shared `buffer`,
    the queues' own limits do not count.
    """
    all_queues = [*queues, *[QueueOptions(0, 0)] * (MAX_CLASSES - len(queues))]
    options = _PORT.pack(
        rate_bps, delay_ns, seed, framing_bytes, first_queue, len(queues), 1, int(marks_departures)
    ) + b"".join(_QUEUE.pack(*queue) for queue in all_queues)
    options += buffer.packed() if buffer else bytes(_BUFFER.size)
    root, handle = qdiscs.TC_H_ROOT, qdiscs.LEAF_HANDLE
    return qdiscs.qdisc(ifindex, handle, root, KIND, attribute(_OPTIONS, options), nested=True)


def read_states(fd: int, count: int, state: np.dtype[Any], path: str) -> np.ndarray:
    """Read `count` structs from the beginning of a file, in one system call.

    `state` is the layout of a struct. Raises OSError if the file has fewer.
    """
    data = os.pread(fd, count * state.itemsize, 0)
    if len(data) != count * state.itemsize:
        raise OSError(f"{path} has {len(data)} bytes instead of {count * state.itemsize}")
    return np.frombuffer(data, dtype=state)


def queue_reading(states: np.ndarray) -> QueueReading:
    """Return the states of queues, dtype `QUEUE_STATE`, as a reading."""
    return QueueReading(
        **{name: states[name].astype(np.int64) for name in _COUNTERS},
        max_p=states["max_p"].astype(np.float64),
    )


class QueueFile:
    """All queues of a fabric, in the order of `Testbed.queues`.

    One system call reads all of them, or sets any of them.
    """

    def __init__(self, count: int) -> None:
        """Open the kernel's file, whose first `count` queues are those of the fabric."""
        self._fd = os.open(QUEUES, os.O_RDWR)
        self._count = count

    def read(self) -> QueueReading:
        """Read all queues at one moment. Raises OSError if the kernel has fewer queues."""
        return queue_reading(read_states(self._fd, self._count, QUEUE_STATE, QUEUES))

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set the thresholds of `queues`; all arrays have shape (changes,)."""
        columns = (queues, kmin_bytes, kmax_bytes, self.in_kernel(pmax))
        os.write(self._fd, np.column_stack(columns).astype(np.uint32).tobytes())

    @staticmethod
    def in_kernel(pmax: Floats) -> Ints:
        """Return probabilities as the kernel has them, multiplied by 2^32."""
        max_p: Ints = np.rint(np.asarray(pmax) * 2**32).astype(np.int64)
        return np.clip(max_p, 0, 2**32 - 1)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the probabilities for the kernel's values."""
        return np.asarray(max_p, dtype=np.float64) / 2**32


BUFFERS = "/proc/closloop/buffers"
INCIDENTS = "/proc/closloop/incidents"
# struct cl_pause_state
_PAUSES = ("pauses_received", "paused_ns", "pauses_sent", "pausing_ns")
PAUSE_STATE = np.dtype(
    [
        *((name, np.uint64) for name in _PAUSES),
        *((name, np.uint32) for name in ("held_bytes", "headroom_bytes")),
    ]
)
# struct cl_buffer_state
BUFFER_STATE = np.dtype(
    [("lossless_drops", np.uint64), ("buffer_bytes", np.uint32), ("headroom_bytes", np.uint32)]
)
_MAX_QUEUES = 24
INCIDENT = np.dtype(
    [
        ("at_ns", np.uint64),
        *((name, np.uint32) for name in ("kind", "count", "begin")),
        ("queue", np.uint32, (_MAX_QUEUES,)),
        ("unused", np.uint32),
    ]
)


class SharedBuffers:
    """The shared buffers of all switches of a testbed, and the incidents of PFC."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self.switches = len(testbed.switches)
        lossless = set(testbed.lossless_queues)
        self._lossless = np.array(
            [number for number, queue in enumerate(testbed.queues) if queue in lossless],
            dtype=np.int64,
        )

    def values(self, pauses: np.ndarray, buffers: np.ndarray) -> dict[str, Ints]:
        """Return the signals of lossless classes and of switches, by key.

        `pauses` has the states of all queues, dtype `PAUSE_STATE`, `buffers` those of all switches,
        dtype `BUFFER_STATE`.
        """
        lossless = pauses[self._lossless]
        of_classes = PAUSE_STATE.names if len(self._lossless) and PAUSE_STATE.names else ()
        of_switches = ("buffer_bytes", "headroom_bytes")
        return {
            **{f"priority.{name}": lossless[name].astype(np.int64) for name in of_classes},
            **{f"switch.{name}": buffers[name].astype(np.int64) for name in of_switches},
        }

    def outcome(
        self, t0_ns: int, states: np.ndarray, incidents: np.ndarray
    ) -> tuple[list[Event], dict[str, Any]]:
        """Return a trial's events and facts about PFC; time 0 is `t0_ns` on the clock of incidents.

        They have the watchdog's `incidents`, dtype `INCIDENT`, the packets of lossless classes that
        found no headroom, from the `states` of switches, dtype `BUFFER_STATE`, and findings for the
        trial's stamp.
        """
        drops = zip(self._testbed.switches, states["lossless_drops"].tolist(), strict=True)
        lossless_drops = {name: count for name, count in drops if count}
        found = []
        for row in incidents:
            numbers, begin = row["queue"][: row["count"]].tolist(), int(row["begin"])
            t_ns, kind = int(row["at_ns"]) - t0_ns, KINDS[row["kind"]]
            found.append(incident(self._testbed, t_ns, kind, numbers, begin))
        return pfc_outcome(found, lossless_drops)


def kernel_buffers(switches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel's states of switches, and the incidents that its watchdog has found."""
    fd = os.open(BUFFERS, os.O_RDONLY)
    states = read_states(fd, switches, BUFFER_STATE, BUFFERS)
    os.close(fd)
    with open(INCIDENTS, "rb") as file:
        return states, np.frombuffer(file.read(), dtype=INCIDENT)
