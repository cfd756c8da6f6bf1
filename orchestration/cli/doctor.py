"""`closloop doctor`: reports what this machine can do."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import print_json
from orchestration.render.table import Span, Style, table
from orchestration.render.terminal import show

_STYLES: dict[str, Style] = {"ok": "good", "note": "warning", "missing": "bad"}


@verb("Examples:  closloop doctor  |  closloop doctor --boot  |  closloop doctor --json")
def doctor(
    boot: Annotated[bool, "Boot the virtual-time kernel too."] = False,
    benchmark: Annotated[bool, "Try how many packets it forwards, for racks in real time."] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine can do, and what to do about what is missing.

    Ends with 0 if trials can run on the emulated backend, with 3 if not.
    """
    from dataclasses import asdict

    from orchestration.cli.machine import examine

    findings = examine(boot=boot, benchmark=benchmark)
    ready = all(finding.state != "missing" for finding in findings)
    if as_json:
        said = {"ready": ready, "findings": [asdict(finding) for finding in findings]}
        print_json(said, indent=2)
    else:
        rows = []
        for finding in findings:
            mark = Span(finding.state, _STYLES[finding.state])
            rows.append([mark, finding.what, str(finding.problem)])
        end = (
            "ready: closloop run examples/quickstart.yml"
            if ready
            else "not ready for the emulated backend; the fluid one runs anywhere (--on fluid)"
        )
        show(table(("", "", ""), (), rows, heads=False), f"\n{end}")
    if not ready:
        raise typer.Exit(3)
