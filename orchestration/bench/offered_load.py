"""How much load is offered, deliverable and really delivered in short windows, by intended load.

The intended load is what a campaign asks for. The offered load is what the schedule really sends;
in a short window it varies by seed, because the window has few flows. Drawing flow sizes in strata
reduces that. The deliverable load is what can arrive at line rate within the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inventory.files import load_testbed
from orchestration.analysis.load import load_facts
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.bench.outcome import (
    MILLISECOND,
    Figure,
    Outcome,
    at_most,
    bench_folder,
    bench_trial,
)
from orchestration.core.pattern import INDEPENDENT, STRATA, Draw
from orchestration.core.ports import TrialRun
from orchestration.core.records import Floats, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.reader import LOAD_FACT
from traffic.delivery import capacity_bytes, deliverable_bytes, offered_bytes
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule

_TESTBED = "graphcc"
_SEEDS, _FLUID_SEEDS = 400, 5


@dataclass(frozen=True)
class _Case:
    """An intended load in a window of `lasts_ms`, which begins after `warm_up_ms`.

    `min_gain` is the factor by which strata must reduce the standard deviation of the offered load.
    It is 0 for a workload of which the window has so few flows that strata do not help.
    """

    workload: str
    load: float
    lasts_ms: int
    warm_up_ms: int = 0
    min_gain: float = 10.0

    @property
    def name(self) -> str:
        """Return the case's name in reports."""
        after = f" after {self.warm_up_ms} ms" if self.warm_up_ms else ""
        return f"{self.workload} at {self.load:.0%}, {self.lasts_ms} ms{after}"

    def trial(self, draw: Draw, seed: int) -> TrialSpec:
        """Return a trial of the fluid backend that ends when the window ends."""
        duration_ns = (self.warm_up_ms + self.lasts_ms) * MILLISECOND
        traffic = (PoissonSpec(self.workload, self.load, 0, duration_ns, draw=draw),)
        return bench_trial(
            traffic,
            duration_ns,
            testbed=_TESTBED,
            seed=seed,
            drain_ns=0,
            warm_up_ns=self.warm_up_ms * MILLISECOND,
        )


_CASES = (
    _Case("WebSearch", 0.6, 10),
    _Case("WebSearch", 0.6, 10, warm_up_ms=10),
    _Case("DataMining", 0.5, 8, min_gain=0),
    _Case("FB_Hadoop", 0.6, 10),
)


def offered_load() -> Outcome:
    """Load offered, deliverable and delivered in short windows, with strata and without."""
    testbed = load_testbed(_TESTBED)
    figures: list[Figure] = []
    data: dict[str, Any] = {}
    for case in _CASES:
        by_draw = {draw: _measure(case, draw, testbed) for draw in (INDEPENDENT, STRATA)}
        figures += [_figure(case, draw, shares) for draw, shares in by_draw.items()]
        if case.min_gain:
            gain = float(by_draw[INDEPENDENT]["offered"].std() / by_draw[STRATA]["offered"].std())
            label = f"{case.name}: deviation of what is offered, strata by independent"
            figures.append(at_most(label, 1 / gain, 1 / case.min_gain, 3))
        data[case.name] = {
            draw: {name: values.tolist() for name, values in shares.items()}
            for draw, shares in by_draw.items()
        }
    return Outcome(
        f"Load in short windows: {_TESTBED}, shares of the hosts' line rates",
        tuple(figures),
        notes=(
            f"Offered: mean ± deviation (median) over {_SEEDS} seeds. Of it, how much can "
            "arrive at line rate within the window, and how much the fluid model delivers under "
            f"SECN1 ({_FLUID_SEEDS} seeds).",
        ),
        data=data,
    )


def _measure(case: _Case, draw: Draw, testbed: Testbed) -> Mapping[str, Floats]:
    """Return the load offered, deliverable and delivered, by seed, as shares of line rate.

    The load that is delivered is measured for some of the seeds only.
    """
    rows = []
    for seed in range(_SEEDS):
        trial = case.trial(draw, seed)
        schedule = make_schedule(trial, testbed)
        amounts = (
            offered_bytes(schedule, trial.measured_ns),
            deliverable_bytes(schedule, testbed, trial.measured_ns),
        )
        delivered = _delivered(trial, testbed, schedule) if seed < _FLUID_SEEDS else np.nan
        capacity = capacity_bytes(testbed, trial.measured_ns)
        rows.append((*(amount / capacity for amount in amounts), delivered))
    offered, arrives, delivered_load = np.array(rows).T
    return {
        "offered": offered,
        "arrives": arrives,
        "delivered": delivered_load[:_FLUID_SEEDS],
    }


def _delivered(trial: TrialSpec, testbed: Testbed, schedule: Schedule) -> float:
    with bench_folder() as folder:
        record = FluidBackend().run(TrialRun(trial, testbed, schedule, folder))
    return float(load_facts(trial, testbed, schedule, record)[LOAD_FACT]["delivered_load"])


def _figure(case: _Case, draw: Draw, shares: Mapping[str, Floats]) -> Figure:
    offered = shares["offered"]
    arrives = float(shares["arrives"].sum() / offered.sum())
    delivered = float(shares["delivered"].sum() / offered[:_FLUID_SEEDS].sum())
    text = (
        f"{offered.mean():.1%} ±{offered.std():.1%} ({np.median(offered):.1%}); "
        f"{arrives:.0%} of it; {delivered:.0%} of it"
    )
    deviation = abs(float(offered.mean()) / case.load - 1)
    error = float(offered.std()) / case.load / _SEEDS**0.5
    return Figure(
        f"{case.name}, {draw}: offered; deliverable; delivered",
        text,
        f"offered {case.load:.0%} in the mean, within 4 standard errors",
        bool(deviation < 4 * error + 0.001),
    )
