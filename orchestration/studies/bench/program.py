"""What the program itself costs: start-up, and a campaign on the fluid backend."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestration.studies.bench.outcome import Figure, Outcome

_QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.yml"


def start_up() -> Outcome:
    """`closloop --help`, and the quickstart campaign on the fluid backend."""
    closloop = [str(Path(sys.executable).with_name("closloop"))]
    help_s = statistics.median(_seconds([*closloop, "--help"]) for _ in range(7))
    figures = [
        Figure("closloop --help, median of 7", f"{help_s:.2f} s", "0.3 s", help_s < 0.3),
    ]
    notes: tuple[str, ...] = ()
    if _QUICKSTART.exists():
        with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
            command = [*closloop, "run", str(_QUICKSTART), "--on", "fluid"]
            fake_s = statistics.median(
                _seconds([*command, "--out", f"{folder}/{number}"]) for number in range(3)
            )
        figures.append(
            Figure(
                "quickstart on the fluid backend, report included, median of 3",
                f"{fake_s:.2f} s",
                "2 s",
                fake_s < 2,
            )
        )
    else:
        notes = (f"no {_QUICKSTART}: the quickstart is measured in a checkout only",)
    return Outcome("The program", tuple(figures), notes)


def _seconds(command: list[str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begin
