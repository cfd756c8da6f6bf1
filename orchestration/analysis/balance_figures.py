"""What load balancing does to packets and flows: losses, reordering, flowlets of a flow."""

from __future__ import annotations

import math

import numpy as np

from orchestration.analysis.sample_parts import after_warm_up, measured_flows
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import MISSING, Ints


def balance_figures(result: TrialResult) -> dict[str, float]:
    """Return shares of lost and of reordered packets, flowlets of a flow; NaN if not measured.

    Lost packets are by those that hosts received with data and those lost. Flowlets are of all
    switches that choose a path, by the flows that ended: DRLet's "rerouting times", "number of
    flowlets divided by number of flows" (figure 4).
    """
    hosts, switches = after_warm_up(result, "host"), after_warm_up(result, "switch")
    received = _last(hosts.values.get("received_packets"))
    early = _last(hosts.values.get("out_of_order_packets"))
    flowlets = _last(switches.values.get("flowlets"))
    dropped = _last(after_warm_up(result, "queue").dropped_packets)
    ended = result.table("flows")["end_ns"] >= 0
    flows = int(np.count_nonzero(ended & measured_flows(result)))
    return {
        "lost_share": dropped / (received + dropped) if received + dropped else math.nan,
        "reordered_share": early / received if received else math.nan,
        "flowlets_of_a_flow": flowlets / flows if flows else math.nan,
    }


def _last(samples: Ints | None) -> float:
    """Return the sum over targets in the last sample; NaN if nothing was measured."""
    if samples is None or not samples.size or (samples[-1] == MISSING).any():
        return math.nan
    return float(samples[-1].sum())
