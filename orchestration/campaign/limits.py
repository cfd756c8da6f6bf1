"""Limits that no campaign may exceed, checked before any trial, flow or reading is made.

Beyond them a number in the file must be wrong, most often its unit: no machine would ever finish.
Whether a campaign fits this machine is checked before it runs (`orchestration.run.executors`).
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
# Flows, and readings of queues, of one trial.
MAX_FLOWS = 10_000_000
MAX_READINGS = 1_000_000_000

# Bytes of memory that a run needs at least for each trial of a campaign, each flow, and each
# reading of a queue: measured on the fluid backend (1,500, 370 and 149), and rounded down.
TRIAL_BYTES, FLOW_BYTES, READING_BYTES = 1_500, 150, 100


def count_trials(document: Document, factors: Factors, tuners: int | None = None) -> int:
    """Return how many trials a file has at most; a field that is wrong counts as one.

    `tuners` is the number of tuners that replace the file's own, None to keep those.
    """
    listed = document.data.get("tuners")
    own = len(listed) if isinstance(listed, list) else 1
    return count_conditions(factors) * (own if tuners is None else tuners) * _repeats(document.data)


def count_conditions(factors: Factors) -> int:
    """Return how many combinations of the factors' levels there are."""
    return math.prod(len(levels) for levels in factors.levels.values())


def count_problem(document: Document, factors: Factors, trials: int) -> Problem | None:
    """Return the problem that a file has too many trials, None if it has not."""
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
    expected = expected_flows(file, testbed, folder)
    flows = sum(traffic.flows for traffic in expected.values())
    too_many = [index for index, traffic in expected.items() if traffic.flows > MAX_FLOWS]
    for index in too_many:
        loc, what, remedy = _sized_by(file, index, expected[index].flows)
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
    """Return the expected traffic of each pattern of a cell, by the pattern's index.

    Patterns with errors are left out, and so are traces: a file holds no more flows than it has.
    """
    expected: dict[int, Expected] = {}
    for index, item in enumerate(file.traffic):
        with suppress(InputError, OSError, KeyError):  # other checks report these
            if not item.spec.fields("file"):
                expected[index] = flows_spec(item, file.duration, folder).expected(testbed)
    return expected


def count_readings(file: schema.CampaignFile, testbed: Testbed) -> int:
    """Return how many readings of single queues a cell's trial has at least."""
    return file.duration // file.sample_period * len(testbed.queues)


def _sized_by(file: schema.CampaignFile, index: int, flows: float) -> tuple[Loc, str, str]:
    """Return the field that makes a pattern so large, the problem, and the remedy."""
    item = file.traffic[index]
    field, what, remedy = item.spec.sized_by
    what = what.format(flows=flows, memory=format_size(flows * FLOW_BYTES, 0))
    loc: Loc = ("traffic", index, *filter(None, [field]))
    if f"{field}_ns" in given_fields(item.spec):
        time_ns = item.of_field(f"{field}_ns")
        if field == "stop" and time_ns is None:
            loc, time_ns = ("duration",), file.duration
        if time_ns is None:  # a load says how often
            loc = ("traffic", index, "load")
        what = f"{loc[-1]} {_time(time_ns) if time_ns else item.of_field('load')} {what}"
    return loc, what, remedy


def _repeats(data: Mapping[str, Any]) -> int:
    value = data.get("repeats", schema.CampaignFile.model_fields["repeats"].default)
    if isinstance(value, dict):
        value = value.get("max", value.get("most", Adaptive.model_fields["max"].default))
    return value if isinstance(value, int) and value > 0 else 1


def _time(ns: int) -> str:
    return format_duration(ns, 6)
