"""`closloop init`: writes a first campaign, with comments, from answers to three questions."""

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
    """Options: the answers to the questions; a question that has its option is not asked."""

    testbed: Annotated[
        str,
        "The fabric: a name from closloop inventory list, also like 'graphcc {buffer: 8MB}', or a "
        "file.",
    ] = ""
    workload: Annotated[str, "The flow sizes: a name from closloop traffic list, or a file."] = ""
    load: Annotated[float | None, "The load: a share of the hosts' line rate."] = None
    incast: Annotated[
        bool | None,
        typer.Option("--incast/--no-incast", help="Add incasts, in which many hosts send to one."),
    ] = None
    compare: Annotated[
        str,
        "congestion-control, load-balancing, buffers, ecn-tcp, ecn-roce or flowlets.",
    ] = ""
    tuners: Annotated[
        str, "Only these tuners, separated by commas; a learned one comes with its placebo."
    ] = ""


@verb(
    "Examples:  closloop init  |  closloop init cc.yml --compare congestion-control --yes  |  "
    "closloop init labs/pet --testbed pet --workload FB_Hadoop --load 0.5 --no-incast "
    "--compare ecn-roce  |  "
    "closloop init my.yml --tuners secn1,acc --yes"
)
def init(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|FILE", help="The file to write (*.yml), or a folder for campaign.yml."
        ),
    ] = Path("first.yml"),
    *,
    options: _AnswerOptions,
    yes: Annotated[
        bool, "--yes", "-y", "Ask nothing, and use defaults for options that are not given."
    ] = False,
    force: Annotated[bool, "Replace files that exist already."] = False,
) -> None:
    """Write a first campaign, with comments, from answers to three questions.

    What to compare, on which fabric, under which traffic? They are asked on a terminal, or given as
    options. The campaign can be planned and run as it is. It has a warm-up, and enough repeats for
    an interval. Thresholds and flowlet timeouts are compared as published settings, rules, a
    learned tuner if there is a packaged network for that transport, and its placebo.
    """
    from orchestration.campaign.expand import load_campaign
    from orchestration.campaign.skeleton.write import check_free, generate, write
    from orchestration.core.outputs import check_outputs
    from orchestration.run.checked import checked

    if not force:
        check_free(path)
    answers = _answers(options, ask=_on_terminal() and not yes)
    generated = generate(answers, path)
    check_outputs(generated.texts, [answers.testbed, answers.workload], "choose another path")
    write(generated, force=force)
    checked(load_campaign(generated.file), with_policies=True)
    for file in generated.texts:
        typer.echo(f"written: {file}")
    typer.echo("next:")
    for command in ("plan", "run"):
        typer.echo(f"  closloop {command} {shlex.quote(str(generated.file))}")


def _answers(options: _AnswerOptions, *, ask: bool) -> Answers:
    """Return the answers: of options, else of the user if `ask` is true, else the defaults."""
    from inventory.files import known_testbeds, load_testbed
    from orchestration.campaign.skeleton.arms import checked_load, usual_load
    from orchestration.campaign.skeleton.factors import COMPARISONS
    from orchestration.campaign.skeleton.write import Answers, comparison_named, unfit
    from traffic.workloads import known_workloads, load_workload

    default = Answers()
    compare = options.compare or default.compare
    if ask and not options.compare:
        rows = [(one.name, one.title) for one in COMPARISONS.values()]
        compare = _choose("1. What to compare?", rows, default.compare)
    comparison = comparison_named(compare)
    testbed = options.testbed or comparison.testbed
    if ask and not options.testbed:
        known = [(name, load_testbed(name)) for name in known_testbeds()]
        rows = [(name, one.description) for name, one in known if unfit(comparison, one) is None]
        testbed = _choose("2. On which fabric?", rows, comparison.testbed)
    fabric = load_testbed(testbed)
    workload = options.workload or default.workload
    usual = usual_load(fabric, comparison.load)
    load = usual if options.load is None else checked_load(options.load, fabric)
    incast = comparison.incast if options.incast is None else options.incast
    if ask and not options.workload:
        rows = [(name, _sizes(load_workload(name))) for name in known_workloads()]
        workload = _choose("3. Under which traffic? Flow sizes:", rows, default.workload)
    if ask and options.load is None:
        load = _ask_load(load, fabric)
    if ask and options.incast is None:
        incast = typer.confirm("   Add incasts, in which many hosts send to one?", default=incast)
    tuners = tuple(name.strip() for name in options.tuners.split(",") if name.strip())
    return Answers(testbed, workload, load, incast, compare, tuners)


def _choose(question: str, rows: Sequence[tuple[str, str]], default: str) -> str:
    """Ask for one of `rows` (name, description), by name or number, and return its name."""
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
        typer.echo(f"   {suggest(answer, names)}answer with a name or a number from the list")


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
