"""`closloop export containerlab` and `closloop import containerlab`: testbeds as labs, and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import Json
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.errors import InputError, suggest

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from orchestration.exchange.containerlab.lab import SwitchKind, WrittenLab
    from orchestration.exchange.containerlab.testbed import Figures, ImportedLab


@dataclass(frozen=True)
class _Nodes:
    """What the lab's nodes are."""

    switch: Annotated[str, "The kind of the switches: linux, or sonic-vs (SONiC's container)."] = (
        "linux"
    )
    host_image: Annotated[
        str, "The hosts' image (default: closloop-node, which the folder's Containerfile makes)."
    ] = ""
    switch_image: Annotated[
        str, "The switches' image (default: closloop-node, for sonic-vs docker-sonic-vs)."
    ] = ""
    management: Annotated[
        str, "The IPv4 network of the nodes' management addresses (default: 172.20.64.0/20)."
    ] = ""


def export_containerlab(
    testbed: Annotated[
        str, typer.Argument(help="A name from `closloop inventory list`, or a testbed's file.")
    ],
    *,
    out: Annotated[Path, "--out", "-o", "The folder to make."],
    nodes: _Nodes,
    as_json: Json = False,
) -> None:
    """Write a testbed as a lab of containerlab: topology file, inventory of its nodes, keys.

    containerlab gives links no rates: `closloop provision` shapes the ports of Linux devices.

    Example: closloop export containerlab graphcc -o lab
    """
    from inventory.files import load_testbed
    from orchestration.exchange.containerlab.lab import NODE_IMAGE, SONIC_IMAGE, Lab, write_lab

    switch = _switch(nodes.switch)
    lab = Lab(
        load_testbed(testbed),
        switch,
        _image("--host-image", nodes.host_image or NODE_IMAGE),
        _image(
            "--switch-image",
            nodes.switch_image or (SONIC_IMAGE if switch == "sonic-vs" else NODE_IMAGE),
        ),
        *([_network(nodes.management)] if nodes.management else []),
    )
    with waiting("making keys"):
        written = write_lab(lab, testbed, out)
    if as_json:
        data = {
            "folder": str(written.folder),
            "topology": str(written.topology),
            "inventory": str(written.inventory),
            "nodes": lab.address,
            "notes": written.notes,
        }
        print_json(data)
    else:
        _say_lab(lab.testbed.name, written, NODE_IMAGE in (lab.host_image, lab.switch_image))


def _say_lab(name: str, written: WrittenLab, is_built: bool) -> None:
    typer.echo(f"{written.folder}: the lab {name}, its inventory, and keys of its own")
    for note in written.notes:
        typer.echo(f"  note: {note}")
    typer.echo("next:")
    if is_built:
        typer.echo(f"  docker build -t closloop-node - < {written.folder}/Containerfile")
    typer.echo(f"  sudo containerlab deploy -t {written.topology}")
    typer.echo(f"  closloop inventory check {written.inventory}")


def _switch(text: str) -> SwitchKind:
    from orchestration.exchange.containerlab.lab import SWITCH_KINDS

    for kind in SWITCH_KINDS:
        if kind == text:
            return kind
    remedy = f"{suggest(text, SWITCH_KINDS)}use {' or '.join(SWITCH_KINDS)}"
    raise InputError.single("--switch", f"no kind of switch is called {text!r}", remedy)


def _image(flag: str, text: str) -> str:

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", text):
        remedy = "write it like docker.io/library/debian:12"
        raise InputError.single(flag, f"{text!r} is no image's name", remedy)
    return text


def _network(text: str) -> IPv4Network:
    from ipaddress import IPv4Network

    try:
        return IPv4Network(text)
    except ValueError as error:
        remedy = "write an IPv4 network, like 172.20.64.0/20"
        raise InputError.single("--management", str(error), remedy) from error


@dataclass(frozen=True)
class _Unsaid:
    """What a lab does not say of its links and switches."""

    rate: Annotated[str, "The rate of links to hosts, like 25Gbps."] = ""
    uplink_rate: Annotated[str, "The rate of links between switches (default: --rate)."] = ""
    delay: Annotated[str, "The propagation delay of each link."] = "1us"
    mtu: Annotated[str, "The fabric's MTU (default: the least of the links')."] = ""
    buffer: Annotated[str, "What a switch port may hold."] = "16MB"

    def figures(self) -> Figures:
        """Return them in base units. Raises InputError."""
        from orchestration.core.units import parse_duration_ns, parse_rate_bps, parse_size_bytes
        from orchestration.exchange.containerlab.testbed import Figures

        return Figures(
            rate_bps=_quantity("--rate", self.rate, parse_rate_bps),
            uplink_rate_bps=_quantity("--uplink-rate", self.uplink_rate, parse_rate_bps),
            delay_ns=_quantity("--delay", self.delay, parse_duration_ns) or Figures.delay_ns,
            mtu_bytes=_quantity("--mtu", self.mtu, parse_size_bytes),
            buffer_bytes=_quantity("--buffer", self.buffer, parse_size_bytes)
            or Figures.buffer_bytes,
        )


def _quantity(flag: str, text: str, parse: Callable[[object], int]) -> int | None:
    """Return an option's value in its base unit, None if it is not given."""
    from orchestration.core.units import UnitError

    if not text:
        return None
    try:
        value = parse(text)
    except UnitError as error:
        raise InputError([error.problem.relocated(flag)]) from error
    if value < 1:
        raise InputError.single(flag, f"{text!r} is nothing", "use more than 0")
    return value


def import_containerlab(
    file: Annotated[Path, "A topology file, *.clab.yml."],
    *,
    out: Annotated[Path, "--out", "-o", "The testbed file to make."],
    name: Annotated[str, "The testbed's name (default: the lab's)."] = "",
    hosts: Annotated[
        str, "The nodes that are hosts, with commas; client* stands for several."
    ] = "",
    unsaid: _Unsaid,
    as_json: Json = False,
) -> None:
    """Make a testbed file of a lab of containerlab: its nodes, and the links between them.

    A lab has no rates: --rate gives them. Links to bridges, to the machine and out of the lab are
    left out, and named.

    Example: closloop import containerlab clos02.clab.yml --rate 25Gbps --uplink-rate 100Gbps
    -o clos02.yml
    """
    from inventory.amend import check_new
    from orchestration.exchange.containerlab.read import read_lab
    from orchestration.exchange.containerlab.testbed import to_testbed, write_testbed

    check_new(out)
    figures = unsaid.figures()
    patterns = tuple(word.strip() for word in hosts.split(",") if word.strip())
    with waiting("reading"):
        found = to_testbed(read_lab(file), figures, name=name, hosts=patterns)
        write_testbed(out, found)
    if as_json:
        data = {
            "path": str(out),
            "testbed": found.testbed.name,
            "tiers": {device.name: device.tier for device in found.testbed.devices},
            "links": len(found.testbed.links),
            "mtu_bytes": found.testbed.mtu_bytes,
            "notes": found.notes,
        }
        print_json(data)
    else:
        _say_testbed(out, found)


def _say_testbed(out: Path, found: ImportedLab) -> None:
    testbed = found.testbed
    typer.echo(
        f"{out}: {len(testbed.hosts)} hosts, {len(testbed.switches)} switches, "
        f"{len(testbed.links)} links"
    )
    for note in found.notes:
        typer.echo(f"  note: {note}")
    # a bare name that ends otherwise would be a testbed's
    shown = out if out.parent.parts else f"./{out}"
    typer.echo(f"next: closloop inventory show {shown}")
