"""Checks of a campaign against what its backend can do, with its fabric and on its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from inventory.strictyaml import Loc
from orchestration.campaign.host_checks import controls_of
from orchestration.campaign.hosts import Host
from orchestration.campaign.load_balancing import LoadBalancing
from orchestration.campaign.located_problem import Fields, LocatedProblem
from orchestration.campaign.schema import CampaignFile
from orchestration.core.capabilities import Capabilities, Mode, capabilities
from orchestration.core.congestion import roce_controls
from orchestration.core.topology import Testbed
from orchestration.core.trial import REAL


class Requirement(NamedTuple):
    """Something that a campaign asks of its backend: where, in words, and whether a mode has it.

    `field` is that of `Mode` which says so, `otherwise` what to do without it.
    """

    loc: Loc
    what: str
    field: str
    has: Callable[[Mode], bool]
    otherwise: str = "remove it"


class BackendMode(NamedTuple):
    """The backend and the mode that a campaign names."""

    backend: Capabilities
    mode: Mode

    def lacks(
        self, asked: Requirement, beside: Sequence[Requirement] = ()
    ) -> Iterator[LocatedProblem]:
        """Report what the campaign asks for if the mode has it not.

        The remedy names what has all that is asked for `beside` it, too, if anything has.
        """
        if asked.has(self.mode):
            return

        def has_all(mode: Mode) -> bool:
            return asked.has(mode) and all(one.has(mode) for one in beside)

        why = self.mode.why.get(asked.field, "")
        what = f"{self.backend.in_words(self.mode)} has no {asked.what}"
        elsewhere = self.backend.alternative(self.mode, has_all)
        elsewhere = elsewhere or self.backend.alternative(self.mode, asked.has)
        remedy = ", or ".join(filter(None, (elsewhere, asked.otherwise)))
        yield LocatedProblem(asked.loc, f"{what}: {why}" if why else what, remedy)


def mode_of_campaign(whole: Fields) -> BackendMode:
    """Return the mode that a campaign names, or the nearest one, from its valid fields."""
    backend = capabilities(whole.get("backend", CampaignFile.model_fields["backend"].default))
    host, fabric, clock = whole.get("host", Host()), whole.get("fabric"), str(whole.get("clock"))
    if fabric is None:
        return BackendMode(backend, backend.default(host.congestion_control, clock))
    return BackendMode(backend, backend.mode(fabric.kind, clock))


def check_capabilities(whole: Fields, testbed: Testbed | None) -> Iterator[LocatedProblem]:
    """Report all that a campaign asks for and its backend has not."""
    mine = mode_of_campaign(whole)
    asked = list(_asked(whole, testbed, mine.mode)) if "fabric" in whole else []
    beside = [one for one in asked if one.field != "fabric"]
    if whole.get("clock") == REAL and mine.mode.clock != REAL:
        asked = [Requirement(("clock",), "`clock: real`", "clock", lambda mode: mode.clock == REAL)]
    for one in asked:
        yield from mine.lacks(one, beside)


def _asked(whole: Fields, testbed: Testbed | None, mode: Mode) -> Iterator[Requirement]:
    fabric, host = whole["fabric"], whole.get("host")
    if fabric is not None:
        kind, marks = fabric.kind, fabric.marks
        yield Requirement(
            ("fabric",), f"`fabric: {kind}`", "fabric", lambda mode: mode.fabric == kind
        )
        where = ("fabric", "marks")
        yield Requirement(where, f"marks of {marks}", "marks", lambda mode: marks in mode.marks)
    if host is not None:
        yield from _asked_of_hosts(host, whole, testbed, mode)
    if whole.get("faults"):
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
    balancing: LoadBalancing | None = whole.get("load_balancing")
    if balancing is not None and balancing.kind != "ecmp":
        by = balancing.route_by
        yield Requirement(
            ("load_balancing", *(["route_by"] if mode.load_balancing else [])),
            f"load balancing by {by if mode.load_balancing else balancing.kind}",
            "load_balancing",
            lambda mode: by in mode.load_balancing,
            f"use `route_by: {mode.load_balancing[0]}`" if mode.load_balancing else "leave it out",
        )


def _asked_of_hosts(
    host: Host, whole: Fields, testbed: Testbed | None, mode: Mode
) -> Iterator[Requirement]:
    for control, loc in controls_of(testbed, host, whole.get("traffic", ())).items():
        own = f", as a traffic class of testbed {testbed.name} has it," if testbed else ""
        named = f"{control}{own if loc == ('testbed',) else ''}"
        yield Requirement(
            loc,
            f"RoCE NICs, which {named} is for" if control in roce_controls() else named.rstrip(","),
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
        kind = Path(program.program).suffix  # a deployed policy's name has none
        yield Requirement(
            ("host", "congestion_control"),
            f"policy in a BPF object like {program.program}",
            "policies",
            lambda mode: not (kind and mode.policies) or kind in mode.policies,
            "name the .c file",
        )


def driver_requirement(loc: Loc, name: str) -> Requirement:
    """Return what a pattern asks for whose flows a program sends."""
    otherwise = "leave it out, which leaves the flows to sockets"
    return Requirement(
        loc, f"driver {name!r}", "programs_send", lambda one: one.programs_send, otherwise
    )
