"""The parts of a testbed as pure data: devices, ports with queues, links, shared buffers and PFC.

Priority flow control (PFC) makes a traffic class lossless: before a switch's buffer overflows, a
port sends a pause frame to its peer, which then stops sending packets of that class. Packets still
arrive until the peer has stopped; the buffer that is reserved for them is the headroom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["host", "switch"]


@dataclass(frozen=True)
class Device:
    """A host (tier 0) or a switch (tier 1 = leaf or edge, counted upwards)."""

    name: str
    kind: DeviceKind
    tier: int


@dataclass(frozen=True)
class Port:
    """One end of a link.

    `index` is its own index in `Testbed.ports`, `peer` that of the port at the other end, and
    `link` the index of the link. `buffer_bytes` is 0 on a host, whose queue belongs to its network
    stack.
    """

    index: int
    device: str
    name: str
    peer: int
    link: int
    rate_bps: int
    delay_ns: int
    buffer_bytes: int

    @property
    def label(self) -> str:
        """The port's full name, `leaf1:eth3`."""
        return f"{self.device}:{self.name}"


@dataclass(frozen=True)
class TrafficClass:
    """A traffic class: it has its own queue at every port, served by `weight`.

    Its flows use `congestion_control`; "" means that of the campaign's `host`.
    """

    name: str
    weight: int
    congestion_control: str = ""


@dataclass(frozen=True)
class Queue:
    """The queue of one traffic class at one switch port, with the properties of its port.

    `klass` indexes `Testbed.classes`. `class_name` is "" on a testbed without classes, where a port
    has one queue. `buffer_bytes` is the most that this queue may hold.
    """

    port: Port
    klass: int = 0
    class_name: str = ""
    buffer_bytes: int = 0

    @property
    def label(self) -> str:
        """The queue's full name: `leaf1:eth3/tcp`, or without classes that of its port."""
        return f"{self.port.label}/{self.class_name}" if self.class_name else self.port.label

    @property
    def index(self) -> int:
        """The index of its port in `Testbed.ports`."""
        return self.port.index

    @property
    def device(self) -> str:
        """The switch that it is in."""
        return self.port.device

    @property
    def name(self) -> str:
        """The name of its port, `eth3`."""
        return self.port.name

    @property
    def peer(self) -> int:
        """The port at the other end of the link."""
        return self.port.peer

    @property
    def link(self) -> int:
        """The index of the link that it sends on."""
        return self.port.link

    @property
    def rate_bps(self) -> int:
        """The port's rate in bit/s; the queue has all of it while the other queues are empty."""
        return self.port.rate_bps

    @property
    def delay_ns(self) -> int:
        """Propagation delay of the link in ns."""
        return self.port.delay_ns


@dataclass(frozen=True)
class Link:
    """A cable between two ports (indices into `Testbed.ports`)."""

    index: int
    a: int
    b: int
    rate_bps: int
    delay_ns: int


@dataclass(frozen=True)
class LinkSpec:
    """A cable as a generator returns it, before ports are numbered."""

    a: str
    b: str
    rate_bps: int
    delay_ns: int


WatchdogAction = Literal["alert", "drop", "forward"]
WATCHDOG_ACTIONS: tuple[WatchdogAction, ...] = ("alert", "drop", "forward")
# SONiC's dynamic_th (SAI: SHARED_DYNAMIC_TH) is n from -7 to 3, and alpha is 2^n.
MIN_ALPHA, MAX_ALPHA = 1 / 128, 8.0
PRIORITIES = 8
MAX_QUANTA = 65_535
QUANTUM_BITS = 512
PAUSE_FRAME_BYTES = 64
# How long a peer may take to obey a pause frame, in quanta, by its rate in Gbit/s: IEEE 802.3-2018,
# 31B.3.7, as in SONiC's table for 802.1Qbb (sonic-swss, cfgmgr/buffer_headroom_barefoot.lua).
_RESPONSE_QUANTA = {10: 67, 25: 80, 40: 118, 50: 147, 100: 394, 200: 453, 400: 905}
DEFAULT_WATCHDOG_NS = 100_000_000


@dataclass(frozen=True)
class SwitchSpec:
    """The buffer that the ports of each switch share, and its pauses and PFC watchdog.

    A queue may hold `alpha` times the free buffer; `alpha` has a value for each traffic class. For
    the classes whose indices are in `lossless`, the limit applies instead to the packets that came
    in by one port; with `xoff_bytes` > 0, their limit is that fixed size. At the limit, the port
    pauses its peer, and lets it continue when it holds `xon_offset_bytes` less than the limit.

    `headroom_bytes` is reserved for each port and lossless class; 0 means the size that the
    function `headroom_bytes` computes. `priorities` has the priority of each class in pause frames,
    and `quanta` is how long a pause lasts. The watchdog reports a queue that has packets and was
    paused for all of `detect_ns`. With the `action` drop or forward, the queue then ignores pauses
    until none has come for `restore_ns`.
    """

    buffer_bytes: int
    alpha: tuple[float, ...]
    lossless: tuple[int, ...] = ()
    priorities: tuple[int, ...] = (0,)
    headroom_bytes: int = 0
    xoff_bytes: int = 0
    xon_offset_bytes: int = 0
    quanta: int = MAX_QUANTA
    detect_ns: int = DEFAULT_WATCHDOG_NS
    restore_ns: int = DEFAULT_WATCHDOG_NS
    action: WatchdogAction = "alert"

    def port_headroom_bytes(self, rate_bps: int, delay_ns: int, frame_bytes: int) -> int:
        """Return the headroom of one port for one lossless class."""
        return self.headroom_bytes or headroom_bytes(rate_bps, delay_ns, frame_bytes)

    def reserved_bytes(self, ports: Sequence[tuple[int, int]], frame_bytes: int) -> int:
        """Return the headroom of all ports of a switch.

        `ports` has for each port its rate in bit/s and the delay of its cable in ns.
        """
        return len(self.lossless) * sum(
            self.port_headroom_bytes(rate_bps, delay_ns, frame_bytes)
            for rate_bps, delay_ns in ports
        )


def response_bytes(rate_bps: int) -> int:
    """Return how many bytes a peer sends until it obeys a pause frame.

    For a rate that is not in the table, it is the entry of the next higher rate.
    """
    rates = [rate for rate in _RESPONSE_QUANTA if rate * 10**9 >= rate_bps]
    quanta = _RESPONSE_QUANTA[min(rates, default=max(_RESPONSE_QUANTA))]
    return quanta * QUANTUM_BITS // 8


def headroom_bytes(rate_bps: int, delay_ns: int, frame_bytes: int) -> int:
    """Return how many bytes of one class may arrive by one cable after the limit is reached.

    They are: the packet that reached the limit; what arrives while this port finishes its current
    packet and sends the pause frame; what the cable holds in both directions; what the peer sends
    until it obeys; and the packet that the peer is sending at that time. `frame_bytes` is the
    largest packet with its header and framing.
    """
    on_cable = -(-2 * delay_ns * rate_bps // (8 * 10**9))
    return 3 * frame_bytes + PAUSE_FRAME_BYTES + on_cable + response_bytes(rate_bps)


def quanta_ns(quanta: int, rate_bps: int) -> int:
    """Return how long a pause of `quanta` lasts on a link of this rate, in ns."""
    return quanta * QUANTUM_BITS * 10**9 // rate_bps
