"""`closloop inventory`: lists testbeds; writes and checks inventories of racks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import Group, InventoryArgument, Json, Passwords, enter_virtual_rack
from orchestration.cli.terminal import print_json, table

if TYPE_CHECKING:
    from inventory.topology import Testbed

app = Group("Testbeds, and inventories of racks.")


def _complete(incomplete: str) -> list[str]:
    from inventory.files import known_testbeds

    return [name for name in known_testbeds() if name.startswith(incomplete)]


_TestbedName = Annotated[
    str,
    typer.Argument(
        help="A name from `closloop inventory list`, or the path of a testbed file.",
        autocompletion=_complete,
    ),
]


@app.command("list")
def list_testbeds(as_json: Json = False) -> None:
    """List the testbeds that come with closloop.

    Example: closloop inventory list
    """
    from rich.console import Console

    from inventory.files import known_testbeds, load_testbed

    testbeds = [load_testbed(name) for name in known_testbeds()]
    if as_json:
        rows = [
            {"name": t.name, "description": t.description, "source": t.source} for t in testbeds
        ]
        print_json(rows, indent=2, ensure_ascii=False)
        return
    shown = table("testbed", "what", "from")
    for testbed in testbeds:
        shown.add_row(f"[bold]{testbed.name}[/bold]", testbed.description, testbed.source)
    Console().print(shown)


@app.command("show")
def show_testbed(testbed: _TestbedName, as_json: Json = False) -> None:
    """Draw a testbed and list its links, oversubscription, base RTTs and buffers.

    Examples: closloop inventory show graphcc

    closloop inventory show ./rack.yml --json
    """
    from inventory.files import load_testbed
    from inventory.summary import summarise

    found = load_testbed(testbed)
    summary = summarise(found)
    if as_json:
        print_json(summary, indent=2, ensure_ascii=False)
    else:
        _print_testbed(found, summary)


@app.command("write")
def write_inventory(
    testbed: _TestbedName,
    out: Annotated[Path | None, "--out", "-o", "Write to this file, which must be new."] = None,
) -> None:
    """Write an Ansible inventory for a rack wired as a testbed, to be edited.

    Example: closloop inventory write graphcc -o rack.yml
    """
    from inventory.ansible_text import skeleton
    from inventory.files import load_testbed
    from orchestration.model.errors import InputError

    found = load_testbed(testbed)
    is_path = "/" in testbed or testbed.endswith((".yml", ".yaml"))
    # In an inventory, a testbed file's path is relative to the inventory's folder.
    seen = os.path.relpath(testbed, out.parent if out else Path()) if is_path else testbed
    text = skeleton(found, seen)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError.single(
            str(out), "this file exists", "write to another one, or remove it first"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError.single(
            str(out), f"cannot be written: {reason}", "check the path"
        ) from error
    typer.echo(f"{out} has placeholders: edit it, then run `closloop inventory check {out}`")


@app.command("check")
def check_inventory(
    inventory: InventoryArgument, *, as_json: Json = False, passwords: Passwords
) -> None:
    """Prove a rack: reachability, login, cabling by LLDP, rates, MTU, tools and rights.

    Changes nothing. Exit code: 0 all proven, 2 the inventory is wrong, 3 something of the rack is.

    Example: closloop inventory check rack.yml
    """
    enter_virtual_rack(inventory)
    from orchestration.cli import inventory_check

    checked = inventory_check.check_rack(inventory, passwords.access(inventory))
    if as_json:
        print_json(inventory_check.as_json(checked), indent=2, ensure_ascii=False)
    else:
        inventory_check.print_checked(checked)
    if checked.findings:
        raise typer.Exit(inventory_check.NOT_READY)


def _print_testbed(testbed: Testbed, summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    from inventory.draw import picture
    from orchestration.model.units import format_duration, format_rate, format_size

    console = Console(highlight=False)
    console.print(f"[bold]{testbed.name}[/bold]  {escape(testbed.description)}")
    if testbed.source:
        console.print(f"[dim]from {escape(testbed.source)}[/dim]")
    console.print()
    for line in picture(testbed, width=console.width):
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    tiers = table("tier", figures=("devices", "ports each", "down : up"))
    for row in summary["tiers"]:
        ratio = row["oversubscription"]
        said = f"{ratio:.3g} : 1" if ratio else "-"
        tiers.add_row(row["name"], str(row["devices"]), str(row["ports_per_device"]), said)
    links = table("links", figures=("number", "rate", "delay"))
    for row in summary["links"]:
        rate, delay = format_rate(row["rate_bps"]), format_duration(row["delay_ns"])
        links.add_row(" - ".join(row["between"]), str(row["links"]), rate, delay)
    paths = table("path through", figures=("base RTT", "BDP"))
    for row in summary["paths"]:
        through = f"{row['switches']} switch{'es' if row['switches'] > 1 else ''}"
        rtt, bdp = format_duration(row["base_rtt_ns"], 3), format_size(row["bdp_bytes"], 1)
        paths.add_row(through, rtt, bdp)
    tables = [tiers, links, paths]
    if summary["classes"]:
        classes = table("traffic class", figures=("weight", "of a port", "buffer", "TCP"))
        for row in summary["classes"]:
            share, buffer = f"{row['share']:.0%}", format_size(row["queue_buffer_bytes"])
            congestion_control = row["congestion_control"] or "the host's"
            classes.add_row(row["name"], str(row["weight"]), share, buffer, congestion_control)
        tables.append(classes)
    for shown in tables:
        for column in shown.columns:
            column.min_width = 12
        console.print(shown)
        console.print()
    buffer = format_size(summary["port_buffer_bytes"])
    console.print(f"MTU {summary['mtu_bytes']}B, buffer {buffer} for each switch port")
