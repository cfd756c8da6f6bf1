"""Plans a campaign: what it would run, its traffic exactly, its time and disk space estimated.

Wall time is proportional to packet-hops, the packets sent by NICs and switch ports: data packets
and acknowledgements of every flow times the links of their path. The rate per core is corrected by
the trials that an earlier run left beneath `runs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from inventory.routing import PathTable, roce_flows
from orchestration.campaign.deliverable_load import DeliverableLoad, deliverable_loads
from orchestration.campaign.expand import Campaign
from orchestration.core.capabilities import Pace, mode_of
from orchestration.core.errors import ClosloopError
from orchestration.core.records import Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import REAL, TrialSpec
from traffic.schedule import expected_bytes, make_schedule


@dataclass(frozen=True)
class PacketHops:
    """The packet-hops of a trial's TCP and RoCE flows."""

    tcp: int
    roce: int

    def wall_s(self, pace: Pace) -> float:
        """Return how long they take, boot and shutdown included."""
        roce_s = self.roce / pace.roce_hops_per_s if self.roce else 0.0
        return pace.boot_s + self.tcp / pace.tcp_hops_per_s + roce_s


# A tuner that learns in its trial loads torch there, and makes a step of learning a decision.
_ONLINE_S, _ONLINE_DECISION_S = 3.0, 0.016

# A trial in real time takes its own time, and this long before and after.
_AROUND_REAL_S = 1.0

# Measured bytes in the run folder: per sample of a queue and of a host, per flow, and the rest.
QUEUE_SAMPLE_BYTES, HOST_SAMPLE_BYTES, FLOW_BYTES, TRIAL_BYTES = 4, 2, 25, 30_000

# Trials with the same flows follow one another within a block; more flows are not kept for later.
_MAX_KEPT_FLOWS = 20_000_000

# At most this many earlier trials are read, the newest first.
MAX_EARLIER = 20


@dataclass(frozen=True)
class TrialPlan:
    """The traffic and cost of one trial. `latest_ns` is the virtual time at which it is stopped."""

    trial: TrialSpec
    flows: int
    offered_bytes: int
    packet_hops: int
    latest_ns: int
    wall_s: float
    disk_bytes: int


@dataclass(frozen=True)
class Plan:
    """The trials in the order in which they run, and their time with `jobs` side by side.

    `earlier` is the number of finished trials that corrected the estimate. With adaptive repeats
    they are the trials that may run at most. `deliverable_loads` says how much of the intended
    loads can be delivered.
    """

    trials: tuple[TrialPlan, ...]
    jobs: int
    wall_s: float
    disk_bytes: int
    earlier: int
    deliverable_loads: tuple[DeliverableLoad, ...]

    def wall_of(self, chosen: Callable[[TrialSpec], bool]) -> float:
        """Return the time in s that only the `chosen` trials take, with `jobs` side by side."""
        each_s = [planned.wall_s for planned in self.trials if chosen(planned.trial)]
        return max(*each_s, sum(each_s) / self.jobs, 0.0)


def make_plan(campaign: Campaign, jobs: int, runs: Path) -> Plan:
    """Return the plan of a campaign; `runs` may hold earlier results, `jobs` is 1 or more."""
    estimator = _Estimator(campaign.testbeds)
    factor, earlier = _correction(estimator, campaign.trials[0], runs)
    trials = tuple(estimator.estimate(trial, factor) for trial in campaign.trials)
    each_s = [trial.wall_s for trial in trials]
    return Plan(
        trials=trials,
        jobs=jobs,
        wall_s=max(*each_s, sum(each_s) / jobs),
        disk_bytes=sum(trial.disk_bytes for trial in trials),
        earlier=earlier,
        deliverable_loads=deliverable_loads(campaign.trials, campaign.testbeds, estimator.schedule),
    )


def packet_hops(
    trial: TrialSpec, schedule: Schedule, testbed: Testbed, paths: PathTable, acks: float
) -> PacketHops:
    """Return the packets of all flows times the links that each crosses.

    `acks` is the number of acknowledgements that a data packet of TCP causes; they take as many
    links.
    """
    hosts = testbed.hosts
    pairs, which = np.unique(np.stack([schedule.src, schedule.dst]), axis=1, return_inverse=True)
    hops = np.array([paths.path(hosts[a], hosts[b]).hops for a, b in pairs.T.tolist()], dtype=int)
    hops = hops[which.ravel()]
    nic = trial.host.roce
    if nic is None:
        packets = -(-schedule.size_bytes // testbed.mss_bytes)
        return PacketHops(round(int((packets * hops).sum()) * (1 + acks)), 0)
    roce = roce_flows(testbed, trial, schedule)
    payload_bytes = np.where(roce, nic.payload_bytes, testbed.mss_bytes)
    data = -(-schedule.size_bytes // payload_bytes) * hops
    return PacketHops(
        round(int(data[~roce].sum()) * (1 + acks)),
        round(int(data[roce].sum()) * (1 + 1 / nic.ack_every)),
    )


class _Estimator:
    """Estimates trials; trials with the same flows share the work.

    Of earlier trials, the testbed need not be among `testbeds`.
    """

    def __init__(self, testbeds: Mapping[str, Testbed]) -> None:
        self._testbed = cache(lambda name: testbeds.get(name) or load_testbed(name))
        self._paths = cache(lambda name: PathTable(self._testbed(name)))
        self._traffic: dict[object, tuple[Schedule, PacketHops]] = {}
        self._kept_flows = 0

    def estimate(self, trial: TrialSpec, factor: float = 1.0) -> TrialPlan:
        """Return a trial's plan, its wall time multiplied by `factor`."""
        testbed = self._testbed(trial.testbed)
        schedule, hops = self._offered(trial, testbed)
        longest = int(schedule.size_bytes.max(initial=0))
        slowest_bps = min(testbed.host_rate_bps(host) for host in testbed.hosts)
        # Assumes that the last flow to end is a long one that started late and had half of a link.
        end_ns = trial.duration_ns + min(trial.drain_ns, 2 * longest * 8 * 10**9 // slowest_bps)
        return TrialPlan(
            trial=trial,
            flows=len(schedule),
            offered_bytes=int(schedule.size_bytes.sum()),
            packet_hops=hops.tcp + hops.roce,
            latest_ns=trial.duration_ns + trial.drain_ns,
            wall_s=factor * wall_s(trial, testbed, len(schedule), hops, end_ns),
            disk_bytes=disk_bytes(trial, testbed, len(schedule), end_ns),
        )

    def schedule(self, trial: TrialSpec, testbed: Testbed) -> Schedule:
        """Return a trial's flows; those that last have what they are likely to send."""
        return self._offered(trial, testbed)[0]

    def _offered(self, trial: TrialSpec, testbed: Testbed) -> tuple[Schedule, PacketHops]:
        acks = mode_of(trial).pace.acks
        times = (trial.duration_ns, trial.warm_up_ns)
        key = (trial.testbed, trial.traffic, trial.seed, times, trial.host, acks)
        if key not in self._traffic:
            schedule = make_schedule(trial, testbed)
            schedule = replace(schedule, size_bytes=expected_bytes(trial, schedule))
            hops = packet_hops(trial, schedule, testbed, self._paths(trial.testbed), acks)
            self._kept_flows += len(schedule)
            if self._kept_flows > _MAX_KEPT_FLOWS:
                self._traffic.clear()
                self._kept_flows = len(schedule)
            self._traffic[key] = (schedule, hops)
        return self._traffic[key]


def disk_bytes(trial: TrialSpec, testbed: Testbed, flows: int, end_ns: int) -> int:
    """Return about how large the folder of a trial is that ends at `end_ns`."""
    row_bytes = QUEUE_SAMPLE_BYTES * len(testbed.queues) + HOST_SAMPLE_BYTES * len(testbed.hosts)
    return TRIAL_BYTES + FLOW_BYTES * flows + end_ns // trial.sample_period_ns * row_bytes


def wall_s(trial: TrialSpec, testbed: Testbed, flows: int, hops: PacketHops, end_ns: int) -> float:
    """Return about how long a trial that ends at `end_ns` takes on one core, in s."""
    if trial.clock == REAL:
        return _AROUND_REAL_S + end_ns / 1e9
    pace = mode_of(trial).pace
    took_s = hops.wall_s(pace) + pace.device_s * len(testbed.devices) + pace.flow_s * flows
    if trial.tuner.params.get("online"):
        took_s += _ONLINE_S + _ONLINE_DECISION_S * trial.duration_ns / trial.action_period_ns
    return took_s


def _correction(estimator: _Estimator, like: TrialSpec, runs: Path) -> tuple[float, int]:
    """Return how much longer earlier trials took than estimated, and how many there were."""
    took_s = estimated_s = 0.0
    count = 0
    for trial, wall_s in islice(_earlier(like, runs), MAX_EARLIER):
        try:
            estimated_s += estimator.estimate(trial).wall_s
        except (ClosloopError, ValueError):
            continue  # its testbed or workload no longer exists
        took_s += wall_s
        count += 1
    return (took_s / estimated_s if count else 1.0), count


def _earlier(like: TrialSpec, runs: Path) -> Iterator[tuple[TrialSpec, float]]:
    """Yield the finished trials of a trial's backend and clock with their wall time in s.

    The newest comes first.
    """
    files = sorted(runs.glob("*/[!.]*/trial.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in files:
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            trial, wall_s = TrialSpec.from_json(about["spec"]), float(about["facts"]["wall_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # from another version: the estimate can do without it
        if (trial.backend, trial.clock) == (like.backend, like.clock) and wall_s > 0:
            yield trial, wall_s
