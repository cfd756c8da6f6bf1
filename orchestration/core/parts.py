"""The parts of a testbed as pure data: devices, ports with queues, links, what switches are."""

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
    """One end of a link. `buffer_bytes` is 0 on a host: its queue belongs to the host's stack."""

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
    has one queue. `buffer_bytes` is what this queue alone may hold.
    """

    port: Port
    klass: int = 0
    class_name: str = ""
    buffer_bytes: int = 0

    @property
    def label(self) -> str:
        """The queue's full name: `leaf1:eth3/tcp`, or its port's name without classes."""
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
        """The port's rate in bit/s: that of the queue while the port's other queues are empty."""
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
# SAI's SHARED_DYNAMIC_TH, which is SONiC's dynamic_th: alpha is 2^n, n from -7 to 3.
MIN_ALPHA, MAX_ALPHA = 1 / 128, 8.0
PRIORITIES = 8
MAX_QUANTA = 65_535
QUANTUM_BITS = 512
PAUSE_FRAME_BYTES = 64
# How long a peer may take to obey, in quanta, by its rate in Gbit/s: IEEE 802.3-2018, 31B.3.7, in
# SONiC's table for 802.1Qbb (sonic-swss, cfgmgr/buffer_headroom_barefoot.lua).
_RESPONSE_QUANTA = {10: 67, 25: 80, 40: 118, 50: 147, 100: 394, 200: 453, 400: 905}
DEFAULT_WATCHDOG_NS = 100_000_000


@dataclass(frozen=True)
class SwitchSpec:
    """The buffer that the ports of each switch share. Tuples are by traffic class.

    `alpha` is the share of the free buffer that a queue, or for a class in `lossless` what came in
    by one port, may take; with `xoff_bytes` > 0 that is the limit of lossless classes instead. A
    port lets its peer go on when it holds `xon_offset_bytes` less than the limit. `headroom_bytes`
    is reserved for each port and lossless class, 0 for what `headroom_bytes()` works out.
    `priorities` are the numbers of the classes in pause frames.
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
        """Return the headroom of all ports of a switch, (rate in bit/s, cable's delay in ns)."""
        return len(self.lossless) * sum(
            self.port_headroom_bytes(rate_bps, delay_ns, frame_bytes)
            for rate_bps, delay_ns in ports
        )


def response_bytes(rate_bps: int) -> int:
    """Return what a peer sends until it obeys: the entry of the next higher rate of the table."""
    known = [rate for rate in _RESPONSE_QUANTA if rate * 10**9 >= rate_bps]
    quanta = _RESPONSE_QUANTA[min(known, default=max(_RESPONSE_QUANTA))]
    return quanta * QUANTUM_BITS // 8


def headroom_bytes(rate_bps: int, delay_ns: int, frame_bytes: int) -> int:
    """Return what may arrive after the limit is reached, of one class on one cable.

    That is the packet that reached the limit, what comes while this port sends the packet that it
    has begun and the pause frame, what the cable holds in both directions, what the peer sends
    until it obeys, and the packet that it has begun by then. `frame_bytes` is the largest packet
    with its header and framing.
    """
    on_cable = -(-2 * delay_ns * rate_bps // (8 * 10**9))
    return 3 * frame_bytes + PAUSE_FRAME_BYTES + on_cable + response_bytes(rate_bps)


def quanta_ns(quanta: int, rate_bps: int) -> int:
    """Return how long a pause of so many quanta lasts on a line."""
    return quanta * QUANTUM_BITS * 10**9 // rate_bps
