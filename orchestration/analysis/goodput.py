"""Goodput: the payload that receivers accepted in the measured time, in bit/s.

Accepted payload arrived for the first time, in order or held until it was: see `load`. What is sent
again, headers and acknowledgements do not count. Goodput by pattern and by class of flow sizes is
`TrialLoad.goodput_bps` of `TrialLoad.patterns` and `TrialLoad.classes`.
"""

from __future__ import annotations

import math

import numpy as np

from orchestration.analysis.load import TrialLoad
from orchestration.results.reader import TrialResult
from traffic.schedule import class_names


def measure_goodput(result: TrialResult, load: TrialLoad) -> dict[str, float]:
    """Return the goodput of all hosts, the mean of a receiving host, and of a long-lived flow.

    A host receives if a flow to it starts before the measured time is over. Values are NaN where
    the accepted payload is unknown, and if no host receives or no flow is long-lived. Raises
    InputError for a table that cannot be read.
    """
    schedule = result.table("schedule")
    started = schedule["start_ns"] < load.measured_ns[1]
    hosts = len(set(schedule["dst"][started].tolist()))
    total = load.goodput_bps(load.total)
    traffic = result.spec.traffic
    lasting = [name for name, spec in zip(class_names(traffic), traffic, strict=True) if spec.lasts]
    parts = [load.patterns[name] for name in lasting if name in load.patterns]
    flows = sum(int(np.count_nonzero(started & (schedule["class"] == name))) for name in lasting)
    return {
        "goodput_total_bps": total,
        "goodput_bps": total / hosts if hosts else math.nan,
        "goodput_long_lived_bps": sum(map(load.goodput_bps, parts)) / flows
        if parts and flows
        else math.nan,
    }
