"""`closloop inventory`: what testbeds there are, and inventories of racks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.hardware import (
    AskBecomePass,
    AskPass,
    InventoryArgument,
    enter_virtual_rack,
    rack_access,
)

if TYPE_CHECKING:
    from rich.table import Table

    from inventory.topology import Testbed

app = typer.Typer(no_args_is_help=True, help="Testbeds, and inventories of racks.")


def _complete(incomplete: str) -> list[str]:
    from inventory.files import known_testbeds

    return [name for name in known_testbeds() if name.startswith(incomplete)]


@app.command("list")
def list_testbeds(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
) -> None:
    """List the testbeds that come with closloop.

    Example: closloop inventory list
    """
    from rich.console import Console
    from rich.table import Table

    from inventory.files import known_testbeds, load_testbed

    testbeds = [load_testbed(name) for name in known_testbeds()]
    if as_json:
        rows = [
            {"name": t.name, "description": t.description, "source": t.source} for t in testbeds
        ]
        _print_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("testbed", "what", "from"):
        table.add_column(heading)
    for testbed in testbeds:
        table.add_row(f"[bold]{testbed.name}[/bold]", testbed.description, testbed.source)
    Console().print(table)


@app.command("show")
def show_testbed(
    testbed: Annotated[
        str,
        typer.Argument(
            help="A name from `closloop inventory list`, or the path of a testbed file.",
            autocompletion=_complete,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
) -> None:
    """Draw a testbed and list its links, oversubscription, base RTTs and buffers.

    Examples: closloop inventory show graphcc

    closloop inventory show ./rack.yml --json
    """
    from inventory.files import load_testbed
    from inventory.summary import summarise

    found = load_testbed(testbed)
    summary = summarise(found)
    if as_json:
        _print_json(summary)
    else:
        _print_testbed(found, summary)


@app.command("write")
def write_inventory(
    testbed: Annotated[
        str,
        typer.Argument(
            help="A name from `closloop inventory list`, or the path of a testbed file.",
            autocompletion=_complete,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file, which must be new.")
    ] = None,
) -> None:
    """Write an Ansible inventory for a rack wired as a testbed, to be edited.

    Example: closloop inventory write graphcc -o rack.yml
    """
    from inventory.ansible_text import skeleton
    from inventory.files import load_testbed
    from orchestration.model.errors import InputError

    found = load_testbed(testbed)
    is_path = "/" in testbed or testbed.endswith((".yml", ".yaml"))
    text = skeleton(found, _seen_from(Path(testbed), out) if is_path else testbed)
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


def _seen_from(testbed: Path, inventory: Path | None) -> str:
    """Return a testbed file's path as an inventory says it: relative to the inventory's folder."""
    import os

    folder = inventory.parent if inventory is not None else Path()
    return os.path.relpath(testbed, folder)


@app.command("check")
def check_inventory(
    inventory: InventoryArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")] = False,
    ask_pass: AskPass = False,
    ask_become_pass: AskBecomePass = False,
) -> None:
    """Prove a rack: reachability, login, cabling by LLDP, rates, MTU, tools and rights.

    Changes nothing. Exit code: 0 all proven, 2 the inventory is wrong, 3 something of the rack is.

    Example: closloop inventory check rack.yml
    """
    enter_virtual_rack(inventory)
    from orchestration.cli import inventory_check

    checked = inventory_check.check_rack(
        inventory, rack_access(inventory, ask_pass, ask_become_pass)
    )
    if as_json:
        _print_json(inventory_check.as_json(checked))
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
    tiers = _table("tier", "devices", "ports each", "down : up")
    for row in summary["tiers"]:
        ratio = row["oversubscription"]
        shown = f"{ratio:.3g} : 1" if ratio else "-"
        tiers.add_row(row["name"], str(row["devices"]), str(row["ports_per_device"]), shown)
    links = _table("links", "number", "rate", "delay")
    for row in summary["links"]:
        rate, delay = format_rate(row["rate_bps"]), format_duration(row["delay_ns"])
        links.add_row(" - ".join(row["between"]), str(row["links"]), rate, delay)
    paths = _table("path through", "base RTT", "BDP")
    for row in summary["paths"]:
        through = f"{row['switches']} switch{'es' if row['switches'] > 1 else ''}"
        rtt, bdp = format_duration(row["base_rtt_ns"], 3), format_size(row["bdp_bytes"], 1)
        paths.add_row(through, rtt, bdp)
    tables = [tiers, links, paths]
    if summary["classes"]:
        classes = _table("traffic class", "weight", "of a port", "buffer", "TCP")
        for row in summary["classes"]:
            share, buffer = f"{row['share']:.0%}", format_size(row["queue_buffer_bytes"])
            congestion_control = row["congestion_control"] or "the host's"
            classes.add_row(row["name"], str(row["weight"]), share, buffer, congestion_control)
        tables.append(classes)
    for table in tables:
        console.print(table)
        console.print()
    buffer = format_size(summary["port_buffer_bytes"])
    console.print(f"MTU {summary['mtu_bytes']}B, buffer {buffer} for each switch port")


def _table(*headings: str) -> Table:
    """Return a plain table: the first column is text, the others are figures."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", min_width=12)
    return table


def _print_json(data: object) -> None:
    import json

    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
