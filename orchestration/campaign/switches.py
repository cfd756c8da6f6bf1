"""Checks of a testbed's switches against what a campaign runs on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from inventory.topology import Testbed
from orchestration.campaign.finding import Fields, Finding
from orchestration.campaign.hosts import chosen_fabric
from orchestration.model.trial import ROCE_CONTROLS


def check_switch(
    whole: Fields, testbed: Testbed, controls: Collection[str], host_control: str
) -> Iterator[Finding]:
    """Report a testbed with a shared buffer on a fabric without it, and hosts that never pause.

    `controls` are the congestion controls that flows may have, `host_control` is the hosts' own.
    """
    if testbed.switch is None or "fabric" not in whole:
        return
    backend = whole.get("backend")
    fabric = chosen_fabric(whole["fabric"], backend or "emulated", host_control)
    what = "PFC" if testbed.switch.lossless else "a shared buffer"
    if fabric.kind == "linux" or backend not in (None, "emulated", "simulated"):
        yield Finding(
            ("testbed",),
            f"testbed {testbed.name} has {what}, which only the emulated backend has, and with "
            "RoCE NICs the simulated one, with `fabric: closloop`",
            "add `fabric: closloop` and run --on emulated, or remove 'switch' from the testbed",
        )
    elif testbed.switch.lossless and controls and set(controls).isdisjoint(ROCE_CONTROLS):
        yield Finding(
            ("testbed",),
            f"testbed {testbed.name} has PFC, and hosts whose congestion control is "
            f"{' or '.join(controls)} have no NIC that obeys pauses",
            f"use `congestion_control: {ROCE_CONTROLS[0]}`, or remove 'pfc' from the testbed",
        )
