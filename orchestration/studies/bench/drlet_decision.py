"""Measures how long DRLet's decision takes by the size of the fabric (its figures 18 and 19)."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from inventory.generators import Cable, fat_tree
from inventory.topology import Testbed
from orchestration.model.trial import TunerSpec
from orchestration.studies.bench.outcome import Figure, Outcome
from orchestration.training.learners import make_learner
from tuners import registry
from tuners.checkpoint import save
from tuners.contract import readings

# At 16 pods the first layer alone is 16,256 x 16,256: 2 GB as it is multiplied here.
_PODS = {"drlet": (4, 6, 8, 10, 12), "drlet-local": (4, 8, 12, 16)}
_WANTED_MS = {("drlet", 8): 2.0}
_DECISIONS, _WARM = 60, 10


def drlet_decision() -> Outcome:
    """Wall time of a decision of DRLet and of its multi-agent variant, by the fabric's pods."""
    figures = []
    data: dict[str, list[float]] = {}
    for name, sizes in _PODS.items():
        for pods in sizes:
            times_ms = _times_ms(name, _fat_tree(pods))
            median, limit = statistics.median(times_ms), _WANTED_MS.get((name, pods))
            figures.append(
                Figure(
                    f"{name}, k = {pods}",
                    f"{median:.2f} ms (least {min(times_ms):.2f}, most {max(times_ms):.2f})",
                    "" if limit is None else f"{limit:g} ms",
                    None if limit is None else median <= limit,
                )
            )
            data[f"{name} {pods}"] = times_ms
    notes = (
        "from a reading to the change of timeouts, reading and applying not counted",
        "networks are untrained: what they have learned does not change how long they take",
        "the paper's figure 18 is of the whole control loop with a K80 GPU: milliseconds",
    )
    title = f"A decision on flowlet timeouts: medians of {_DECISIONS}, one core"
    return Outcome(title, tuple(figures), notes, data)


def _fat_tree(pods: int) -> Testbed:
    cable = Cable(10_000_000_000, 1_000)
    devices, links = fat_tree(k=pods, host_cable=cable, aggregation_cable=cable, core_cable=cable)
    return Testbed.build(f"k{pods}", devices, links, mtu_bytes=1500, buffer_bytes=1_500_000)


def _times_ms(name: str, testbed: Testbed) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        learner = make_learner(name, 1, testbed, {})
        path = Path(folder) / "untrained.safetensors"
        card = {"tuner": name, "architecture": learner.architecture()}
        save(path, learner.parameters(), card)
        del learner
        tuner = registry.create(TunerSpec(name, {"checkpoint": str(path)}))
    seen = readings(testbed, tuner, tuner.reset(testbed, 1), _WARM + _DECISIONS)
    times_ms = []
    for observation in seen:
        begin = time.perf_counter()
        tuner.act(observation)
        times_ms.append(1e3 * (time.perf_counter() - begin))
    return times_ms[_WARM:]
