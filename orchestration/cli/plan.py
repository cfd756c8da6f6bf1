"""`closloop plan`: shows what a campaign would run and how long that takes; starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orchestration.cli.options import (
    Clock,
    In,
    InventoryOption,
    Jobs,
    Json,
    On,
    Out,
    Passwords,
    Repeats,
    Scale,
    verb,
)
from orchestration.cli.plan_text import cautions_of, print_plan
from orchestration.cli.run import RunOptions, rack_access, with_chosen_scale, with_rack_scale
from orchestration.cli.terminal import Phases, print_json
from orchestration.core.errors import InputError

if TYPE_CHECKING:
    from orchestration.campaign.bounds import Bounds
    from orchestration.campaign.deliverable_load import DeliverableLoad
    from orchestration.campaign.expand import Campaign
    from orchestration.campaign.plan import Plan
    from orchestration.campaign.unresponsive import Unresponsive
    from orchestration.core.builds import Build
    from orchestration.core.trial import TrialSpec
    from orchestration.run.backend_factory import RackAccess
    from orchestration.run.checked import CheckedCampaign


@verb()
def plan(
    file: Annotated[Path, "The campaign file."],
    *,
    backend: On = None,
    clock: Clock = None,
    scale: Scale = None,
    inventory: InventoryOption = None,
    passwords: Passwords,
    repeats: Repeats = None,
    jobs: Jobs = 0,
    out: Out = Path("runs"),
    engine: In = "",
    as_json: Json = False,
) -> None:
    """Show what a campaign would run, in which order, and how long it would take.

    The file is checked completely; nothing is started and nothing is written. On hardware, with an
    inventory, every switch is asked what it offers.

    Examples: closloop plan examples/quickstart.yml

    closloop plan examples/thresholds.yml --on fluid --json
    """
    from orchestration.campaign.bounds import read_bounds
    from orchestration.campaign.expand import load_campaign

    bounds = read_bounds(file, backend=backend, clock=clock, repeats=repeats)
    if not bounds.planned:
        show_bounds(bounds, file, as_json=as_json)
        if bounds.problems:
            raise InputError(bounds.problems)
        return
    campaign = load_campaign(file, backend=backend, clock=clock, repeats=repeats)
    rack = rack_access(campaign, inventory, passwords)
    campaign = with_chosen_scale(with_rack_scale(campaign, rack), scale)
    running = RunOptions(out, jobs, engine=engine, as_json=as_json)
    show_plan(campaign, rack, running, bounds)


def show_bounds(bounds: Bounds, file: Path, *, as_json: bool) -> None:
    """Show a campaign's upper bounds, where planning each trial would take too long."""
    import typer

    if as_json:
        data = {"campaign": bounds.campaign, "file": str(file), "backend": bounds.backend}
        print_json({**data, "bounds": _bounds_json(bounds)}, indent=2)
        return
    typer.echo(bounds.sentence)
    if not bounds.problems:
        typer.echo(
            "These are upper bounds, and only some conditions were checked: to plan each trial "
            f"would take about {bounds.plan_s:,.0f} s. A smaller campaign, such as one with "
            "--repeats 1, is planned in full."
        )


def show_plan(
    campaign: Campaign,
    rack: RackAccess | None,
    running: RunOptions,
    bounds: Bounds | None = None,
) -> None:
    """Show the plan of a campaign that is run so and, with a `rack`, what its switches offer.

    `bounds` are shown with JSON only. Raises InputError for a campaign that cannot run.
    """
    from orchestration.campaign.plan import make_plan
    from orchestration.run.backend_factory import hardware
    from orchestration.run.checked import checked
    from orchestration.run.launcher import builds_before

    campaign = checked(campaign, with_policies=True, engine=running.engine)
    offers: list[dict[str, Any]] | None = None
    if rack is not None:
        testbed = campaign.testbeds[campaign.trials[0].testbed]
        offers = hardware(rack).offers(campaign.trials, testbed)
    cores = 1 if campaign.runs_one_at_a_time else len(os.sched_getaffinity(0))
    made = make_plan(campaign, running.jobs or cores, running.out, campaign.engine.engine)
    sizes = _adaptive_sizes(campaign, made, running.out)
    builds = builds_before(campaign, running.out)
    if not running.as_json:
        print_plan(campaign, made, sizes, offers or [], builds)
        return
    conditions = campaign.unresponsive_conditions.conditions
    data = {
        **_as_json(campaign, made),
        **({} if bounds is None else {"bounds": _bounds_json(bounds)}),
        "marks_ignored": [_unresponsive_json(condition) for condition in conditions],
        "settings_unused": [one.to_json() for one in made.unused_settings],
        "to_build": [_build_json(build) for build in builds],
        **({} if sizes is None else {"repeats": sizes}),
        **({} if offers is None else {"switches": offers}),
    }
    print_json(data, indent=2)


def _bounds_json(bounds: Bounds) -> dict[str, Any]:
    return {
        "conditions": bounds.conditions,
        "trials": bounds.trials,
        "flows_per_trial": bounds.flows,
        "readings_per_trial": bounds.readings,
        "memory_bytes": bounds.memory_bytes,
        "disk_bytes": bounds.disk_bytes,
        "wall_s": round(bounds.wall_s, 3),
        "possible": not bounds.problems,
        "problems": [problem.to_json() for problem in bounds.problems],
    }


def _adaptive_sizes(campaign: Campaign, made: Plan, out: Path) -> dict[str, Any] | None:
    """Return the least, likely and most trials of a campaign with adaptive repeats, as JSON.

    None for other campaigns. What is likely follows from the spread of the results that an earlier
    run left in `out`; it is None without any.
    """
    rule = campaign.repeats
    if rule is None:
        return None
    from orchestration.run.adaptive import Rounds

    rounds = Rounds(campaign.cells, campaign.trials, rule, campaign.question.compare)
    folder, likely = out / campaign.name, None
    if folder.exists():
        with Phases() as phases:
            phases.phase("reading results")
            likely = rounds.likely(folder, phases.step)

    def size(repeats: Callable[[TrialSpec], int]) -> dict[str, Any]:
        """Return the number and wall time of the trials up to so many repeats of each cell."""

        def chosen(trial: TrialSpec) -> bool:
            return trial.repeat <= repeats(trial)

        count = sum(chosen(planned.trial) for planned in made.trials)
        return {"trials": count, "wall_s": round(made.wall_of(chosen), 3)}

    return {
        "until": rule.until,
        "of": rule.of,
        "looks": rule.sizes,
        "least": size(lambda trial: rule.minimum),
        "likely": None
        if likely is None
        else size(lambda trial: likely[rounds.condition_of(trial)]),
        "most": size(lambda trial: rule.maximum),
    }


def _build_json(build: Build) -> dict[str, Any]:
    problems = [problem.to_json() for problem in build.problems]
    return {"what": build.what, "wall_s": round(build.wall_s, 1), "problems": problems}


def _unresponsive_json(condition: Unresponsive) -> dict[str, Any]:
    return {
        "condition": condition.name,
        "congestion_controls": list(condition.controls),
        "tuners": list(condition.tuners),
    }


def _load_json(load: DeliverableLoad) -> dict[str, Any]:
    return {
        "conditions": load.conditions,
        "measured_ns": load.measured_ns,
        "asked": load.intended,
        "offered": load.offered,
        "arrives": load.deliverable,
        "longer_ns": load.longer_ns,
        "settled_ns": load.settled_ns,
        "share": round(load.share, 4),
        "enough": load.enough,
    }


def _as_json(campaign: CheckedCampaign, made: Plan) -> dict[str, Any]:
    from orchestration.core.trial import checkpoint_in

    return {
        "campaign": campaign.name,
        "file": str(campaign.path),
        "question": campaign.comparison.to_json(),
        "backend": campaign.trials[0].backend,
        "engine": campaign.engine.engine or None,
        "engine_reason": campaign.engine.reason or None,
        "jobs": made.jobs,
        "wall_s": round(made.wall_s, 3),
        "disk_bytes": made.disk_bytes,
        "earlier_trials": made.earlier,
        "cautions": cautions_of(campaign),
        "arriving": [_load_json(load) for load in made.deliverable_loads],
        "trials": [
            {
                "id": planned.trial.id,
                "cell": planned.trial.cell,
                "repeat": planned.trial.repeat,
                "seed": planned.trial.seed,
                **({"checkpoint": name} if (name := checkpoint_in(planned.trial)) else {}),
                "testbed": planned.trial.testbed,
                "flows": planned.flows,
                "offered_bytes": planned.offered_bytes,
                "packet_hops": planned.packet_hops,
                "duration_ns": planned.trial.duration_ns,
                "latest_ns": planned.latest_ns,
                "wall_s": round(planned.wall_s, 3),
                "disk_bytes": planned.disk_bytes,
            }
            for planned in made.trials
        ],
    }
