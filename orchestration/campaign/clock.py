"""The campaign file's `clock`: virtual time, or that of the machine, which not everything has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

from inventory.strictyaml import Loc
from inventory.topology import Testbed
from orchestration.campaign.finding import Fields, Finding
from orchestration.campaign.schema import CampaignFile
from orchestration.model.trial import REAL, ROCE_CONTROLS

CLOCKS: tuple[str, ...] = get_args(CampaignFile.model_fields["clock"].annotation)
_REMEDY = "leave `clock: real` out"


def check_clock(
    whole: Fields, testbed: Testbed | None, controls: Iterable[tuple[str, Loc]]
) -> Iterator[Finding]:
    """Report what a campaign in real time cannot have: closloop's data path, and what needs it.

    `controls` are the congestion controls that flows may have, and the fields that name them.
    """
    if whole.get("clock") != REAL:
        return
    backend, fabric = whole.get("backend"), whole.get("fabric")
    if backend not in (None, "emulated"):
        why = "a rack is always in real time: " if backend == "hardware" else ""
        yield Finding(
            ("clock",),
            f"`clock: real` is of the emulated backend, and the backend is {backend}",
            f"{why}remove it, or run --on emulated",
        )
        return
    why = "only the guest's kernel, in virtual time, has closloop's own data path"
    if fabric is not None and fabric.kind != "linux":
        yield Finding(
            ("fabric",),
            f"`fabric: {fabric.kind}` is not there in real time: {why}",
            f"use `fabric: linux`, or {_REMEDY}",
        )
    for control, loc in controls:
        if control in ROCE_CONTROLS:
            yield Finding(
                loc,
                f"{control} is for RoCE NICs, which are not there in real time: {why}",
                f"use dctcp or reno, or {_REMEDY}",
            )
    if testbed is not None and testbed.switch is not None:
        yield Finding(
            ("testbed",),
            f"the shared buffers of testbed {testbed.name} are not there in real time: {why}",
            f"use `buffer` in place of `switch` in the testbed, or {_REMEDY}",
        )
    balancing = whole.get("load_balancing")
    if balancing is not None and balancing.kind != "ecmp":
        yield Finding(
            ("load_balancing",),
            f"load balancing by {balancing.kind} is not there in real time: {why}",
            f"leave it out, or {_REMEDY}",
        )
