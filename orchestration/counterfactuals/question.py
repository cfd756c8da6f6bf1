"""The options of `closloop whatif` and `closloop credit`: what the user asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_Then = Annotated[
    str, "Who decides afterwards: recorded (the recorded actions), or tuner (asked again)."
]
_TrialName = Annotated[str, "Which trial of a campaign's folder, like 'acc-*'."]
_Name = Annotated[
    str, "--name", "-o", "The name of the result; the default is made of the question."
]


@dataclass(frozen=True)
class Question:
    """A counterfactual as the user asks for it: which decision is changed, and to what.

    `lasts` is the option `--for`, `settings` are the options `--set`.
    """

    run: Annotated[Path, typer.Argument(help="A trial's folder, or with --trial its campaign's.")]
    at: Annotated[str, "The decision's time, like 2ms; 0ns is the start."]
    target: Annotated[
        str,
        "--queue",
        "--target",
        "The decision's target: leaf1:eth0, leaf1:eth0/1, or a switch or host for other knobs.",
    ]
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="A value to set instead, like kmin=20KB; repeat it for more.",
            metavar="K=V",
        ),
    ]
    lasts: Annotated[
        str,
        "--for",
        "How long the change holds, like 300us; default: until the target's next decision.",
    ] = ""
    then: _Then = "recorded"
    verify: Annotated[
        bool, "Also run the trial unchanged, and check that it repeats its parent."
    ] = False
    trial: _TrialName = ""
    max_shown: Annotated[
        int,
        "--max-shown",
        "--most",
        "How many flows are listed, those with the largest change first.",
    ] = 10
    name: _Name = ""


@dataclass(frozen=True)
class CreditRequest:
    """A credit analysis as the user asks for it: which decisions to replace, and how often."""

    run: Annotated[
        Path,
        typer.Argument(help="A learned tuner's trial, or with --trial its campaign's folder."),
    ]
    trial: _TrialName = ""
    decisions: Annotated[
        int, typer.Option("--decisions", min=1, help="How many decisions to replace.")
    ] = 40
    alternatives: Annotated[
        int, typer.Option("--alternatives", min=1, help="How many other settings to try for each.")
    ] = 2
    then: _Then = "recorded"
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="The seed that draws decisions and settings.")
    ] = 1
    max_shown: Annotated[int, "--max-shown", "--most", "How many misleading cases are listed."] = 10
    name: _Name = ""
