"""The forwarding plane under the SONiC-like switch: RED over netlink, and the kernel's counters."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestration.device import qdiscs
from orchestration.device.agent import netlink
from orchestration.model.red_law import red_max_p
from orchestration.virtual_rack.sonic_model import SwitchModel
from orchestration.virtual_rack.sonic_orchagent import Marking

_NET_DEV = Path("/proc/net/dev")
_MARKED = 12  # struct tc_red_xstats: early, pdrop, other, marked


@dataclass(frozen=True)
class QueueCounts:
    """One queue since the switch started. `depth_bytes` is what it holds now."""

    depth_bytes: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    marked_packets: int = 0
    dropped_packets: int = 0


@dataclass(frozen=True)
class PortCounts:
    """One port since the switch started, as /proc/net/dev has it."""

    rx_bytes: int = 0
    rx_packets: int = 0
    rx_errors: int = 0
    rx_drops: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    tx_errors: int = 0
    tx_drops: int = 0


class Plane(Protocol):
    """What orchagent and the counters need of a forwarding plane."""

    def mark(self, port: str, queue: int, marking: Marking | None) -> None:
        """Set RED of one queue."""

    def queues(self) -> Mapping[tuple[str, int], QueueCounts]:
        """Read every queue that packets go through, by port and number."""

    def ports(self) -> Mapping[str, PortCounts]:
        """Read every port."""


class KernelPlane:
    """The kernel's RED queues of this network namespace."""

    def __init__(self, model: SwitchModel) -> None:
        self._route = netlink.RouteSocket()
        self._index = {port.name: socket.if_nametoindex(port.name) for port in model.ports}
        self._leaves = {
            (port.name, number): leaf
            for port in model.ports
            for number, leaf in port.queues.items()
        }
        self._wide: dict[tuple[str, int, str], int] = {}

    def mark(self, port: str, queue: int, marking: Marking | None) -> None:
        """Change RED and keep what is queued. Queues that no packet goes through have none."""
        leaf = self._leaves.get((port, queue))
        if leaf is None:
            return
        never = leaf.buffer_bytes
        low, high, max_p = never, never, qdiscs.ALWAYS
        if marking is not None:
            low, high = marking.kmin_bytes, marking.kmax_bytes
            max_p = red_max_p(marking.percent / 100)
        index = self._index[port]
        request = qdiscs.red_change(index, leaf.handle, leaf.parent, low, high, max_p)
        self._route.request([request])

    def queues(self) -> dict[tuple[str, int], QueueCounts]:
        """Read every queue with one dump."""
        found = {(q.ifindex, q.handle): q for q in netlink.qdiscs(self._route) if q.kind == "red"}
        result = {}
        for (port, queue), leaf in self._leaves.items():
            item = found[self._index[port], leaf.handle]
            marked = int.from_bytes(item.xstats[_MARKED : _MARKED + 4], "little")
            result[port, queue] = QueueCounts(
                depth_bytes=item.backlog,
                tx_bytes=item.bytes_,
                tx_packets=self._widened(port, queue, "packets", item.packets),
                marked_packets=self._widened(port, queue, "marked", marked),
                dropped_packets=self._widened(port, queue, "drops", item.drops),
            )
        return result

    def _widened(self, port: str, queue: int, name: str, value: int) -> int:
        """The kernel counts these with 32 bits, an ASIC with 64."""
        last = self._wide.get((port, queue, name), 0)
        total = last + ((value - last) & 0xFFFFFFFF)
        self._wide[port, queue, name] = total
        return total

    def ports(self) -> dict[str, PortCounts]:
        """Read /proc/net/dev."""
        return read_ports(_NET_DEV.read_text(), self._index)


def read_ports(text: str, names: Mapping[str, int]) -> dict[str, PortCounts]:
    """Return the counters of some interfaces from the text of /proc/net/dev."""
    result = {}
    for line in text.splitlines()[2:]:
        name, _, values = line.partition(":")
        if name.strip() in names:
            n = [int(value) for value in values.split()]
            result[name.strip()] = PortCounts(n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11])
    return result
