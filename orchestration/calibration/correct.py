"""The correction that makes a testbed's figures those that were measured. Pure.

A tier's links all get the same correction of their propagation delay: the kinds of paths differ in
how many links of each tier they have, which is as much as round trips can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inventory.topology import Testbed
from orchestration.calibration.measure import Calibration
from orchestration.model.errors import InputError


@dataclass(frozen=True)
class Correction:
    """What to change in a testbed file: its framing in bytes, delays in ns by the links' tier."""

    framing_bytes: int
    delay_change_ns: dict[int, int]


def correction(testbed: Testbed, mine: Calibration, like: Calibration | None) -> Correction:
    """Return the change of `testbed` with which the backend of `mine` does what `like` does.

    `testbed` is the one that both were measured on. Without `like`, the change makes the testbed
    say what `mine` does. A framing that is right within a byte stays. Raises InputError if the two
    were measured on other paths.
    """
    if like is not None and [r.path for r in like.rtts] != [r.path for r in mine.rtts]:
        raise InputError.single(
            f"testbed {testbed.name}",
            "the two backends were measured on different paths",
            "calibrate both on one testbed",
        )
    tiers = sorted({tier for rtt in mine.rtts for tier in rtt.path.links_of_tier})
    crossings = np.array(
        [[2 * rtt.path.links_of_tier.get(tier, 0) for tier in tiers] for rtt in mine.rtts],
        dtype=np.float64,
    )
    measured = np.array([rtt.median_ns for rtt in mine.rtts], dtype=np.float64)
    if like is None:
        gaps = measured - np.array([rtt.testbed_ns for rtt in mine.rtts])
        more_framing = mine.goodput.framing_bytes - testbed.framing_bytes
    else:
        gaps = np.array([rtt.median_ns for rtt in like.rtts]) - measured
        more_framing = like.goodput.framing_bytes - mine.goodput.framing_bytes
    changes = np.linalg.lstsq(crossings, gaps, rcond=None)[0]
    framing = testbed.framing_bytes + (more_framing if abs(more_framing) >= 1 else 0)
    return Correction(
        max(0, round(framing)),
        {tier: round(change) for tier, change in zip(tiers, changes.tolist(), strict=True)},
    )
