"""Time dilation: trials in real time on a machine or rack that is slower than the testbed.

With scale s all rates are divided by s and all times multiplied by s, so that the same packets meet
at the same queues. Results are in the trial's own time again.
"""

from __future__ import annotations

from dataclasses import replace

from orchestration.campaign.expand import Campaign
from orchestration.core.errors import InputError
from orchestration.core.load_balancing import MAX_TIMEOUT_NS
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration


def with_scale(campaign: Campaign, factor: int) -> Campaign:
    """Return the campaign with `factor` as its trials' scale, which gives them other ids.

    Raises InputError for trials that cannot be scaled.
    """
    for trial in campaign.trials if factor > 1 else ():
        _check(campaign, trial, factor)
    return replace(
        campaign, trials=tuple(replace(trial, scale=factor) for trial in campaign.trials)
    )


def describe_scale(campaign: Campaign) -> str:
    """Return a sentence that says what a campaign's scale means; "" without a scale."""
    first = campaign.trials[0]
    if first.scale == 1:
        return ""
    minimum = format_duration(first.duration_ns * first.scale)
    maximum = format_duration((first.duration_ns + first.drain_ns) * first.scale)
    return (
        f"scale {first.scale}: rates are 1/{first.scale} of the testbed's, and a trial of "
        f"{format_duration(first.duration_ns)} takes {minimum}, with its drain up to {maximum}; "
        "all times in results are divided by the scale again"
    )


def _check(campaign: Campaign, trial: TrialSpec, factor: int) -> None:
    name, balancing = str(campaign.path), trial.load_balancing
    if trial.host.roce is not None:
        raise InputError.single(
            name,
            "flows of RoCE NICs cannot be scaled: their parameters are rates and microseconds",
            "use a congestion control of TCP, or run it on an unscaled rack or in virtual time",
        )
    timeout_ns = max(balancing.edge_timeout_ns, balancing.aggregation_timeout_ns)
    if balancing.kind == "flowlets" and timeout_ns * factor > MAX_TIMEOUT_NS:
        raise InputError.single(
            name,
            f"scaled by {factor}, a flowlet timeout of {format_duration(timeout_ns)} is "
            f"{format_duration(timeout_ns * factor)}, and switches take at most "
            f"{format_duration(MAX_TIMEOUT_NS)}",
            "use a smaller scale with fewer hosts, or a shorter timeout",
        )
