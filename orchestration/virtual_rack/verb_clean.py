"""`closloop clean`: removes what a killed rack or run has left on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import ClosloopError
from orchestration.core.problems import Problem


@verb("Examples:  closloop clean --dry-run  |  sudo closloop clean  |  closloop clean --json")
def clean(
    dry_run: Annotated[bool, "Only say what would be removed."] = False,
    as_json: Json = False,
) -> None:
    """Remove what a killed rack left on this machine, and give lent interfaces back.

    Only what closloop made is touched, and nothing that a rack or run which is alive uses. Ends
    with 3 if something could not be removed.
    """
    from orchestration.virtual_rack.leftovers import leftovers

    rows = []
    for found in leftovers():
        row = {"kind": found.kind, "name": found.name, "what": found.what}
        if found.alive:
            rows.append({**row, "done": "left alone", "why": found.alive})
        elif dry_run:
            rows.append({**row, "done": f"would be {found.done}", "why": ""})
        else:
            try:
                rows.append({**row, "done": found.done, "why": found.remove()})
            except (ClosloopError, OSError, RuntimeError) as error:
                rows.append({**row, "done": "failed", "why": str(error)})
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            what = f"{row['kind']} {row['name']}, {row['what']}"
            typer.echo(Problem(row["done"], what, row["why"]))
        if not rows:
            typer.echo("nothing is left of killed racks")
    if any(row["done"] == "failed" for row in rows):
        raise typer.Exit(3)
