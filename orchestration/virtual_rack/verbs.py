"""`closloop rack`: a virtual rack, whose devices are reached only by SSH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import Group, Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import ClosloopError, InputError
from orchestration.core.problems import Problem
from orchestration.virtual_rack.layout import Clock

if TYPE_CHECKING:
    from orchestration.cli.terminal import Phases
    from orchestration.core.topology import Testbed

_EPILOG = (
    "Examples:  closloop rack up graphcc --sonic spine1  |  "
    "closloop rack exec -- ssh leaf1 tc qdisc  |  closloop rack down"
)
app = Group(
    "Start and use a virtual rack: devices in virtual time, reachable only by SSH.", _EPILOG
)
WhichRack = Annotated[
    str | None, "--rack", "The rack's name or folder. Default: the one that is up."
]


@app.command(epilog=_EPILOG)
def up(
    testbed: Annotated[
        str, typer.Argument(help="What there is: a testbed's name, or its file.")
    ] = "graphcc",
    sonic: Annotated[
        str | None, "SONiC-like switches, with commas. Default: one of the highest tier."
    ] = None,
    no_sonic: Annotated[bool, "All switches are Linux switches."] = False,
    roce: Annotated[str, "Hosts with RoCE NICs (Soft-RoCE), with commas, or `all`."] = "",
    bluefield: Annotated[
        str, "Hosts that stand in for ones with a BlueField-3 and the DOCA SDK, with commas."
    ] = "",
    folder: Annotated[
        Path | None, "Where keys and inventory are put. Default: user's state."
    ] = None,
    clock: Annotated[
        Clock, "`real`: on this machine's own kernel, in wall-clock time. Takes root."
    ] = "virtual",
    plain: Annotated[
        bool, "With --clock real: devices are plain namespaces, not containers."
    ] = False,
    scale: Annotated[
        str, "With --clock real: what rates are divided by, and times multiplied; auto: what fits."
    ] = "",
    interface: Annotated[
        list[str] | None,
        "With --clock real: this machine's own interface in place of a port, given back when the "
        "rack ends, as leaf1:eth0=enp3s0. Can be given again.",
    ] = None,
) -> None:
    """Start a rack. Virtual time stands still until something runs in it.

    Example: closloop rack up graphcc --sonic spine1
    """
    from inventory.files import load_testbed
    from orchestration.backends.emulated.forwarding import scale_in_words
    from orchestration.cli.terminal import Phases
    from orchestration.virtual_rack import containers, control
    from orchestration.virtual_rack.folder import limitations
    from orchestration.virtual_rack.layout import highest_switch
    from orchestration.virtual_rack.layout import limitations as missing_here

    fabric = load_testbed(testbed)
    _check_clock(clock, plain=plain, interfaces=interface or ())
    scale_factor = _scale(scale, fabric, clock)
    default = () if clock == "real" else (highest_switch(fabric),)
    chosen = _names(sonic) if sonic is not None else default
    with Phases() as phases:
        rack, started = control.up(
            fabric,
            sonic=() if no_sonic else chosen,
            roce=_names(roce),
            bluefield=_names(bluefield),
            folder=folder,
            clock=clock,
            scale=scale_factor,
            containers=clock == "real" and not plain,
            interfaces=interface or (),
            progress=_progress_display(phases),
        )
    typer.echo(f"the rack {rack.name} {'is up' if started else 'was up already'}: {rack.inventory}")
    if clock == "real":
        typer.echo(f"scale {scale_factor}: {scale_in_words(fabric, scale_factor)}")
    groups = containers.limitations() if rack.layout.image else ()
    for text in (*limitations(), *missing_here(rack.layout.lacks), *groups):
        typer.echo(f"note: {text}", err=True)
    if started:
        typer.echo(f"  closloop inventory check {rack.inventory}")
        typer.echo(f"  closloop provision {rack.inventory}")
        typer.echo(f"  closloop run CAMPAIGN --on hardware --inventory {rack.inventory}")
        typer.echo("  closloop rack exec -- ssh DEVICE    |    closloop rack down")


@app.command()
def image(
    mirror: Annotated[
        str, "Address of a mirror of Debian. Default: http://deb.debian.org/debian"
    ] = "",
) -> None:
    """Build the image of devices that are containers, if it is not there. Takes root.

    `rack up --clock real` does so, too.
    """
    from orchestration.cli.terminal import Phases
    from orchestration.virtual_rack.image import require_image

    with Phases() as phases:
        tree = require_image(mirror=mirror, progress=_progress_display(phases))
    typer.echo(tree)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def exec(
    command: Annotated[list[str], "A program and its arguments, after `--`."],
    rack: WhichRack = None,
    let_pass: Annotated[
        float,
        typer.Option("--let-pass", min=0, help="Seconds of the rack's time to let pass then."),
    ] = 0.0,
) -> None:
    """Run a program in the rack, as its controller: same folder, same files, its exit code.

    Example: closloop rack exec -- ssh leaf1 tc -s qdisc
    """
    from orchestration.virtual_rack.attach import run_attached
    from orchestration.virtual_rack.control import find_rack

    handle = find_rack(rack)
    code = run_attached(handle, command)
    if let_pass:
        handle.let_pass(let_pass)
    raise typer.Exit(code)


@app.command()
def wait(
    seconds: Annotated[float, typer.Argument(min=0, help="Seconds of the rack's time.")],
    rack: WhichRack = None,
) -> None:
    """Let the rack's time pass: for timers on its devices. Virtual takes hardly any of yours."""
    from orchestration.virtual_rack.control import find_rack

    find_rack(rack).let_pass(seconds)


@app.command()
def status(as_json: Json = False) -> None:
    """Say which racks are up, and what they are doing."""
    from orchestration.virtual_rack.control import racks_up

    racks = [
        {
            "name": rack.name,
            "inventory": str(rack.inventory),
            "clock": rack.layout.clock,
            "devices": "containers" if rack.layout.image else "namespaces",
            "interfaces": dict(rack.layout.leased),
            "scale": rack.layout.scale,
            **rack.status(),
        }
        for rack in racks_up()
    ]
    if as_json:
        print_json(racks)
        return
    if not racks:
        typer.echo("no rack is up; start one with: closloop rack up")
    for rack in racks:
        idle = (
            "its time goes on" if rack["clock"] == "real" else "stopped until something runs in it"
        )
        doing = f"{rack['busy']} running" if rack["busy"] else idle
        slow = f" of scale {rack['scale']}" if rack["scale"] > 1 else ""
        where = f"{rack['state']}, {rack['devices']}, {rack['clock']} time{slow}, {doing}"
        typer.echo(f"{rack['name']}: {where}; {rack['inventory']}")


@app.command()
def down(rack: WhichRack = None) -> None:
    """End a rack and remove its keys and inventory."""
    from orchestration.virtual_rack.control import find_rack

    handle = find_rack(rack)
    handle.down()
    typer.echo(f"the rack {handle.name} is down")


def _check_clock(clock: Clock, *, plain: bool, interfaces: Sequence[str]) -> None:

    if interfaces and clock != "real":
        fabric = f"{interfaces[0]}: a rack in virtual time has no interfaces of this machine"
        raise InputError.single("--interface", fabric, "add --clock real")
    if plain and clock != "real":
        raise InputError.single("--plain", "devices in virtual time are namespaces anyway", "")


def _progress_display(phases: Phases) -> Callable[[str, int, int], None]:
    """Return what shows the progress of a start."""
    stages: set[str] = set()

    def progress(stage: str, done: int, of: int) -> None:
        if stage not in stages:
            stages.add(stage)
            phases.phase(stage)
        if of:
            phases.step(done, of)

    return progress


def _scale(text: str, testbed: Testbed, clock: Clock) -> int:
    """Return the scale that was asked for, or in real time the one that fits this machine."""
    from orchestration.backends.emulated.forwarding import chosen_scale

    if clock == "real":
        return chosen_scale(text or "auto", testbed)
    if text:
        raise InputError.single("--scale", "virtual time carries any rates", "leave it out")
    return 1


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@verb("Examples:  closloop clean --dry-run  |  sudo closloop clean  |  closloop clean --json")
def clean(
    dry_run: Annotated[bool, "Only say what would be removed."] = False,
    as_json: Json = False,
) -> None:
    """Remove what a killed rack left on this machine, and give lent interfaces back.

    Only what closloop made is touched, and nothing that a rack or run which is alive uses. Ends
    with 3 if something could not be removed.
    """
    from orchestration.virtual_rack.cleanup import cleanup_items

    rows = []
    for item in cleanup_items():
        row = {"kind": item.kind, "name": item.name, "what": item.description}
        if item.in_use_by:
            rows.append({**row, "done": "left alone", "why": item.in_use_by})
        elif dry_run:
            rows.append({**row, "done": f"would be {item.outcome}", "why": ""})
        else:
            try:
                rows.append({**row, "done": item.outcome, "why": item.remove() or ""})
            except (ClosloopError, OSError, RuntimeError) as error:
                rows.append({**row, "done": "failed", "why": str(error)})
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            fabric = f"{row['kind']} {row['name']}, {row['what']}"
            typer.echo(Problem(row["done"], fabric, row["why"]))
        if not rows:
            typer.echo("nothing is left of killed racks")
    if any(row["done"] == "failed" for row in rows):
        raise typer.Exit(3)
