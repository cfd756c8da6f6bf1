"""The queues of a fabric of Linux' own qdiscs, in the guest: read and set over netlink.

Thresholds of all switches are changed with one system call.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Sequence

import numpy as np

from collectors.readers.netlink import RECEIVE, SEND, Ring, RingExchange
from collectors.readers.tc import DUMP_QDISCS, QueueReading, RedReader
from inventory.topology import Testbed
from orchestration.backends.emulated.namespaces import await_answer
from orchestration.device import qdiscs
from orchestration.device.netlink import NLM_F_ACK
from orchestration.model.records import Floats, Ints
from orchestration.model.red_law import read_back_pmax, red_max_ps


class LinuxQueues:
    """The RED queues of all switches, in the order of `Testbed.queues`.

    `places` has (namespace, ifindex of the port) of each queue, `sockets` one of each namespace.
    """

    def __init__(
        self,
        testbed: Testbed,
        places: Sequence[tuple[int, int]],
        sockets: Sequence[socket.socket],
    ) -> None:
        switches = sorted({place for place, _ in places})
        slot = {place: i for i, place in enumerate(switches)}
        mine = [sockets[place] for place in switches]
        leaves = [
            (slot[place], ifindex, queue.klass)
            for (place, ifindex), queue in zip(places, testbed.queues, strict=True)
        ]
        self._exchange = RingExchange(mine, DUMP_QDISCS)
        self._reader = RedReader(
            self._exchange,
            [(place, ifindex, qdiscs.leaf_handle(klass)) for place, ifindex, klass in leaves],
        )
        self._changes = ThresholdChanges(
            mine,
            [
                (place, qdiscs.red_change(ifindex, qdiscs.leaf_handle(klass), parent, 0, 0, 0))
                for place, ifindex, klass in leaves
                for parent in [qdiscs.leaf_parent(klass, testbed.queues_per_port)]
            ],
        )

    @property
    def calls(self) -> int:
        """Return the system calls that the last reading took."""
        return self._exchange.calls

    def read(self) -> QueueReading:
        """Read all queues, with one dump per switch."""
        return self._reader.read()

    def set(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, pmax: Floats) -> None:
        """Set thresholds of `queues`; all arrays have shape (changes,)."""
        self._changes.send(queues, kmin_bytes, kmax_bytes, self.in_kernel(pmax))

    @staticmethod
    def in_kernel(pmax: Floats) -> Ints:
        """Return `max_P` that marks shares `pmax` at kmax: see `model.red_law`."""
        return red_max_ps(pmax)

    @staticmethod
    def from_kernel(max_p: Floats) -> Floats:
        """Return the shares that RED marks at kmax with `max_p`."""
        return read_back_pmax(max_p)


_ANSWER_BYTES = 4096
# struct nlmsghdr: the flags are the fourth 16-bit word, the sequence number the third 32-bit word
_FLAGS, _SEQUENCE = 3, 2


class ThresholdChanges:
    """Sends changes to the RED queues of several namespaces.

    `requests` has, for each queue, the socket of its namespace (index into `sockets`) and its
    `qdiscs.red_change` request. Only the numbers in the request are rewritten for each change.
    """

    def __init__(
        self, sockets: Sequence[socket.socket], requests: Sequence[tuple[int, bytes]]
    ) -> None:
        self._sockets = sockets
        self._socket_of = np.array([place for place, _ in requests], dtype=np.int64)
        whole = b"".join(request for _, request in requests)
        self._requests = np.frombuffer(whole, dtype=np.uint32).reshape(len(requests), -1)
        self._ring = Ring(2 * len(sockets))
        self._room = ctypes.create_string_buffer(_ANSWER_BYTES * len(sockets))

    def send(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, max_p: Ints) -> None:
        """Set `queues`; all arrays have shape (changes,), and `max_p` is in the kernel's format.

        Returns when every change is made. Raises NetlinkError for the first one refused.
        """
        order = np.argsort(self._socket_of[queues], kind="stable")
        places = self._socket_of[queues[order]]
        messages = self._requests[queues[order]]
        for word, values in zip(
            qdiscs.RED_CHANGE_WORDS, (kmin_bytes, kmax_bytes, max_p), strict=True
        ):
            messages[:, word] = values[order]
        used, first = np.unique(places, return_index=True)
        end = np.append(first[1:], len(places))
        messages[:, _SEQUENCE] = np.arange(len(places)) - np.repeat(first, end - first) + 1
        # only the last of a batch asks for an acknowledgement; errors come without asking
        messages.view(np.uint16)[end - 1, _FLAGS] |= NLM_F_ACK
        self._exchange(messages, used.tolist(), first.tolist(), end.tolist())

    def _exchange(
        self, messages: np.ndarray, used: list[int], first: list[int], end: list[int]
    ) -> None:
        size, source = messages.strides[0], messages.ctypes.data
        room = ctypes.addressof(self._room)
        for number, (place, begin, stop) in enumerate(zip(used, first, end, strict=True)):
            fd = self._sockets[place].fileno()
            at, bytes_ = source + begin * size, (stop - begin) * size
            self._ring.write(2 * number, SEND, fd, at, bytes_, 2 * number)
            at = room + number * _ANSWER_BYTES
            self._ring.write(2 * number + 1, RECEIVE, fd, at, _ANSWER_BYTES, 2 * number + 1)
        results = self._ring.run(2 * len(used))
        for number, (place, begin, stop) in enumerate(zip(used, first, end, strict=True)):
            if results[2 * number] < 0:
                error = -results[2 * number]
                raise OSError(error, f"sending thresholds: {os.strerror(error)}")
            at, length = number * _ANSWER_BYTES, max(0, results[2 * number + 1])
            answer = ctypes.string_at(room + at, length)
            await_answer(self._sockets[place], stop - begin, answer)
