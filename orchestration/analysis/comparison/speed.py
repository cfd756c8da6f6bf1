"""How fast each backend ran the compared trials: packet-hops per wall second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.metrics import totals
from orchestration.artifacts.reader import TrialResult
from orchestration.model.errors import InputError


@dataclass(frozen=True)
class Speed:
    """A run's packet-hops over its compared trials, and the wall time that they took.

    `wall_s` is a trial's whole time, `run_s` that of traffic alone, without starting and building;
    None where the backend does not say. `counted` says what a packet-hop is here.
    """

    packet_hops: int
    wall_s: float | None
    run_s: float | None
    trials: int
    counted: str

    @property
    def per_wall_s(self) -> float | None:
        """Packet-hops per wall second, starting and building included."""
        return self.packet_hops / self.wall_s if self.wall_s else None

    @property
    def per_run_s(self) -> float | None:
        """Packet-hops per wall second of traffic."""
        return self.packet_hops / self.run_s if self.run_s else None


def packet_hops(trial: TrialResult) -> tuple[int, str]:
    """Return how many packets a trial sent over links, and what was counted.

    Counted from the tables, so that it is the same count on every backend: what switch ports sent,
    and what hosts sent, which is what switches delivered to hosts or dropped. A backend's own
    number stands in where there is no table.
    """
    try:
        ports, testbed = trial.ports, trial.testbed
        counted = len(ports.t_ns) > 0
    except InputError:
        counted = False
    if not counted:
        told = trial.facts.get("packet_hops")
        return (int(told), "as the backend counts") if told else (0, "nothing was counted")
    sent, dropped = totals(ports.tx_packets), totals(ports.dropped_packets)
    to_host = np.array([testbed.peer_device(queue).kind == "host" for queue in testbed.queues])
    from_hosts = int(sent[to_host].sum() + dropped.sum())
    return int(sent.sum()) + from_hosts, "packets sent by switch ports and by hosts"


def speed_of(trials: Sequence[tuple[TrialResult, int, str]]) -> Speed:
    """Return the speed over trials, given with their packet-hops and what those count."""
    walls = [_seconds(trial.facts.get("wall_s")) for trial, _, _ in trials]
    runs = [_run_s(trial) for trial, _, _ in trials]
    return Speed(
        packet_hops=sum(hops for _, hops, _ in trials),
        wall_s=sum(w for w in walls if w) if all(walls) else None,
        run_s=sum(r for r in runs if r) if all(runs) else None,
        trials=len(trials),
        counted=", ".join(sorted({said for _, _, said in trials})),
    )


def _run_s(trial: TrialResult) -> float | None:
    facts = trial.facts
    stages = facts.get("stages_s")
    told = facts.get("run_wall_s", stages.get("run") if isinstance(stages, dict) else None)
    return _seconds(told)


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
