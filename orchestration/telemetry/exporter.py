"""Export a run's metrics in Prometheus' text format: run, finished trials, queues of running ones.

Each scrape reads everything anew from the journal, the running trials' snapshots and the archive;
nothing is written or locked. Only this module imports prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.snapshot import Snapshot
from inventory.topology import Testbed
from orchestration.artifacts.reader import TrialResult, finished_trials, read_trial
from orchestration.model.errors import InputError, NotReadyError
from orchestration.model.knobs import KNOBS
from orchestration.model.signals import recorded
from orchestration.watch.state import RunReader, RunState, TrialState, find_run

_QUANTILES = (0.5, 0.99)
_QUEUE_LABELS = ("trial", "device", "port", "queue")


@dataclass(frozen=True)
class _Finished:
    """The cached figures of a finished trial."""

    labels: tuple[str, str, str]
    valid: bool
    wall_s: float
    flows: int
    done: int
    slowdown: tuple[float, ...]


@dataclass(frozen=True)
class _Queues:
    """The queues of one trial: columns with an entry per queue, -1 where unknown."""

    trial: str
    testbed: Testbed
    columns: dict[str, Any]


class RunCollector:
    """Collects the metrics of one run folder, for registries of prometheus_client."""

    def __init__(self, run: Path) -> None:
        """Set the folder. Raises InputError if it is not a run folder."""
        self._reader = RunReader(find_run(run))
        self._finished: dict[str, _Finished] = {}

    def collect(self) -> Iterator[Any]:
        """Yield the present metric families."""
        state = self._reader.read()
        self._read_finished(state.folder)
        yield from _of_run(state)
        yield from _of_finished(self._finished.values())
        yield from _of_running(state.trials)
        yield from _of_queues(_queues(state))

    def _read_finished(self, folder: Path) -> None:
        there = {path.name: path for path in finished_trials(folder)}
        self._finished = {name: one for name, one in self._finished.items() if name in there}
        for name, path in there.items():
            if name not in self._finished:
                try:
                    self._finished[name] = _summed_up(read_trial(path))
                except InputError:
                    continue  # damaged: it counts only in the journal's figures


def _summed_up(trial: TrialResult) -> _Finished:
    flows = trial.table("flows")
    done = flows["status"] == "done"
    slowdown = flows["fct_ns"][done] / np.maximum(1, flows["ideal_ns"][done])
    quantiles = np.quantile(slowdown, _QUANTILES) if len(slowdown) else ()
    return _Finished(
        (trial.spec.id, trial.spec.tuner.name, trial.spec.testbed),
        trial.stamp.valid,
        float(trial.facts.get("wall_s", 0.0)),
        len(done),
        int(done.sum()),
        tuple(float(value) for value in quantiles),
    )


def _of_run(state: RunState) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    tally = state.tally
    trials = GaugeMetricFamily(
        "closloop_run_trials", "Trials of the campaign by state.", labels=["campaign", "state"]
    )
    counts = {
        "planned": tally.trials,
        "done": tally.done,
        "running": len(tally.running),
        "failed": tally.failed,
        "invalid": tally.invalid,
    }
    for name, count in counts.items():
        trials.add_metric([state.name, name], count)
    yield trials
    active = GaugeMetricFamily("closloop_run_active", "1 while it runs.", labels=["campaign"])
    active.add_metric([state.name], 0 if state.ended else 1)
    yield active


def _of_finished(finished: Iterable[_Finished]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["trial", "tuner", "testbed"]
    valid = GaugeMetricFamily("closloop_trial_valid", "1 if the stamp says so.", labels=labels)
    wall = GaugeMetricFamily("closloop_trial_wall_seconds", "Wall time it took.", labels=labels)
    flows = GaugeMetricFamily(
        "closloop_trial_flows", "Flows of a finished trial by outcome.", labels=[*labels, "status"]
    )
    slowdown = GaugeMetricFamily(
        "closloop_trial_slowdown",
        "Quantiles of the completed flows' slowdown: time over the ideal time.",
        labels=[*labels, "quantile"],
    )
    for one in finished:
        valid.add_metric(one.labels, int(one.valid))
        wall.add_metric(one.labels, one.wall_s)
        flows.add_metric([*one.labels, "done"], one.done)
        flows.add_metric([*one.labels, "not done"], one.flows - one.done)
        for quantile, value in zip(_QUANTILES, one.slowdown, strict=False):
            slowdown.add_metric([*one.labels, str(quantile)], value)
    yield from (valid, wall, flows, slowdown)


def _of_running(trials: Sequence[TrialState]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    reached = GaugeMetricFamily(
        "closloop_running_trial_seconds", "The trial's own clock.", labels=["trial"]
    )
    flows = GaugeMetricFamily(
        "closloop_running_flows", "Flows of a running trial: all, and done.", labels=["trial", "of"]
    )
    changes = CounterMetricFamily(
        "closloop_tuner_changes", "Answers of the tuner that changed queues.", labels=["trial"]
    )
    late = CounterMetricFamily(
        "closloop_late_samples", "Readings over half a period off their time.", labels=["trial"]
    )
    for trial in trials:
        flows.add_metric([trial.id, "all"], trial.flows)
        if trial.snapshot is None:
            continue
        reached.add_metric([trial.id], trial.snapshot.t_ns / 1e9)
        changes.add_metric([trial.id], trial.snapshot.changes)
        late.add_metric([trial.id], trial.snapshot.late_samples)
        if trial.snapshot.flows_done >= 0:
            flows.add_metric([trial.id, "done"], trial.snapshot.flows_done)
    yield from (reached, flows, changes, late)


def _queues(state: RunState) -> list[_Queues]:
    """Return the queues of the running trials, or else of the trial that ended last."""
    if state.trials:
        return [
            _Queues(
                trial.id, trial.testbed, {**_values(trial.snapshot), **_settings(trial.snapshot)}
            )
            for trial in state.trials
            if trial.snapshot is not None
        ]
    folders = finished_trials(state.folder)
    if not folders:
        return []
    last = max(folders, key=lambda folder: folder.stat().st_mtime)
    try:
        trial = read_trial(last)
        ports = trial.ports
    except InputError:
        return []
    if not len(ports.t_ns):
        return []
    columns = {name: values[-1] for name, values in ports.values.items()}
    return [_Queues(trial.spec.id, trial.testbed, columns)]


def _values(snapshot: Snapshot) -> dict[str, Any]:
    """Return the signals and settings of queues."""
    read = snapshot.values
    signals = {one.name: read[one.key] for one in recorded("queue") if one.key in read}
    return {**signals, **_settings(snapshot)}


def _settings(snapshot: Snapshot) -> dict[str, Any]:
    """Return the settings of the queues' knobs, by column."""
    return {
        name: values
        for knob, columns in snapshot.settings.items()
        if KNOBS[knob].scope == "queue"
        for name, values in columns.items()
    }


def _of_queues(trials: Sequence[_Queues]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def family(name: str, text: str, *, counter: bool = False) -> Any:
        make = CounterMetricFamily if counter else GaugeMetricFamily
        title = f"closloop_queue_{name.removeprefix('qlen_')}"
        return make(title, f"{text[0].upper()}{text[1:]}.", labels=_QUEUE_LABELS)

    families = {
        signal.name: family(signal.name, signal.help, counter=signal.cumulative)
        for signal in recorded("queue")
    }
    for knob in KNOBS.values():
        if knob.scope == "queue":
            families |= {one.name: family(one.name, one.help) for one in knob.columns}
    for one in trials:
        for number, queue in enumerate(one.testbed.queues):
            labels = (one.trial, queue.device, queue.name, str(queue.klass))
            for name, values in one.columns.items():
                if values[number] >= 0:
                    families[name].add_metric(labels, float(values[number]))
    yield from families.values()


def metrics_text(run: Path) -> str:
    """Return the metrics as text. Raises InputError if `run` is not a run folder."""
    prometheus = _library()
    text: str = prometheus.generate_latest(_registry(run)).decode()
    return text


@contextmanager
def serve(run: Path, address: str, port: int) -> Iterator[int]:
    """Serve the metrics while the context lasts; yield the port. Port 0 means any free one.

    Raises InputError if `run` is not a run folder, NotReadyError if the port is not available.
    """
    prometheus = _library()
    registry = _registry(run)
    try:
        server, thread = prometheus.start_http_server(port, address, registry)
    except OSError as error:
        raise NotReadyError(
            f"{address}:{port} cannot be listened on: {error.strerror or error}",
            "choose another with --port or --address",
        ) from error
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _registry(run: Path) -> Any:
    registry = _library().CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(run))
    return registry


def _library() -> Any:
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        raise NotReadyError(
            "the exporter needs prometheus_client, which is not installed",
            "pip install 'closloop[influx]'",
        ) from error
    return prometheus_client
