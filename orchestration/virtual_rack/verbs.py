"""`closloop rack`: a virtual rack, whose devices are reached only by SSH; and `closloop clean`."""

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
    str | None, "--rack", "The rack's name or folder. Default: the rack that is up."
]


@app.command(epilog=_EPILOG)
def up(
    testbed: Annotated[str, typer.Argument(help="The name of a testbed, or its file.")] = "graphcc",
    sonic: Annotated[
        str | None,
        "Names of the SONiC-like switches, separated by commas. Default: one of the highest tier.",
    ] = None,
    no_sonic: Annotated[bool, "Make all switches Linux switches."] = False,
    roce: Annotated[
        str, "Names of the hosts with RoCE NICs (Soft-RoCE), separated by commas, or `all`."
    ] = "",
    bluefield: Annotated[
        str,
        "Names of hosts that stand in for hosts with a BlueField-3 and the DOCA SDK, separated by "
        "commas.",
    ] = "",
    folder: Annotated[
        Path | None, "Where keys and inventory are written. Default: the user's state folder."
    ] = None,
    clock: Annotated[
        Clock, "`real`: run on this machine's own kernel, in wall-clock time. Needs root."
    ] = "virtual",
    plain: Annotated[
        bool, "With --clock real: make devices plain namespaces instead of containers."
    ] = False,
    scale: Annotated[
        str,
        "With --clock real: what rates are divided by and times multiplied by. Default: auto, the "
        "smallest that this machine can carry.",
    ] = "",
    interface: Annotated[
        list[str] | None,
        "With --clock real: use this machine's own interface in place of a port, such as "
        "leaf1:eth0=enp3s0. It is given back when the rack ends. Can be given several times.",
    ] = None,
) -> None:
    """Start a rack. Virtual time stands still until a program runs in the rack.

    Example: closloop rack up graphcc --sonic spine1
    """
    from inventory.files import load_testbed
    from orchestration.backends.emulated.forwarding import describe_scale
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
        typer.echo(f"scale {scale_factor}: {describe_scale(fabric, scale_factor)}")
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
        str, "Address of a Debian mirror. Default: http://deb.debian.org/debian"
    ] = "",
) -> None:
    """Build the image of devices that are containers, if there is none yet. Needs root.

    `rack up --clock real` does this, too.
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
        typer.Option(
            "--let-pass", min=0, help="Seconds of the rack's time to let pass afterwards."
        ),
    ] = 0.0,
) -> None:
    """Run a program in the rack, where its controller runs, with this folder and these files.

    Ends with the program's exit code.

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
    """Let the rack's time pass, for timers on its devices. Virtual time passes quickly."""
    from orchestration.virtual_rack.control import find_rack

    find_rack(rack).let_pass(seconds)


@app.command()
def status(as_json: Json = False) -> None:
    """Show which racks are up, and what they are doing."""
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
        idle = "idle" if rack["clock"] == "real" else "stopped until a program runs in it"
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
        raise InputError.single("--plain", "devices in virtual time are always namespaces", "")


def _progress_display(phases: Phases) -> Callable[[str, int, int], None]:
    """Return the function that shows the progress of a start."""
    stages: set[str] = set()

    def progress(stage: str, done: int, of: int) -> None:
        if stage not in stages:
            stages.add(stage)
            phases.phase(stage)
        if of:
            phases.step(done, of)

    return progress


def _scale(text: str, testbed: Testbed, clock: Clock) -> int:
    """Return the scale that the user chose, or in real time the one that this machine can carry."""
    from orchestration.backends.emulated.forwarding import parse_scale

    if clock == "real":
        return parse_scale(text or "auto", testbed)
    if text:
        raise InputError.single("--scale", "virtual time needs no scale", "leave it out")
    return 1


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@verb("Examples:  closloop clean --dry-run  |  sudo closloop clean  |  closloop clean --json")
def clean(
    dry_run: Annotated[bool, "Only show what would be removed."] = False,
    as_json: Json = False,
) -> None:
    """Remove what a killed rack left on this machine, and give leased interfaces back.

    Only what closloop created is touched, and nothing that a running rack or run uses. Exit code: 3
    if something could not be removed, else 0.
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
