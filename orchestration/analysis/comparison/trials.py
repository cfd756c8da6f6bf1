"""Reads a pair of trials once and reduces it to the figures that a comparison needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from orchestration.analysis.comparison.flows import (
    QUEUE_EDGES_BYTES,
    FlowBlocks,
    PairedFlows,
    TrialFlows,
    pair_flows,
    read_flows,
    reduce_flows,
    with_ideal_times_of,
)
from orchestration.analysis.comparison.ports import (
    PortDivergence,
    TrialPorts,
    find_port_divergence,
    read_ports,
)
from orchestration.analysis.comparison.runs import without_tables
from orchestration.analysis.flow_metrics import flow_scalars
from orchestration.analysis.metrics import DROPPED_SHARE, METRICS
from orchestration.analysis.port_metrics import (
    HISTOGRAM_FACT,
    QueueHistogram,
    measure_ports,
    queue_span,
)
from orchestration.analysis.size_curves import size_edges
from orchestration.analysis.trial_metrics import own_figures
from orchestration.core.capabilities import capabilities
from orchestration.core.errors import InputError
from orchestration.core.records import Floats
from orchestration.results.reader import TrialResult

_T = TypeVar("_T")


@dataclass(frozen=True)
class TrialFigures:
    """One trial's scalars (the report's and more), and its flows and ports in blocks.

    `queue_histogram` (1, bins) has the queue lengths of a trial without samples over time, if it
    has any.
    """

    trial: TrialResult
    scalars: dict[str, float]
    flows: FlowBlocks | None
    ports: TrialPorts | None
    queue_histogram: Floats | None = None


@dataclass(frozen=True)
class PairMetrics:
    """A pair of trials, reduced to its figures.

    `paired` is None if the flows of a side are unknown; `divergence` is None if the ports of a side
    are unknown or the two testbeds have different ports. `notes` say what could not be read or
    compared, and why.
    """

    a: TrialFigures
    b: TrialFigures
    paired: PairedFlows | None
    divergence: PortDivergence | None
    notes: tuple[str, ...]


def reduce_pair(
    trials: tuple[TrialResult, TrialResult], edges: Floats | None
) -> tuple[PairMetrics, Floats]:
    """Read both trials; return their figures and the edges of the flow-size groups.

    `edges` are those of the cell's first pair, or None for the first pair itself.
    """
    notes: list[str] = []
    flows = [_attempt(read_flows, trial, notes) for trial in trials]
    ports = [_attempt(read_ports, trial, notes) for trial in trials]
    first, second = flows = _one_ideal(trials, flows, notes)
    histograms = _histograms(trials, notes)
    if edges is None:
        flows_of_one = first or second
        edges = np.array([np.inf])
        if flows_of_one is not None and flows_of_one.done.any():
            edges = size_edges(flows_of_one.size_bytes[flows_of_one.done].astype(np.float64))
    figures = []
    for trial, trial_flows, trial_ports, histogram in zip(
        trials, flows, ports, histograms, strict=True
    ):
        figures.append(_trial_figures(trial, trial_flows, trial_ports, histogram, edges))
    paired = None
    if first is not None and second is not None:
        paired = pair_flows(first, second, trials[0].spec.measured_ns)
        notes += _about_flows(paired, first, second)
    divergence = None
    if None not in ports:
        divergence = find_port_divergence(trials, notes)
    return PairMetrics(figures[0], figures[1], paired, divergence, tuple(notes)), edges


def _trial_figures(
    trial: TrialResult,
    flows: TrialFlows | None,
    ports: TrialPorts | None,
    histogram: QueueHistogram | None,
    edges: Floats,
) -> TrialFigures:
    """Return a trial's figures of what is known of it; `edges` are of the flow-size groups."""
    scalars: dict[str, float] = {}
    blocks = counts = None
    if flows is not None:
        blocks = reduce_flows(flows, trial.spec.measured_ns, edges)
        fct = flows.fct_ns[flows.done].astype(np.float64)
        slowdown = fct / flows.ideal_ns[flows.done]
        scalars |= flow_scalars(flows.size_bytes[flows.done], fct, slowdown)
    if ports is not None:
        scalars |= measure_ports(trial).scalars
        packets = float(ports.blocks.drop_packets.sum())  # NaN if not counted
        dropped = float(ports.blocks.dropped.sum())
        scalars[DROPPED_SHARE] = dropped / packets if packets else 0.0
    elif histogram is not None:
        scalars |= histogram.scalars
        counts = histogram.binned(QUEUE_EDGES_BYTES)
    scalars |= own_figures(trial, METRICS.own)
    return TrialFigures(without_tables(trial), scalars, blocks, ports, counts)


def _attempt(read: Callable[[TrialResult], _T], trial: TrialResult, notes: list[str]) -> _T | None:
    try:
        return read(trial)
    except InputError as error:
        notes += [problem.text for problem in error.problems]
        return None


def _one_ideal(
    trials: Sequence[TrialResult], flows: Sequence[TrialFlows | None], notes: list[str]
) -> list[TrialFlows | None]:
    """Return the flows of both trials with the same ideal FCTs, if one of them was imported.

    An imported trial brings ideal FCTs of its own: another simulator counts other headers. With two
    ideals, slowdowns would differ where completion times do not. On equal links both trials get
    the ideals that closloop computed or, if both were imported, those of A.
    """
    imported = [not capabilities(trial.spec.backend).runs for trial in trials]
    a, b = flows
    if a is None or b is None or not any(imported) or _links(trials[0]) != _links(trials[1]):
        return list(flows)
    keeps = 1 if imported[0] and not imported[1] else 0
    changed, excess = with_ideal_times_of((a, b)[1 - keeps], (a, b)[keeps])
    if excess:
        own = f"{abs(excess):.0%} {'longer' if excess > 0 else 'shorter'}"
        notes.append(
            f"slowdowns of both runs use the ideal FCTs of {'AB'[keeps]}; those that "
            f"{'AB'[1 - keeps]} brought are up to {own}"
        )
    return [a, changed] if keeps == 0 else [changed, b]


def _links(trial: TrialResult) -> list[tuple[list[str], int, int]]:
    """Return ends, rate and delay of every link of a trial's testbed, sorted."""
    ports = trial.testbed.ports
    return sorted(
        (sorted((ports[link.a].device, ports[link.b].device)), link.rate_bps, link.delay_ns)
        for link in trial.testbed.links
    )


def _histograms(trials: Sequence[TrialResult], notes: list[str]) -> list[QueueHistogram | None]:
    """Return the queue histograms of trials without samples over time, if both cover one time."""
    histograms: list[QueueHistogram | None] = [None, None]
    spans = [queue_span(trial.facts) if _unsampled(trial) else "" for trial in trials]
    for number, trial in enumerate(trials):
        if not _unsampled(trial):
            continue
        text = f"{'AB'[number]}: its ports were not sampled over time"
        if HISTOGRAM_FACT not in trial.facts:
            notes.append(f"{text}, so no metric of ports is compared")
        elif spans[0] != spans[1]:
            when = spans[number] or "while flows arrived"
            notes.append(
                f"{text}, and its queue lengths are of another time ({when}), so they are not "
                "compared"
            )
        else:
            notes.append(
                f"{text}, so its queue lengths are compared as a whole, not by port or over time"
            )
            histograms[number] = QueueHistogram.of(trial.facts[HISTOGRAM_FACT], trial.testbed)
    return histograms


def _unsampled(trial: TrialResult) -> bool:
    """Whether a trial's ports can be read, but were never sampled."""
    try:
        return not len(trial.ports.t_ns)
    except InputError:
        return False


def _about_flows(paired: PairedFlows, a: TrialFlows, b: TrialFlows) -> list[str]:
    """Return notes on how the two schedules differ."""
    if paired.same:
        return []
    if not paired.common:
        return [
            f"no flow of A ({len(a)}) is also a flow of B ({len(b)}): distributions are compared, "
            "single flows are not"
        ]
    return [
        f"{paired.common} flows are in both runs, {paired.only_a} only in A, {paired.only_b} only "
        f"in B, and {paired.differing} have the same number but another source, destination, size "
        "or start. Distributions are over all flows of each run; the comparison flow by flow uses "
        "those in both"
    ]


@dataclass(frozen=True)
class Speed:
    """A run's packet-hops over its compared trials, and their wall time.

    `wall_s` is the trials' whole time; `run_s` is that of the traffic only, without start-up, or
    None if the backend does not report it. `counted` says what is counted as a packet-hop.
    """

    packet_hops: int
    wall_s: float | None
    run_s: float | None
    trials: int
    counted: str

    @property
    def per_wall_s(self) -> float | None:
        """Packet-hops per wall second, starting and building included."""
        return self.packet_hops / self.wall_s if self.wall_s else None

    @property
    def per_run_s(self) -> float | None:
        """Packet-hops per wall second of traffic."""
        return self.packet_hops / self.run_s if self.run_s else None


def speed_of(trials: Sequence[tuple[TrialResult, int, str]]) -> Speed:
    """Return the speed over trials, given as (trial, packet-hops, what was counted)."""
    return Speed(
        packet_hops=sum(hops for _, hops, _ in trials),
        wall_s=_seconds(trial.facts.get("wall_s") for trial, _, _ in trials),
        run_s=_seconds(_run_s(trial.facts) for trial, _, _ in trials),
        trials=len(trials),
        counted=", ".join(sorted({meaning for _, _, meaning in trials})),
    )


def _run_s(facts: Mapping[str, Any]) -> object:
    stages = facts.get("stages_s")
    return facts.get("run_wall_s", stages.get("run") if isinstance(stages, dict) else None)


def _seconds(values: Iterable[object]) -> float | None:
    """Return the sum of times; None if one is unknown."""
    every = list(values)
    known = [float(one) for one in every if isinstance(one, int | float) and one > 0]
    return sum(known) if len(known) == len(every) else None
