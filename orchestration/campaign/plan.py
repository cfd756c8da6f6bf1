"""Plans a campaign: its exact traffic, and estimates of its wall time and disk space.

Wall time is estimated from packet-hops. A packet-hop is one packet that crosses one link: data
packets and acknowledgements of every flow, times the links of their path. How many a core does in a
second is corrected by the finished trials of earlier runs.
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
from orchestration.campaign.unused import UnusedIn, unused_in_campaign
from orchestration.core.capabilities import Pace, pace_of
from orchestration.core.engines import engine_of
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
        """Return how long these take on one core in s, boot and shutdown included."""
        roce_s = self.roce / pace.roce_hops_per_s if self.roce else 0.0
        return pace.boot_s + self.tcp / pace.tcp_hops_per_s + roce_s


# A tuner that learns during its trial loads torch, and takes one learning step per decision.
_ONLINE_S, _ONLINE_DECISION_S = 3.0, 0.016

# How much longer than its own time a trial in real time takes: start and end.
_REAL_TIME_OVERHEAD_S = 1.0

# Measured bytes in the run folder: per sample of a queue and of a host, per flow, and per trial.
QUEUE_SAMPLE_BYTES, HOST_SAMPLE_BYTES, FLOW_BYTES, TRIAL_BYTES = 4, 2, 25, 30_000

# Trials with the same flows follow each other within a block. At most so many flows are cached.
_MAX_CACHED_FLOWS = 20_000_000

# At most this many earlier trials correct the estimate, the newest first.
MAX_EARLIER = 20


@dataclass(frozen=True)
class TrialPlan:
    """The traffic and cost of one trial; `latest_ns` is its own time at which it ends at latest."""

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

    With adaptive repeats, `trials` are all that may run. `earlier` is the number of finished trials
    that corrected the estimate. `engine` is where the trials run, "" if there is only one.
    """

    trials: tuple[TrialPlan, ...]
    jobs: int
    wall_s: float
    disk_bytes: int
    earlier: int
    deliverable_loads: tuple[DeliverableLoad, ...]
    unused_settings: tuple[UnusedIn, ...] = ()
    engine: str = ""

    def wall_of(self, chosen: Callable[[TrialSpec], bool]) -> float:
        """Return how long the trials take for which `chosen` is true, in s of wall time."""
        each_s = [planned.wall_s for planned in self.trials if chosen(planned.trial)]
        return max(*each_s, sum(each_s) / self.jobs, 0.0)


def make_plan(campaign: Campaign, jobs: int, runs: Path, engine: str = "") -> Plan:
    """Return the plan of a campaign, with `jobs` (1 or more) trials side by side.

    `engine` is where its trials run (`core.engines`), "" if their backend has only one. Earlier
    results beneath the folder `runs` correct the estimates.
    """
    estimator = _Estimator(campaign.testbeds, engine)
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
        unused_settings=unused_in_campaign(campaign.trials, campaign.testbeds, estimator.schedule),
        engine=engine,
    )


def packet_hops(
    trial: TrialSpec, schedule: Schedule, testbed: Testbed, paths: PathTable, acks: float
) -> PacketHops:
    """Return the packet-hops of a trial: its packets, each times the links of its path.

    `acks` is how many acknowledgements a data packet of TCP causes; they cross as many links.
    """
    hops = paths.hops(schedule.src, schedule.dst)
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
    """Estimates trials; a schedule is made once for all trials that have it.

    `testbeds` has the campaign's testbeds by name; those of earlier trials are loaded when needed.
    """

    def __init__(self, testbeds: Mapping[str, Testbed], engine: str) -> None:
        self.engine = engine
        self._testbed = cache(lambda name: testbeds.get(name) or load_testbed(name))
        self._paths = cache(lambda name: PathTable(self._testbed(name)))
        self._slowest_bps = cache(lambda name: _slowest_bps(self._testbed(name)))
        self._traffic: dict[object, tuple[Schedule, PacketHops]] = {}
        self._cached_flows = 0

    def estimate(self, trial: TrialSpec, factor: float = 1.0) -> TrialPlan:
        """Return a trial's plan, its wall time multiplied by `factor`."""
        testbed = self._testbed(trial.testbed)
        schedule, hops = self._schedule_and_hops(trial, testbed)
        longest = int(schedule.size_bytes.max(initial=0))
        slowest_bps = self._slowest_bps(trial.testbed)
        # This assumes that the last flow to end is the largest, started last and got half a link.
        end_ns = trial.duration_ns + min(trial.drain_ns, 2 * longest * 8 * 10**9 // slowest_bps)
        return TrialPlan(
            trial=trial,
            flows=len(schedule),
            offered_bytes=int(schedule.size_bytes.sum()),
            packet_hops=hops.tcp + hops.roce,
            latest_ns=trial.duration_ns + trial.drain_ns,
            wall_s=factor * wall_s(trial, testbed, len(schedule), hops, end_ns, self.engine),
            disk_bytes=disk_bytes(trial, testbed, len(schedule), end_ns),
        )

    def schedule(self, trial: TrialSpec, testbed: Testbed) -> Schedule:
        """Return a trial's flows; a long-lived flow has the bytes that it is likely to send."""
        return self._schedule_and_hops(trial, testbed)[0]

    def _schedule_and_hops(self, trial: TrialSpec, testbed: Testbed) -> tuple[Schedule, PacketHops]:
        acks = pace_of(trial, self.engine).acks
        times = (trial.duration_ns, trial.warm_up_ns)
        key = (trial.testbed, trial.traffic, trial.seed, times, trial.host, acks)
        if key not in self._traffic:
            schedule = make_schedule(trial, testbed)
            schedule = replace(schedule, size_bytes=expected_bytes(trial, schedule))
            hops = packet_hops(trial, schedule, testbed, self._paths(trial.testbed), acks)
            self._cached_flows += len(schedule)
            if self._cached_flows > _MAX_CACHED_FLOWS:
                self._traffic.clear()
                self._cached_flows = len(schedule)
            self._traffic[key] = (schedule, hops)
        return self._traffic[key]


def _slowest_bps(testbed: Testbed) -> int:
    return min(testbed.host_rate_bps(host) for host in testbed.hosts)


def disk_bytes(trial: TrialSpec, testbed: Testbed, flows: int, end_ns: int) -> int:
    """Return the estimated size of the run folder of a trial that ends at `end_ns`, in bytes."""
    row_bytes = QUEUE_SAMPLE_BYTES * len(testbed.queues) + HOST_SAMPLE_BYTES * len(testbed.hosts)
    return TRIAL_BYTES + FLOW_BYTES * flows + end_ns // trial.sample_period_ns * row_bytes


def wall_s(
    trial: TrialSpec,
    testbed: Testbed,
    flows: int,
    hops: PacketHops,
    end_ns: int,
    engine: str = "",
) -> float:
    """Return the estimated wall time on one core of a trial that ends at `end_ns`, in s."""
    if trial.clock == REAL:
        return _REAL_TIME_OVERHEAD_S + end_ns / 1e9
    pace = pace_of(trial, engine)
    took_s = hops.wall_s(pace) + pace.device_s * len(testbed.devices) + pace.flow_s * flows
    if trial.tuner.params.get("online"):
        took_s += _ONLINE_S + _ONLINE_DECISION_S * trial.duration_ns / trial.action_period_ns
    return took_s


def _correction(estimator: _Estimator, like: TrialSpec, runs: Path) -> tuple[float, int]:
    """Return by which factor earlier trials took longer than estimated, and how many they are.

    Trials count if they ran on the backend and the clock of the trial `like`, in its engine.
    """
    took_s = estimated_s = 0.0
    count = 0
    for trial, wall_s in islice(_earlier(like, runs, estimator.engine), MAX_EARLIER):
        try:
            estimated_s += estimator.estimate(trial).wall_s
        except (ClosloopError, ValueError):
            continue  # its testbed or workload no longer exists
        took_s += wall_s
        count += 1
    return (took_s / estimated_s if count else 1.0), count


def _earlier(like: TrialSpec, runs: Path, engine: str) -> Iterator[tuple[TrialSpec, float]]:
    """Yield finished trials with the backend and clock of `like`, with their wall time in s.

    If an `engine` is given, they ran in that.

    The newest one comes first.
    """
    files = sorted(runs.glob("*/[!.]*/trial.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in files:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            trial, facts = TrialSpec.from_json(data["spec"]), data["facts"]
            wall_s, own_engine = float(facts["wall_s"]), engine_of(facts)[0]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is from another version, and the estimate does not need it
        alike = (trial.backend, trial.clock) == (like.backend, like.clock)
        if alike and wall_s > 0 and engine in ("", own_engine):
            yield trial, wall_s
