"""`closloop inventory`: lists and shows testbeds; writes and checks inventories of racks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import Group, InventoryArgument, Json, Passwords, enter_virtual_rack
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError, unwritable
from orchestration.render.numbers import count
from orchestration.render.table import Span, Table, strong, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

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
    from inventory.files import known_testbeds, load_testbed

    testbeds = [load_testbed(name) for name in known_testbeds()]
    if as_json:
        rows = [
            {"name": t.name, "description": t.description, "source": t.source} for t in testbeds
        ]
        print_json(rows, indent=2, ensure_ascii=False)
        return
    listed = [[strong(t.name), t.description, t.source] for t in testbeds]
    show(table(("testbed", "what", "from"), (), listed))


@app.command("show")
def show_testbed(testbed: _TestbedName, as_json: Json = False) -> None:
    """Draw a testbed and list its links, oversubscription, base RTTs and buffers.

    Examples: closloop inventory show graphcc

    closloop inventory show ./rack.yml --json
    """
    from inventory.files import load_testbed
    from inventory.summary import summarise

    loaded = load_testbed(testbed)
    summary = summarise(loaded)
    if as_json:
        print_json(summary, indent=2, ensure_ascii=False)
    else:
        _print_testbed(loaded, summary)


@app.command("write")
def write_inventory(
    testbed: _TestbedName,
    out: Annotated[Path | None, "--out", "-o", "The file to write; it must not exist."] = None,
) -> None:
    """Write an Ansible inventory for a rack that is wired like a testbed, to be edited.

    Example: closloop inventory write graphcc -o rack.yml
    """
    from inventory.ansible_text import skeleton
    from inventory.files import load_testbed
    from inventory.variant import seen_from

    loaded = load_testbed(testbed)
    # In an inventory, a testbed file's path is relative to the inventory's folder.
    text = skeleton(loaded, seen_from(str(out.parent) if out else ".", testbed))
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError.single(
            str(out), "exists already", "write to another file, or remove this one first"
        ) from None
    except OSError as error:
        raise unwritable(out, error, "check the path", InputError) from error
    typer.echo(f"{out} has placeholders: edit it, then run `closloop inventory check {out}`")


@app.command("check")
def check_inventory(
    inventory: InventoryArgument, *, as_json: Json = False, passwords: Passwords
) -> None:
    """Check a rack: reachability, login, cabling by LLDP, rates, MTU, tools and rights.

    It changes nothing. Exit code: 0 all is proven, 2 the inventory is wrong, 3 the rack is wrong.

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
    import shutil

    from inventory.summary import draw_topology
    from orchestration.core.units import format_size

    width = shutil.get_terminal_size().columns
    show((strong(testbed.name), f"  {testbed.description}"))
    if testbed.source:
        show(Span(f"from {testbed.source}", "faint"))
    typer.echo("\n".join(["", *draw_topology(testbed, width=width), ""]))
    for table_of_rows in _summary_tables(summary):
        show(table_of_rows, "")
    buffer = format_size(summary["port_buffer_bytes"])
    typer.echo(f"MTU {summary['mtu_bytes']}B, buffer {buffer} for each switch port")


def _summary_tables(summary: dict[str, Any]) -> Iterator[Table]:
    """Yield tables of a testbed's tiers, links, paths and traffic classes, those that have rows."""
    from orchestration.core.units import format_duration, format_rate, format_size

    tiers = [
        [
            row["name"],
            str(row["devices"]),
            str(row["ports_per_device"]),
            f"{row['oversubscription']:.3g} : 1" if row["oversubscription"] else "-",
        ]
        for row in summary["tiers"]
    ]
    links = [
        [
            " - ".join(row["between"]),
            str(row["links"]),
            format_rate(row["rate_bps"]),
            format_duration(row["delay_ns"]),
        ]
        for row in summary["links"]
    ]
    paths = [
        [
            count(row["switches"], "switch", "switches"),
            format_duration(row["base_rtt_ns"], 3),
            format_size(row["bdp_bytes"], 1),
        ]
        for row in summary["paths"]
    ]
    classes = [
        [
            row["name"],
            str(row["weight"]),
            f"{row['share']:.0%}",
            format_size(row["queue_buffer_bytes"]),
            row["congestion_control"] or "the host's",
        ]
        for row in summary["classes"]
    ]
    for head, figures, rows in (
        ("tier", ("devices", "ports each", "down : up"), tiers),
        ("links", ("number", "rate", "delay"), links),
        ("path through", ("base RTT", "BDP"), paths),
        ("traffic class", ("weight", "share of a port", "buffer", "congestion control"), classes),
    ):
        if rows:
            yield table((head,), figures, rows)
