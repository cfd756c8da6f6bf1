"""What is asked, which is made of the options of `closloop whatif` and `closloop credit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_Then = Annotated[
    str, "Who decides afterwards: recorded (as it was), or tuner (from what it then sees)."
]
_TrialName = Annotated[str, "Of a campaign's folder: this trial, like 'acc-*'."]
_Name = Annotated[str, "--name", "-o", "What the result is called; default: made up."]


@dataclass(frozen=True)
class Question:
    """Which decision is changed, and to what, as the user wrote it."""

    run: Annotated[Path, typer.Argument(help="A trial's folder, or with --trial its campaign's.")]
    at: Annotated[str, "The decision's time, like 2ms; 0ns: the start."]
    target: Annotated[
        str,
        "--queue",
        "--target",
        "Where: leaf1:eth0, leaf1:eth0/1, or the switch or host of another knob.",
    ]
    settings: Annotated[
        list[str],
        typer.Option("--set", help="What instead, like kmin=20KB; again for more.", metavar="K=V"),
    ]
    lasts: Annotated[
        str, "--for", "How long it holds, like 300us; default: until its next decision."
    ] = ""
    then: _Then = "recorded"
    verify: Annotated[bool, "Also run it unchanged, and check that the parent comes out."] = False
    trial: _TrialName = ""
    max_shown: Annotated[
        int, "--max-shown", "--most", "How many of the most changed flows are listed."
    ] = 10
    name: _Name = ""


@dataclass(frozen=True)
class CreditRequest:
    """Which decisions of a trial are tried otherwise."""

    run: Annotated[
        Path,
        typer.Argument(help="A learned tuner's trial, or with --trial its campaign's folder."),
    ]
    trial: _TrialName = ""
    decisions: Annotated[int, typer.Option("--decisions", min=1, help="So many decisions.")] = 40
    alternatives: Annotated[
        int, typer.Option("--alternatives", min=1, help="Other settings for each.")
    ] = 2
    then: _Then = "recorded"
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws decisions and settings.")] = 1
    max_shown: Annotated[int, "--max-shown", "--most", "How many misleading cases are listed."] = 10
    name: _Name = ""
