"""Measures how long a decision takes, from reading all queues to applied thresholds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from orchestration.studies.bench.outcome import Figure, Outcome, bench_folder
from orchestration.studies.bench.physics import run_probe

_WANTED_MS = 3.0
_ROUNDS, _BATCH = 200, 10
_PHASES = ("observe", "act", "apply")
_RULES = ("amt", "qaecn", "random")
_LEARNED = ("acc", "pet", "graphcc")


def decision_time() -> Outcome:
    """Wall time of one decision for all queues, in the guest, split into observe, act, apply."""
    learned = _LEARNED if find_spec("torch") else ()
    figures: list[Figure] = []
    data: dict[str, Any] = {}
    for testbed in ("graphcc", "acc"):
        clock = _BatchClock()
        with bench_folder() as folder:
            tuners: dict[str, Any] = {name: {"name": name} for name in _RULES}
            for name in learned:
                path = _untrained(name, testbed, folder)
                tuners[name] = {"name": name, "params": {"checkpoint": str(path)}}
            probe = {"kind": "decision", "tuners": tuners, "rounds": _ROUNDS, "batch": _BATCH}
            changed = run_probe(testbed, probe, clock.listen)["changed_queues"]
        for name in tuners:
            times_ms = {phase: clock.rounds_ms(name, phase) for phase in ("decision", *_PHASES)}
            limit_ms = _WANTED_MS if testbed == "graphcc" else None
            what = f"{testbed}, {name}: {changed[name]:.0f} queues changed in a decision"
            figures.append(_figure(what, times_ms, limit_ms))
            data[f"{testbed} {name}"] = times_ms
    notes = [
        "wall time: whatever else the machine does is in it",
        "the fabric is idle; tuners are shown readings in which every queue is busy, and reading "
        "PET's flow table is not counted",
        "networks are untrained: what they have learned does not change how long they take",
    ]
    if not learned:
        notes[-1] = "no learned tuners: PyTorch is not installed (pip install 'closloop[learn]')"
    title = f"A decision for all queues: medians of {_ROUNDS} rounds, in batches of {_BATCH}"
    return Outcome(title, tuple(figures), tuple(notes), data)


def _untrained(name: str, testbed: str, folder: Path) -> Path:
    """Write a checkpoint of an untrained learned tuner."""
    from orchestration.training.learners import make_learner
    from tuners.checkpoint import save

    learner = make_learner(name, 1, load_testbed(testbed), {})
    path = folder / f"{name}.safetensors"
    save(path, learner.parameters(), {"tuner": name, "architecture": learner.architecture()})
    return path


def _figure(what: str, times_ms: Mapping[str, Sequence[float]], limit_ms: float | None) -> Figure:
    median = {phase: statistics.median(times) for phase, times in times_ms.items()}
    split = ", ".join(f"{phase} {median[phase]:.2f}" for phase in _PHASES)
    mean, least = statistics.mean(times_ms["decision"]), min(times_ms["decision"])
    return Figure(
        what,
        f"{median['decision']:.2f} ms ({split}; mean {mean:.2f}, least {least:.2f})",
        "" if limit_ms is None else f"{limit_ms:g} ms",
        None if limit_ms is None else median["decision"] <= limit_ms,
    )


class _BatchClock:
    """Wall time between the messages that a guest sends after each batch of rounds."""

    def __init__(self) -> None:
        self._last: tuple[str, str, float] = ("", "", 0.0)
        self._batches: dict[tuple[str, str], list[float]] = {}

    def listen(self, message: dict[str, Any]) -> None:
        """Record one message of the guest."""
        now = time.monotonic()
        if "batch" not in message:
            return
        key = (message["tuner"], message["phase"])
        if self._last[:2] == key:
            self._batches.setdefault(key, []).append(now - self._last[2])
        self._last = (*key, now)

    def rounds_ms(self, tuner: str, phase: str) -> list[float]:
        """Return wall ms per round, one figure per batch; the first batch has none."""
        return [1e3 * seconds / _BATCH for seconds in self._batches[tuner, phase]]
