"""RED queues of a Linux switch: read all of them, set some of them, many times a second.

    red.open   {queues: [[interface, handle], ...]} -> as red.read, and "in_asic": whether an ASIC
               does the marking
    red.read   -> {"t_ns": CLOCK_MONOTONIC before the reading, "took_ns": how long it took,
                   "rows": [row, ...]}
    red.set    {changes: [[index, kmin_bytes, kmax_bytes, max_p], ...]} -> as red.read, afterwards

A row is [backlog bytes, bytes, packets, marked, dropped, kmin_bytes, kmax_bytes, max_p] of one
queue, in the order of `red.open`. Counters are the kernel's own: packets, marks and drops wrap at
32 bits. A change does not drop queued packets.

On a switch whose ASIC forwards (switchdev), the kernel's own RED sees no packet. So every reading
checks that the driver has offloaded RED to the ASIC (TCA_HW_OFFLOAD, net/sched/sch_api.c): a driver
may refuse new parameters, and the kernel then applies them only to its own RED, without an error
(red_offload, net/sched/sch_red.c).
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from ..linux.netlink import RouteSocket, interface_index
from ..linux.qdiscs import Qdisc, qdiscs, red_change, red_parameters
from ..main import Agent, Operation, OperationError
from ..small_files import text

NET = "/sys/class/net"


class OpenedQueue(NamedTuple):
    """A queue that was opened: its name in errors, its interface's index, its qdisc's handle."""

    name: str
    ifindex: int
    handle: int


class Queues:
    """Opened queues, whose qdiscs are of one `kind`; errors call one a `description`."""

    kind: str
    description: str

    def __init__(self) -> None:
        self._socket = RouteSocket()
        self._queues: list[OpenedQueue] = []

    def _locate(self, request: dict[str, Any]) -> dict[tuple[int, int], Qdisc]:
        """Remember the queues; return their qdiscs by interface and handle.

        Raises OperationError if one does not exist.
        """
        self._queues = []
        for interface, handle in request["queues"]:
            try:
                index = interface_index(interface)
            except OSError:
                raise OperationError(
                    f"has no interface {interface}", "correct closloop_links in the inventory"
                ) from None
            self._queues.append(OpenedQueue(f"{interface} ({int(handle):#x})", index, int(handle)))
        return self._read_qdiscs()

    def _read_qdiscs(self) -> dict[tuple[int, int], Qdisc]:
        present = {(q.ifindex, q.handle): q for q in qdiscs(self._socket) if q.kind == self.kind}
        for queue in self._queues:
            if (queue.ifindex, queue.handle) not in present:
                raise OperationError(
                    f"has no {self.description} at {queue.name}",
                    "run `closloop provision` on the inventory",
                )
        return present

    def _changes(self, request: dict[str, Any]) -> list[tuple[int, int, int, int]]:
        """Return the requested changes. Raises OperationError if one is impossible."""
        for index, kmin_bytes, kmax_bytes, share in request["changes"]:
            if not 0 <= kmin_bytes <= kmax_bytes < 2**32 or not 0 < share < 2**32:
                raise OperationError(
                    f"refuses kmin {kmin_bytes}, kmax {kmax_bytes}, max_p {share} at "
                    f"{self._queues[index].name}",
                    "0 <= kmin <= kmax, and a probability above 0",
                )
        return [(index, kmin, kmax, share) for index, kmin, kmax, share in request["changes"]]


class RedQueues(Queues):
    """Opened RED queues."""

    kind, description = "red", "RED queue"

    def __init__(self, net: str = NET) -> None:
        super().__init__()
        self._net = net
        self._asic_ports: set[int] = set()
        self._parents: list[int] = []

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open the queues and read them. Raises OperationError if one does not exist."""
        self._asic_ports = {
            interface_index(interface)
            for interface, _ in request["queues"]
            if is_asic_port(os.path.join(self._net, interface))
        }
        present = self._locate(request)
        reds = [present[queue[1:]] for queue in self._queues]
        self._parents = [red.parent for red in reds]
        in_asic = bool(present) and all(red.offloaded for red in reds)
        return {**self.read(request), "in_asic": in_asic}

    def read(self, _: dict[str, Any]) -> dict[str, Any]:
        """Read all queues once."""
        t_ns = time.monotonic_ns()
        present = self._read_qdiscs()
        took_ns = time.monotonic_ns() - t_ns
        rows = [_row(present[queue[1:]]) for queue in self._queues]
        return {"t_ns": t_ns, "took_ns": took_ns, "rows": rows}

    def set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Set thresholds of some queues, and read all queues."""
        batch = [
            red_change(*self._queues[index][1:], self._parents[index], kmin, kmax, max_p)
            for index, kmin, kmax, max_p in self._changes(request)
        ]
        self._socket.request(batch)
        return self.read(request)

    def _read_qdiscs(self) -> dict[tuple[int, int], Qdisc]:
        present = super()._read_qdiscs()
        for queue in self._queues:
            if queue.ifindex in self._asic_ports and not present[queue[1:]].offloaded:
                raise OperationError(
                    f"RED at {queue.name} is not in the switch's ASIC, which forwards packets "
                    "without the kernel's RED",
                    f"ethtool -K {queue.name.split()[0]} hw-tc-offload on; the kernel's log says "
                    "what the driver does not accept (closloop_shape is for links without a rate)",
                )
        return present


def is_asic_port(folder: str) -> bool:
    """Return whether an interface is a switch ASIC's port, by its folder in /sys/class/net.

    For other interfaces, reading the file fails with EOPNOTSUPP.
    """
    return bool(text(os.path.join(folder, "phys_switch_id")))


def _row(queue: Qdisc) -> list[int]:
    red = red_parameters(queue.options)
    return [
        queue.backlog, queue.bytes_, queue.packets, queue.red_marked, queue.drops,
        red.kmin_bytes, red.kmax_bytes, red.max_p,
    ]  # fmt: skip


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    queues = RedQueues()
    return {"red.open": queues.open, "red.read": queues.read, "red.set": queues.set}
