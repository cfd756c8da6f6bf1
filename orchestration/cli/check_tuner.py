"""`closloop check-tuner`: checks a user's tuner against the contract that all tuners must hold."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError
from orchestration.core.problems import of_text

_TESTBEDS = ["graphcc", "acc", "drlet-k4"]


@verb(
    "Examples:  closloop check-tuner my_tuner.py:MyTuner  |  "
    "closloop check-tuner my_tuner.py:MyTuner --set gain=0.5 --testbed acc --testbed pet"
)
def check_tuner(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="tuner",
            help="file.py:Class, an entry point of closloop.tuners, or a name like acc.",
        ),
    ],
    testbed: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A testbed to check it on; repeat it for more. Default: {', '.join(_TESTBEDS)}."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A parameter, like gain=0.5; repeat it for more.", metavar="K=V"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a tuner against the contract of all tuners, on made-up readings.

    Exit code: 0 the tuner holds the contract, 1 it does not, 2 bad input.
    """
    from inventory.files import load_testbed
    from orchestration.campaign.fields import read_param
    from tuners import contract

    params = {}
    for text in setting or []:
        name, given, value = text.partition("=")
        if not given:
            raise InputError.single("--set", f"{text!r} is not K=V", "write it like gain=0.5")
        params[name] = read_param(name, _read(value))
    faults = {
        name: contract.check_tuner(reference, load_testbed(name), params)
        for name in testbed or _TESTBEDS
    }
    if as_json:
        print_json({"tuner": reference, "faults": faults})
    else:
        for name, of_testbed in faults.items():
            typer.echo(f"{name}: {'does not hold' if of_testbed else 'holds'}")
            for fault in of_testbed:
                typer.echo(textwrap.indent(str(of_text(fault)), "  "))
    raise typer.Exit(1 if any(faults.values()) else 0)


def _read(text: str) -> object:
    """Return the number or truth value that a text means, and other texts unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text
