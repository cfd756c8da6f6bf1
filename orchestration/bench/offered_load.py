"""How much of a load that is asked for is offered, can arrive, and is delivered, in a window."""

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
from traffic.delivery import arriving_bytes, capacity_bytes, offered_bytes
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule

_TESTBED = "graphcc"
_SEEDS, _FLUID_SEEDS = 400, 5


@dataclass(frozen=True)
class _Case:
    """A load in a window of `lasts_ms` after `warm_up_ms`.

    `min_gain` is how much less the deviation of what is offered is to be with strata; 0 for a
    workload of which the window has so few flows that no draw helps.
    """

    workload: str
    load: float
    lasts_ms: int
    warm_up_ms: int = 0
    min_gain: float = 10.0

    @property
    def name(self) -> str:
        """What reports call it."""
        after = f" after {self.warm_up_ms} ms" if self.warm_up_ms else ""
        return f"{self.workload} at {self.load:.0%}, {self.lasts_ms} ms{after}"

    def trial(self, draw: Draw, seed: int) -> TrialSpec:
        """Return a trial of the fluid backend that ends with the window."""
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
    """Load offered, able to arrive and delivered in short windows, with strata and without."""
    testbed = load_testbed(_TESTBED)
    figures: list[Figure] = []
    data: dict[str, Any] = {}
    for case in _CASES:
        found = {draw: _measure(case, draw, testbed) for draw in (INDEPENDENT, STRATA)}
        figures += [_figure(case, draw, one) for draw, one in found.items()]
        if case.min_gain:
            gain = float(found[INDEPENDENT]["offered"].std() / found[STRATA]["offered"].std())
            what = f"{case.name}: deviation of what is offered, strata by independent"
            figures.append(at_most(what, 1 / gain, 1 / case.min_gain, 3))
        data[case.name] = {
            draw: {name: values.tolist() for name, values in one.items()}
            for draw, one in found.items()
        }
    return Outcome(
        f"Load in short windows: {_TESTBED}, shares of the hosts' line rates",
        tuple(figures),
        notes=(
            f"Offered: mean ± deviation (median) over {_SEEDS} seeds. Of it, what can arrive at "
            "line rate within the window, and what the fluid model delivers under SECN1 "
            f"({_FLUID_SEEDS} seeds).",
        ),
        data=data,
    )


def _measure(case: _Case, draw: Draw, testbed: Testbed) -> Mapping[str, Floats]:
    """Return shares of line rate by seed: offered and able to arrive, delivered of some seeds."""
    rows = []
    for seed in range(_SEEDS):
        trial = case.trial(draw, seed)
        schedule = make_schedule(trial, testbed)
        amounts = (
            offered_bytes(schedule, trial.measured_ns),
            arriving_bytes(schedule, testbed, trial.measured_ns),
        )
        delivered = _delivered(trial, testbed, schedule) if seed < _FLUID_SEEDS else np.nan
        capacity = capacity_bytes(testbed, trial.measured_ns)
        rows.append((*(one / capacity for one in amounts), delivered))
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


def _figure(case: _Case, draw: Draw, found: Mapping[str, Floats]) -> Figure:
    offered = found["offered"]
    arrives = float(found["arrives"].sum() / offered.sum())
    delivered = float(found["delivered"].sum() / offered[:_FLUID_SEEDS].sum())
    text = (
        f"{offered.mean():.1%} ±{offered.std():.1%} ({np.median(offered):.1%}); "
        f"{arrives:.0%} of it; {delivered:.0%} of it"
    )
    off = abs(float(offered.mean()) / case.load - 1)
    error = float(offered.std()) / case.load / _SEEDS**0.5
    return Figure(
        f"{case.name}, {draw}: offered; can arrive; delivered",
        text,
        f"offered {case.load:.0%} in the mean, within 4 standard errors",
        bool(off < 4 * error + 0.001),
    )
