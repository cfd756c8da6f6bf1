"""`closloop whatif` changes one decision of a trial, `closloop credit` many, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from orchestration.cli.options import verb
from orchestration.cli.run import RunOptions
from orchestration.cli.terminal import Phases, print_json
from orchestration.core.machine import limit_numpy_threads
from orchestration.counterfactuals.question import CreditRequest, Question

if TYPE_CHECKING:
    from orchestration.results.reader import TrialResult

# The exit code if the trial, run again unchanged, differs from its parent.
_NOT_REPEATED = 1
PAGE_FILE, CSV_FILE, JSON_FILE = "credit.html", "credit.csv", "credit.json"


@verb()
def whatif(*, question: Question, running: RunOptions) -> None:
    """Replay a trial to the bit with one decision changed: what did it do to every flow?

    Exit code: 0 done, 1 a trial failed, or --verify found a difference, 2 bad input,
    130 interrupted.

    Examples: closloop whatif runs/quickstart --trial 'secn1-r1-*' --at 0ns --queue leaf1:eth0
    --set kmin=20KB

    closloop whatif runs/a/acc-r1-0f2975e3ff --at 2ms --queue spine1:eth0 --set kmin=1KB
    --then tuner --verify
    """
    limit_numpy_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.counterfactuals.ask import answer, prepare
    from orchestration.counterfactuals.rendering import answer_blocks, answer_to_json
    from orchestration.render.terminal import show

    prepared = prepare(question, running.out, fresh=running.fresh)
    for note in prepared.replay.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"campaign: {prepared.replay.file}", err=True)
    running = _in_engine_of(prepared.decisions.trial, running)
    summary = running.run(running.check(load_campaign(prepared.replay.file)))
    if summary.failed:
        running.show(summary)
        raise typer.Exit(summary.exit_code)
    answered = answer(prepared, summary.folder)
    if running.as_json:
        print_json(answer_to_json(answered, question.max_shown))
    else:
        show(*answer_blocks(answered, question.max_shown))
        typer.echo(
            f"more: closloop compare {prepared.decisions.trial.folder} {answered.trial.folder}",
            err=True,
        )
    raise typer.Exit(_NOT_REPEATED if answered.verified else summary.exit_code)


@verb()
def credit(*, request: CreditRequest, running: RunOptions) -> None:
    """Does a tuner's reward rank its decisions as flow completion does?

    It tries other settings in place of some decisions, one at a time; each costs one trial. The
    same command continues after Ctrl-C.

    Exit code: 0 done, 1 a trial failed or is invalid, 2 bad input, 130 interrupted.

    Examples: closloop credit runs/counterfactuals --trial 'graphcc-*'

    closloop credit runs/a/acc-r1-0f2975e3ff --decisions 10 --then tuner --json
    """
    limit_numpy_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.counterfactuals.credit import measure, plan_credit
    from orchestration.counterfactuals.rendering import (
        credit_blocks,
        credit_csv,
        credit_page,
        credit_to_json,
    )
    from orchestration.render.html import replace_file
    from orchestration.render.json import json_text
    from orchestration.render.terminal import show

    plan = plan_credit(request, running.out, fresh=running.fresh)
    typer.echo(f"campaign: {plan.replay.file}", err=True)
    with Phases() as phases:
        phases.phase(f"Reading {len(plan.cases)} counterfactuals")
        campaign = load_campaign(plan.replay.file)
    running = _in_engine_of(plan.decisions.trial, running)
    summary = running.run(running.check(campaign))
    with Phases() as phases:
        phases.phase("Ranking")
        analysis = measure(plan, summary.folder)
    data = credit_to_json(analysis)
    texts = {
        PAGE_FILE: credit_page(analysis, request.max_shown),
        CSV_FILE: credit_csv(analysis),
        JSON_FILE: json_text(data) + "\n",
    }
    for name, text in texts.items():
        replace_file(summary.folder / name, text)
    if running.as_json:
        print_json(data)
    else:
        show(*credit_blocks(analysis, request.max_shown))
    typer.echo(f"page: {summary.folder / PAGE_FILE}, {CSV_FILE} and {JSON_FILE}", err=True)
    raise typer.Exit(_NOT_REPEATED if analysis.differing else summary.exit_code)


def _in_engine_of(trial: TrialResult, running: RunOptions) -> RunOptions:
    """Return the options with the engine in which the trial repeats to the bit."""
    from orchestration.replay.engines import engine_to_repeat

    return replace(running, engine=engine_to_repeat(trial, running.engine))
