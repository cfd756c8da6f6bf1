"""`closloop calibrate`: measures a backend's fabric, and writes a corrected testbed file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import (
    InventoryOption,
    Json,
    Out,
    Passwords,
    enter_virtual_rack,
    verb,
)
from orchestration.cli.terminal import Phases, print_json
from orchestration.render.table import Table, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from orchestration.calibration.measure import Calibration
    from orchestration.core.ports import Backend
    from orchestration.core.topology import Testbed


@verb(
    "Examples:  closloop calibrate graphcc --on emulated  |  closloop calibrate graphcc "
    "--on hardware -i rack.yml --json > rack.json  |  "
    "closloop calibrate graphcc --like rack.json --write twin.yml"
)
def calibrate(
    testbed: Annotated[str, "A testbed's name, or its file."],
    *,
    backend: Annotated[
        str, "--on", "What to measure: emulated, simulated, hardware or fluid."
    ] = "emulated",
    like: Annotated[Path | None, "Compare with this calibration, another backend's --json."] = None,
    write: Annotated[Path | None, "Write the corrected testbed here, and measure it again."] = None,
    inventory: InventoryOption = None,
    passwords: Passwords,
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Measure a backend's base RTT, goodput ceiling, marking curve and control-loop delay.

    With --write, the testbed file is written again with the framing and the propagation delays
    that make this backend do what --like measured; without --like, what it does itself.
    """
    from inventory.files import check_new, edited_testbed_text, load_testbed, write_new
    from orchestration.calibration.measure import correction, read_calibration, to_json
    from orchestration.cli.run import backend_named
    from orchestration.core.capabilities import capabilities
    from orchestration.run import backend_factory

    name = backend_named(backend)
    fabric = load_testbed(testbed)
    aim = read_calibration(like) if like else None
    if write:
        check_new(write)
    own = capabilities(name)
    if own.on_rack:
        enter_virtual_rack(inventory)
    rack = passwords.access(inventory) if own.on_rack and inventory else None
    engine = backend_factory.backend(name, rack)
    engine.check(fabric, 1)
    mine = _measure(engine, name, fabric, testbed, out)
    again = None
    if write:
        change = correction(fabric, mine, aim)
        text = edited_testbed_text(
            testbed, _file_name(write), change.framing_bytes, change.delay_change_ns
        )
        write_new(write, text)
        if not own.on_rack:
            again = _measure(engine, name, load_testbed(str(write)), str(write), out)
    if as_json:
        data = to_json(mine)
        if again:
            data["corrected"] = to_json(again)
        print_json(data)
    else:
        show(_table(mine, aim, again), "", _marking(mine))
        if write:
            typer.echo(f"{write}: run campaigns with `testbed: {write}`", err=True)


def _measure(engine: Backend, name: str, fabric: Testbed, testbed: str, out: Path) -> Calibration:
    from orchestration.calibration.measure import calibrate as measure

    with Phases() as phases:
        last = ""

        def listen(what: str, share: float) -> None:
            nonlocal last
            if what != last and what != "done":
                phases.phase(f"{fabric.name} on {name}: {what}")
            last = what
            phases.step(round(1000 * share), 1000)

        folder = out / f"calibrate-{fabric.name}-{name}"
        return measure(engine, name, fabric, testbed, folder, listen)


def _file_name(path: Path) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in path.stem.lower())


def _table(mine: Calibration, like: Calibration | None, again: Calibration | None) -> Table:
    measured = [mine, *([again] if again else []), *([like] if like else [])]
    titles = [mine.backend, *(["corrected"] if again else []), *([like.backend] if like else [])]
    rows = [
        [
            f"base RTT {rtt.path.src} to {rtt.path.dst}, us",
            _us(rtt.testbed_ns),
            *(_us(c.rtts[number].median_ns) if number < len(c.rtts) else "" for c in measured),
        ]
        for number, rtt in enumerate(mine.rtts)
    ]
    testbed_gbps = f"{mine.goodput.testbed_bps / 1e9:.3f}"
    gbps = [f"{c.goodput.measured_bps / 1e9:.3f}" for c in measured]
    framing = [f"{c.goodput.framing_bytes:.1f}" for c in measured]
    rows += [
        ["goodput, one flow, Gbit/s", testbed_gbps, *gbps],
        ["framing that implies, B", str(mine.goodput.testbed_framing_bytes), *framing],
        ["loop, median, us", "", *(_us(c.loop.median_ns) for c in measured)],
        ["loop, p99, us", "", *(_us(c.loop.p99_ns) for c in measured)],
    ]
    return table(("",), ("testbed", *titles), rows)


def _marking(calibration: Calibration) -> Table | str:
    if not calibration.marking:
        return "marking: this backend counts no marks where the queue was held"
    rows = [
        [
            f"{b.from_bytes / 1000:.0f} to {b.to_bytes / 1000:.0f} KB",
            f"{b.marked_share:.2%} ({b.low:.2%} to {b.high:.2%})",
            f"{b.wanted_share:.2%}",
            f"{b.packets:,}",
        ]
        for b in calibration.marking
    ]
    figures = ("share of packets (95 % interval)", "DCQCN's line wants", "packets")
    return table(("queue",), figures, rows, "marking")


def _us(ns: float) -> str:
    return f"{ns / 1e3:.3f}"
