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
    like: Annotated[
        Path | None, "Compare with this calibration: what --json wrote for another backend."
    ] = None,
    write: Annotated[Path | None, "Write the corrected testbed here, and measure it again."] = None,
    inventory: InventoryOption = None,
    passwords: Passwords,
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Measure a backend's base RTT, goodput ceiling, marking curve and control-loop delay.

    With --write, a corrected testbed file is written. Its framing and propagation delays make this
    backend agree with the calibration of --like; without --like, they make the testbed file agree
    with this backend.
    """
    from inventory.files import check_new, edited_testbed_text, load_testbed, write_new
    from orchestration.calibration.measure import correction, read_calibration, to_json
    from orchestration.cli.run import backend_named
    from orchestration.core.capabilities import capabilities
    from orchestration.run import backend_factory

    name = backend_named(backend)
    fabric = load_testbed(testbed)
    reference = read_calibration(like) if like else None
    if write:
        check_new(write)
    own_capabilities = capabilities(name)
    if own_capabilities.on_rack:
        enter_virtual_rack(inventory)
    rack_access = passwords.access(inventory) if own_capabilities.on_rack and inventory else None
    engine = backend_factory.backend(name, rack_access)
    engine.check(fabric, 1)
    measured = _measure(engine, name, fabric, testbed, out)
    corrected = None
    if write:
        change = correction(fabric, measured, reference)
        text = edited_testbed_text(
            testbed, _file_name(write), change.framing_bytes, change.delay_change_ns
        )
        write_new(write, text)
        if not own_capabilities.on_rack:
            corrected = _measure(engine, name, load_testbed(str(write)), str(write), out)
    if as_json:
        data = to_json(measured)
        if corrected:
            data["corrected"] = to_json(corrected)
        print_json(data)
    else:
        show(_table(measured, reference, corrected), "", _marking(measured))
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


def _table(measured: Calibration, like: Calibration | None, corrected: Calibration | None) -> Table:
    calibrations = [measured, *([corrected] if corrected else []), *([like] if like else [])]
    titles = [
        measured.backend,
        *(["corrected"] if corrected else []),
        *([like.backend] if like else []),
    ]
    rows = [
        [
            f"base RTT {rtt.path.src} to {rtt.path.dst}, us",
            _us(rtt.testbed_ns),
            *(_us(c.rtts[number].median_ns) if number < len(c.rtts) else "" for c in calibrations),
        ]
        for number, rtt in enumerate(measured.rtts)
    ]
    testbed_gbps = f"{measured.goodput.testbed_bps / 1e9:.3f}"
    gbps = [f"{c.goodput.measured_bps / 1e9:.3f}" for c in calibrations]
    framing = [f"{c.goodput.framing_bytes:.1f}" for c in calibrations]
    rows += [
        ["goodput, one flow, Gbit/s", testbed_gbps, *gbps],
        ["implied framing, B", str(measured.goodput.testbed_framing_bytes), *framing],
        ["loop, median, us", "", *(_us(c.loop.median_ns) for c in calibrations)],
        ["loop, p99, us", "", *(_us(c.loop.p99_ns) for c in calibrations)],
    ]
    return table(("",), ("testbed", *titles), rows)


def _marking(calibration: Calibration) -> Table | str:
    if not calibration.marking:
        return "marking: this backend does not count marks at the measured queue"
    rows = [
        [
            f"{b.from_bytes / 1000:.0f} to {b.to_bytes / 1000:.0f} KB",
            f"{b.marked_share:.2%} ({b.low:.2%} to {b.high:.2%})",
            f"{b.wanted_share:.2%}",
            f"{b.packets:,}",
        ]
        for b in calibration.marking
    ]
    figures = ("share of packets (95 % interval)", "expected share", "packets")
    return table(("queue",), figures, rows, "marking")


def _us(ns: float) -> str:
    return f"{ns / 1e3:.3f}"
