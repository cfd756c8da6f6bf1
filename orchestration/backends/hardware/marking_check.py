"""Tries, before a campaign, whether marks slow down RoCE senders (DCQCN).

Every RoCE host receives from two others at once, for a second, while all queues mark from the
first packet that waits. The marks must then have moved, one after the other, the counters of the
switches, of the receivers' NICs (notification points) and of the senders' NICs (reaction points).
The first that did not move says where the chain is broken. The NICs' counters are mlx5's
(drivers/infiniband/hw/mlx5/counters.c). NICs without them, such as Soft-RoCE, have no DCQCN, and
nothing is tried.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from inventory.rack import Rack
from orchestration.backends.hardware.monitors import NicMonitor
from orchestration.backends.hardware.safety.guard import Guard
from orchestration.backends.hardware.switches import Switch, SwitchReading
from orchestration.core.errors import NotReadyError
from orchestration.core.pattern import SOCKETS, DriverSpec
from orchestration.core.records import MISSING
from orchestration.core.status import DONE
from orchestration.core.trial import Scalar, TrialSpec
from orchestration.device.client import Fleet
from orchestration.device.errors import printable
from traffic.drivers.connections import gids_of
from traffic.drivers.programs import driver
from traffic.drivers.rack_programs import RackPrograms, check_programs, jobs_of
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

# With fewer hosts no port gets more than it can send.
MIN_HOSTS = 3
_DURATION_NS = 1_000_000_000
_QUEUE_PAIRS = 4
# perftest's options that decide how packets are marked and where they go.
_OPTIONS = ("traffic_class", "gid_index", "mtu", "device")
_HEAD_START_NS = 100_000_000
_PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.02
# SONiC's counters are polled, at most this far apart.
_POLLED_S = 1.5

_SENT = "np_cnp_sent"
# Counters of NICs in the order in which marks move them, and what to look at if one does not move.
_CHAIN = (
    (
        "np_ecn_marked_roce_packets",
        "no marked packet arrives: a switch on the way clears the ECN bits, or the NIC does not "
        "trust DSCP; `closloop provision --verify` compares both",
    ),
    (
        _SENT,
        "the notification point is off: see ecn/roce_np/enable of the interface, and "
        "ROCE_CC_PRIO_MASK in mlxconfig; `closloop provision` switches it on where the driver can",
    ),
    (
        "rp_cnp_handled",
        "the reaction point is off (ecn/roce_rp/enable, ROCE_CC_PRIO_MASK), or CNPs are lost: they "
        "have DSCP 48 and need a queue that is not full",
    ),
)


def receiver_rounds(hosts: Sequence[str]) -> list[list[tuple[str, tuple[str, str]]]]:
    """Return rounds of receivers, each with its two senders; each host receives in one round.

    In a round a host sends to one receiver only, so that two senders have twice the rate of one.
    """
    left = list(range(len(hosts)))
    found = []
    while left:
        busy: set[int] = set()
        turn = []
        for place in tuple(left):
            senders = tuple((place + step) % len(hosts) for step in (1, 2))
            if not busy & set(senders):
                busy.update(senders)
                left.remove(place)
                turn.append((hosts[place], (hosts[senders[0]], hosts[senders[1]])))
        found.append(turn)
    return found


def overload_trials(
    trials: Sequence[TrialSpec], rack: Rack, hosts: Sequence[str]
) -> list[TrialSpec]:
    """Return trials with nothing but overloads, one for each kind of RDMA traffic and round."""
    kinds: dict[tuple[str, tuple[tuple[str, Scalar], ...]], None] = {}
    for spec in (spec for trial in trials for spec in trial.traffic):
        if spec.driver != SOCKETS and driver(spec.driver.name).rdma:
            options = tuple((k, v) for k, v in spec.driver.options if k in _OPTIONS)
            kinds[spec.queue_class, options] = None
    more = (("duration", _DURATION_NS), ("qps", _QUEUE_PAIRS))
    return [
        replace(
            trials[0],
            traffic=tuple(
                SingleFlowSpec(
                    sender,
                    receiver,
                    1,
                    0,
                    driver=DriverSpec("perftest", (*options, *more)),
                    queue_class=queue_class,
                )
                for receiver, senders in turn
                for sender in senders
                for _ in rack.testbed.ports_of[receiver]  # a flow for each NIC
            ),
        )
        for queue_class, options in kinds
        for turn in receiver_rounds(hosts)
    ]


def check_marking(
    rack: Rack,
    fleet: Fleet,
    guard: Guard,
    switches: Sequence[Switch],
    trials: Sequence[TrialSpec],
) -> None:
    """Overload marked queues of the rack's RoCE hosts. Raises NotReadyError if marks do nothing.

    Thresholds are changed meanwhile, and `guard`, which is entered here, puts them back.
    """
    hosts = [host for host in rack.testbed.hosts if rack.access[host].nic == "roce"]
    nics = NicMonitor(rack, fleet)
    nics.start()
    nics.finish()
    if len(hosts) < MIN_HOSTS or not nics.counted(_SENT):
        return
    tried = overload_trials(trials, rack, hosts)
    check_programs(fleet, hosts, tried[0])
    with guard:
        before = _read(fleet, switches, set_lowest=rack.testbed.mtu_bytes)
        for probe in tried:
            _send(rack, fleet, guard, probe)
        time.sleep(_POLLED_S)
        after = _read(fleet, switches)
        nics.finish()
    check_counters(_marked(before, after), {name: nics.counted(name) for name, _ in _CHAIN})


def _send(rack: Rack, fleet: Fleet, guard: Guard, probe: TrialSpec) -> None:
    """Send the flows of a probe. Raises NotReadyError if one fails."""
    gids = gids_of(fleet, rack.testbed.hosts)
    jobs = jobs_of(probe, rack, make_schedule(probe, rack.testbed), gids)
    programs = RackPrograms(jobs, fleet)
    try:
        programs.connect(fleet.clocks())
        programs.start(time.monotonic_ns() + _HEAD_START_NS)
        until_s = time.monotonic() + _PATIENCE_S
        while not programs.all_done() and time.monotonic() < until_s:
            guard.tick()
            time.sleep(_LOOK_EVERY_S)
        outcomes = programs.outcomes()
    finally:
        programs.stop()
    for job in jobs:
        outcome = outcomes[job.flow.number]
        if outcome.status != DONE:
            raise NotReadyError(
                f"RoCE from {job.flow.src} to {job.flow.dst} does not work: "
                f"{printable(outcome.detail) or 'perftest did not end'}",
                "run perftest there by hand; `closloop inventory check` looks at the hosts",
            )


def check_counters(marked: int, counted: Mapping[str, Mapping[str, int]]) -> None:
    """Raise NotReadyError for the first counter that did not move where it should have.

    `marked` are the switches' marks, -1 if they count none; `counted` is by counter, then NIC.
    """
    if marked == 0:
        raise NotReadyError(
            "the switches marked no packet of a RoCE overload",
            "its DSCP must lead to the tuned queue, and ECN must be on there: "
            "`closloop provision --verify`; or give perftest's traffic_class ECN bits",
        )
    for name, remedy in _CHAIN:
        still = [nic for nic, count in counted[name].items() if not count]
        if still:
            raise NotReadyError(
                f"marks do not slow down RoCE senders: {name} did not move at "
                f"{', '.join(still)} while marked queues were overloaded",
                remedy,
            )


def _read(fleet: Fleet, switches: Sequence[Switch], set_lowest: int = 0) -> list[SwitchReading]:
    """Read all switches; with `set_lowest`, a frame's bytes, first set thresholds to one frame."""
    requests = {switch.device: switch.open_request() for switch in switches}
    answers = fleet.exchange(requests)
    found = [switch.reading(answers[switch.device]) for switch in switches]
    if not set_lowest:
        return found
    for switch, reading in zip(switches, found, strict=True):
        places = np.arange(len(reading.kmin_bytes))
        lowest = np.full(len(places), set_lowest, dtype=np.int64)
        always = np.ones(len(places))
        requests[switch.device] = switch.set_request(places, lowest, 2 * lowest, always)
    answers = fleet.exchange(requests)
    return [switch.reading(answers[switch.device]) for switch in switches]


def _marked(before: Sequence[SwitchReading], after: Sequence[SwitchReading]) -> int:
    """Return how many packets the switches marked in between, -1 if one does not count marks."""
    old, new = (
        np.concatenate([one.marked_packets for one in readings]) for readings in (before, after)
    )
    return -1 if MISSING in (*old, *new) else int((new - old).sum())
