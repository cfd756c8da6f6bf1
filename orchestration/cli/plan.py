"""`closloop plan`: shows what a campaign would run and how long that takes; starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from orchestration.cli.options import (
    Clock,
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
from orchestration.cli.run import rack_access, with_chosen_scale, with_rack_scale
from orchestration.cli.terminal import Phases, in_real_time, print_json
from orchestration.core.errors import InputError
from orchestration.render.numbers import clock_text
from orchestration.render.table import Span, Table, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from orchestration.campaign.bounds import Bounds
    from orchestration.campaign.deliverable_load import DeliverableLoad
    from orchestration.campaign.expand import Campaign
    from orchestration.campaign.plan import Plan
    from orchestration.campaign.unresponsive import Unresponsive
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
    show_plan(campaign, rack, jobs, out, as_json=as_json, bounds=bounds)


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
    jobs: int,
    out: Path,
    *,
    as_json: bool,
    bounds: Bounds | None = None,
) -> None:
    """Show a campaign's plan and, with a `rack`, what its switches offer.

    `bounds` are shown with JSON only. Raises InputError for a campaign that cannot run.
    """
    from orchestration.campaign.plan import make_plan
    from orchestration.run.backend_factory import hardware
    from orchestration.run.checked import checked

    campaign = checked(campaign, with_policies=True)
    offers: list[dict[str, Any]] | None = None
    if rack is not None:
        testbed = campaign.testbeds[campaign.trials[0].testbed]
        offers = hardware(rack).offers(campaign.trials, testbed)
    cores = 1 if campaign.runs_one_at_a_time else len(os.sched_getaffinity(0))
    made = make_plan(campaign, jobs or cores, out)
    sizes = _adaptive_sizes(campaign, made, out)
    if not as_json:
        _print_plan(campaign, made, sizes, offers or [])
        return
    conditions = campaign.unresponsive_conditions.conditions
    data = {
        **_as_json(campaign, made),
        **({} if bounds is None else {"bounds": _bounds_json(bounds)}),
        "marks_ignored": [_unresponsive_json(condition) for condition in conditions],
        "settings_unused": [one.to_json() for one in made.unused_settings],
        **({} if sizes is None else {"repeats": sizes}),
        **({} if offers is None else {"switches": offers}),
    }
    print_json(data, indent=2)


def _print_plan(
    campaign: CheckedCampaign,
    made: Plan,
    sizes: dict[str, Any] | None,
    offers: list[dict[str, Any]],
) -> None:
    """Print the cells with their sizes, the sum, what to beware of, and the order of the trials.

    `sizes` are those of adaptive repeats, None for others; `offers` is what switches offer.
    """
    from orchestration.campaign.deliverable_load import plan_messages
    from orchestration.campaign.rotation import describe_rotation

    show(_cells(campaign, made), _total(made) if sizes is None else _adaptive_total(made, sizes))
    show(_question(campaign))
    cautions = (
        *campaign.unresponsive_conditions.sentences,
        *(one.sentence for one in made.unused_settings),
        *plan_messages(made.deliverable_loads),
        *_cautions(campaign),
    )
    show(*(Span(caution, "warning") for caution in cautions), *describe_rotation(campaign.trials))
    minimum = campaign.repeats.minimum if campaign.repeats else None
    show(_order(made, minimum), *_offer_lines(offers))


def _question_json(campaign: Campaign) -> dict[str, Any]:
    """Return what is compared: the factor, its baseline and arms, and the metrics that decide."""
    from orchestration.analysis.arms import default_judges, known_judges, order_arms
    from orchestration.core.condition import campaign_tuner_name
    from orchestration.results.question import arm_of

    question, trials = campaign.question, campaign.trials
    tuners = {
        arm_of(trial, campaign_tuner_name(trial), question.compare): trial.tuner.name
        for trial in trials
    }
    arms = order_arms(tuners, question.arms, question.compare)
    judge = known_judges(question.judge, "judge") or default_judges(trials[0].traffic)
    return {"compare": question.compare, "baseline": arms[0], "arms": arms, "judge": judge}


def _question(campaign: Campaign) -> str:
    from orchestration.analysis.metrics import METRICS
    from orchestration.core.condition import ARM, TUNER, factors_of

    asked = _question_json(campaign)
    baseline, *others = asked["arms"]
    compare = {TUNER: "tuners", ARM: "arms"}.get(asked["compare"], asked["compare"])
    if not others:
        factors = [*factors_of(campaign.cells[0]), "host.congestion_control"]
        return (
            f"nothing is compared: the only level of {compare} is {baseline}. To compare the "
            f"levels of a factor, write compare: {factors[0]}; or list several tuners, or arms"
        )
    judge = ", ".join(METRICS[key].label for key in asked["judge"])
    why = "" if campaign.question.judge else ", which suits the traffic; judge: names another"
    return f"compares {compare}: {', '.join(others)} with {baseline}, judged by {judge}{why}"


def _cautions(campaign: Campaign) -> list[str]:
    from orchestration.core.trial import checkpoint_in

    checkpoints = [name for trial in campaign.trials if (name := checkpoint_in(trial))]
    if not checkpoints:
        return []
    from orchestration.analysis.stamp import cautions  # with it pyarrow is imported

    return cautions(checkpoints)


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


def _offer_lines(offers: list[dict[str, Any]]) -> list[str]:
    """Return lines that say where switches' signals come from; equal lines name all switches."""
    if not offers:
        return []
    lines: dict[str, list[str]] = {}
    for offer in offers:
        names: dict[str, list[str]] = {}
        for name, source in offer["sources"].items():
            names.setdefault(source, []).append(name)
        words = [f"{', '.join(called)}: {source}" for source, called in names.items()]
        for text in [*words, *offer["shortcomings"]]:
            lines.setdefault(text, []).append(offer["switch"])
    return ["switches:", *(f"  {', '.join(who)}: {text}" for text, who in lines.items())]


def _cells(campaign: Campaign, made: Plan) -> Table:
    """Return the table of cells; but for the repeats, its figures are of one trial."""
    from inventory.variant import grouped
    from orchestration.core.units import format_duration, format_size

    first = campaign.trials[0]
    testbeds = ", ".join(grouped({trial.testbed for trial in campaign.trials}))
    real = " in real time" if first.clock else ""
    clock = "trial's time" if in_real_time(first) else "virtual time"
    rows = []
    for cell in campaign.cells:
        trials = [planned for planned in made.trials if planned.trial.cell == cell]
        count = len(trials)
        rows.append(
            [
                *map(str, cell.values()),
                f"{campaign.repeats.minimum} to {count}" if campaign.repeats else str(count),
                f"{sum(trial.flows for trial in trials) / count:,.0f}",
                format_size(sum(trial.offered_bytes for trial in trials) / count, 1),
                f"{format_duration(trials[0].trial.duration_ns)} + up to "
                f"{format_duration(trials[0].trial.drain_ns)}",
                f"{sum(trial.packet_hops for trial in trials) / count:,.0f}",
                clock_text(sum(trial.wall_s for trial in trials) / count),
            ]
        )
    return table(
        list(first.cell),
        (
            "repeats",
            "flows per trial",
            "bytes per trial",
            f"{clock} per trial",
            "packet-hops per trial",
            "wall time per trial",
        ),
        rows,
        f"{campaign.name}: {testbeds} on {first.backend}{real}",
        "Figures per trial are means over the repeats. "
        f"The {clock} is 'duration', in which flows start, + 'drain': a trial ends when all of its "
        "flows have ended, at the latest after both. 'warm_up' is a part of 'duration'. A packet "
        "counts as one packet-hop for each link that it crosses. Packet-hops and wall times are "
        "estimates.",
    )


def _total(made: Plan) -> str:
    from orchestration.core.units import format_size

    basis = f"{made.earlier} earlier trials" if made.earlier else "a typical core's speed"
    side = f"{made.jobs} side by side" if made.jobs > 1 else "one after the other"
    return (
        f"all {len(made.trials)} trials, {side}: about {clock_text(made.wall_s)} of wall time and "
        f"{format_size(made.disk_bytes, 1)} of disk (estimated from {basis})"
    )


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


def _adaptive_total(made: Plan, sizes: dict[str, Any]) -> str:
    from orchestration.core.units import format_size

    minimum, likely, maximum = (sizes[name] for name in ("least", "likely", "most"))
    analyses, metrics = (", ".join(map(str, sizes[name])) for name in ("looks", "of"))
    expected = (
        f"by the spread of the results so far, {likely['trials']} trials are likely, in about "
        f"{clock_text(likely['wall_s'])} of wall time"
        if likely
        else f"plan says how many are likely once {sizes['looks'][0]} repeats have run"
    )
    return (
        f"{minimum['trials']} to {maximum['trials']} trials, {made.jobs} side by side: about "
        f"{clock_text(minimum['wall_s'])} to {clock_text(maximum['wall_s'])} of wall time, and at "
        f"most {format_size(made.disk_bytes, 1)} of disk; {expected}\n"
        f"repeats go on until {metrics} is known to ±{100 * sizes['until']:g}%; interim analyses "
        f"are after {analyses} repeats"
    )


def _order(made: Plan, upto: int | None = None) -> str:
    """Return a line per block of trials: each cell once, in the order of the run.

    With adaptive repeats, `upto` is the repeat of the first interim analysis. What runs after it
    depends on the results.
    """
    blocks: dict[int, list[str]] = {}
    for planned in made.trials:
        labels = "/".join(str(label) for label in planned.trial.cell.values())
        blocks.setdefault(planned.trial.repeat, []).append(labels)
    last = max(blocks)
    lines = [
        f"  repeat {repeat}: {', '.join(cells)}"
        for repeat, cells in blocks.items()
        if upto is None or repeat <= upto
    ]
    if upto is not None:
        lines.append(f"  repeats {upto + 1} to {last}: likewise, for conditions that need them")
    return "\n".join(["order:", *lines])


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


def _as_json(campaign: Campaign, made: Plan) -> dict[str, Any]:
    from orchestration.core.trial import checkpoint_in

    return {
        "campaign": campaign.name,
        "file": str(campaign.path),
        "question": _question_json(campaign),
        "backend": campaign.trials[0].backend,
        "jobs": made.jobs,
        "wall_s": round(made.wall_s, 3),
        "disk_bytes": made.disk_bytes,
        "earlier_trials": made.earlier,
        "cautions": _cautions(campaign),
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
