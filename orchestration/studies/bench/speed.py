"""How fast the emulated fabric is: packet-hops per wall second, time to build."""

from __future__ import annotations

import numpy as np

from orchestration.model.trial import PoissonSpec, SingleFlowSpec, TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome, run_trial

_MILLISECOND = 1_000_000


def fabric_speed() -> Outcome:
    """graphcc, WebSearch at 60 %, 20 ms of arrivals, every port every 100 us."""
    run = run_trial(
        "graphcc",
        (PoissonSpec("WebSearch", 0.6, 0, 20 * _MILLISECOND),),
        TunerSpec("secn1"),
        duration_ns=20 * _MILLISECOND,
    )
    hops = run.record.facts["packet_hops"]
    samples = run.record.ports.t_ns
    period = run.trial.sample_period_ns
    ideal = np.arange(1, len(samples) + 1) * period
    late_ns = int((samples - ideal).max())
    start_late_ns = int((run.record.flows.sent_ns - run.schedule.start_ns).max())
    virtual_s = float(samples[-1]) / 1e9
    return Outcome(
        "Speed: graphcc, WebSearch at 60 %, 20 ms of arrivals, all ports every 100 us",
        (
            Figure("wall time, boot included", f"{run.wall_s:.1f} s", "12 s", run.wall_s <= 12),
            Figure("packet-hops", f"{hops:,}"),
            Figure("packet-hops per wall second", f"{hops / run.wall_s:,.0f}"),
            Figure("virtual time", f"{virtual_s * 1e3:.1f} ms"),
            Figure(
                "system calls to read all queues once",
                f"{run.record.facts['system_calls_per_reading']}",
                "a handful",
                run.record.facts["system_calls_per_reading"] <= 5,
            ),
            Figure("worst sample, after its time", f"{late_ns} ns", "50 us", late_ns <= 50_000),
            Figure(
                "worst flow start, after its time",
                f"{start_late_ns} ns",
                "2 us",
                start_late_ns <= 2_000,
            ),
        ),
        notes=(f"wall seconds by stage: {run.record.facts['stages_s']}",),
        data={"wall_s": run.wall_s, "packet_hops": hops},
    )


def build_speed() -> Outcome:
    """Build the largest testbed, pet (288 hosts)."""
    run = run_trial(
        "pet",
        (SingleFlowSpec("h1", "h288", 1_000_000, 0),),
        TunerSpec("secn1"),
        duration_ns=_MILLISECOND,
    )
    stages = run.record.facts["stages_s"]
    build_s = stages["build"]
    return Outcome(
        "Building: pet, 288 hosts, 12 leaves, 6 spines",
        (
            Figure("fabric built in", f"{build_s:.2f} s", "15 s", build_s <= 15),
            Figure("one flow, boot and building included", f"{run.wall_s:.1f} s"),
        ),
        notes=(f"wall seconds by stage: {stages}",),
    )
