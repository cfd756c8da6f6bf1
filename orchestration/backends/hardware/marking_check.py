"""Checks, before a campaign, whether RoCE senders slow down on CE packets, as DCQCN demands.

Every RoCE host receives from two others at once, for a second, while all queues mark from the
first packet that waits. Then certain counters must have grown: those of the switches (CE packets),
of the receivers' NICs (notification points, which send CNPs) and of the senders' NICs (reaction
points). The first counter in this order that did not grow shows where the chain is broken. What
drivers call the NICs' counters is in `congestion_counters`; of NICs without them, nothing is known,
and the stamps of trials say so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from inventory.rack import Rack
from orchestration.backends.hardware.congestion_counters import (
    CE_PACKETS,
    CNPS_RECEIVED,
    CNPS_SENT,
    MIN_HOSTS,
    Growth,
    congestion_growth,
)
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
from traffic.drivers.programs import load_driver
from traffic.drivers.rack_programs import RackPrograms, check_programs, jobs_of
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

_DURATION_NS = 1_000_000_000
_QUEUE_PAIRS = 4
# perftest's options that decide how packets are marked and where they go.
_OPTIONS = ("traffic_class", "gid_index", "mtu", "device")
_HEAD_START_NS = 100_000_000
_TIMEOUT_S = 30.0
_POLL_S = 0.02
# SONiC polls its counters at least this often.
_SONIC_POLL_S = 1.5

# What to check if a number does not grow, in the order in which CE packets make them grow.
_CHAIN = {
    CE_PACKETS: "no CE packet arrives: a switch on the path clears the ECN bits, or the NIC does "
    "not trust DSCP; `closloop provision --verify` checks both",
    CNPS_SENT: "the notification point is off: on mlx5 see ecn/roce_np/enable of the interface, "
    "and ROCE_CC_PRIO_MASK in mlxconfig, elsewhere the vendor's settings of DCQCN; `closloop "
    "provision` switches it on where the driver can",
    CNPS_RECEIVED: "the reaction point is off (on mlx5 ecn/roce_rp/enable, ROCE_CC_PRIO_MASK), or "
    "CNPs are lost: they have DSCP 48 and need a queue that does not overflow",
}


def receiver_rounds(hosts: Sequence[str]) -> list[list[tuple[str, tuple[str, str]]]]:
    """Return rounds of receivers, each with its two senders; each host receives in one round.

    In a round a host sends to one receiver only, so that two senders together have twice the rate
    of one.
    """
    waiting = list(range(len(hosts)))
    rounds = []
    while waiting:
        busy: set[int] = set()
        receivers = []
        for host in tuple(waiting):
            senders = tuple((host + step) % len(hosts) for step in (1, 2))
            if not busy & set(senders):
                busy.update(senders)
                waiting.remove(host)
                receivers.append((hosts[host], (hosts[senders[0]], hosts[senders[1]])))
        rounds.append(receivers)
    return rounds


def overload_trials(
    trials: Sequence[TrialSpec], rack: Rack, hosts: Sequence[str]
) -> list[TrialSpec]:
    """Return trials that only overload receivers: one for each kind of RDMA traffic and round."""
    kinds: dict[tuple[str, tuple[tuple[str, Scalar], ...]], None] = {}
    for spec in (spec for trial in trials for spec in trial.traffic):
        if spec.driver != SOCKETS and load_driver(spec.driver.name).rdma:
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
                for receiver, senders in receivers
                for sender in senders
                for _ in rack.testbed.ports_of[receiver]  # a flow for each NIC
            ),
        )
        for queue_class, options in kinds
        for receivers in receiver_rounds(hosts)
    ]


def check_marking(
    rack: Rack,
    fleet: Fleet,
    guard: Guard,
    switches: Sequence[Switch],
    trials: Sequence[TrialSpec],
) -> None:
    """Overload queues to the rack's RoCE hosts; raise NotReadyError if senders do not slow down.

    Thresholds are changed meanwhile. `guard`, which is entered here, puts them back.
    """
    hosts = [host for host in rack.testbed.hosts if rack.access[host].nic == "roce"]
    nics = NicMonitor(rack, fleet)
    nics.start()
    nics.finish()
    if len(hosts) < MIN_HOSTS or not congestion_growth(nics)[CNPS_SENT]:
        return
    overloads = overload_trials(trials, rack, hosts)
    check_programs(fleet, hosts, overloads[0])
    with guard:
        before = _read(fleet, switches, set_lowest=rack.testbed.mtu_bytes)
        for overload in overloads:
            _send(rack, fleet, guard, overload)
        time.sleep(_SONIC_POLL_S)
        after = _read(fleet, switches)
        nics.finish()
    check_counters(_marked(before, after), congestion_growth(nics))


def _send(rack: Rack, fleet: Fleet, guard: Guard, overload: TrialSpec) -> None:
    """Send the flows of a trial. Raises NotReadyError if one fails."""
    gids = gids_of(fleet, rack.testbed.hosts)
    jobs = jobs_of(overload, rack, make_schedule(overload, rack.testbed), gids)
    programs = RackPrograms(jobs, fleet)
    try:
        programs.connect(fleet.clocks())
        programs.start(time.monotonic_ns() + _HEAD_START_NS)
        until_s = time.monotonic() + _TIMEOUT_S
        while not programs.all_done() and time.monotonic() < until_s:
            guard.tick()
            time.sleep(_POLL_S)
        outcomes = programs.outcomes()
    finally:
        programs.stop()
    for job in jobs:
        outcome = outcomes[job.flow.number]
        if outcome.status != DONE:
            raise NotReadyError(
                f"RoCE from {job.flow.src} to {job.flow.dst} does not work: "
                f"{printable(outcome.detail) or 'perftest did not end'}",
                "run perftest there by hand; `closloop inventory check` checks the hosts",
            )


def check_counters(marked: int, grown: Mapping[str, Mapping[str, Growth]]) -> None:
    """Raise NotReadyError for the first counter that did not grow where it should have.

    `marked` are the CE packets of all switches, -1 if they are not counted; `grown` has the growth
    of the NICs' numbers by number and NIC.
    """
    if marked == 0:
        raise NotReadyError(
            "the switches marked no packet of a RoCE overload",
            "its DSCP must map to the tuned queue, and ECN must be on there: check with "
            "`closloop provision --verify`; or set the ECN bits in perftest's traffic_class",
        )
    for what, remedy in _CHAIN.items():
        unchanged: dict[str, list[str]] = {}
        for nic, growth in grown[what].items():
            if not growth.count:
                unchanged.setdefault(growth.name, []).append(nic)
        if unchanged:
            where = ", and ".join(
                f"{name} did not grow at {', '.join(nics)}" for name, nics in unchanged.items()
            )
            raise NotReadyError(
                f"RoCE senders do not slow down on CE packets: {where} while marked queues were "
                "overloaded",
                remedy,
            )


def _read(fleet: Fleet, switches: Sequence[Switch], set_lowest: int = 0) -> list[SwitchReading]:
    """Read all switches.

    With `set_lowest`, the bytes of a frame, thresholds are set to one frame first.
    """
    requests = {switch.device: switch.open_request() for switch in switches}
    answers = fleet.exchange(requests)
    readings = [switch.reading(answers[switch.device]) for switch in switches]
    if not set_lowest:
        return readings
    for switch, reading in zip(switches, readings, strict=True):
        queues = np.arange(len(reading.kmin_bytes))
        lowest = np.full(len(queues), set_lowest, dtype=np.int64)
        always = np.ones(len(queues))
        requests[switch.device] = switch.set_request(queues, lowest, 2 * lowest, always)
    answers = fleet.exchange(requests)
    return [switch.reading(answers[switch.device]) for switch in switches]


def _marked(before: Sequence[SwitchReading], after: Sequence[SwitchReading]) -> int:
    """Return how many packets the switches marked in between; -1 if one does not count them."""
    old, new = (
        np.concatenate([reading.marked_packets for reading in readings])
        for readings in (before, after)
    )
    return -1 if MISSING in (*old, *new) else int((new - old).sum())
