"""Makes the ports of the data path, and reads and sets their queues.

The structs are those of `port.h` and `buffer.h`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collectors.readers.tc import QueueReading
from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.netlink import attribute
from orchestration.core.records import Floats, Ints
from orchestration.core.switch import WATCHDOG_ACTIONS, SwitchSpec

QUEUES = "/proc/closloop/queues"
KIND, HOST_KIND = "closloop", "closloop_host"
MOST_CLASSES = 8
_OPTIONS = 1
_PORT = struct.Struct("=QQQIIIHH")
_HOST = struct.Struct("=QII")
_QUEUE = struct.Struct("=II")
# struct cl_buffer_options
_BUFFER = struct.Struct("=QQIIII8IIHBB8B")
# struct cl_queue_state
QUEUE_STATE = np.dtype(
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
_COUNTERS = tuple(name for name in QUEUE_STATE.names or () if name != "max_p")


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


def queue_reading(states: np.ndarray) -> QueueReading:
    """Return the states of queues, dtype `QUEUE_STATE`, as a reading."""
    return QueueReading(
        **{name: states[name].astype(np.int64) for name in _COUNTERS},
        max_p=states["max_p"].astype(np.float64),
    )


class QueueFile:
    """All queues of a fabric, in the order of `Testbed.queues`: one system call reads or sets any.

    The queues are the first `count` of the file.
    """

    def __init__(self, count: int) -> None:
        """Open it."""
        self._fd = os.open(QUEUES, os.O_RDWR)
        self._count = count

    def read(self) -> QueueReading:
        """Read all queues, at one moment. Raises OSError if there are fewer in the kernel."""
        size = self._count * QUEUE_STATE.itemsize
        data = os.pread(self._fd, size, 0)
        if len(data) != size:
            raise OSError(f"{QUEUES} has {len(data)} bytes instead of {size}")
        return queue_reading(np.frombuffer(data, dtype=QUEUE_STATE))

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
