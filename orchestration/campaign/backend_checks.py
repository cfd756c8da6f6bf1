"""Checks of a campaign against the capabilities of its backend, with its fabric and its clock.

A backend has *modes*: combinations of fabric and clock that measure and support different things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from inventory.strictyaml import Loc
from inventory.variant import DESCRIPTIVE_FIELDS
from orchestration.campaign.host_checks import controls_of
from orchestration.campaign.hosts import Host
from orchestration.campaign.load_balancing import LoadBalancing
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.campaign.schema import CampaignFile, NamedTestbed
from orchestration.core.capabilities import Capabilities, Mode, capabilities
from orchestration.core.congestion import roce_controls
from orchestration.core.topology import Testbed
from orchestration.core.trial import REAL


class Requirement(NamedTuple):
    """Something that a campaign requires of its backend's mode.

    `loc` is the field that requires it, `what` names it in messages, `is_met` tells whether a mode
    has it. `capability` is the field of `Mode` that declares it, and `otherwise` the remedy if no
    backend has it.
    """

    loc: Loc
    what: str
    capability: str
    is_met: Callable[[Mode], bool]
    otherwise: str = "remove it"


class BackendMode(NamedTuple):
    """The backend that a campaign names, and the mode in which its trials would run."""

    backend: Capabilities
    mode: Mode

    def check(
        self, requirement: Requirement, others: Sequence[Requirement] = ()
    ) -> Iterator[LocatedProblem]:
        """Report a requirement that the mode does not meet.

        The remedy names a mode that meets the `others` as well, if there is one.
        """
        if requirement.is_met(self.mode):
            return

        def meets_all(mode: Mode) -> bool:
            return requirement.is_met(mode) and all(other.is_met(mode) for other in others)

        why = self.mode.why.get(requirement.capability, "")
        what = f"{self.backend.in_words(self.mode)} has no {requirement.what}"
        elsewhere = self.backend.alternative(self.mode, meets_all)
        elsewhere = elsewhere or self.backend.alternative(self.mode, requirement.is_met)
        remedy = ", or ".join(filter(None, (elsewhere, requirement.otherwise)))
        yield LocatedProblem(requirement.loc, f"{what}: {why}" if why else what, remedy)


def mode_of_campaign(campaign: Fields) -> BackendMode:
    """Return the backend and mode that a campaign names, or the nearest mode that exists."""
    backend = capabilities(campaign.get("backend", CampaignFile.model_fields["backend"].default))
    host, fabric, clock = (
        campaign.get("host", Host()),
        campaign.get("fabric"),
        str(campaign.get("clock")),
    )
    if fabric is None:
        return BackendMode(backend, backend.default(host.congestion_control, clock))
    return BackendMode(backend, backend.mode(fabric.kind, clock))


def check_capabilities(campaign: Fields, testbed: Testbed | None) -> Iterator[LocatedProblem]:
    """Report everything that a campaign requires and its backend's mode does not have."""
    chosen = mode_of_campaign(campaign)
    required = list(_requirements(campaign, testbed, chosen.mode)) if "fabric" in campaign else []
    others = [item for item in required if item.capability != "fabric"]
    if campaign.get("clock") == REAL and chosen.mode.clock != REAL:
        real = Requirement(("clock",), "`clock: real`", "clock", lambda mode: mode.clock == REAL)
        required = [real]
    for requirement in required:
        yield from chosen.check(requirement, others)
    if chosen.backend.on_rack and "testbed" in campaign:
        yield from _check_replaced_fields(campaign["testbed"], chosen.backend)


def _check_replaced_fields(
    testbed: NamedTestbed, backend: Capabilities
) -> Iterator[LocatedProblem]:
    """Report fields of a testbed that a campaign replaces: a rack's devices stay as they are."""
    for name in testbed.model_extra or {}:
        if name not in DESCRIPTIVE_FIELDS:
            yield LocatedProblem(
                ("testbed", name),
                f"the {backend.name} backend runs on a rack as it is, and cannot replace the "
                f"testbed's {name!r}",
                "name the rack's testbed alone, or run it --on emulated",
            )


def _requirements(campaign: Fields, testbed: Testbed | None, mode: Mode) -> Iterator[Requirement]:
    fabric, host = campaign["fabric"], campaign.get("host")
    if fabric is not None:
        kind, marks = fabric.kind, fabric.marks
        yield Requirement(
            ("fabric",), f"`fabric: {kind}`", "fabric", lambda mode: mode.fabric == kind
        )
        loc = ("fabric", "marks")
        yield Requirement(loc, f"marks of {marks}", "marks", lambda mode: marks in mode.marks)
    if host is not None:
        yield from _host_requirements(host, campaign, testbed, mode)
    if campaign.get("faults"):
        yield Requirement(("faults",), "faults", "faults", lambda mode: mode.faults)
    if testbed is not None and testbed.switch is not None:
        yield Requirement(
            ("testbed",),
            f"{'PFC' if testbed.switch.lossless else 'shared buffers'}, which testbed "
            f"{testbed.name} has",
            "shared_buffers",
            lambda mode: mode.shared_buffers,
            "use `buffer` in place of `switch` in the testbed",
        )
    if testbed is not None and testbed.classes:
        yield Requirement(
            ("testbed",),
            f"traffic classes, of which testbed {testbed.name} has {len(testbed.classes)}",
            "classes",
            lambda mode: mode.classes,
            "use a testbed without 'classes'",
        )
    balancing: LoadBalancing | None = campaign.get("load_balancing")
    if balancing is not None and balancing.kind != "ecmp":
        route_by = balancing.route_by
        yield Requirement(
            ("load_balancing", *(["route_by"] if mode.load_balancing else [])),
            f"load balancing by {route_by if mode.load_balancing else balancing.kind}",
            "load_balancing",
            lambda mode: route_by in mode.load_balancing,
            f"use `route_by: {mode.load_balancing[0]}`" if mode.load_balancing else "leave it out",
        )


def _host_requirements(
    host: Host, campaign: Fields, testbed: Testbed | None, mode: Mode
) -> Iterator[Requirement]:
    for control, loc in controls_of(testbed, host, campaign.get("traffic", ())).items():
        of_class = f", as a traffic class of testbed {testbed.name} has it," if testbed else ""
        name = f"{control}{of_class if loc == ('testbed',) else ''}"
        yield Requirement(
            loc,
            f"RoCE NICs, which {name} is for" if control in roce_controls() else name.rstrip(","),
            "controls",
            lambda mode, control=control: control in mode.controls,  # type: ignore[misc]
            f"use {mode.controls[0]}",
        )
    detection = host.loss_detection
    yield Requirement(
        ("host", "loss_detection"),
        f"loss detection by {detection}",
        "loss_detections",
        lambda mode: detection in mode.loss_detections,
    )
    program = host.roce.program
    if program is not None:
        suffix = Path(program.program).suffix  # the name of a deployed policy has none
        yield Requirement(
            ("host", "congestion_control"),
            f"policy in a BPF object like {program.program}",
            "policies",
            lambda mode: not (suffix and mode.policies) or suffix in mode.policies,
            "name the .c file",
        )


def driver_requirement(loc: Loc, name: str) -> Requirement:
    """Return the requirement of a pattern whose flows are sent by a program (`driver`)."""
    otherwise = "leave it out: sockets then send the flows"
    return Requirement(
        loc, f"driver {name!r}", "programs_send", lambda mode: mode.programs_send, otherwise
    )
