"""Packet-hops: packets sent by NICs and by switch ports, counted alike for every backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from orchestration.analysis.sample_parts import totals
from orchestration.core.capabilities import capabilities
from orchestration.core.errors import InputError
from orchestration.core.records import Samples, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.results.reader import TrialResult

PACKET_HOP = "a packet sent by a NIC or a switch port"
_WITHOUT_ACKS = f"{PACKET_HOP}, data only: the fluid model has no acknowledgements"


def packet_hops(testbed: Testbed, ports: Samples) -> int:
    """Return the packet-hops of a trial, from the last counts of its ports.

    NICs are not sampled: what hosts sent is what switches delivered to hosts, or dropped.
    """
    sent, dropped = totals(ports.tx_packets), totals(ports.dropped_packets)
    to_host = np.array([testbed.peer_device(queue).kind == "host" for queue in testbed.queues])
    return int(sent.sum() + sent[to_host].sum() + dropped.sum())


def hop_facts(backend: str, testbed: Testbed, record: TrialRecord) -> dict[str, Any]:
    """Return the facts of a trial: `packet_hops`, and `packet_hop`, which says what one is."""
    if not len(record.ports.t_ns):
        return {}
    hops = record.facts.get("packet_hops", packet_hops(testbed, record.ports))
    return {"packet_hops": hops, "packet_hop": _meaning(backend)}


def told_hops(trial: TrialResult) -> tuple[int, str]:
    """Return a trial's packet-hops and what one is.

    They are counted from the tables, so that trials of earlier versions count like others. Without
    samples the trial's own number is taken, with what it meant to the version that wrote it.
    """
    try:
        ports, testbed = trial.ports, trial.testbed
        sampled = len(ports.t_ns) > 0
    except InputError:
        sampled = False
    backend = trial.spec.backend
    if sampled:
        return packet_hops(testbed, ports), _meaning(backend)
    told = trial.facts.get("packet_hops")
    if not told:
        return 0, "nothing was counted"
    return int(told), str(trial.facts.get("packet_hop", capabilities(backend).former_hop))


def _meaning(backend: str) -> str:
    packets = all(mode.has_packets for mode in capabilities(backend).modes)
    return PACKET_HOP if packets else _WITHOUT_ACKS
