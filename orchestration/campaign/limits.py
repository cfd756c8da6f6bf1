"""What no campaign may be larger than, found before a trial, a flow or a reading is made.

Beyond these limits a number must be wrong, a unit most often: no machine would come to an end. What
fits this machine is asked before a campaign runs (`orchestration.run.executors`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from inventory.strictyaml import Document, Loc
from orchestration.campaign import schema
from orchestration.campaign.factors import Factors
from orchestration.campaign.patterns import flows_spec
from orchestration.campaign.repeats import Adaptive
from orchestration.core.errors import InputError, Problem
from orchestration.core.pattern import Expected, given_fields
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_size

MAX_TRIALS = 1_000_000
# Of a trial.
MAX_FLOWS = 10_000_000
MAX_READINGS = 1_000_000_000

# Bytes of memory that a run needs at least for a trial of a campaign, a flow, and a reading of a
# queue: measured on the fluid backend (1,500, 370 and 149), rounded down.
TRIAL_BYTES, FLOW_BYTES, READING_BYTES = 1_500, 150, 100


def count_trials(document: Document, factors: Factors, tuners: int | None = None) -> int:
    """Return how many trials a file has at most; fields that are wrong count as one.

    `tuners` are how many stand in for the file's own.
    """
    listed = document.data.get("tuners")
    own = len(listed) if isinstance(listed, list) else 1
    return count_conditions(factors) * (own if tuners is None else tuners) * _repeats(document.data)


def count_conditions(factors: Factors) -> int:
    """Return how many combinations of the factors' levels there are."""
    return math.prod(len(levels) for levels in factors.levels.values())


def count_problem(document: Document, factors: Factors, trials: int) -> Problem | None:
    """Return the problem of a file with more trials than are possible, None if it has not."""
    if trials <= MAX_TRIALS:
        return None
    conditions, repeats = count_conditions(factors), _repeats(document.data)
    loc: Loc = ("repeats",) if repeats >= conditions else ("factors",)
    what = (
        f"{repeats:,} repeats of {trials // repeats:,} tuners and conditions are {trials:,} "
        f"trials, more than {MAX_TRIALS:,}: about {format_size(trials * TRIAL_BYTES, 0)} of memory"
    )
    remedy = "use fewer repeats" if loc == ("repeats",) else "use fewer factors, or fewer levels"
    return document.problem(loc, what, remedy)


def size_problems(
    document: Document, file: schema.CampaignFile, testbed: Testbed, folder: str
) -> Iterator[Problem]:
    """Yield the problems of a cell whose trials would have too many flows or readings."""
    each = expected_flows(file, testbed, folder)
    flows = sum(one.flows for one in each.values())
    too_many = [number for number, one in each.items() if one.flows > MAX_FLOWS]
    for number in too_many:
        loc, what, remedy = _sized_by(file, number, each[number].flows)
        comma = "" if what.endswith(" are") else ","
        yield document.problem(loc, f"{what}{comma} more than {MAX_FLOWS:,}", remedy)
    if flows > MAX_FLOWS and not too_many:
        what = f"its patterns make about {flows:,.0f} flows a trial, more than {MAX_FLOWS:,}"
        yield document.problem(("traffic",), what, "use a shorter duration, or fewer flows")
    readings = count_readings(file, testbed)
    if readings > MAX_READINGS:
        what = (
            f"sample_period {_time(file.sample_period)} makes {readings:,} readings of "
            f"{len(testbed.queues)} queues in {_time(file.duration)}, more than {MAX_READINGS:,}: "
            f"at least {format_size(readings * READING_BYTES, 0)} of memory"
        )
        is_written = ("sample_period",) in document.lines
        loc = ("sample_period",) if is_written else ("duration",)
        yield document.problem(loc, what, "sample less often, or make the trial shorter")
    period = file.flow_sample_period
    if period is not None and (sampled := int(flows) * (file.duration // period)) > MAX_READINGS:
        what = (
            f"flow_sample_period {_time(period)} makes {sampled:,} readings of about {flows:,.0f} "
            f"flows, more than {MAX_READINGS:,}"
        )
        yield document.problem(("flow_sample_period",), what, "sample flows less often")


def expected_flows(file: schema.CampaignFile, testbed: Testbed, folder: str) -> dict[int, Expected]:
    """Return what each pattern of a cell is likely to send, by its number; not of wrong ones.

    Nor of replayed ones: their flows are in a file, and are no more than that.
    """
    found: dict[int, Expected] = {}
    for number, item in enumerate(file.traffic):
        with suppress(InputError, OSError, KeyError):  # the other checks say so
            if not item.spec.fields("file"):
                found[number] = flows_spec(item, file.duration, folder).expected(testbed)
    return found


def count_readings(file: schema.CampaignFile, testbed: Testbed) -> int:
    """Return how many readings of queues a cell's trial has at least."""
    return file.duration // file.sample_period * len(testbed.queues)


def _sized_by(file: schema.CampaignFile, number: int, flows: float) -> tuple[Loc, str, str]:
    """Return the field that makes a pattern so large, what it makes, and what to do about it."""
    item = file.traffic[number]
    field, what, remedy = item.spec.sized_by
    what = what.format(flows=flows, memory=format_size(flows * FLOW_BYTES, 0))
    loc: Loc = ("traffic", number, *filter(None, [field]))
    if f"{field}_ns" in given_fields(item.spec):
        time_ns = item.of_field(f"{field}_ns")
        if field == "stop" and time_ns is None:
            loc, time_ns = ("duration",), file.duration
        what = f"{loc[-1]} {_time(time_ns)} {what}"
    return loc, what, remedy


def _repeats(data: Mapping[str, Any]) -> int:
    value = data.get("repeats", schema.CampaignFile.model_fields["repeats"].default)
    if isinstance(value, dict):
        value = value.get("max", value.get("most", Adaptive.model_fields["max"].default))
    return value if isinstance(value, int) and value > 0 else 1


def _time(ns: int) -> str:
    return format_duration(ns, 6)
