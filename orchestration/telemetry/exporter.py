"""Export a run's metrics in Prometheus' text format: run, finished trials, queues of running ones.

Each scrape reads the journal, the running trials' snapshots and the archive again; nothing is
written or locked. Only this module imports prometheus_client.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.snapshot import Snapshot
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.trial_metrics import measure
from orchestration.core.condition import campaign_tuner_name
from orchestration.core.errors import InputError, NotReadyError, needs
from orchestration.core.knobs import KNOBS
from orchestration.core.signals import recorded
from orchestration.core.topology import Testbed
from orchestration.results.question import arm_of, read_question
from orchestration.results.reader import TrialResult, finished_trials, read_trial
from orchestration.run.state import RunReader, RunState, TrialState, find_run

_QUANTILES = (0.5, 0.99)
_QUEUE_LABELS = ("trial", "device", "port", "queue")


# The labels of a series, and its value.
_Series = tuple[tuple[str, ...], float]
# The metric families of finished trials: their help text, and labels besides the trial's.
_OF_FINISHED = {
    "trial_valid": ("1 if the trial is valid by its stamp.", ()),
    "trial_wall_seconds": ("Wall time of a trial.", ()),
    "trial_flows": ("Flows of a finished trial by outcome.", ("status",)),
    "trial_slowdown": (
        "Quantiles of the slowdown of completed flows: FCT over FCT on an idle path.",
        ("quantile",),
    ),
    "trial_figure": (
        "Metrics of a finished trial by key, as in closloop report --json.",
        ("metric", "unit"),
    ),
}


@dataclass(frozen=True)
class _Queues:
    """The queues of one trial: columns with an entry per queue, -1 where unknown."""

    trial: str
    testbed: Testbed
    columns: dict[str, Any]


class RunCollector:
    """Collects the metrics of one run folder, for registries of prometheus_client."""

    def __init__(self, run: Path) -> None:
        """Open the folder. Raises InputError if it is not a run folder."""
        self._reader = RunReader(find_run(run))
        # The series of finished trials, by family.
        self._finished: dict[str, dict[str, list[_Series]]] = {}

    def collect(self) -> Iterator[Any]:
        """Yield the present metric families."""
        state = self._reader.read()
        self._read_finished(state.folder)
        yield from _of_run(state)
        yield from _of_finished(self._finished.values())
        yield from _of_running(state.trials)
        yield from _of_queues(_queues(state))

    def _read_finished(self, folder: Path) -> None:
        paths = {path.name: path for path in finished_trials(folder)}
        compare = read_question(folder).compare
        self._finished = {name: known for name, known in self._finished.items() if name in paths}
        for name, path in paths.items():
            if name not in self._finished:
                try:
                    self._finished[name] = _trial_series(read_trial(path), compare)
                except InputError:
                    continue  # a damaged trial counts only in the journal's figures


def _trial_series(trial: TrialResult, compare: str) -> dict[str, list[_Series]]:
    spec, flows = trial.spec, trial.table("flows")
    arm = arm_of(spec, campaign_tuner_name(spec), compare)
    labels = (spec.id, spec.tuner.name, arm, spec.testbed)
    done = flows["status"] == "done"
    slowdown = flows["fct_ns"][done] / np.maximum(1, flows["ideal_ns"][done])
    quantiles = np.quantile(slowdown, _QUANTILES) if len(slowdown) else ()
    count = int(done.sum())
    return {
        "trial_valid": [(labels, int(trial.stamp.valid))],
        "trial_wall_seconds": [(labels, float(trial.facts.get("wall_s", 0.0)))],
        "trial_flows": [((*labels, "done"), count), ((*labels, "not done"), len(done) - count)],
        "trial_slowdown": [
            ((*labels, str(quantile)), float(value))
            for quantile, value in zip(_QUANTILES, quantiles, strict=False)
        ],
        "trial_figure": [
            ((*labels, key, METRICS[key].unit), value)
            for key, value in measure(trial).scalars.items()
            if math.isfinite(value)
        ],
    }


def _family(
    name: str, text: str, labels: Sequence[str], series: Iterable[_Series], *, counter: bool = False
) -> Any:
    """Return a metric family called `closloop_` and `name`, with a help text."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if counter else GaugeMetricFamily
    family: Any = make(f"closloop_{name}", text, labels=labels)
    for values, number in series:
        family.add_metric(values, number)
    return family


def _of_run(state: RunState) -> Iterator[Any]:
    counts, name = state.counts, state.name
    trials: list[_Series] = [
        ((name, "planned"), counts.trials),
        ((name, "done"), counts.done),
        ((name, "running"), len(counts.running)),
        ((name, "failed"), counts.failed),
        ((name, "invalid"), counts.invalid),
    ]
    yield _family("run_trials", "Trials of the campaign by state.", ["campaign", "state"], trials)
    active = [((name,), 0 if state.ended else 1)]
    yield _family("run_active", "1 while the run is active.", ["campaign"], active)


def _of_finished(finished: Collection[Mapping[str, list[_Series]]]) -> Iterator[Any]:
    for name, (text, own) in _OF_FINISHED.items():
        series = [labelled for trial in finished for labelled in trial[name]]
        yield _family(name, text, ["trial", "tuner", "arm", "testbed", *own], series)


def _of_running(trials: Sequence[TrialState]) -> Iterator[Any]:
    snapshots = [(trial.id, trial.snapshot) for trial in trials if trial.snapshot is not None]
    flows: list[_Series] = [((trial.id, "all"), trial.flows) for trial in trials]
    flows += [((name, "done"), now.flows_done) for name, now in snapshots if now.flows_done >= 0]
    reached: list[_Series] = [((name,), now.t_ns / 1e9) for name, now in snapshots]
    changes: list[_Series] = [((name,), now.changes) for name, now in snapshots]
    late: list[_Series] = [((name,), now.late_samples) for name, now in snapshots]
    text = "Time of a running trial, by its own clock."
    yield _family("running_trial_seconds", text, ["trial"], reached)
    text = "Flows of a running trial: all, and done."
    yield _family("running_flows", text, ["trial", "of"], flows)
    text = "Actions of the tuner that changed queues."
    yield _family("tuner_changes", text, ["trial"], changes, counter=True)
    text = "Samples over half a period off their time."
    yield _family("late_samples", text, ["trial"], late, counter=True)


def _queues(state: RunState) -> list[_Queues]:
    """Return the queues of the running trials, or else of the trial that ended last."""
    if state.trials:
        return [
            _Queues(trial.id, trial.testbed, _values(trial.snapshot))
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
    """Return the signals of queues, and the settings of their knobs, by column."""
    values = snapshot.values
    columns = {
        signal.name: values[signal.key] for signal in recorded("queue") if signal.key in values
    }
    for knob, settings in snapshot.settings.items():
        columns |= settings if KNOBS[knob].scope == "queue" else {}
    return columns


def _of_queues(trials: Sequence[_Queues]) -> Iterator[Any]:
    exported = [(signal.name, signal.help, signal.cumulative) for signal in recorded("queue")]
    for knob in KNOBS.values():
        if knob.scope == "queue":
            exported += [(column.name, column.help, False) for column in knob.columns]
    for name, text, cumulative in exported:
        series: list[_Series] = [
            ((queues.trial, queue.device, queue.name, str(queue.klass)), float(value))
            for queues in trials
            if name in queues.columns
            for value, queue in zip(queues.columns[name], queues.testbed.queues, strict=True)
            if value >= 0
        ]
        title = f"queue_{name.removeprefix('qlen_')}"
        text = f"{text[0].upper()}{text[1:]}."
        yield _family(title, text, _QUEUE_LABELS, series, counter=cumulative)


def metrics_text(run: Path) -> str:
    """Return the metrics as text. Raises InputError if `run` is not a run folder."""
    return str(_library().generate_latest(_registry(run)).decode())


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
    with needs("the exporter", "influx"):
        import prometheus_client
    return prometheus_client
