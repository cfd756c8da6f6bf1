"""A rack: a testbed whose devices can be logged in to.

A testbed describes a fabric. A rack adds the devices' addresses and users, the names of their ports
in the operating system, and the safety limits of a run. `inventory.ansible` reads it from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

from inventory.addressing import DEFAULT_PREFIX, Addresses, rack_addresses
from orchestration.core.plugins import load_declaration, offered
from orchestration.core.topology import Link, Port, Testbed

SWITCHES = "closloop.switches"
NicKind = Literal["plain", "roce"]
# What a Linux device's kernel may lack: RED, per-flow queueing (fq), congestion controls.
Lacking = Literal["red", "fq", "dctcp", "cubic", "bbr"]

# The first queue that is lossless and ECN-capable in SONiC's stock configuration.
SONIC_QUEUE = 3
# The traffic-class byte in the IPv4 header of RoCE packets: DSCP 26 in the upper six bits, and in
# the lower two ECT(0), with which a switch may mark a packet. A packet without ECT is dropped where
# others are marked.
ROCE_DSCP, ECT_0 = 26, 0b10
ROCE_TRAFFIC_CLASS = ROCE_DSCP << 2 | ECT_0


@dataclass(frozen=True)
class Access:
    """One device: how to log in, and its special settings.

    `interfaces` are its ports' names in the operating system, in the testbed's order, and
    `rdma_devices` the RDMA devices of a RoCE host's interfaces, in the same order. With `shape`,
    its ports are shaped to their rates, for links that have no rate. `queues` are the queue numbers
    of a SONiC switch, one per traffic class; `telemetry_ns` is the interval at which it streams
    their depths, 0 for no stream. `python` is the program that runs the agent. `pcc_device` is the
    RDMA device of a host's programmable NIC (DOCA PCC); if `dpu` is an address, the NIC's programs
    are built and run on the NIC's own cores there. `lacks` names what the kernel does not have:
    closloop then uses a substitute, or refuses the trial.
    """

    device: str
    address: str
    port: int = 22
    user: str = "root"
    key_file: str = ""
    become: bool = False
    python: str = "python3"
    platform: str = "linux"
    nic: NicKind = "plain"
    shape: bool = False
    interfaces: tuple[str, ...] = ()
    rdma_devices: tuple[str, ...] = ()
    queues: tuple[int, ...] = (SONIC_QUEUE,)
    telemetry_ns: int = 0
    pcc_device: str = ""
    dpu: str = ""
    lacks: tuple[Lacking, ...] = ()

    @property
    def system(self) -> SwitchSystem:
        """The operating system of a switch; hosts run Linux."""
        return switch_system(self.platform)

    @property
    def is_linux(self) -> bool:
        """Whether ports, routes and queues are those of a Linux kernel."""
        return self.system.is_linux

    def rdma_device(self, interface: str) -> str:
        """Return the RDMA device of an interface, "" if it has none."""
        return dict(zip(self.interfaces, self.rdma_devices, strict=False)).get(interface, "")


@dataclass(frozen=True)
class SwitchSystem:
    """A switch's operating system, which an inventory names as `closloop_platform`.

    Packages declare one in the entry-point group `closloop.switches`; closloop's own are there too.

    `switch` takes a rack and a device's name, and returns the object that reads and sets the
    device's queues (`orchestration.backends.hardware.switches.Switch`).

    With `is_linux`, ports, routes and queues are those of the switch's Linux kernel: it is
    provisioned as every Linux switch is, may run programs, and its interfaces are restored.
    Without it, `desired` returns what provisioning sets, as arguments of the Ansible module
    `sonic`; `rows` names the rows of the configuration that a trial may change, which are restored;
    and `closloop_queues` has the number of each class's queue. `survey_faults` takes the
    `cabling.DeviceFacts` of a device, and returns pairs of what is wrong and the remedy.
    """

    title: str
    switch: Callable[[Rack, str], Any]
    is_linux: bool = True
    desired: Callable[[Rack, str], dict[str, Any]] | None = None
    rows: Callable[[Rack, str], list[str]] | None = None
    survey_faults: Callable[[Any], Iterable[tuple[str, str]]] = lambda survey: ()

    def __post_init__(self) -> None:
        if not self.is_linux and (self.desired is None or self.rows is None):
            raise TypeError(f"{self.title} is not Linux: it needs `desired` and `rows`")


def switch_systems() -> list[str]:
    """Return the names of the operating systems that switches can have."""
    return list(offered(SWITCHES))


@cache
def switch_system(name: str) -> SwitchSystem:
    """Return an operating system. Raises InputError if no package declares it."""
    return load_declaration(name, SWITCHES, SwitchSystem)


@dataclass(frozen=True)
class Guardrails:
    """Bounds for a trial; the circuit breaker trips, and ends the trial, outside them.

    Each share refers to one window of `window_s` seconds: the share of packets dropped, the share
    of time for which PFC may have paused a port (each pause frame counts as the longest one), and
    the bytes sent as a share of those in the busiest window so far. A bound of 1 (for throughput,
    0) never trips.
    """

    window_s: float = 1.0
    max_drop_share: float = 0.05
    max_pause_share: float = 0.5
    min_throughput_share: float = 0.0


@dataclass(frozen=True)
class Safety:
    """Safety limits of a run.

    A device that receives nothing from the controller for `deadman_s` restores its former settings.
    A lease (the exclusive use of a device) that is not renewed for `lease_s` ends. A queue's
    thresholds change at most once in `min_change_interval_ns`.
    """

    deadman_s: float = 30.0
    lease_s: float = 60.0
    min_change_interval_ns: int = 0
    guardrails: Guardrails = field(default_factory=Guardrails)


@dataclass(frozen=True)
class Rack:
    """A testbed with logins. `access` has every device of `testbed`.

    `known_hosts_file` is used besides the user's own. Unknown host keys are never accepted. The
    fabric's addresses are in `fabric_prefix`. `scale` is the time dilation: rates of `testbed` are
    divided by it, and delays multiplied (see `scaled`).
    """

    name: str
    testbed: Testbed
    access: Mapping[str, Access]
    collector: Access | None = None
    known_hosts_file: str = ""
    safety: Safety = field(default_factory=Safety)
    fabric_prefix: str = DEFAULT_PREFIX
    scale: int = 1

    @cached_property
    def addresses(self) -> Addresses:
        """All addresses of the fabric. Raises ValueError if they do not fit into the prefix."""
        return rack_addresses(self.testbed, self.fabric_prefix)

    def interface(self, port: Port) -> str:
        """Return the operating system's name of a port."""
        index = self.testbed.ports_of[port.device].index(port)
        return self.access[port.device].interfaces[index]


# With this one, a second of a trial lasts a day.
MAX_SCALE = 86_400
_MAX_SHAPER_DELAY_NS = 2_000


def scaled(testbed: Testbed, factor: int) -> Testbed:
    """Return the testbed with its rates divided by `factor`, and its propagation delays multiplied.

    Its name stays. Raises ValueError for a factor below 1.
    """
    if factor < 1:
        raise ValueError(f"a scale of {factor} is not 1 or more")

    def rate_bps(item: Link | Port) -> int:
        return max(1, round(item.rate_bps / factor))

    return replace(
        testbed,
        links=tuple(
            replace(link, rate_bps=rate_bps(link), delay_ns=link.delay_ns * factor)
            for link in testbed.links
        ),
        ports=tuple(
            replace(port, rate_bps=rate_bps(port), delay_ns=port.delay_ns * factor)
            for port in testbed.ports
        ),
    )


def shapers_late_ns(factor: int) -> int:
    """Return how late a shaper of a scaled testbed may wake and still send what it missed, in ns.

    The result is time of the clock, and 2 us of a trial; it is 0 without time dilation, where a
    shaper does not make up for what it missed.
    """
    return _MAX_SHAPER_DELAY_NS * factor if factor > 1 else 0
