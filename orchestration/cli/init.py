"""`closloop init`: writes a first campaign, with comments, for answers to three questions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import verb
from orchestration.core.errors import InputError, suggest

if TYPE_CHECKING:
    from orchestration.campaign.skeleton.write import Answers
    from orchestration.core.topology import Testbed
    from traffic.workloads import Workload


@dataclass(frozen=True)
class _AnswerOptions:
    """Options: the answers, so that nothing is asked."""

    testbed: Annotated[str, "Which fabric: a name from closloop inventory list, or a file."] = ""
    workload: Annotated[str, "Which traffic: flow sizes from closloop traffic list, or a file."] = (
        ""
    )
    load: Annotated[float | None, "How much of it: a share of the hosts' line rate."] = None
    incast: Annotated[
        bool | None, typer.Option("--incast/--no-incast", help="Many hosts send to one on top.")
    ] = None
    compare: Annotated[str, "What to compare: ecn-tcp, ecn-roce or flowlets."] = ""
    tuners: Annotated[str, "Only these tuners, with commas; a learned one brings its placebo."] = ""


@verb(
    "Examples:  closloop init  |  closloop init first.yml --yes  |  closloop init labs/pet "
    "--testbed pet --workload FB_Hadoop --load 0.5 --no-incast --compare ecn-roce  |  "
    "closloop init my.yml --tuners secn1,acc --yes"
)
def init(
    place: Annotated[
        Path, typer.Argument(metavar="FOLDER|FILE", help="A file (*.yml), or a folder for it.")
    ] = Path("first.yml"),
    *,
    said: _AnswerOptions,
    yes: Annotated[
        bool, "--yes", "-y", "Ask nothing: take the defaults for what is not said."
    ] = False,
    force: Annotated[bool, "Replace files that are there."] = False,
) -> None:
    """Write a first campaign, with comments, for answers to three questions.

    Which fabric, which traffic, what to compare: asked on a terminal, or said as options. What is
    written plans and runs as it is: published settings, rules, a learned tuner where a packaged
    network was trained under that transport, its placebo, a warm-up, and repeats for an interval.
    """
    from orchestration.campaign.expand import load_campaign
    from orchestration.campaign.skeleton.write import check_free, generate, write
    from orchestration.core.outputs import check_outputs
    from orchestration.run.checked import checked

    if not force:
        check_free(place)
    asks = _on_terminal() and not yes
    answers = _answers(said, asks)
    made = generate(answers, place)
    check_outputs(made.texts, [answers.testbed, answers.workload], "choose another place")
    write(made, force=force)
    checked(load_campaign(made.file), with_policies=True)
    for path in made.texts:
        typer.echo(f"written: {path}")
    typer.echo("next:")
    for command in ("plan", "run"):
        typer.echo(f"  closloop {command} {shlex.quote(str(made.file))}")


def _answers(said: _AnswerOptions, asks: bool) -> Answers:
    """Return the answers: as options say, else as the user says if asked, else the defaults."""
    from inventory.files import known_testbeds, load_testbed
    from orchestration.campaign.skeleton.arms import COMPARISONS, checked_load, usual_load
    from orchestration.campaign.skeleton.write import Answers, unfit
    from traffic.workloads import known_workloads, load_workload

    default = Answers()
    testbed = said.testbed or default.testbed
    if asks and not said.testbed:
        rows = [(name, load_testbed(name).description) for name in known_testbeds()]
        testbed = _choose("1. Which fabric?", rows, default.testbed)
    fabric = load_testbed(testbed)
    workload = said.workload or default.workload
    load = usual_load(fabric) if said.load is None else checked_load(said.load, fabric)
    incast = default.incast if said.incast is None else said.incast
    if asks and not said.workload:
        rows = [(name, _sizes(load_workload(name))) for name in known_workloads()]
        workload = _choose("2. Which traffic? Flow sizes:", rows, default.workload)
    if asks and said.load is None:
        load = _ask_load(load, fabric)
    if asks and said.incast is None:
        incast = typer.confirm("   With incasts, many hosts to one, on top?", default=incast)
    compare = said.compare or default.compare
    if asks and not said.compare:
        rows = [(c.name, c.title) for c in COMPARISONS.values() if unfit(c, fabric) is None]
        compare = _choose("3. What to compare?", rows, default.compare)
    tuners = tuple(name.strip() for name in said.tuners.split(",") if name.strip())
    return Answers(testbed, workload, load, incast, compare, tuners)


def _choose(question: str, rows: Sequence[tuple[str, str]], default: str) -> str:
    """Return a row's name, chosen by name or number."""

    names = [name for name, _ in rows]
    typer.echo(question)
    room = max(map(len, names))
    for number, (name, what) in enumerate(rows, start=1):
        typer.echo(f"   {number}) {name:<{room}}  {what}")
    while True:
        answer: str = typer.prompt("   Number or name", default=default)
        answer = answer.strip()
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        if answer in names:
            return answer
        typer.echo(f"   {suggest(answer, names)}answer with a name or a number of the list")


def _ask_load(usual: float, fabric: Testbed) -> float:
    from orchestration.campaign.skeleton.arms import checked_load

    while True:
        answer: float = typer.prompt("   Load, of the hosts' line rate?", default=usual, type=float)
        try:
            return checked_load(answer, fabric)
        except InputError as error:
            (problem,) = error.problems
            typer.echo(f"   {problem.relocated('').in_one_sentence}")


def _sizes(workload: Workload) -> str:
    from orchestration.core.units import format_size

    median, largest = (float(size) for size in workload.quantile([0.5, 1.0]))
    return (
        f"half of all flows up to {format_size(median, 1)}, mean "
        f"{format_size(workload.mean_bytes, 1)}, largest {format_size(largest, 1)}"
    )


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
