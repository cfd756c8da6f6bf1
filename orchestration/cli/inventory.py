"""`closloop inventory`: what testbeds there are and what one looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from inventory.topology import Testbed

app = typer.Typer(no_args_is_help=True, help="Show the testbeds that experiments run on.")


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
