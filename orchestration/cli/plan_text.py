"""What `closloop plan` prints: the cells, what is compared, the sum, cautions, the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestration.cli.terminal import in_real_time
from orchestration.core.condition import TUNER
from orchestration.render.numbers import clock_text
from orchestration.render.table import Span, Table, Text, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from orchestration.campaign.expand import Campaign
    from orchestration.campaign.plan import Plan
    from orchestration.core.builds import Build
    from orchestration.run.checked import CheckedCampaign


def print_plan(
    campaign: CheckedCampaign,
    made: Plan,
    sizes: dict[str, Any] | None,
    offers: list[dict[str, Any]],
    builds: Sequence[Build],
) -> None:
    """Print the cells with their sizes, the sum, what to beware of, and the order of the trials.

    `sizes` are those of adaptive repeats, None for others; `offers` is what switches offer;
    `builds` is what is built before the first trial.
    """
    from orchestration.campaign.deliverable_load import plan_messages
    from orchestration.campaign.rotation import describe_rotation

    show(_cells(campaign, made), _total(made) if sizes is None else _adaptive_total(made, sizes))
    built = (line for build in builds for line in _build_lines(build))
    engine = [campaign.engine.sentence] if campaign.engine.sentence else []
    show(*engine, *built, campaign.comparison.sentence)
    cautions = (
        *campaign.unresponsive_conditions.sentences,
        *(one.sentence for one in made.unused_settings),
        *plan_messages(made.deliverable_loads),
        *cautions_of(campaign),
    )
    show(*(Span(caution, "warning") for caution in cautions), *describe_rotation(campaign.trials))
    minimum = campaign.repeats.minimum if campaign.repeats else None
    show(_order(made, _shown_labels(campaign), minimum), *_offer_lines(offers))


def cautions_of(campaign: Campaign) -> list[str]:
    """Return cautions on the networks that a campaign's tuners load."""
    from orchestration.core.trial import checkpoint_in

    checkpoints = [name for trial in campaign.trials if (name := checkpoint_in(trial))]
    if not checkpoints:
        return []
    from orchestration.analysis.stamp import cautions  # with it pyarrow is imported

    return cautions(checkpoints)


def _build_lines(build: Build) -> list[Text]:
    """Return what is said of something that is built first, and what is missing for it."""
    first = f"first, {build.what} is built, once: about {clock_text(build.wall_s)} of wall time"
    return [first, *(Span(str(problem), "warning") for problem in build.problems)]


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
    names = _shown_labels(campaign)
    for cell in campaign.cells:
        trials = [planned for planned in made.trials if planned.trial.cell == cell]
        count = len(trials)
        rows.append(
            [
                *(str(cell[name]) for name in names),
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
        names,
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


def _shown_labels(campaign: Campaign) -> list[str]:
    """Return the labels of cells: without the tuner's where only others vary."""
    names = list(campaign.cells[0])
    one = len({cell[TUNER] for cell in campaign.cells}) == 1
    return [name for name in names if name != TUNER or not one or len(names) == 1]


def _total(made: Plan) -> str:
    from orchestration.core.units import format_size

    basis = f"{made.earlier} earlier trials" if made.earlier else "a typical core's speed"
    side = f"{made.jobs} side by side" if made.jobs > 1 else "one after the other"
    return (
        f"all {len(made.trials)} trials, {side}: about {clock_text(made.wall_s)} of wall time and "
        f"{format_size(made.disk_bytes, 1)} of disk (estimated from {basis})"
    )


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


def _order(made: Plan, names: Sequence[str], upto: int | None = None) -> str:
    """Return a line per block of trials: each cell once, in the order of the run.

    With adaptive repeats, `upto` is the repeat of the first interim analysis. What runs after it
    depends on the results.
    """
    blocks: dict[int, list[str]] = {}
    for planned in made.trials:
        labels = "/".join(str(planned.trial.cell[name]) for name in names)
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
