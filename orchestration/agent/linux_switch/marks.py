"""ECN marking on a Linux switch whose kernel has no RED: a BPF program marks instead.

    marks.open  {queues: [[interface, handle], ...], program: the object file, in base64}
                -> as marks.read
    marks.read  -> {"t_ns": CLOCK_MONOTONIC before the reading, "took_ns": how long it took,
                   "rows": [row, ...]}
    marks.set   {changes: [[index, kmin_bytes, kmax_bytes, share], ...]} -> as marks.read

A row is [backlog bytes, bytes, packets, marked, dropped, kmin_bytes, kmax_bytes, share] of one
queue, in the order of `marks.open`. `share` is 2^32 times the share marked at kmax. The program
counts marks; all other counters are those of the plain queue (bfifo) that replaces RED.

The programs (collectors/bpf/red_law.bpf.c) are attached by this agent. They are removed when it
ends, however it ends, and the ports are then as they were.
"""

from __future__ import annotations

import base64
import os
import struct
import time
from typing import Any

from ..bpf import tcx
from ..bpf.btf import VMLINUX, LayoutError, Layouts
from ..bpf.elf import ObjectError, read_program
from ..bpf.load import GPL, LoadedProgram
from ..linux.qdisc_counters import CounterReader
from ..main import Agent, Operation, OperationError
from .red import Queues

# struct marks: `marked`, `current`, three offsets, then two sets of thresholds. `current` is the
# number of the set in use.
_HEAD = struct.Struct("=QIIII")
_CURRENT_AT = 8
_THRESHOLDS = struct.Struct("=IIII")
_FIELDS = (("sk_buff", "dev"), ("net_device", "qdisc"), ("Qdisc", "qstats.backlog"))
_REMEDY = "use a kernel with RED (modprobe sch_red) and leave red out of closloop_lacks"


class Marker:
    """The marking program at one port. Its thresholds begin at the queue's limit, as RED's do.

    `words[0]` is how many packets were marked. `thresholds` are kmin, kmax and the share.
    """

    def __init__(
        self, program: LoadedProgram, ifindex: int, offsets: tuple[int, ...], limit_bytes: int
    ) -> None:
        self._program = program
        self._memory = program.memory
        # the first word is how many packets were marked
        self.words = memoryview(self._memory)[:8].cast("Q")
        _HEAD.pack_into(self._memory, 0, 0, 0, *offsets)
        self.set(limit_bytes, limit_bytes, 2**32 - 1)
        self._link = tcx.link(ifindex, program.fd)

    def set(self, kmin_bytes: int, kmax_bytes: int, share: int) -> None:
        """Change the thresholds, all three at once."""
        (current,) = struct.unpack_from("=I", self._memory, _CURRENT_AT)
        other = 1 - current
        at = _HEAD.size + other * _THRESHOLDS.size
        _THRESHOLDS.pack_into(self._memory, at, kmin_bytes, kmax_bytes, share, 0)
        struct.pack_into("=I", self._memory, _CURRENT_AT, other)
        self.thresholds = kmin_bytes, kmax_bytes, share

    def close(self) -> None:
        """Detach and remove the program."""
        self.words.release()
        os.close(self._link)
        self._program.close()


class MarkedQueues(Queues):
    """The queues that were opened, and the programs at their ports."""

    kind, description = "bfifo", "plain queue"

    def __init__(self) -> None:
        super().__init__()
        self._offsets: tuple[int, ...] = ()
        self._markers: list[Marker] = []
        self._counters = CounterReader(())

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attach the program to each queue's port. Raises OperationError if that is impossible."""
        self.close()
        qdiscs = self._locate(request)
        self._counters = CounterReader([queue[1:] for queue in self._queues])
        try:
            program = read_program(base64.b64decode(request["program"]))
            self._offsets = self._offsets or offsets()
            for queue in self._queues:
                (limit_bytes,) = struct.unpack("=I", qdiscs[queue[1:]].options)
                loaded = LoadedProgram(program, "closloop_red", GPL)
                marker = Marker(loaded, queue.ifindex, self._offsets, limit_bytes)
                self._markers.append(marker)
        except (OSError, ObjectError, LayoutError) as error:
            self.close()
            raise OperationError(
                f"its kernel does not accept the marking program: {error}", _REMEDY
            ) from None
        return self.read(request)

    def close(self) -> None:
        """Detach and remove all programs."""
        for marker in self._markers:
            marker.close()
        self._markers = []
        self._counters.close()

    def read(self, _: dict[str, Any]) -> dict[str, Any]:
        """Read all queues once."""
        t_ns = time.monotonic_ns()
        try:
            counters = self._counters.read()
        except KeyError:
            self._read_qdiscs()  # raises an error that names the missing one
            raise
        took_ns = time.monotonic_ns() - t_ns
        rows = [
            (*counted, marker.words[0], dropped, *marker.thresholds)
            for (*counted, dropped), marker in zip(counters, self._markers)
        ]
        return {"t_ns": t_ns, "took_ns": took_ns, "rows": rows}

    def set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Set thresholds of some queues, and read all queues."""
        for index, *thresholds in self._changes(request):
            self._markers[index].set(*thresholds)
        return self.read(request)


def offsets() -> tuple[int, ...]:
    """Return the offsets of kernel fields that the program needs. Raises OSError or LayoutError."""
    layouts = Layouts(VMLINUX.read_bytes())
    return tuple(layouts.offset(structure, path) for structure, path in _FIELDS)


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    queues = MarkedQueues()
    return {"marks.open": queues.open, "marks.read": queues.read, "marks.set": queues.set}
