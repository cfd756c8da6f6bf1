"""A replay as a campaign file: the recorded settings, with recordings for patterns and tuners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestration.model.trial import FaultSpec, HostSpec
from orchestration.replay.text import duration, mapping, quoted
from orchestration.replay.tuner_entries import TunerEntry


@dataclass(frozen=True)
class ReplayedPattern:
    """The flows of one recorded class, and how they are sent."""

    recorded_class: str
    queue_class: str = ""
    driver: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayedTrial:
    """A line of the list `parent.trials`."""

    tuner: str
    repeat: int
    seed: int
    trial: str
    sha256: str


@dataclass(frozen=True)
class ReplayCampaign:
    """What the campaign file says. Settings that are None are left to their defaults."""

    name: str
    backend: str
    tuners: tuple[TunerEntry, ...]
    flows_file: str
    patterns: tuple[ReplayedPattern, ...]
    repeats: int
    duration_ns: int
    parent_run: str
    parent_sha256: str = ""
    parent_trials: tuple[ReplayedTrial, ...] = ()
    drain_ns: int | None = None
    sample_period_ns: int | None = None
    action_period_ns: int | None = None
    decision_latency_ns: int | None = None
    host: HostSpec | None = None
    faults: Sequence[FaultSpec] = ()


def campaign_text(campaign: ReplayCampaign, testbed_file: str) -> str:
    """Return the campaign file's text."""
    return "\n".join([*_lines(campaign, testbed_file), ""])


def _lines(campaign: ReplayCampaign, testbed_file: str) -> Iterator[str]:
    yield "# Written by closloop replay; docs/replay.md says what is in it."
    yield f"campaign: {campaign.name}"
    yield f"testbed: {testbed_file}"
    yield f"backend: {campaign.backend}"
    yield "tuners:"
    for tuner in campaign.tuners:
        yield f"  - {tuner.text}"
    yield "traffic:"
    for pattern in campaign.patterns:
        fields: dict[str, Any] = {
            "kind": "replay",
            "file": campaign.flows_file,
            "class": pattern.recorded_class,
        }
        if pattern.queue_class:
            fields["queue_class"] = pattern.queue_class
        if pattern.driver:
            fields["driver"] = pattern.driver
        yield f"  - {mapping(fields)}"
    yield f"repeats: {campaign.repeats}"
    yield f"duration: {duration(campaign.duration_ns)}"
    for key in ("drain", "sample_period", "action_period", "decision_latency"):
        value = getattr(campaign, f"{key}_ns")
        if value is not None:
            yield f"{key}: {duration(value)}"
    if campaign.host is not None:
        settings = {"min_rto": duration(campaign.host.min_rto_ns)}
        # the default goes unsaid: where traffic classes have their own, it would be refused
        if campaign.host.congestion_control != HostSpec().congestion_control:
            settings["congestion_control"] = campaign.host.congestion_control
        yield f"host: {mapping(settings)}"
    if campaign.faults:
        yield "faults:"
    for fault in campaign.faults:
        yield f"  - {mapping(_fault(fault))}"
    yield "parent:"
    yield f"  run: {quoted(campaign.parent_run)}"
    if campaign.parent_sha256:
        yield f"  sha256: {quoted(campaign.parent_sha256)}"
    if campaign.parent_trials:
        yield "  trials:"
    for item in campaign.parent_trials:
        yield f"    - {mapping(vars(item))}"


def _fault(fault: FaultSpec) -> dict[str, Any]:
    which: dict[str, Any] = {"share": fault.share} if fault.share else {"links": fault.links}
    up = {} if fault.up_ns is None else {"up": duration(fault.up_ns)}
    return {
        **which,
        "down": duration(fault.down_ns),
        **up,
        "convergence": duration(fault.convergence_ns),
    }
