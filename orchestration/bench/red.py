"""Checks the emulated fabric: delay, rate, conservation of bytes, RED, changes of thresholds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.bench.outcome import (
    MILLISECOND,
    SECN1,
    Figure,
    Outcome,
    Run,
    bench_folder,
    bench_trial,
    run_trial,
    zero,
)
from orchestration.bench.roce_laws import FRAME_BYTES, goodput, marks_by_queue, one_packet
from orchestration.core.knobs import ECN
from orchestration.core.marking_probability import MarkingProbability
from orchestration.core.pattern import PatternSpec
from orchestration.core.records import Ints, Schedule
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES
from orchestration.core.trial import TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule


def run_probe(
    testbed_name: str,
    probe: dict[str, Any],
    listener: Callable[[dict[str, Any]], None] = lambda message: None,
    traffic: tuple[PatternSpec, ...] = (),
    duration_ns: int = MILLISECOND,
    **further_fields: Any,
) -> dict[str, Any]:
    """Build a testbed's fabric in a guest and run a probe in it in place of a trial.

    `listener` receives the guest's messages. `further_fields` are further fields of the trial's
    spec.
    """
    from orchestration.backends.emulated.fabric import plan_fabric
    from orchestration.backends.emulated.job import Job, write_job
    from orchestration.backends.emulated.launcher import run_guest
    from orchestration.backends.emulated.memory import guest_memory_bytes
    from orchestration.kernel.cache import require_kernel

    testbed = load_testbed(testbed_name)
    fields = {"testbed": testbed_name, "backend": "emulated", "drain_ns": 0, **further_fields}
    trial = bench_trial(traffic, duration_ns, **fields)
    empty = np.zeros(0, dtype=np.int64)
    schedule = Schedule(empty, empty, empty, empty, empty, ())
    if traffic:
        schedule = make_schedule(trial, testbed)
    plan = plan_fabric(testbed, trial.host, trial.seed, trial.fabric)
    with bench_folder() as folder:
        write_job(folder, Job(trial, testbed, plan, (), schedule, probe))
        run_guest(require_kernel(), folder, guest_memory_bytes(testbed), listener)
        result: dict[str, Any] = json.loads((folder / "probe.json").read_text())
    return result


def round_trips() -> Outcome:
    """Ping, and one packet of RoCE, on idle fabrics against the configured base RTT."""
    figures = []
    for name, pairs in (
        ("graphcc", [("h1", "h2"), ("h1", "h24")]),
        ("acc", [("h1", "h2"), ("h1", "h24")]),
        ("drlet-k4", [("h1", "h2"), ("h1", "h4"), ("h1", "h16")]),
        ("rlcc-7", [("h1", "h7")]),
    ):
        paths = PathTable(load_testbed(name))
        replies = run_probe(name, {"kind": "ping", "pairs": pairs, "count": 5})["replies"]
        for src, dst in pairs:
            measured = float(
                np.median([r["rtt_ns"] for r in replies if (r["src"], r["dst"]) == (src, dst)])
            )
            base = paths.base_rtt_ns(src, dst)
            figures.append(
                Figure(
                    f"{name}: ping {src} to {dst}",
                    f"{measured / 1e3:.3f} us",
                    f"{base / 1e3:.3f} us within 5 %",
                    abs(measured / base - 1) <= 0.05,
                )
            )
        figures += one_packet(name, pairs)
    return Outcome("Base RTT: ping, and one packet of RoCE, on the idle fabric", tuple(figures))


def lone_flow() -> Outcome:
    """One flow alone at 25 and 100 Gbit/s: goodput against line rate."""
    figures = []
    for name, src, dst, size_bytes in (
        ("graphcc", "h1", "h24", 250_000_000),
        ("rlcc-7", "h1", "h2", 1_000_000_000),
    ):
        flow = SingleFlowSpec(src, dst, size_bytes, 0)
        run = run_trial(name, (flow,), SECN1, duration_ns=MILLISECOND, sample_period_ns=MILLISECOND)
        fct_ns = int(run.record.flows.end_ns[0] - run.schedule.start_ns[0])
        goodput_bps = size_bytes * 8 * 10**9 / fct_ns
        line_bps = run.testbed.host_rate_bps(src)
        ideal_ns = PathTable(run.testbed).ideal_fct_ns(src, dst, size_bytes)
        share = goodput_bps / line_bps
        figures += [
            Figure(
                f"{name}: {size_bytes // 10**6} MB alone, goodput",
                f"{goodput_bps / 1e9:.2f} Gbit/s, {share:.2%} of line rate",
                "94 %",
                share >= 0.94,
            ),
            Figure(f"{name}: the same flow's slowdown", f"{fct_ns / ideal_ns:.4f}"),
            goodput(name, src, dst, size_bytes),
        ]
    return Outcome("A lone flow, Ethernet framing and slow start included", tuple(figures))


def last_hop_bytes(run: Run) -> tuple[int, int]:
    """Return the payload that ports to hosts sent, and that of flows plus retransmissions."""
    queues = run.testbed.queues
    to_hosts = [i for i, q in enumerate(queues) if run.testbed.peer_device(q).kind == "host"]
    ports = run.record.ports
    header = ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES
    payload = ports.tx_bytes[-1, to_hosts] - header * ports.tx_packets[-1, to_hosts]
    retransmitted_bytes = int(run.record.hosts.retransmits[-1].sum()) * run.testbed.mss_bytes
    return int(payload.sum()), int(run.schedule.size_bytes.sum()) + retransmitted_bytes


_CONFIDENCE = 0.99
_FRAME_BYTES = 1514
# DCQCN's thresholds and probability, the same with a steeper ramp, and HPCC's.
_SETTINGS = ((5_000, 200_000, 0.01), (5_000, 200_000, 0.2), (100_000, 400_000, 0.2))


def marking_curve() -> Outcome:
    """Measured marking probability by queue length, against RED's, and that of RoCE's ports."""
    testbed = load_testbed("graphcc")
    port = next(p.label for p in testbed.queues if testbed.peer_device(p).name == "h3")
    figures: list[Figure] = []
    data: dict[str, Any] = {}
    for setting in _SETTINGS:
        kmin_bytes, kmax_bytes, pmax = setting
        curve = MarkingProbability(kmin_bytes, kmax_bytes, pmax)
        probe = {
            "kind": "marking",
            "port": port,
            "sender": "h1",
            "filler": "h2",
            "receiver": "h3",
            "kmin_bytes": kmin_bytes,
            "kmax_bytes": kmax_bytes,
            "pmax": pmax,
            "levels_frames": levels_frames(curve),
            "hold_ns": 2 * MILLISECOND,
        }
        readings = run_probe("graphcc", probe)["readings"]
        name = f"kmin {kmin_bytes // 1000} KB, kmax {kmax_bytes // 1000} KB, pmax {pmax:g}"
        figures += _judge(name, curve, readings)
        data[name] = readings
        found = marks_by_queue(setting, levels_frames(curve, FRAME_BYTES))
        figures += _judge_line(f"{name}, RoCE", curve, found)
        data[f"{name}, RoCE"] = found.tolist()
    return Outcome(
        "Marking curve: the queue held at each length, two hosts onto one 25G port",
        tuple(figures),
        notes=(
            "a reading is some 4,000 packets at one queue length; by chance 1 % of the readings "
            "fall outside a 99 % band",
            "RoCE: in the process, ports mark by the straight line, with a draw for each packet",
        ),
        data=data,
    )


def levels_frames(curve: MarkingProbability, frame_bytes: int = _FRAME_BYTES) -> list[int]:
    """Return the queue lengths to hold, in frames, ascending: 200 on the ramp, some outside.

    The ramp is the part of the curve between kmin and kmax. If it has fewer frames than that,
    lengths are repeated.
    """
    first = curve.kmin_bytes // frame_bytes + 1
    last = (curve.kmax_bytes - 1) // frame_bytes
    ramp = list(range(first, last + 1))
    times = -(-210 // len(ramp))
    below = sorted({0, first // 2, first - 1})
    return below + [frames for frames in ramp for _ in range(times)] + [last + 1, last + 5]


def _judge(name: str, curve: MarkingProbability, readings: list[dict[str, int]]) -> list[Figure]:
    rng = np.random.default_rng(1)
    inside = on_ramp = below_marked = above_unmarked = marked = packets = 0
    expected = 0.0
    for reading in readings:
        queue, packets_sent, packets_marked = (
            reading[key] for key in ("qlen_bytes", "packets", "marked")
        )
        if queue < curve.kmin_bytes:
            below_marked += packets_marked
        elif queue >= curve.kmax_bytes:
            # counters may be off by one or two: they are read between arrival and departure
            above_unmarked += max(0, packets_sent - packets_marked - 2)
        else:
            low, high = curve.marks_band(queue, packets_sent, _CONFIDENCE, rng)
            on_ramp += 1
            inside += low <= packets_marked <= high
            marked += packets_marked
            packets += packets_sent
            expected += float(curve.share(np.array([queue]))[0]) * packets_sent
    share = inside / on_ramp
    minimum = _min_inside(on_ramp)
    return [
        Figure(
            f"{name}: readings on the ramp inside RED's 99 % band",
            f"{inside} of {on_ramp} ({share:.1%})",
            f"at least 200 readings, {minimum:.0f} inside",
            on_ramp >= 200 and inside >= minimum,
        ),
        Figure(
            f"{name}: packets marked on the whole ramp, compared with RED",
            f"{marked:,} of {packets:,} packets, {marked / expected - 1:+.2%}",
        ),
        zero(f"{name}: marked below kmin", below_marked),
        zero(f"{name}: not marked above kmax", above_unmarked),
        Figure(
            f"{name}: RED's largest distance from the straight line",
            f"{curve.worst_departure():.2%} of pmax",
        ),
    ]


def _judge_line(name: str, curve: MarkingProbability, found: Ints) -> list[Figure]:
    """Judge readings (levels, 3) of queue, packets and marks by the straight line."""
    queue, packets, marked = found.T
    below = queue < curve.kmin_bytes
    # a packet or two more may be seen by some of those that arrive
    above = queue >= curve.kmax_bytes + 2 * FRAME_BYTES
    ramp = ~below & (queue < curve.kmax_bytes)
    expected = curve.line(queue[ramp]) * packets[ramp]
    draws = np.random.default_rng(1).binomial(
        packets[ramp], curve.line(queue[ramp]), (4000, len(expected))
    )
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    inside, on_ramp = int(((low <= marked[ramp]) & (marked[ramp] <= high)).sum()), int(ramp.sum())
    minimum = _min_inside(on_ramp)
    return [
        Figure(
            f"{name}: readings on the ramp inside the straight line's 99 % band",
            f"{inside} of {on_ramp} ({inside / on_ramp:.1%})",
            f"at least 200 readings, {minimum:.0f} inside",
            on_ramp >= 200 and inside >= minimum,
        ),
        Figure(
            f"{name}: packets marked on the whole ramp, compared with the line",
            f"{marked[ramp].sum():,} of {packets[ramp].sum():,} packets, "
            f"{marked[ramp].sum() / expected.sum() - 1:+.2%}",
        ),
        zero(f"{name}: marked below kmin", int(marked[below].sum())),
        zero(f"{name}: not marked above kmax", int((packets - marked)[above].sum())),
    ]


def _min_inside(readings: int) -> float:
    """Return of how many readings fewer are inside the band by a chance of 1 in 1000 only."""
    return float(readings * _CONFIDENCE - 3.1 * (readings * _CONFIDENCE * (1 - _CONFIDENCE)) ** 0.5)


def threshold_change() -> Outcome:
    """Effect of a change of thresholds in the middle of an incast that keeps the queue full."""
    at_ns = 2 * MILLISECOND
    before = {"kmin_bytes": 400_000, "kmax_bytes": 400_000, "pmax": 1.0}
    then = {"then_kmin_bytes": 50_000, "then_kmax_bytes": 50_000, "then_pmax": 1.0}
    incast = IncastSpec(16, 2_000_000, 100 * MILLISECOND, 0, MILLISECOND, receiver="h1")
    tuner = TunerSpec("step", {"at_ns": at_ns, **before, **then})
    run = run_trial("graphcc", (incast,), tuner, duration_ns=MILLISECOND)
    queue = [run.testbed.peer_device(port).name for port in run.testbed.queues].index("h1")
    ports, actions, hosts = run.record.ports, run.record.changes[ECN.name], run.record.hosts
    at_queue = actions.targets == queue
    applied_ns = int(actions.applied_ns[at_queue][1])
    steady = (ports.t_ns > at_ns - MILLISECOND) & (ports.t_ns <= at_ns)
    after = (ports.t_ns > applied_ns) & (ports.t_ns <= applied_ns + 10 * MILLISECOND)
    settled = after & (ports.t_ns > applied_ns + 2 * MILLISECOND)
    first = int(np.flatnonzero(after)[0])
    marked_next = int(ports.marked_packets[first, queue] - ports.marked_packets[first - 1, queue])
    sent_next = int(ports.tx_packets[first, queue] - ports.tx_packets[first - 1, queue])
    period_ns = run.trial.sample_period_ns
    return Outcome(
        "Thresholds changed in the middle of a 16-to-1 incast: K from 400 KB to 50 KB",
        (
            Figure(
                "decided to read back",
                f"{applied_ns - at_ns} ns after the sample",
                "one sampling period",
                applied_ns - at_ns <= period_ns,
            ),
            Figure(
                "marked in the period after it",
                f"{marked_next} of {sent_next} packets",
                "all: the queue is above the new K",
                marked_next >= 0.9 * sent_next,
            ),
            Figure("median queue before", _kilobytes(ports.qlen_bytes[steady, queue])),
            Figure("median queue after", _kilobytes(ports.qlen_bytes[settled, queue])),
            Figure(
                "queue just before and after the change",
                f"{ports.qlen_bytes[first - 1, queue] / 1e3:.0f} KB and "
                f"{ports.qlen_bytes[first, queue] / 1e3:.0f} KB",
                "not purged",
                bool(ports.qlen_bytes[first, queue] > ports.qlen_bytes[first - 1, queue] / 2),
            ),
            zero("packets dropped", int(ports.dropped_packets[-1].sum())),
            zero("segments sent again", int(hosts.retransmits[-1].sum())),
            zero("segments out of order", int(hosts.out_of_order[-1].sum())),
        ),
    )


def _kilobytes(values: np.ndarray) -> str:
    return f"{float(np.median(values)) / 1e3:.0f} KB"
