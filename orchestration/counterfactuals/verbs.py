"""`closloop whatif`, one trial with one decision changed, and `closloop credit`, many of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import verb
from orchestration.cli.run import Running
from orchestration.cli.terminal import Phases, print_json
from orchestration.run.own_process import spare_threads

if TYPE_CHECKING:
    from orchestration.counterfactuals.ask import Question
    from orchestration.counterfactuals.credit import CreditRequest

NOT_THE_SAME = 1


@dataclass(frozen=True)
class _Change:
    """Options: which decision is changed, and to what."""

    at: Annotated[str, "The decision's time, like 2ms; 0ns: the start."]
    queue: Annotated[
        str,
        typer.Option(
            "--queue",
            "--target",
            help="Where: leaf1:eth0, leaf1:eth0/1, or the switch or host of another knob.",
        ),
    ]
    setting: Annotated[
        list[str],
        typer.Option("--set", help="What instead, like kmin=20KB; again for more.", metavar="K=V"),
    ]
    lasts: Annotated[
        str, "--for", "How long it holds, like 300us; default: until its next decision."
    ] = ""
    then: Annotated[
        str, "Who decides afterwards: recorded (as it was), or tuner (from what it then sees)."
    ] = "recorded"
    verify: Annotated[bool, "Also run it unchanged, and check that the parent comes out."] = False
    trial: Annotated[str, "Of a campaign's folder: this trial, like 'acc-*'."] = ""
    most: Annotated[int, "--most", "How many of the most changed flows are listed."] = 10
    name: Annotated[str, "--name", "-o", "What the result is called; default: made up."] = ""

    def question(self, run: Path) -> Question:
        from orchestration.counterfactuals.ask import Question

        return Question(
            run=run,
            trial=self.trial,
            at=self.at,
            target=self.queue,
            settings=tuple(self.setting),
            lasts=self.lasts,
            then=self.then,
            verify=self.verify,
            name=self.name,
        )


@verb()
def whatif(
    run: Annotated[Path, "A trial's folder, or with --trial its campaign's."],
    *,
    change: _Change,
    running: Running,
) -> None:
    """Replay a trial to the bit with one decision changed: what did it do to every flow?

    Exit code: 0 done, 1 a trial failed, or --verify found a difference, 2 bad input,
    130 interrupted.

    Examples: closloop whatif runs/quickstart --trial 'secn1-r1-*' --at 0ns --queue leaf1:eth0
    --set kmin=20KB

    closloop whatif runs/a/acc-r1-0f2975e3ff --at 2ms --queue spine1:eth0 --set kmin=1KB
    --then tuner --verify
    """
    spare_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.counterfactuals.ask import answer, prepare
    from orchestration.counterfactuals.printed import answer_blocks, answer_to_json
    from orchestration.render.terminal import show

    asked = prepare(change.question(run), running.out, fresh=running.fresh)
    for note in asked.replay.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"campaign: {asked.replay.file}", err=True)
    summary = running.run(load_campaign(asked.replay.file))
    if summary.failed:
        running.show(summary)
        raise typer.Exit(summary.exit_code)
    found = answer(asked, summary.folder)
    if running.as_json:
        print_json(answer_to_json(found, change.most))
    else:
        show(*answer_blocks(found, change.most))
        typer.echo(
            f"more: closloop compare {asked.decisions.trial.folder} {found.trial.folder}", err=True
        )
    raise typer.Exit(NOT_THE_SAME if found.verified else summary.exit_code)


PAGE_FILE, CSV_FILE, JSON_FILE = "credit.html", "credit.csv", "credit.json"


@dataclass(frozen=True)
class _Sample:
    """Options: which decisions are tried otherwise."""

    trial: Annotated[str, "Of a campaign's folder: this trial, like 'acc-*'."] = ""
    decisions: Annotated[int, typer.Option("--decisions", min=1, help="So many decisions.")] = 40
    alternatives: Annotated[
        int, typer.Option("--alternatives", min=1, help="Other settings for each.")
    ] = 2
    then: Annotated[
        str, "Who decides afterwards: recorded (as it was), or tuner (from what it then sees)."
    ] = "recorded"
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws decisions and settings.")] = 1
    most: Annotated[int, "--most", "How many misleading cases are listed."] = 10
    name: Annotated[str, "--name", "-o", "What the result is called; default: made up."] = ""

    def request(self, run: Path) -> CreditRequest:
        from orchestration.counterfactuals.credit import CreditRequest

        return CreditRequest(
            run=run,
            trial=self.trial,
            decisions=self.decisions,
            alternatives=self.alternatives,
            then=self.then,
            seed=self.seed,
            name=self.name,
        )


@verb()
def credit(
    run: Annotated[Path, "A learned tuner's trial, or with --trial its campaign's folder."],
    *,
    sample: _Sample,
    running: Running,
) -> None:
    """Does a tuner's reward rank its decisions as flows' completion does?

    Tries other settings in place of some decisions, one at a time; each costs one trial. The same
    command goes on after Ctrl-C.

    Exit code: 0 done, 1 a trial failed or is invalid, 2 bad input, 130 interrupted.

    Examples: closloop credit runs/counterfactuals --trial 'graphcc-*'

    closloop credit runs/a/acc-r1-0f2975e3ff --decisions 10 --then tuner --json
    """
    spare_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.counterfactuals.credit import measure, plan_credit
    from orchestration.counterfactuals.credit_printed import (
        credit_blocks,
        credit_csv,
        credit_page,
        credit_to_json,
    )
    from orchestration.render.html import replace_file
    from orchestration.render.json import json_text
    from orchestration.render.terminal import show

    plan = plan_credit(sample.request(run), running.out, fresh=running.fresh)
    typer.echo(f"campaign: {plan.replay.file}", err=True)
    with Phases() as phases:
        phases.phase(f"Reading {len(plan.cases)} counterfactuals")
        campaign = load_campaign(plan.replay.file)
    summary = running.run(campaign)
    with Phases() as phases:
        phases.phase("Ranking")
        found = measure(plan, summary.folder)
    data = credit_to_json(found)
    texts = {
        PAGE_FILE: credit_page(found, sample.most),
        CSV_FILE: credit_csv(found),
        JSON_FILE: json_text(data) + "\n",
    }
    for name, text in texts.items():
        replace_file(summary.folder / name, text)
    if running.as_json:
        print_json(data)
    else:
        show(*credit_blocks(found, sample.most))
    typer.echo(f"page: {summary.folder / PAGE_FILE}, {CSV_FILE} and {JSON_FILE}", err=True)
    raise typer.Exit(NOT_THE_SAME if found.differing else summary.exit_code)
