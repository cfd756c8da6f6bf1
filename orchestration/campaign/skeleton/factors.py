"""First campaigns that compare the levels of a factor, and all comparisons by name.

A newcomer's first questions: which congestion control, which load balancing, how much buffer. Such
a file is short, because its levels need no explanation and its baseline is the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inventory.yamltree import flow
from orchestration.campaign.skeleton.arms import (
    DCQCN,
    DCTCP,
    MS,
    TUNER_COMPARISONS,
    Comparison,
    nic_bps,
)
from orchestration.campaign.skeleton.text import (
    SkeletonSpec,
    commands,
    comment,
    lossless_switch,
    patterns,
    shared_bytes,
    testbed_value,
    with_comment,
)
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_size

# A flowlet timeout of so many bits at the NIC's rate was best in docs/load-balancing.md: 1 ms at
# 1 Gbit/s, and 100 us at 10 Gbit/s.
_TIMEOUT_BITS = 1_000_000
_CONTROL = "host.congestion_control"


@dataclass(frozen=True, kw_only=True)
class FactorComparison(Comparison):
    """A comparison of a factor's levels, which `levels` returns as lines of YAML below its name.

    `factor` is the path of a field. The measured time is `windows` times as long as usual, and the
    warm-up at least `warm_ups` times, so that the backlog settles.
    """

    factor: str
    levels: Callable[[Testbed], list[str]]
    repeats: int = 8
    judge: str = "mean_slowdown"
    windows: int
    warm_ups: int


def _controls(testbed: Testbed) -> list[str]:
    return ["[dcqcn, swift, hpcc, timely]"]


def _balancing(testbed: Testbed) -> list[str]:
    steps = max(1, round(_TIMEOUT_BITS * 10**9 / nic_bps(testbed) / (MS // 100)))
    timeout = format_duration(steps * (MS // 100), 3)
    return [
        "ecmp: ecmp",
        f"letflow: {{kind: flowlets, timeout: {timeout}}}",
        f"conga: {{kind: flowlets, timeout: {timeout}, route_by: conga}}",
        "spray: spray",
    ]


def _buffers(testbed: Testbed) -> list[str]:
    whole = shared_bytes(testbed)
    sizes = ", ".join(format_size(whole // part, 4) for part in (1, 2, 4))
    return [f"[{sizes}]"]


FACTOR_COMPARISONS = (
    FactorComparison(
        name="congestion-control",
        title="DCQCN, Swift, HPCC and TIMELY in RoCE NICs (lossless by PFC)",
        transport=DCQCN,
        load=0.4,
        factor=_CONTROL,
        question="Which congestion control is best in RoCE NICs, by its default parameters?",
        levels=_controls,
        windows=2,
        warm_ups=6,
    ),
    FactorComparison(
        name="load-balancing",
        title="ECMP, LetFlow, CONGA and spraying under TCP (DCTCP), where there are several paths",
        transport=DCTCP,
        several_paths=True,
        testbed="drlet-k4",
        incast=False,
        factor="load_balancing",
        question="Which load balancing is best under TCP (DCTCP, whose RACK bears reordering)?",
        levels=_balancing,
        windows=1,
        warm_ups=3,
    ),
    FactorComparison(
        name="buffers",
        title="a switch's shared buffer, half and a quarter of it, under RoCE (DCQCN, PFC)",
        transport=DCQCN,
        load=0.3,
        incast_bytes=500_000,
        factor="testbed.switch.buffer",
        question="What do half of the switches' buffer, and a quarter, cost RoCE NICs?",
        levels=_buffers,
        windows=8,
        warm_ups=2,
        repeats=10,
    ),
)
COMPARISONS: dict[str, Comparison] = {
    one.name: one for one in (*FACTOR_COMPARISONS, *TUNER_COMPARISONS)
}


def factor_text(spec: SkeletonSpec, comparison: FactorComparison) -> str:
    """Return the file of a campaign that compares a factor's levels."""
    head = [*comment(comparison.question), "#", *commands(spec)]
    lines = [*head, *_fields(spec, comparison)]
    return "\n".join(lines) + "\n"


def _fields(spec: SkeletonSpec, comparison: FactorComparison) -> Iterator[str]:
    yield f"campaign: {flow(spec.name)}"
    if comparison.lossless:
        yield "# PFC stops a sender before the shared buffer of a switch overflows."
        switch = f"switch: {lossless_switch(spec.fabric)}"
        yield f"testbed: {testbed_value(spec.testbed, switch)}"
    else:
        yield with_comment(
            f"testbed: {testbed_value(spec.testbed)}", "others: closloop inventory list"
        )
    if comparison.lossless and comparison.factor != _CONTROL:
        yield f"host: {{congestion_control: {comparison.transport}}}"
    yield with_comment("factors:", "further ones are conditions, like load: [0.3, 0.6]")
    first, *more = comparison.levels(spec.fabric)
    if more:
        yield with_comment(f"  {comparison.factor}:", "the first is the baseline")
        yield from (f"    {level}" for level in (first, *more))
    else:
        yield with_comment(f"  {comparison.factor}: {first}", "the first is the baseline")
    yield f"compare: {comparison.factor.rpartition('.')[2]}"
    yield with_comment(f"judge: {comparison.judge}", "others: docs/generated/metrics.md")
    yield "traffic:"
    yield from patterns(spec)
    yield with_comment(f"repeats: {comparison.repeats}", "pairs: the same flows for all")
    if not spec.settled:
        yield from comment(
            f"{spec.workload}'s largest flows last much longer than this: `closloop plan` says "
            "which times would be enough, and which load can be delivered in these."
        )
    yield with_comment(f"warm_up: {format_duration(spec.warm_up_ns, 6)}", "sent, and not counted")
    yield f"duration: {format_duration(spec.duration_ns, 6)}"
    yield f"drain: {format_duration(spec.drain_ns, 6)}"
