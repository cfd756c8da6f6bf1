"""What a trial pays for flow tables on its switches."""

from __future__ import annotations

import resource
import statistics

from orchestration.model.trial import PoissonSpec, TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome, run_trial

_MILLISECOND = 1_000_000
_PAIRS = 5


def flow_table_cost() -> Outcome:
    """graphcc, WebSearch at 60 %, 20 ms of arrivals, with and without flow tables in turn."""
    pairs = [(_Timed(flow_table=False), _Timed(flow_table=True)) for _ in range(_PAIRS)]
    without_s, with_s = _medians([[timed.run.wall_s for timed in pair] for pair in pairs])
    cpu_without_s, cpu_with_s = _medians([[timed.cpu_s for timed in pair] for pair in pairs])
    facts = pairs[0][1].run.record.facts
    table, ratio = facts["flow_table"], with_s / without_s
    return Outcome(
        "Flow tables: graphcc, WebSearch at 60 %, 20 ms of arrivals",
        (
            Figure("wall time without, median of 5", f"{without_s:.2f} s"),
            Figure("wall time with, taken in turn", f"{with_s:.2f} s"),
            Figure("ratio", f"{ratio:.3f}", "1.10", ratio <= 1.10),
            Figure("ratio of CPU times", f"{cpu_with_s / cpu_without_s:.3f}"),
            Figure("memory for a switch", f"{table['bytes_per_switch'] // 1024} KiB"),
            Figure("entries in use at most", f"{table['most_entries_used']}"),
            Figure(
                "packets that found no place",
                f"{table['packets_not_counted']}",
                "none",
                table["packets_not_counted"] == 0,
            ),
        ),
        notes=(
            "on a machine that does other things too, the CPU times say more than the wall times",
        ),
        data={"wall_s": [[timed.run.wall_s for timed in pair] for pair in pairs], "ratio": ratio},
    )


class _Timed:
    """One trial and the CPU time that its guest took."""

    def __init__(self, *, flow_table: bool) -> None:
        before_s = _children_s()
        self.run = run_trial(
            "graphcc",
            (PoissonSpec("WebSearch", 0.6, 0, 20 * _MILLISECOND),),
            TunerSpec("secn1"),
            duration_ns=20 * _MILLISECOND,
            flow_table=flow_table,
        )
        self.cpu_s = _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _medians(pairs: list[list[float]]) -> tuple[float, float]:
    first, second = zip(*pairs, strict=True)
    return statistics.median(first), statistics.median(second)
