"""How the ports of a trial in a kernel marked packets, and how far that is from the request."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from orchestration.core.knobs import ECN
from orchestration.core.marking_probability import MarkingProbability
from orchestration.core.records import TrialRecord
from orchestration.core.trial import FabricSpec

# A learned tuner sets thousands of thresholds; marking is compared for the first few only.
_MAX_SETTINGS_COMPARED = 20


def marking_facts(
    record: TrialRecord, fabric: FabricSpec, lacks: Collection[str]
) -> dict[str, str]:
    """Describe how the ports marked, and how far that is from the requested straight line."""
    if "red" in lacks:
        return {"straight_line_on": "the instantaneous queue, arrivals, by a BPF program"}
    if fabric.kind != "linux":
        return {"straight_line_on": f"the instantaneous queue, {fabric.marks}"}
    thresholds = record.changes[ECN.name]
    columns = [thresholds["kmin_bytes"], thresholds["kmax_bytes"], np.round(thresholds["pmax"], 6)]
    settings = np.unique(np.column_stack(columns), axis=0)
    probabilities = [
        MarkingProbability(int(kmin), int(kmax), float(pmax))
        for kmin, kmax, pmax in settings[:_MAX_SETTINGS_COMPARED]
    ]
    worst = max((each.worst_departure() for each in probabilities), default=0.0)
    return {
        "Linux_RED_on": "the instantaneous queue",
        "farthest_from_the_straight_line": f"{worst:.1%} of pmax",
    }
