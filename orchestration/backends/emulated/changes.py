"""Changes RED thresholds, in the guest: all switches with one system call."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Sequence

import numpy as np

from collectors.readers.netlink import RECEIVE, SEND, Ring
from orchestration.backends.emulated.namespaces import await_answer
from orchestration.device import qdiscs
from orchestration.device.netlink import NLM_F_ACK
from orchestration.model.records import Ints

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
