"""`closloop export containerlab`: write a testbed as a lab of containerlab.

The folder has the lab's topology file, the inventory of its nodes, and keys:

NAME.clab.yml  inventory.yml  known_hosts  key{,.pub}  host_keys/DEVICE{,.pub}
Containerfile  start.sh       testbed.yml, for a testbed that is not the package's

Facts are from containerlab 0.79 (github.com/srl-labs/containerlab, commit 39ff2b7): the form of the
file from schemas/clab.schema.json, kinds of nodes from nodes/linux and nodes/sonic, and links from
links/link_veth.go.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from inventory.addressing import DEFAULT_PREFIX
from inventory.ansible import load_rack, write_rack
from inventory.ansible_schema import GROUPS
from inventory.files import known_testbeds, load_testbed, testbed_text
from inventory.rack import SONIC_QUEUE, Access, Rack
from inventory.yamltree import flow
from orchestration.cli.options import Json
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.errors import InputError, NotReadyError, Problem, raise_any, suggest
from orchestration.core.topology import Device, Port, Testbed
from orchestration.core.units import format_duration, format_rate
from orchestration.device.jump_hosts import PACKAGE, PROGRAM, new_key, public_words
from orchestration.exchange.source import NewFolder, new_folder

SwitchKind = Literal["linux", "sonic-vs"]
SWITCH_KINDS: tuple[SwitchKind, ...] = get_args(SwitchKind)
MANAGEMENT_PREFIX = "172.20.64.0/20"
# The image that the folder's Containerfile builds, and the image that SONiC's build makes.
NODE_IMAGE, SONIC_IMAGE = "closloop-node", "docker-sonic-vs"
# Variables of a link in containerlab, which stores them and does not act on them.
RATE, DELAY = "closloop_rate", "closloop_delay"

# Nodes that containerlab knows although they are not listed (core/clab.go, getSpecialLinkNodes).
_TAKEN = ("host",)
# The management network is a Linux bridge, which has at most this many ports (BR_MAX_PORTS is
# 1,024, and number 0 is not used).
_MAX_NODES = 1023
# The ports of SONiC's virtual switch: eth1 is Ethernet0, eth2 Ethernet4 and so on to eth32
# (lanemap.ini of Force10-S6000, the hardware that docker-sonic-vs stands for).
_SONIC_PORTS, _LANES_PER_PORT = 32, 4
_KNOWN_HOSTS, _TESTBED, _INVENTORY = "known_hosts", "testbed.yml", "inventory.yml"
# Enough digits for any whole number of the base unit.
_DIGITS = 12
_HEAD = """\
# Testbed {name} as a lab of containerlab, written by `closloop export containerlab`.
# {rate} and {delay} of a link are for `closloop import containerlab`: containerlab does not
# act on them. inventory.yml is the inventory of these nodes.
"""


@dataclass(frozen=True)
class Lab:
    """A testbed as a lab of containerlab. Hosts and Linux switches are of kind `linux`.

    `management` is the IPv4 network over which the nodes are reached.
    """

    testbed: Testbed
    switch: SwitchKind = "linux"
    host_image: str = NODE_IMAGE
    switch_image: str = NODE_IMAGE
    management: IPv4Network = IPv4Network(MANAGEMENT_PREFIX)  # noqa: RUF009 (immutable)

    @cached_property
    def address(self) -> dict[str, str]:
        """The management address of each node. The first address is that of the bridge."""
        first = self.management.network_address + 2
        return {device.name: str(first + n) for n, device in enumerate(self.testbed.devices)}

    @cached_property
    def _port_position(self) -> dict[int, int]:
        """The position of each port among the ports of its device, by the port's index."""
        return {p.index: n for ports in self.testbed.ports_of.values() for n, p in enumerate(ports)}

    def runs_sonic(self, name: str) -> bool:
        """Return whether a device is a SONiC switch."""
        return self.switch == "sonic-vs" and self.testbed.device[name].kind == "switch"

    def node_interface(self, port: Port) -> str:
        """Return a port's name in the topology file; eth0 is every node's management interface."""
        return f"eth{self._port_position[port.index] + 1}"

    def interface(self, port: Port) -> str:
        """Return a port's name on its device, as in the inventory."""
        if self.runs_sonic(port.device):
            return f"Ethernet{_LANES_PER_PORT * self._port_position[port.index]}"
        return self.node_interface(port)

    def rack(self, key_file: str, known_hosts_file: str) -> Rack:
        """Return the rack of the lab's nodes, with the testbed's name.

        `key_file` is an absolute path, `known_hosts_file` may be relative to the inventory.
        """
        queues = tuple(range(SONIC_QUEUE, SONIC_QUEUE + self.testbed.queues_per_port))
        access = {}
        for name, ports in self.testbed.ports_of.items():
            sonic = self.runs_sonic(name)
            access[name] = Access(
                device=name,
                address=self.address[name],
                key_file=key_file,
                platform="sonic" if sonic else "linux",
                # a veth has no rate; the links of SONiC's ports are not shaped by the inventory
                shape=not sonic,
                interfaces=tuple(self.interface(port) for port in ports),
                queues=queues if sonic else (SONIC_QUEUE,),
            )
        return Rack(self.testbed.name, self.testbed, access, known_hosts_file=known_hosts_file)

    def topology(self) -> str:
        """Return the text of the topology file. Raises InputError for what it cannot express."""
        problems = list(_problems(self))
        raise_any(problems)
        name = self.testbed.name
        lines = [
            *_HEAD.format(name=name, rate=RATE, delay=DELAY).splitlines(),
            f"name: {flow(name)}",
            "mgmt:",
            f"  network: {flow(f'closloop-{name}')}",
            f"  ipv4-subnet: {self.management}",
            "topology:",
            "  defaults:",
            # a container that restarts has lost its links (docs/manual/kinds/linux.md)
            '    restart-policy: "no"',
            "    binds:",
            "      - start.sh:/closloop/start.sh:ro",
            "      - key.pub:/closloop/authorized_keys:ro",
            "      - host_keys/__clabNodeName__:/closloop/host_key:ro",
            "  groups:",
        ]
        for tier in sorted({device.tier for device in self.testbed.devices}):
            lines += [f"    {GROUPS[tier]}:", *(f"      {line}" for line in self._kind(tier))]
        lines += ["  nodes:", *(f"    {self._node(device)}" for device in self.testbed.devices)]
        lines += ["  links:", *(f"    - {flow(link)}" for link in self._links())]
        return "\n".join(lines) + "\n"

    def _kind(self, tier: int) -> Iterator[str]:
        image = self.switch_image if tier else self.host_image
        if tier and self.switch == "sonic-vs":
            # containerlab starts SONiC's own programs (nodes/sonic/sonic.go), and then these
            yield from ("kind: sonic-vs", f"image: {flow(image)}")
            yield from ("exec:", "  - sh /closloop/start.sh background")
        else:
            yield from ("kind: linux", f"image: {flow(image)}", "cmd: sh /closloop/start.sh")

    def _node(self, device: Device) -> str:
        fields = {"group": GROUPS[device.tier], "mgmt-ipv4": self.address[device.name]}
        return f"{flow(device.name)}: {flow(fields)}"

    def _links(self) -> Iterator[dict[str, Any]]:
        for link in self.testbed.links:
            ends = (self.testbed.ports[link.a], self.testbed.ports[link.b])
            yield {
                "type": "veth",
                "mtu": self.testbed.mtu_bytes,
                "vars": {
                    RATE: format_rate(link.rate_bps, _DIGITS),
                    DELAY: format_duration(link.delay_ns, _DIGITS),
                },
                "endpoints": [
                    {"node": port.device, "interface": self.node_interface(port)} for port in ends
                ],
            }


def _problems(lab: Lab) -> Iterator[Problem]:
    testbed, where = lab.testbed, f"testbed {lab.testbed.name}"
    for name in _TAKEN:
        if name in testbed.device:
            what = f"has a device {name!r}; in containerlab that name is the machine itself"
            yield Problem(where, what, "rename it in a testbed file of your own")
    if len(testbed.devices) > _MAX_NODES:
        what = (
            f"has {len(testbed.devices)} devices; the management network is a Linux bridge, "
            f"which has at most {_MAX_NODES} ports"
        )
        yield Problem(where, what, "export a smaller testbed")
    if lab.management.num_addresses < len(testbed.devices) + 3:
        what = f"{lab.management} has too few addresses for {len(testbed.devices)} nodes"
        yield Problem("--management", what, f"give a larger network, like {MANAGEMENT_PREFIX}")
    if lab.management.overlaps(IPv4Network(DEFAULT_PREFIX)):
        what = f"{lab.management} overlaps with the fabric's own addresses, {DEFAULT_PREFIX}"
        yield Problem("--management", what, f"give another network, like {MANAGEMENT_PREFIX}")
    for name in testbed.switches if lab.switch == "sonic-vs" else ():
        count = len(testbed.ports_of[name])
        if count > _SONIC_PORTS:
            what = f"{name} has {count} ports; SONiC's container has {_SONIC_PORTS}"
            yield Problem(where, what, "export it with --switch linux, or a smaller testbed")


def notes(lab: Lab) -> tuple[str, ...]:
    """Return how the lab's links and switches differ from the testbed's."""
    differences = [
        "containerlab gives links an MTU, but neither a rate nor a delay: `closloop provision` "
        "shapes the ports of Linux devices to their rates; links have no propagation delay",
    ]
    if lab.testbed.switch is not None:
        differences.append(
            "the lab has no shared buffers and no PFC: each port has queues of its own"
        )
    if lab.switch == "sonic-vs":
        differences.append(
            "SONiC's container accepts configuration as a switch does, but it has no real ASIC: "
            "its ports have no rate, and it marks no packets"
        )
    return tuple(differences)


@dataclass(frozen=True)
class WrittenLab:
    """A written lab: its folder, topology file and inventory, and its differences as notes."""

    folder: Path
    topology: Path
    inventory: Path
    notes: tuple[str, ...]


def write_lab(lab: Lab, testbed: str, folder: Path) -> WrittenLab:
    """Write the lab into the new folder `folder`, which only its owner can read.

    `testbed` is the name or path by which the testbed was loaded. Raises InputError for what
    containerlab cannot express and if the folder exists, and NotReadyError without ssh-keygen.
    """
    topology = lab.topology()
    if shutil.which(PROGRAM) is None:
        what = f"{PROGRAM}, which makes the nodes' SSH keys, is not installed"
        raise NotReadyError(what, f"apt-get install {PACKAGE}")
    packaged = testbed in known_testbeds()
    names = f"{lab.testbed.name}.clab.yml", _INVENTORY
    with new_folder(folder) as partial:
        partial.chmod(0o700)
        (partial / names[0]).write_text(topology, encoding="utf-8")
        if not packaged:
            (partial / _TESTBED).write_text(testbed_text(testbed), encoding="utf-8")
        _write_keys(lab, partial)
        rack = lab.rack(str(folder.resolve() / "key"), _KNOWN_HOSTS)
        write_rack(rack, partial / names[1], testbed if packaged else _TESTBED)
        load_rack(partial / names[1])
        for item in (resources.files(__package__) / "node").iterdir():
            (partial / item.name).write_bytes(item.read_bytes())
    return WrittenLab(folder, folder / names[0], folder / names[1], notes(lab))


def _write_keys(lab: Lab, folder: Path) -> None:
    """Write the user's key, a host key for each node, and the file of known hosts."""
    new_key(folder / "key", f"closloop {lab.testbed.name}")
    host_keys = folder / "host_keys"
    host_keys.mkdir()
    known = []
    for device, address in lab.address.items():
        new_key(host_keys / device, device)
        known.append(f"{address} {public_words(host_keys / device)}\n")
    (folder / _KNOWN_HOSTS).write_text("".join(known), encoding="ascii")


def export_lab(
    testbed: Annotated[
        str, typer.Argument(help="A name from `closloop inventory list`, or a testbed file.")
    ],
    *,
    out: NewFolder,
    switch: Annotated[
        str, "The kind of the switches: linux, or sonic-vs (SONiC's container)."
    ] = "linux",
    host_image: Annotated[
        str, "The hosts' image (default: closloop-node, which the folder's Containerfile builds)."
    ] = "",
    switch_image: Annotated[
        str, "The switches' image (default: closloop-node, for sonic-vs docker-sonic-vs)."
    ] = "",
    management: Annotated[
        str, "The IPv4 network of the nodes' management addresses (default: 172.20.64.0/20)."
    ] = "",
    as_json: Json = False,
) -> None:
    """Write a testbed as a lab of containerlab: topology file, inventory of its nodes, keys.

    containerlab gives links no rates: `closloop provision` shapes the ports of Linux devices.

    Example: closloop export containerlab graphcc -o lab
    """
    kind = next((kind for kind in SWITCH_KINDS if kind == switch), None)
    if kind is None:
        remedy = f"{suggest(switch, SWITCH_KINDS)}use {' or '.join(SWITCH_KINDS)}"
        raise InputError.single("--switch", f"no kind of switch is called {switch!r}", remedy)
    usual = SONIC_IMAGE if kind == "sonic-vs" else NODE_IMAGE
    lab = Lab(
        load_testbed(testbed),
        kind,
        _image("--host-image", host_image or NODE_IMAGE),
        _image("--switch-image", switch_image or usual),
        _network(management or MANAGEMENT_PREFIX),
    )
    with waiting("making keys"):
        written = write_lab(lab, testbed, out)
    if as_json:
        paths = {n: str(getattr(written, n)) for n in ("folder", "topology", "inventory")}
        print_json({**paths, "nodes": lab.address, "notes": written.notes})
        return
    typer.echo(f"{written.folder}: the lab {lab.testbed.name}, its inventory, and keys of its own")
    for note in written.notes:
        typer.echo(f"  note: {note}")
    typer.echo("next:")
    if NODE_IMAGE in (lab.host_image, lab.switch_image):
        typer.echo(f"  docker build -t closloop-node - < {written.folder}/Containerfile")
    typer.echo(f"  sudo containerlab deploy -t {written.topology}")
    typer.echo(f"  closloop inventory check {written.inventory}")


def _image(flag: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", text):
        remedy = "write it like docker.io/library/debian:12"
        raise InputError.single(flag, f"{text!r} is not the name of an image", remedy)
    return text


def _network(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        remedy = "write an IPv4 network, like 172.20.64.0/20"
        raise InputError.single("--management", str(error), remedy) from error
