"""`closloop whatif`: one trial with one decision changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import verb
from orchestration.cli.run import Running
from orchestration.cli.terminal import print_json
from orchestration.run.own_process import spare_threads

if TYPE_CHECKING:
    from orchestration.counterfactuals.ask import Question

_NOT_THE_SAME = 1


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
    raise typer.Exit(_NOT_THE_SAME if found.verified else summary.exit_code)
