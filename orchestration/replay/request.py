"""The options of `closloop replay`: what the user asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class ReplayRequest:
    """The run to replay, the backend, and what is changed.

    `tuners` are names or mappings as in a campaign file; `recorded` means the recorded actions. An
    empty `backend` or `testbed`, and None for `repeats`, mean the recorded ones.
    `congestion_control` and `without` choose substitutes for settings that the backend cannot
    repeat (`replay.substitutions`).
    """

    run: Annotated[
        Path, typer.Argument(help="A run folder, the folder of one trial, or a CSV of flows.")
    ]
    backend: Annotated[str, "--on", "The backend to replay on; default: the recorded one."] = ""
    tuners: Annotated[
        list[str],
        "--tuner",
        "Who decides: a tuner, or {name: ..., parameters}; repeat it for more. The default, "
        "`recorded`, repeats the recorded actions.",
    ] = field(default_factory=lambda: ["recorded"])
    testbed: Annotated[
        str, "The testbed to replay on, a name or a file; default: the recorded one."
    ] = ""
    scale_rates: Annotated[float, "Multiply the rate of every link by this."] = 1.0
    rate: Annotated[list[str], "The rate of a link, like leaf1-spine1=50G; repeat it for more."] = (
        field(default_factory=list)
    )
    scale_thresholds: Annotated[
        bool, "Scale recorded thresholds in proportion to changed rates."
    ] = False
    congestion_control: Annotated[
        str, "The congestion control of all flows, like dctcp; default: the recorded one."
    ] = ""
    without: Annotated[
        list[str],
        "Leave out what this backend cannot repeat: shared-buffer, pfc, load-balancing, link-loss "
        "or drivers; repeat it for more.",
    ] = field(default_factory=list)
    trials: Annotated[str, "Replay only the trials whose names match, like 'secn1-*'."] = ""
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            min=1,
            help="Only so many of the repeats; of a single trial, so many copies.",
        ),
    ] = None
    name: Annotated[
        str,
        "--name",
        "-o",
        "The name of the replay; the default is made of the run and the changes.",
    ] = ""
