"""`closloop kernel`: build, pack, show and check the virtual-time kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import Group, Json
from orchestration.cli.terminal import print_json

if TYPE_CHECKING:
    from orchestration.kernel.cache import Kernel

_EPILOG = (
    "Examples:  closloop kernel build  |  closloop kernel build --source linux-7.3.tar.xz  |  "
    "closloop kernel check  |  closloop kernel wheel"
)
app = Group("Build, pack, show and check the virtual-time kernel.", _EPILOG)


@app.command(epilog=_EPILOG)
def build(
    source: Annotated[
        Path | None, "A Linux source, tree or tarball; default: the newest in Debian's archive."
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Compilers side by side. Default: all cores.")
    ] = None,
    force: Annotated[bool, "Build it even if there is one."] = False,
) -> None:
    """Build the kernel of trials with Linux' TCP, once, into the user's cache.

    `closloop run` builds it too, when a campaign first needs it.
    The flow table, a BPF program that some tuners need, is compiled as well.
    """
    from collectors.bpf.compile import flow_table_object
    from orchestration.cli.terminal import Phases
    from orchestration.core.machine import sigterm_as_interrupt
    from orchestration.kernel.build import build_kernel

    cores = len(os.sched_getaffinity(0))
    with sigterm_as_interrupt(), Phases() as phases:
        kernel, built = build_kernel(source, jobs or cores, force, phases)
        phases.phase("compiling the flow table")
        flow_table_object()
    typer.echo(f"{'built' if built else 'already there'}: {_line(kernel)}")


@app.command(epilog="Then, elsewhere: pip install dist/closloop_kernel-*.whl")
def wheel(
    out: Annotated[Path, "The folder to write it to."] = Path("dist"),
) -> None:
    """Pack the kernel as a wheel; machines that install it need not build or compile anything.

    The wheel also has the BPF programs of flow tables, the sources of the patches, and their
    licence.
    """
    from orchestration.kernel.cache import require_kernel
    from orchestration.kernel.wheel import make_wheel

    path = make_wheel(require_kernel(), out)
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


@app.command()
def show(as_json: Json = False) -> None:
    """Show which kernel trials would run in."""
    from dataclasses import asdict

    from orchestration.kernel.cache import require_kernel

    kernel = require_kernel()
    if as_json:
        print_json(asdict(kernel), indent=2, default=str)
        return
    typer.echo(_line(kernel))
    if kernel.manifest:
        built = kernel.manifest
        typer.echo(f"built {built.built_at} in {built.build_s:.0f} s by {built.compiler}")
        typer.echo(f"from {built.origin}")


@app.command()
def check(as_json: Json = False) -> None:
    """Boot the kernel, and check that its clock stands still while the processor works."""
    from dataclasses import asdict

    from orchestration.kernel.boot import check_kernel
    from orchestration.kernel.cache import require_kernel

    report = check_kernel(require_kernel().path)
    if as_json:
        facts = {key: value for key, value in asdict(report).items() if key != "config"}
        print_json(facts, indent=2)
        return
    typer.echo(
        f"Linux {report.release} boots in {report.wall_s:.1f} s, sleeps "
        f"{report.sleep_ns / 1e9:.0f} s in no time, and 20,000 system calls took "
        f"{report.busy_ns} ns of its time"
    )


def _line(kernel: Kernel) -> str:
    return f"Linux {kernel.version}, {kernel.hash}, {kernel.path}"
