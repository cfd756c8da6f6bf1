"""`closloop plan`: shows what a campaign would run and how long, without starting it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
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
from orchestration.cli.terminal import Phases, print_json
from orchestration.core.errors import InputError
from orchestration.render.numbers import clock_text
from orchestration.render.table import Span, Table, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from orchestration.campaign.bounds import Bounds
    from orchestration.campaign.expand import Campaign
    from orchestration.campaign.plan import Plan
    from orchestration.campaign.unresponsive import Unresponsive
    from orchestration.core.trial import TrialSpec
    from orchestration.run.backend_factory import RackAccess


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
    """Show how large a campaign is, in place of a plan of each trial."""
    import typer

    if as_json:
        data = {"campaign": bounds.campaign, "file": str(file), "backend": bounds.backend}
        print_json({**data, "bounds": _bounds_json(bounds)}, indent=2)
        return
    typer.echo(bounds.sentence)
    if not bounds.problems:
        typer.echo(
            "these are bounds, and some conditions were checked: a plan of each trial would take "
            f"about {bounds.plan_s:,.0f} s; a smaller campaign is planned whole, such as one with "
            "--repeats 1"
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
    """Show a campaign's plan and, with a `rack`, what its switches offer; `bounds` as JSON only."""
    from orchestration.campaign.deliverable_load import plan_messages
    from orchestration.campaign.plan import make_plan
    from orchestration.campaign.rotation import describe_rotation
    from orchestration.run.backend_factory import hardware
    from orchestration.run.checked import checked

    campaign = checked(campaign, with_policies=True)
    offers = None
    if rack is not None:
        testbed = campaign.testbeds[campaign.trials[0].testbed]
        offers = hardware(rack).offers(campaign.trials, testbed)
    cores = 1 if campaign.runs_one_at_a_time else len(os.sched_getaffinity(0))
    made = make_plan(campaign, jobs or cores, out)
    span = _span(campaign, made, out)
    marks = campaign.unresponsive_conditions
    if as_json:
        switches = {} if offers is None else {"switches": offers}
        repeats = {} if span is None else {"repeats": span}
        ignored = {"marks_ignored": [_ignored_as_json(one) for one in marks.conditions]}
        sizes = {} if bounds is None else {"bounds": _bounds_json(bounds)}
        plan = _as_json(campaign, made)
        print_json({**plan, **sizes, **ignored, **repeats, **switches}, indent=2)
        return

    show(_cells(campaign, made), _total(made) if span is None else _spanned(made, span))
    cautions = (*marks.sentences, *plan_messages(made.deliverable_loads), *_cautions(campaign))
    show(*(Span(caution, "warning") for caution in cautions), *describe_rotation(campaign.trials))
    minimum = campaign.repeats.minimum if campaign.repeats else None
    show(_order(made, minimum), *_offer_lines(offers or []))


def _cautions(campaign: Campaign) -> list[str]:
    from orchestration.analysis.stamp import cautions
    from orchestration.core.trial import checkpoint_in

    return cautions(name for trial in campaign.trials if (name := checkpoint_in(trial)))


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
    """Return the sources of signals; switches with the same source share a line."""
    lines: dict[str, list[str]] = {}
    for offer in offers:
        names: dict[str, list[str]] = {}
        for name, source in offer["sources"].items():
            names.setdefault(source, []).append(name)
        words = [f"{', '.join(called)}: {source}" for source, called in names.items()]
        for text in [*words, *offer["shortcomings"]]:
            lines.setdefault(text, []).append(offer["switch"])
    return ["switches:", *(f"  {', '.join(who)}: {text}" for text, who in lines.items())] * bool(
        offers
    )


def _cells(campaign: Campaign, made: Plan) -> Table:
    from orchestration.cli.display import in_real_time
    from orchestration.core.units import format_duration, format_size

    first = campaign.trials[0]
    testbeds = ", ".join(sorted({trial.testbed for trial in campaign.trials}))
    real = " in real time" if first.clock else ""
    own = "trial's time" if in_real_time(first) else "virtual time"
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
                f"{format_duration(trials[0].trial.duration_ns)} to "
                f"{format_duration(trials[0].latest_ns)}",
                f"{sum(trial.packet_hops for trial in trials) / count:,.0f}",
                clock_text(sum(trial.wall_s for trial in trials) / count),
            ]
        )
    return table(
        list(first.cell),
        ("repeats", "flows", "bytes", own, "packet-hops", "wall time"),
        rows,
        f"{campaign.name}: {testbeds} on {first.backend}{real}",
        "a trial: means over the repeats; packets sent by NICs and switch ports, estimated",
    )


def _total(made: Plan) -> str:
    from orchestration.core.units import format_size

    basis = f"{made.earlier} earlier trials" if made.earlier else "a typical core's speed"
    side = f"{made.jobs} side by side" if made.jobs > 1 else "one after the other"
    return (
        f"{len(made.trials)} trials, {side}: about {clock_text(made.wall_s)} of wall time and "
        f"{format_size(made.disk_bytes, 1)} of disk (from {basis})"
    )


def _span(campaign: Campaign, made: Plan, out: Path) -> dict[str, Any] | None:
    """Return the least, most and likely size of a campaign with adaptive repeats, None for others.

    What is likely is known by the spread of results that an earlier run left; None without any.
    """
    from orchestration.run.adaptive import Rounds, condition

    rule = campaign.repeats
    if rule is None:
        return None
    rounds = Rounds(campaign.cells, campaign.trials, rule)
    folder, likely = out / campaign.name, None
    if folder.exists():
        with Phases() as phases:
            phases.phase("reading results")
            likely = rounds.likely(folder, phases.step)

    def size(repeats: Callable[[TrialSpec], int]) -> dict[str, Any]:
        def chosen(trial: TrialSpec) -> bool:
            return trial.repeat <= repeats(trial)

        count = sum(chosen(planned.trial) for planned in made.trials)
        return {"trials": count, "wall_s": round(made.wall_of(chosen), 3)}

    return {
        "until": rule.until,
        "of": rule.of,
        "looks": rule.sizes,
        "least": size(lambda trial: rule.minimum),
        "likely": None if likely is None else size(lambda trial: likely[condition(trial)]),
        "most": size(lambda trial: rule.maximum),
    }


def _spanned(made: Plan, span: dict[str, Any]) -> str:
    from orchestration.core.units import format_size

    minimum, likely, maximum = (span[name] for name in ("least", "likely", "most"))
    looks, of = (", ".join(map(str, span[name])) for name in ("looks", "of"))
    expected = (
        f"likely {likely['trials']} trials, about {clock_text(likely['wall_s'])} of wall time, by "
        "the spread of the results that are there"
        if likely
        else f"how many are likely, plan says when {span['looks'][0]} repeats are there"
    )
    return (
        f"{minimum['trials']} to {maximum['trials']} trials, {made.jobs} side by side: about "
        f"{clock_text(minimum['wall_s'])} to {clock_text(maximum['wall_s'])} of wall time, and at "
        f"most {format_size(made.disk_bytes, 1)} of disk; {expected}\n"
        f"until ±{100 * span['until']:g}% of {of}, looked at after {looks} repeats"
    )


def _order(made: Plan, upto: int | None = None) -> str:
    """Return a line per block of trials: each cell once, in the order of the run.

    With adaptive repeats, only those `upto` the first look are certain.
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
        lines.append(f"  repeats {upto + 1} to {last}: likewise, of the conditions that need them")
    return "\n".join(["order:", *lines])


def _ignored_as_json(one: Unresponsive) -> dict[str, Any]:
    return {
        "condition": one.condition,
        "congestion_controls": list(one.controls),
        "tuners": list(one.tuners),
    }


def _as_json(campaign: Campaign, made: Plan) -> dict[str, Any]:
    from orchestration.core.trial import checkpoint_in

    return {
        "campaign": campaign.name,
        "file": str(campaign.path),
        "backend": campaign.trials[0].backend,
        "jobs": made.jobs,
        "wall_s": round(made.wall_s, 3),
        "disk_bytes": made.disk_bytes,
        "earlier_trials": made.earlier,
        "cautions": _cautions(campaign),
        "arriving": [
            {
                **{field.name: getattr(found, field.name) for field in fields(found)},
                "share": round(found.share, 4),
                "enough": found.enough,
            }
            for found in made.deliverable_loads
        ],
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
