"""Checks of long-lived flows and of flow samples, which only RoCE NICs support."""

from __future__ import annotations

from collections.abc import Iterator

from inventory.strictyaml import Loc
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.core.congestion import roce_controls
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration


def check_long_lived(
    loc: Loc, pattern: Fields, campaign: Fields, testbed: Testbed | None
) -> Iterator[LocatedProblem]:
    """Report flows without a size, which are long-lived, if no RoCE NIC sends them."""
    if (
        "size" in pattern
        and pattern["size"] is None
        and not _sent_by_nics(pattern, campaign, testbed)
    ):
        yield LocatedProblem(
            loc,
            "flows without a size need RoCE NICs, which the emulated and the simulated backend "
            "have: they last as long as the trial",
            "give them a size, or use `host: {congestion_control: dcqcn}` there",
        )


def _sent_by_nics(pattern: Fields, campaign: Fields, testbed: Testbed | None) -> bool:
    """Return whether RoCE NICs send the pattern's flows; True where that is not known."""
    host = campaign.get("host")
    if host is None:
        return True
    control = pattern.get("congestion_control")
    if not control and testbed is not None and testbed.classes:
        named = {klass.name: klass.congestion_control for klass in testbed.classes}
        control = named.get(pattern.get("queue_class") or testbed.classes[0].name)
    return (control or host.congestion_control) in roce_controls()


def check_flow_samples(campaign: Fields, testbed: Testbed | None) -> Iterator[LocatedProblem]:
    """Report a `flow_sample_period` that is impossible with the campaign's other fields."""
    period_ns, sample_ns = campaign.get("flow_sample_period"), campaign.get("sample_period")
    if not period_ns:
        return
    loc: Loc = ("flow_sample_period",)
    if sample_ns and period_ns % sample_ns:
        yield LocatedProblem(
            loc,
            f"flow_sample_period {format_duration(period_ns, 6)} is not a multiple of "
            f"sample_period {format_duration(sample_ns, 6)}",
            "flows are read with the queues: use 1, 2, 3 … sample periods",
        )
    if not all(
        _sent_by_nics(vars(pattern), campaign, testbed) for pattern in campaign.get("traffic", ())
    ):
        yield LocatedProblem(
            loc,
            "only flows of RoCE NICs can be sampled, which the emulated and the simulated "
            "backend have",
            "remove it, or use `host: {congestion_control: dcqcn}` there",
        )
