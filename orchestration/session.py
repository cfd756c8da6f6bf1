"""Runs one trial on a rig, from the first setting to the trial's record, on every backend."""

from __future__ import annotations

from collectors.recorder import Recorder
from collectors.sinks.spool_observer import spool_observers
from collectors.snapshot import LiveObserver
from orchestration.core.ports import Observer, Rig, TrialRun, Tuner
from orchestration.core.records import MISSING, UNMEASURED, Applied, Observation, TrialRecord
from orchestration.core.signals import DERIVED, FLOW_SCOPE
from orchestration.loop import run_loop


def run_trial(rig: Rig, tuner: Tuner, run: TrialRun, *, in_guest: bool = False) -> TrialRecord:
    """Run a trial on `rig` with `tuner`, and return the trial's record.

    Three kinds of observers see what happens in the loop: the recorder, the live view, and the
    sinks that a note in the run's folder asks for. `in_guest` is for a process in which the clock
    shows the trial's time: there, snapshots are taken after a number of samples instead of a time,
    and nothing is spooled. Raises TrialError as `run_loop` and the rig do.
    """
    trial, testbed, folder = run.trial, run.testbed, run.folder
    recorder = Recorder(testbed)
    live = LiveObserver(folder, trial, rig.flows_done, rig.last_hosts, by_samples=in_guest)
    unmeasured = _Unmeasured(tuner)
    observer = Observers(
        recorder,
        live,
        unmeasured,
        *(() if in_guest else spool_observers(folder, testbed, recorder, rig.last_hosts)),
    )
    loop_facts = run_loop(rig, tuner, testbed, trial, observer, run.progress)
    if unmeasured.signals and loop_facts["decisions"]:
        loop_facts[UNMEASURED] = sorted(unmeasured.signals)
    outcome = rig.finish(observer)
    samples = {**recorder.samples(), "host": outcome.hosts}
    if outcome.sampled_flows is not None:
        samples[FLOW_SCOPE] = outcome.sampled_flows
    return TrialRecord(
        flows=outcome.flows,
        samples=samples,
        changes=recorder.changes(),
        events=tuple(outcome.events),
        facts={**outcome.facts, **loop_facts},
        trace=tuner.trace(),
        taken=recorder.taken(),
        acked=outcome.acked,
    )


class _Unmeasured:
    """Knows which `signals` a tuner observes but no reading has contained so far."""

    def __init__(self, tuner: Tuner) -> None:
        self.signals = set(tuner.observes) - set(DERIVED) if tuner.decides else set()

    def observed(self, observation: Observation) -> None:
        for key in tuple(self.signals):
            values = observation.get(key)
            if values is not None and (not len(values) or (values != MISSING).any()):
                self.signals.remove(key)

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        pass


class Observers:
    """Passes each event to all `observers`, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def observed(self, observation: Observation) -> None:
        """Pass on one reading."""
        for observer in self._observers:
            observer.observed(observation)

    def applied(self, observed_ns: int, decided_ns: int, applied: Applied) -> None:
        """Pass on one applied action."""
        for observer in self._observers:
            observer.applied(observed_ns, decided_ns, applied)
