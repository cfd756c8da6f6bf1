"""`closloop doctor`: what this machine can do."""

from __future__ import annotations

import json
from typing import Annotated

import typer

EPILOG = "Examples:  closloop doctor  |  closloop doctor --boot  |  closloop doctor --json"


def doctor(
    boot: Annotated[bool, typer.Option("--boot", help="Boot the virtual-time kernel too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine can do, and what to do about what is missing.

    Ends with 0 if trials can run on the emulated backend, with 3 if not.
    """
    from dataclasses import asdict

    from orchestration.doctor import examine

    findings = examine(boot=boot)
    ready = all(finding.state != "missing" for finding in findings)
    if as_json:
        said = {"ready": ready, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(said, indent=2))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for finding in findings:
            mark = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}
            remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
            table.add_row(mark[finding.state], finding.what, f"{finding.found}{remedy}")
        console = Console()
        console.print(table)
        console.print(
            "\nready: closloop run examples/quickstart.yml"
            if ready
            else "\nnot ready for the emulated backend; the fluid one runs anywhere (--on fluid)"
        )
    if not ready:
        raise typer.Exit(3)
