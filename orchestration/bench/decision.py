"""Measures how long a tuner's decision takes, by tuner and fabric (DRLet's figures 18 and 19)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from inventory.files import load_testbed
from inventory.generators import Cable, fat_tree
from orchestration.bench.outcome import Figure, Outcome, bench_folder
from orchestration.core.topology import Testbed
from orchestration.core.trial import TunerSpec
from tuners import registry
from tuners.contract import readings

_RULES = ("amt", "qaecn", "random")
_LEARNED = ("acc", "pet", "graphcc")
# At 16 pods DRLet's first layer alone is 16,256 x 16,256: 2 GB as it is multiplied here.
_PODS = {"drlet": (4, 6, 8, 10, 12), "drlet-local": (4, 8, 12, 16)}
_WANTED_MS = {"graphcc": 1.0, "drlet on a fat tree, k = 8": 2.0}
_DECISIONS, _WARM = 60, 10


def decision_time() -> Outcome:
    """Wall time of a decision for all queues, or all flowlet timeouts, by tuner and fabric."""
    learned = find_spec("torch") is not None
    figures, data = [], {}
    for fabric in ("graphcc", "acc"):
        for name in (*_RULES, *(_LEARNED if learned else ())):
            times_ms = _times_ms(name, load_testbed(fabric), learned=name in _LEARNED)
            what = f"{name} on {fabric}"
            figures.append(_time_figure(what, times_ms, _WANTED_MS.get(fabric)))
            data[what] = times_ms
    for name, sizes in _PODS.items() if learned else ():
        for pods in sizes:
            times_ms = _times_ms(name, _fat_tree(pods), learned=True)
            what = f"{name} on a fat tree, k = {pods}"
            figures.append(_time_figure(what, times_ms, _WANTED_MS.get(what)))
            data[what] = times_ms
    notes = [
        "from a reading to the change, reading and applying not counted; readings are of a fabric "
        "that gets ever busier",
        "networks are untrained: what they have learned does not change how long they take",
        "figure 18 of DRLet's paper is of the whole control loop with a K80 GPU: milliseconds",
    ]
    if not learned:
        notes[1:] = ["no learned tuners: PyTorch is not installed (pip install 'closloop[learn]')"]
    return Outcome(
        f"A decision: medians of {_DECISIONS}, one core", tuple(figures), tuple(notes), data
    )


def _time_figure(what: str, times_ms: Sequence[float], limit_ms: float | None) -> Figure:
    median = statistics.median(times_ms)
    return Figure(
        what,
        f"{median:.2f} ms (least {min(times_ms):.2f}, most {max(times_ms):.2f})",
        "" if limit_ms is None else f"{limit_ms:g} ms",
        None if limit_ms is None else median <= limit_ms,
    )


def _fat_tree(pods: int) -> Testbed:
    cable = Cable(10_000_000_000, 1_000)
    devices, links = fat_tree(k=pods, host_cable=cable, aggregation_cable=cable, core_cable=cable)
    return Testbed.build(f"k{pods}", devices, links, mtu_bytes=1500, buffer_bytes=1_500_000)


def _times_ms(name: str, testbed: Testbed, *, learned: bool) -> list[float]:
    with bench_folder() as folder:
        spec = TunerSpec(name)
        if learned:
            spec = TunerSpec(name, {"checkpoint": str(_untrained(name, testbed, folder))})
        tuner = registry.create(spec)
    seen = readings(testbed, tuner, tuner.reset(testbed, 1), _WARM + _DECISIONS)
    times_ms = []
    for observation in seen:
        begin = time.perf_counter()
        tuner.act(observation)
        times_ms.append(1e3 * (time.perf_counter() - begin))
    return times_ms[_WARM:]


def _untrained(name: str, testbed: Testbed, folder: Path) -> Path:
    """Write a checkpoint of an untrained learned tuner."""
    from orchestration.training.learners import make_learner
    from tuners.learning.checkpoint import save

    learner = make_learner(name, 1, testbed, {})
    path = folder / f"{name}.safetensors"
    save(path, learner.parameters(), {"tuner": name, "architecture": learner.architecture()})
    return path
