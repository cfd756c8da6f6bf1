"""The request for a replay, which is made of the options of `closloop replay`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class ReplayRequest:
    """The runs to replay, the backend, and the changes.

    `tuners` are names or mappings as in a campaign file; `recorded` means the recorded actions. An
    empty `backend` or `testbed` and `repeats` of None mean the recorded ones. `congestion_control`
    and `without` name what takes the place of what cannot be carried over (`replay.substitutions`).
    """

    run: Annotated[
        Path, typer.Argument(help="A run folder, the folder of one trial, or a CSV of flows.")
    ]
    backend: Annotated[str, "--on", "Replay on this backend; default: the recorded one."] = ""
    tuners: Annotated[
        list[str],
        "--tuner",
        "Who decides: a tuner, or {name: ..., parameters}. Again for more. "
        "`recorded`, the default: the recorded actions.",
    ] = field(default_factory=lambda: ["recorded"])
    testbed: Annotated[str, "On this testbed, a name or a file."] = ""
    scale_rates: Annotated[float, "Multiply every link's rate by this."] = 1.0
    rate: Annotated[list[str], "A link's rate, like leaf1-spine1=50G. Again: more."] = field(
        default_factory=list
    )
    scale_thresholds: Annotated[bool, "Recorded thresholds in proportion to changed rates."] = False
    congestion_control: Annotated[
        str, "All flows under this, like dctcp; default: the recorded one."
    ] = ""
    without: Annotated[
        list[str],
        "Leave out what this backend cannot repeat: shared-buffer, pfc, load-balancing, link-loss "
        "or drivers. Again: more.",
    ] = field(default_factory=list)
    trials: Annotated[str, "Only the trials of these names, like 'secn1-*'."] = ""
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=1, help="The first repeats only; of one trial, as many."),
    ] = None
    name: Annotated[str, "--name", "-o", "What the replay is called; default: made up."] = ""
