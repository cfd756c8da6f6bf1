"""Checks the emulated fabric against its testbed: delay, rate, conservation of bytes."""

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
)
from orchestration.core.records import Schedule
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES
from orchestration.core.trial import PatternSpec, SingleFlowSpec
from traffic.schedule import make_schedule


def run_probe(
    testbed_name: str,
    probe: dict[str, Any],
    listener: Callable[[dict[str, Any]], None] = lambda message: None,
    traffic: tuple[PatternSpec, ...] = (),
    duration_ns: int = MILLISECOND,
    **more: Any,
) -> dict[str, Any]:
    """Build a testbed's fabric and run a probe in it instead of a trial; return its results.

    `listener` receives the guest's messages. `more` are further fields of the trial's spec.
    """
    from orchestration.backends.emulated.fabric import plan_fabric
    from orchestration.backends.emulated.job import Job, write_job
    from orchestration.backends.emulated.launcher import run_guest
    from orchestration.backends.emulated.memory import guest_memory_bytes
    from orchestration.kernel.cache import require_kernel

    testbed = load_testbed(testbed_name)
    given = {"testbed": testbed_name, "backend": "emulated", "drain_ns": 0, **more}
    trial = bench_trial(traffic, duration_ns, **given)
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
    """Ping on idle fabrics against the configured base RTT."""
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
    return Outcome("Base RTT: ping on the idle fabric", tuple(figures))


def lone_flow() -> Outcome:
    """One flow alone at 25 and 100 Gbit/s: goodput against line rate."""
    figures = []
    for name, src, dst, size_bytes in (
        ("graphcc", "h1", "h24", 250_000_000),
        ("rlcc-7", "h1", "h2", 1_000_000_000),
    ):
        flow = SingleFlowSpec(src, dst, size_bytes, 0)
        run = run_trial(name, (flow,), SECN1, duration_ns=MILLISECOND, sample_period_ns=MILLISECOND)
        took_ns = int(run.record.flows.end_ns[0] - run.schedule.start_ns[0])
        goodput_bps = size_bytes * 8 * 10**9 / took_ns
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
            Figure(f"{name}: the same flow's slowdown", f"{took_ns / ideal_ns:.4f}"),
        ]
    return Outcome("A lone flow, Ethernet framing and slow start included", tuple(figures))


def last_hop_bytes(run: Run) -> tuple[int, int]:
    """Return the payload that ports to hosts sent, and that of the flows with retransmits."""
    queues = run.testbed.queues
    to_hosts = [i for i, q in enumerate(queues) if run.testbed.peer_device(q).kind == "host"]
    ports = run.record.ports
    header = ETHERNET_HEADER_BYTES + TCP_IP_HEADER_BYTES
    payload = ports.tx_bytes[-1, to_hosts] - header * ports.tx_packets[-1, to_hosts]
    again = int(run.record.hosts.retransmits[-1].sum()) * run.testbed.mss_bytes
    return int(payload.sum()), int(run.schedule.size_bytes.sum()) + again
