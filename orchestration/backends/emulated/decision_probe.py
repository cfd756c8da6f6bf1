"""Measures how long a decision takes, in the guest, on an idle fabric that is made to look busy.

The guest's clock stands still while it computes. So the guest sends a message after each batch of
rounds, and the host measures the time between two messages.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np

from orchestration.backends.emulated.console import say
from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import NoTraffic
from orchestration.model.ports import Tuner
from orchestration.model.records import Action, Observation
from orchestration.model.trial import TunerSpec
from tuners.registry import create

_PERIOD_NS = 100_000


def decision(job: Job, fabric: Fabric) -> dict[str, Any]:
    """Let each tuner decide for all queues repeatedly, with a message for each batch of rounds.

    The first batch of every phase is a warm-up. Returns, for each tuner, how many queues a decision
    changed on average.
    """
    probe = job.probe
    assert probe is not None
    rig = EmulatedRig(job, fabric, NoTraffic())
    changed = {}
    for label, spec in probe["tuners"].items():
        rounds = _Rounds(rig, create(TunerSpec(**spec)), job)
        for phase in ("decision", "observe", "act", "apply"):
            for number in range(probe["rounds"] // probe["batch"] + 1):
                for _ in range(probe["batch"]):
                    getattr(rounds, phase)()
                say(tuner=label, phase=phase, batch=number)
        changed[label] = float(np.mean(rounds.changes))
    return {"changed_queues": changed}


class _Rounds:
    """A tuner's decisions, whole and in phases, made as the loop makes them."""

    def __init__(self, rig: EmulatedRig, tuner: Tuner, job: Job) -> None:
        self._rig = rig
        self._tuner = tuner
        self._busy = BusyFabric(len(job.plan.queue_places), job.trial.seed)
        rig.apply(tuner.reset(job.testbed, job.trial.seed).action)
        self._reading = rig.observe()
        self._actions: deque[Action] = deque()
        self.changes: list[int] = []

    def decision(self) -> None:
        """Observe, act and apply once."""
        self.observe()
        self.act()
        self.apply()

    def observe(self) -> None:
        """Read all queues."""
        self._reading = self._rig.observe()

    def act(self) -> None:
        """Let the tuner decide, and queue its action."""
        self._actions.append(self._tuner.act(self._busy.disguise(self._reading)))

    def apply(self) -> None:
        """Apply the oldest queued action."""
        action = self._actions.popleft()
        self.changes.append(sum(len(change.targets) for change in action))
        self._rig.apply(action)


class BusyFabric:
    """Turns readings of an idle fabric into readings in which every queue is in use."""

    def __init__(self, queues: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._queues = queues
        self._rounds = 0
        self._packets = np.zeros(queues, dtype=np.int64)
        self._marked = np.zeros(queues, dtype=np.int64)

    def disguise(self, reading: Observation) -> Observation:
        """Return `reading` with other lengths and counters, one period later at each call."""
        rng, queues = self._rng, self._queues
        self._rounds += 1
        packets = rng.integers(20, 200, queues)
        self._packets = self._packets + packets
        self._marked = self._marked + packets // 10
        length = rng.integers(1_514, 300_000, queues)
        later = dataclasses.replace(reading, t_ns=self._rounds * _PERIOD_NS)
        return later.with_values(
            qlen_bytes=length,
            qlen_mean_bytes=length.astype(np.float64),
            tx_packets=self._packets,
            tx_bytes=1_514 * self._packets,
            marked_packets=self._marked,
            incast_degree=rng.integers(1, 32, queues),
            mice_flows=rng.integers(0, 50, queues),
            elephant_flows=rng.integers(0, 5, queues),
        )
