"""`closloop credit`: does a tuner's reward rank its decisions as flows' completion does?"""

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
    from orchestration.counterfactuals.credit import CreditRequest

PAGE_FILE, CSV_FILE, JSON_FILE = "credit.html", "credit.csv", "credit.json"
_NOT_THE_SAME = 1


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
    raise typer.Exit(_NOT_THE_SAME if found.differing else summary.exit_code)
