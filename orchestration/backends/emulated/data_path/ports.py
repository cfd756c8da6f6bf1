"""Makes the ports of the data path, and reads and sets their queues.

The structs are those of `data_path.h`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from collectors.readers.flows import FlowReading
from collectors.readers.tc import QueueReading
from inventory.switch import WATCHDOG_ACTIONS, SwitchSpec
from orchestration.device import qdiscs
from orchestration.device.netlink import attribute
from orchestration.model.records import Floats, Ints

QUEUES, SAMPLES = "/proc/closloop/queues", "/proc/closloop/samples"
KIND, HOST_KIND = "closloop", "closloop_host"
MOST_CLASSES = 8
_OPTIONS = 1
_PORT = struct.Struct("=QQQIIIHH")
_HOST = struct.Struct("=QII")
_QUEUE = struct.Struct("=II")
# struct cl_buffer_options
_BUFFER = struct.Struct("=QQIIII8IIHBB8B")
# struct cl_queue_state
_PLAN = struct.Struct("=QQII")
# The kernel keeps no more of readings until they are fetched.
_MOST_SAMPLES_BYTES = 16 << 20
_STATE = np.dtype(
    [
        ("tx_bytes", np.uint64),
        ("tx_packets", np.uint64),
        ("marked_packets", np.uint64),
        ("dropped_packets", np.uint64),
        ("qlen_bytes", np.uint32),
        ("kmin_bytes", np.uint32),
        ("kmax_bytes", np.uint32),
        ("max_p", np.uint32),
    ]
)
_COUNTERS = tuple(name for name in _STATE.names or () if name != "max_p")


class BufferOptions(NamedTuple):
    """A port's part in the shared buffer of its switch.

    `number` is that of its switch, `pool_bytes` the buffer without the headroom of its ports.
    """

    switch: SwitchSpec
    number: int
    pool_bytes: int
    headroom_bytes: int

    def packed(self) -> bytes:
        """Return it as the kernel reads it."""
        spec, room = self.switch, MOST_CLASSES - len(self.switch.alpha)
        return _BUFFER.pack(
            spec.detect_ns if spec.lossless else 0,
            spec.restore_ns,
            self.pool_bytes,
            self.headroom_bytes,
            spec.xoff_bytes,
            spec.xon_offset_bytes,
            *(round(alpha * _ALPHA_UNIT) for alpha in spec.alpha),
            *[0] * room,
            self.number,
            spec.quanta,
            sum(1 << klass for klass in spec.lossless),
            WATCHDOG_ACTIONS.index(spec.action),
            *spec.priorities,
            *[0] * room,
        )


_ALPHA_UNIT = 1 << 16


def host(ifindex: int, *, rate_bps: int, framing_bytes: int) -> bytes:
    """Return the request that makes an interface the NIC of a host that speaks TCP."""
    options = attribute(1, _HOST.pack(rate_bps, framing_bytes, 0))
    root, handle = qdiscs.TC_H_ROOT, qdiscs.LEAF_HANDLE
    return qdiscs.qdisc(ifindex, handle, root, HOST_KIND, options, nested=True)


class QueueOptions(NamedTuple):
    """A queue of a port: its room, and its share of a round."""

    limit_bytes: int
    quantum_bytes: int


def port(
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
    """Return the request that makes an interface a switch's port; `delay_ns` is its cable's.

    `first_queue` is the number of its first queue in `QueueFile`, `seed` of 64 bits begins the
    stream that marking draws from. With `buffer`, the queues' own limits do not count.
    """
    room = [*queues, *[QueueOptions(0, 0)] * (MOST_CLASSES - len(queues))]
    options = _PORT.pack(
        rate_bps, delay_ns, seed, framing_bytes, first_queue, len(queues), 1, int(marks_departures)
    ) + b"".join(_QUEUE.pack(*item) for item in room)
    options += buffer.packed() if buffer else bytes(_BUFFER.size)
    return qdiscs.qdisc(
        ifindex,
        qdiscs.LEAF_HANDLE,
        qdiscs.TC_H_ROOT,
        KIND,
        attribute(_OPTIONS, options),
        nested=True,
    )


class Sample(NamedTuple):
    """A reading that the kernel took by itself, with its time of CLOCK_MONOTONIC."""

    t_ns: int
    queues: QueueReading
    flows: FlowReading | None


def last_reading_now() -> None:
    """Let the next of the readings that were asked for be the last, because traffic has ended."""
    fd = os.open(SAMPLES, os.O_WRONLY)
    os.write(fd, b"\1")
    os.close(fd)


def _reading(states: np.ndarray) -> QueueReading:
    return QueueReading(
        **{name: states[name].astype(np.int64) for name in _COUNTERS},
        max_p=states["max_p"].astype(np.float64),
    )


class QueueFile:
    """All queues of a fabric, in the order of `Testbed.queues`: one system call reads or sets any.

    The queues are the first `count` of the file.
    """

    calls = 1

    def __init__(self, count: int, *, flows: bool = False) -> None:
        """Open it; with `flows`, the kernel counts flows (see `flow_tables`)."""
        self._fd = os.open(QUEUES, os.O_RDWR)
        self._samples = os.open(SAMPLES, os.O_RDWR)
        self._count = count
        fields: list[Any] = [("t_ns", np.uint64), ("queues", _STATE, (count,))]
        if flows:
            words = 3 * count
            fields += [("flows", np.uint32, (count, 3)), ("unused", np.uint32, (words % 2,))]
        self._flows = flows
        self._sample = np.dtype(fields)
        self._asked = 0

    def read(self) -> QueueReading:
        """Read all queues, at one moment. Raises OSError if there are fewer in the kernel."""
        size = self._count * _STATE.itemsize
        data = os.pread(self._fd, size, 0)
        if len(data) != size:
            raise OSError(f"{QUEUES} has {len(data)} bytes instead of {size}")
        return _reading(np.frombuffer(data, dtype=_STATE))

    @property
    def most_ahead(self) -> int:
        """Return how many readings can be asked for at once."""
        return _MOST_SAMPLES_BYTES // self._sample.itemsize

    def ask(self, first_ns: int, period_ns: int, readings: int) -> None:
        """Let the kernel read all queues by itself, at times of CLOCK_MONOTONIC."""
        os.write(self._samples, _PLAN.pack(first_ns, period_ns, readings, self._count))
        self._asked = readings

    def asked(self) -> list[Sample]:
        """Wait for the readings that were asked for."""
        data = os.pread(self._samples, self._asked * self._sample.itemsize, 0)
        samples = np.frombuffer(data, dtype=self._sample)
        return [
            Sample(
                int(one["t_ns"]),
                _reading(one["queues"]),
                FlowReading(*one["flows"].T.astype(np.int64)) if self._flows else None,
            )
            for one in samples
        ]

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,)."""
        columns = (queues, kmin_bytes, kmax_bytes, self.in_kernel(pmax))
        os.write(self._fd, np.column_stack(columns).astype(np.uint32).tobytes())

    @staticmethod
    def in_kernel(pmax: Floats) -> Ints:
        """Return probabilities as the kernel has them, as shares of 2^32."""
        wanted: Ints = np.rint(np.asarray(pmax) * 2**32).astype(np.int64)
        return np.clip(wanted, 0, 2**32 - 1)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the probabilities that the kernel's numbers stand for."""
        return np.asarray(max_p, dtype=np.float64) / 2**32
