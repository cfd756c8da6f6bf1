"""What is played in `fan-in`: a setting held, one for each phase, or a sequence by the clock.

The two settings of the oracle change when a phase begins, which it knows from the schedule. The
clock knows the time and not the phase: its sequence is the same on every port.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inventory.topology import Testbed
from orchestration.model.records import DONE, LASTING, Floats, Ints, TrialRecord
from orchestration.model.trial import AlternatingSpec, TrialSpec, TunerSpec
from orchestration.render.csv import write_rows
from orchestration.training.request import Episodes, TrainRequest, find_scenario
from orchestration.wiring import backend
from traffic.alternating import phases
from traffic.patterns import Streams
from traffic.schedule import ideal_times_ns, make_schedule

ON = "emulated"
SCENARIO = "fan-in"
Setting = tuple[int, int, float]  # kmin and kmax in KB, pmax


@dataclass(frozen=True)
class Arm:
    """`few` and `many` are held in the phases of that name, or `slots` in turn, each `slot_ns`.

    Phases' settings come `late_ns` after their phases begin, the first ones at once.
    """

    few: Setting
    many: Setting
    slots: tuple[Setting, ...] = ()
    slot_ns: int = 0
    late_ns: int = 0


@dataclass(frozen=True)
class Stretch:
    """Few or many hosts send to a queue between two times."""

    queue: int
    begin_ns: int
    end_ns: int
    crowded: bool


@dataclass(frozen=True)
class Played:
    """Flows of a trial that have an end, with starts and slowdowns (flows,)."""

    start_ns: Ints
    slowdown: Floats


def held(setting: Setting) -> Arm:
    """Return the arm of one setting."""
    return Arm(setting, setting)


def scenario() -> Episodes:
    """Return the episodes of the scenario."""
    return Episodes(TrainRequest("acc", find_scenario(SCENARIO), ON))


def stretches(trial: TrialSpec, testbed: Testbed) -> Iterator[Stretch]:
    """Yield the phases of every port that receives, in the order of its pattern."""
    queue = {testbed.peer_device(one).name: place for place, one in enumerate(testbed.queues)}
    for place, spec in enumerate(trial.traffic):
        if isinstance(spec, AlternatingSpec):
            for phase in phases(spec, Streams.spawn(trial.seed, place).times):
                end_ns = min(phase.end_ns, trial.duration_ns)
                yield Stretch(queue[spec.receiver], phase.start_ns, end_ns, phase.crowded)


def run(trial: TrialSpec, testbed: Testbed) -> tuple[TrialRecord, Played]:
    """Play a trial. A flow that has not ended counts with what it had taken."""
    schedule = make_schedule(trial, testbed)
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        record = backend(ON).run(trial, testbed, schedule, Path(folder), lambda now, end: None)
    flows = record.flows
    ended = np.where(flows.status == DONE, flows.end_ns, trial.duration_ns + trial.drain_ns)
    slowdown = (ended - schedule.start_ns) / ideal_times_ns(testbed, schedule, trial)
    counted = flows.status != LASTING
    return record, Played(schedule.start_ns[counted], slowdown[counted])


def play_arm(arm: Arm, seed: int) -> tuple[TrialSpec, Testbed, TrialRecord, Played]:
    """Play an arm with the flows of a seed."""
    episodes = scenario()
    trial = dataclasses.replace(episodes[0], seed=seed)
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        path = Path(folder) / "actions.csv"
        _write(path, arm, trial, episodes.testbed)
        tuner = TunerSpec("recorded", {"actions": str(path)})
        trial = dataclasses.replace(trial, tuner=tuner)
        return trial, episodes.testbed, *run(trial, episodes.testbed)


def _write(path: Path, arm: Arm, trial: TrialSpec, testbed: Testbed) -> None:
    """Write what an arm sets as a recording; queues that receive nothing get few's setting."""
    everywhere = range(len(testbed.queues))
    rows: dict[tuple[int, int], Setting] = {(0, queue): arm.few for queue in everywhere}
    for number, setting in enumerate(arm.slots):
        rows |= {(number * arm.slot_ns, queue): setting for queue in everywhere}
    if not arm.slots and arm.few != arm.many:
        for one in stretches(trial, testbed):
            begin_ns = one.begin_ns and one.begin_ns + arm.late_ns
            rows[begin_ns, one.queue] = arm.many if one.crowded else arm.few
    with path.open("w", newline="", encoding="utf-8") as file:
        heads: list[object] = [
            "t_ns",
            "device",
            "port",
            "queue",
            "kmin_bytes",
            "kmax_bytes",
            "pmax",
        ]
        lines: list[list[object]] = [heads]
        for (t_ns, place), (kmin, kmax, pmax) in sorted(rows.items()):
            queue = testbed.queues[place]
            klass = getattr(queue, "klass", 0)
            lines.append([t_ns, queue.device, queue.name, klass, kmin * 1000, kmax * 1000, pmax])
        write_rows(file, lines)
