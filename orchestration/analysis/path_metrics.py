"""How switches spread packets over their ports upwards, and what became of their order."""

from __future__ import annotations

import math

import numpy as np

from inventory.topology import Testbed
from orchestration.analysis.sample_parts import after_warm_up, counted, measured_flows, totals
from orchestration.artifacts.reader import TrialResult
from orchestration.model.records import Ints, Samples


def uplinks(testbed: Testbed) -> dict[str, list[int]]:
    """Return, of each switch with a choice, the numbers of the queues of each port upwards.

    They are numbers in `Testbed.queues`, in the order of the ports, class by class.
    """
    result: dict[str, list[int]] = {}
    for number, queue in enumerate(testbed.queues):
        if testbed.peer_device(queue).tier > testbed.device[queue.device].tier:
            result.setdefault(queue.device, []).append(number)
    wide = testbed.queues_per_port
    return {name: numbers for name, numbers in result.items() if len(numbers) > wide}


def packets_by_uplink(testbed: Testbed, ports: Samples) -> dict[str, Ints]:
    """Return the packets that each such switch sent by each of its ports upwards."""
    sent = totals(ports.tx_packets)
    return {
        name: sent[numbers].reshape(-1, testbed.queues_per_port).sum(axis=1)
        for name, numbers in uplinks(testbed).items()
    }


def measure_paths(result: TrialResult) -> dict[str, float]:
    """Return the metrics of paths; NaN where a trial has none.

    The imbalance is that of the busiest uplink of a switch: its packets over the mean of the
    switch's, averaged over switches by their packets.
    """
    switches, hosts = after_warm_up(result, "switch"), after_warm_up(result, "host")
    received, flows = counted(hosts.received_packets), np.count_nonzero(measured_flows(result))
    by_switch = list(packets_by_uplink(result.testbed, after_warm_up(result, "queue")).values())
    packets = sum(int(row.sum()) for row in by_switch)
    highest = sum(float(row.max()) * len(row) for row in by_switch)
    reroutes = counted(switches.reroutes)
    return {
        "out_of_order_share": counted(hosts.out_of_order_packets) / received
        if received > 0
        else math.nan,
        "reroutes_per_flow": reroutes / flows if flows else math.nan,
        "uplink_imbalance": highest / packets if packets else math.nan,
    }


def shares(row: Ints) -> np.ndarray:
    """Return each uplink's share of its switch's packets; NaN if it sent none."""
    return row / row.sum() if row.sum() else np.full(len(row), math.nan)
