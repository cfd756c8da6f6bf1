"""What a trial pays for flow tables on its switches."""

from __future__ import annotations

import statistics

from orchestration.bench.outcome import Figure, Outcome, Run, run_trial
from orchestration.model.trial import PoissonSpec, TunerSpec

_MILLISECOND = 1_000_000
_PAIRS = 5


def flow_table_cost() -> Outcome:
    """graphcc, WebSearch at 60 %, 20 ms of arrivals, with and without flow tables in turn."""
    runs = [(_run(flow_table=False), _run(flow_table=True)) for _ in range(_PAIRS)]
    without_s, with_s = (
        statistics.median(run.wall_s for run in column) for column in zip(*runs, strict=True)
    )
    table = runs[0][1].record.facts["flow_table"]
    ratio = with_s / without_s
    packets = runs[0][1].record.facts["packet_hops"]
    cost_ns = (with_s - without_s) / packets * 1e9
    return Outcome(
        "Flow tables: graphcc, WebSearch at 60 %, 20 ms of arrivals",
        (
            Figure("wall time without, median of 5", f"{without_s:.2f} s"),
            Figure("wall time with, taken in turn", f"{with_s:.2f} s"),
            Figure("ratio", f"{ratio:.3f}", "1.10", ratio <= 1.10),
            Figure("that is, for a packet-hop", f"{cost_ns:.0f} ns"),
            Figure("memory for a switch", f"{table['bytes_per_switch'] // 1024} KiB"),
            Figure("entries in use at most", f"{table['most_entries_used']}"),
            Figure(
                "packets that found no place",
                f"{table['packets_not_counted']}",
                "none",
                table["packets_not_counted"] == 0,
            ),
        ),
        data={"wall_s": [[run.wall_s for run in pair] for pair in runs], "ratio": ratio},
    )


def _run(*, flow_table: bool) -> Run:
    return run_trial(
        "graphcc",
        (PoissonSpec("WebSearch", 0.6, 0, 20 * _MILLISECOND),),
        TunerSpec("secn1"),
        duration_ns=20 * _MILLISECOND,
        flow_table=flow_table,
    )
