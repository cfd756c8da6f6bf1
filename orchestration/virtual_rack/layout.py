"""The layout of a virtual rack as pure data: devices, addresses and cables of a testbed.

Devices are namespaces of one guest, or of the machine's own kernel (`clock` "real"). Each has the
testbed's ports, named as its operating system names them, and a management port to the controller,
which runs in the first namespace.

What this machine's own kernel lacks is found out by trying it (`backends.emulated.host_kernel`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from inventory.rack import SONIC_QUEUE, Access, Lacking, NicKind, Rack
from inventory.testbed_json import testbed_from_json, testbed_to_json
from orchestration.backends.emulated.host_kernel import CONGESTION_CONTROLS, missing_parts
from orchestration.core.errors import InputError, NotReadyError, check_known
from orchestration.core.topology import Port, Testbed

CONTROLLER_ADDRESS = "10.255.0.1"
SONIC_USER = "admin"
# SONiC counts four lanes per front panel port.
_LANES_PER_PORT = 4
_FORMAT = 4

# The parts of a kernel whose absence an inventory notes, by the kind of device.
_LACKING: Mapping[str, tuple[Lacking, ...]] = {
    "host": ("fq", "dctcp", "cubic", "bbr"),
    "switch": ("red",),
}

# The parts of the kernel that the delay lines of `cabling.delay_lines` consist of.
DELAY_LINE = frozenset({"clsact", "ifb", "matchall", "netem"})

# The clock of a rack: that of a guest in virtual time, or the machine's, on the machine's kernel.
Clock = Literal["virtual", "real"]


@dataclass(frozen=True)
class Layout:
    """A testbed as a virtual rack.

    `testbed` is that of campaigns, its rates divided by `scale` (see `inventory.rack`). `sonic` are
    its SONiC-like switches and `roce` its hosts with RoCE NICs; of these, `bluefield` have the
    commands of a programmable NIC (see `bluefield`). `lacks` names what the kernel of a rack in
    real time does not have (see `real_time_layout`). `image` is the file tree of devices that are
    containers (see `containers`), "" for plain namespaces. `leased` are pairs: a port's label, and
    the interface of this machine that takes its place (see `interface_leases`).
    """

    testbed: Testbed
    sonic: tuple[str, ...] = ()
    roce: tuple[str, ...] = ()
    bluefield: tuple[str, ...] = ()
    clock: Clock = "virtual"
    lacks: tuple[str, ...] = ()
    image: str = ""
    leased: tuple[tuple[str, str], ...] = ()
    scale: int = 1

    def platform(self, device: str) -> str:
        """Return the platform of a device, `sonic` or `linux`."""
        return "sonic" if device in self.sonic else "linux"

    def nic(self, device: str) -> NicKind:
        """Return the kind of a host's NICs, `roce` or `plain`."""
        return "roce" if device in self.roce else "plain"

    def rdma_devices(self, device: str) -> tuple[str, ...]:
        """Return the names of the RDMA devices of a RoCE host's NICs, unique in the rack."""
        if device not in self.roce:
            return ()
        count = len(self.testbed.ports_of[device])
        return tuple(f"rxe-{device}" + (f"-{n}" if n else "") for n in range(count))

    def pcc_device(self, device: str) -> str:
        """Return the name of a host's programmable NIC, or "" if it has none."""
        return self.rdma_devices(device)[0] if device in self.bluefield else ""

    @cached_property
    def address(self) -> dict[str, str]:
        """Return the management address of each device, by name."""
        numbers = enumerate(self.testbed.devices, start=2)
        return {device.name: f"10.255.{n >> 8}.{n & 255}" for n, device in numbers}

    @cached_property
    def _interfaces(self) -> dict[int, str]:
        return {
            port.index: f"Ethernet{_LANES_PER_PORT * index}" if name in self.sonic else port.name
            for name, ports in self.testbed.ports_of.items()
            for index, port in enumerate(ports)
        }

    def interface(self, port: Port) -> str:
        """Return the name of a port on its device."""
        return self._interfaces[port.index]

    def management_interface(self, device: str) -> str:
        """Return the name of a device's management port."""
        return "eth0" if device in self.sonic else "mgmt"

    @property
    def lacks_delay(self) -> bool:
        """Whether the kernel lacks a part of the delay lines."""
        return bool(DELAY_LINE & {*self.lacks})

    def delay_on_arrival_ns(self, port: Port) -> int:
        """Return the delay in ns of packets that arrive at `port`, for the propagation delay.

        A path crosses a tier's cables once up and once down. As in the emulated fabric, the delay
        of both crossings is added at one end: at the host for a host's cable, at the upper switch
        for a cable between switches. It is 0 on a kernel that lacks a part of the delay lines.
        """
        if self.lacks_delay:
            return 0
        here, there = self.testbed.device[port.device], self.testbed.peer_device(port)
        spent_here = here.kind == "host" or (there.kind == "switch" and here.tier > there.tier)
        return 2 * port.delay_ns if spent_here else 0

    @property
    def leased_ports(self) -> list[tuple[Port, str]]:
        """Return the ports whose place an interface of this machine takes, each with its name."""
        leased = dict(self.leased)
        return [(port, leased[port.label]) for port in self.testbed.ports if port.label in leased]

    def is_leased(self, port: Port) -> bool:
        """Return whether an interface of this machine takes the place of a port."""
        return port.label in dict(self.leased)

    def cable_leaves_rack(self, port: Port) -> bool:
        """Return whether exactly one end of a port's cable is an interface of this machine.

        Then the peer of that interface is outside of the rack.
        """
        return self.is_leased(port) != self.is_leased(self.testbed.ports[port.peer])

    def rack(self, key_file: Path, known_hosts_file: Path) -> Rack:
        """Return the rack as an inventory describes it, with the testbed's name."""
        access = {}
        for device in self.testbed.devices:
            sonic = device.name in self.sonic
            ports = self.testbed.ports_of[device.name]
            queues = range(SONIC_QUEUE, SONIC_QUEUE + self.testbed.queues_per_port)
            access[device.name] = Access(
                device=device.name,
                address=self.address[device.name],
                user=SONIC_USER if sonic else "root",
                key_file=str(key_file),
                become=sonic,
                platform=self.platform(device.name),
                nic=self.nic(device.name),
                # a SONiC-like switch shapes its ports itself, as an ASIC does
                shape=not sonic,
                interfaces=tuple(self.interface(port) for port in ports),
                rdma_devices=self.rdma_devices(device.name),
                pcc_device=self.pcc_device(device.name),
                queues=tuple(queues) if sonic else (SONIC_QUEUE,),
                lacks=tuple(name for name in _LACKING[device.kind] if name in self.lacks),
            )
        return Rack(
            self.testbed.name,
            self.testbed,
            access,
            known_hosts_file=str(known_hosts_file),
            scale=self.scale,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the layout as JSON-ready data."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        leased = dict(data.pop("leased"))
        data["testbed"] = testbed_to_json(self.testbed)
        return {"format": _FORMAT, **data, "lent": leased}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """Rebuild a layout. Raises KeyError, TypeError or ValueError for any other data."""
        if data["format"] != _FORMAT:
            raise ValueError(f"the rack has format {data['format']!r}, not {_FORMAT}")
        names = ("sonic", "roce", "bluefield", "lacks")
        return cls(
            testbed_from_json(data["testbed"]),
            **{name: tuple(data[name]) for name in names},
            clock=data["clock"],
            image=data.get("image", ""),
            leased=tuple(data.get("lent", {}).items()),
            scale=data["scale"],
        )


def make_layout(
    testbed: Testbed,
    sonic: Collection[str],
    roce: Collection[str],
    bluefield: Collection[str] = (),
) -> Layout:
    """Return the layout of a testbed in virtual time.

    `roce` are names of hosts, or `("all",)`. The hosts in `bluefield` are added to it. Raises
    InputError for a name that is not a switch or host of the testbed.
    """
    roce = testbed.hosts if tuple(roce) == ("all",) else tuple(roce)
    for option, names, known, kind, kinds in (
        ("--sonic", sonic, testbed.switches, "switch", "switches"),
        ("--roce", roce, testbed.hosts, "host", "hosts"),
        ("--bluefield", bluefield, testbed.hosts, "host", "hosts"),
    ):
        none = f"testbed {testbed.name} has no {kind} {{!r}}"
        check_known(option, none, names, known, f"its {kinds} are ")
    roce = tuple(dict.fromkeys((*roce, *bluefield)))
    return Layout(testbed, tuple(dict.fromkeys(sonic)), roce, tuple(dict.fromkeys(bluefield)))


def highest_switch(testbed: Testbed) -> str:
    """Return the first switch of the highest tier."""
    return max(testbed.switches, key=lambda name: testbed.device[name].tier)


def real_time_layout(layout: Layout) -> Layout:
    """Return a layout for a rack in real time on this machine's kernel, with what the kernel lacks.

    Raises:
        InputError: the layout has devices that only a rack in virtual time can have.
        NotReadyError: a rack cannot be built on this machine.
    """
    for option, names in (("--sonic", layout.sonic), ("--roce", layout.roce)):
        if names:
            raise InputError.single(
                option,
                f"{', '.join(names)}: a rack in real time has Linux switches and plain NICs only",
                f"leave out {option}, or leave out --clock real",
            )
    lacks = missing_parts()
    if layout.testbed.classes and (without := sorted({"red", "ets"} & {*lacks})):
        raise NotReadyError(
            f"traffic classes need {', '.join(without)}, which this machine's kernel lacks",
            "use a testbed without classes; or virtual time: leave out --clock real",
        )
    return replace(layout, clock="real", lacks=lacks)


def limitations(lacks: Sequence[str]) -> list[str]:
    """Return sentences about what does not work in a rack on a kernel that lacks these parts."""
    sentences = []
    if missing := sorted(DELAY_LINE & {*lacks}):
        sentences.append(
            f"no propagation delay: this kernel lacks {', '.join(missing)}; round-trip times are "
            "those of queues and CPU"
        )
    if "red" in lacks:
        sentences.append(
            "this kernel lacks RED: a BPF program marks instead, by RED's straight line"
        )
    if "fq" in lacks:
        sentences.append("this kernel lacks fq: a NIC's flows share one queue")
    if "dctcp" in lacks:
        sentences.append("this kernel lacks DCTCP: hosts load it as a BPF program during trials")
    if controls := [name for name in CONGESTION_CONTROLS if name in lacks and name != "dctcp"]:
        sentences.append(
            f"no {', '.join(controls)}: this kernel lacks it, or does not allow it in namespaces "
            "(net.ipv4.tcp_allowed_congestion_control)"
        )
    return sentences
