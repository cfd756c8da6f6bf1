"""A run's metrics in Prometheus' text format: the run, its finished trials, its running queues.

Everything is read anew at each scrape, from the journal, the running trials' snapshots and the
archive; nothing is written or locked. The one module that imports prometheus_client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inventory.topology import Testbed
from orchestration.artifacts.reader import TrialResult, finished_trials, read_trial
from orchestration.model.errors import InputError, NotReadyError
from orchestration.watch.state import RunReader, RunState, TrialState, find_run

_QUANTILES = (0.5, 0.99)
_COUNTERS = {
    "tx_bytes": "Bytes that the queue has sent, Ethernet header counted.",
    "tx_packets": "Packets that the queue has sent.",
    "marked_packets": "Packets that the queue has marked CE.",
    "dropped_packets": "Packets that the queue has dropped.",
}
_THRESHOLDS = {
    "kmin_bytes": "Where marking begins.",
    "kmax_bytes": "Where every packet is marked.",
    "pmax": "The probability of marking just below kmax.",
}
_OF_TRIAL = ("trial", "tuner", "testbed")
_OF_QUEUE = ("trial", "device", "port", "queue")
_SLOWDOWN = "Quantiles of the completed flows' slowdown: time over the ideal time."
# Metrics by their names, in the page's order: text and labels.
_GAUGES = {
    "run_trials": ("Trials of the campaign by state.", ("campaign", "state")),
    "run_active": ("1 while it runs.", ("campaign",)),
    "trial_valid": ("1 if the stamp says so.", _OF_TRIAL),
    "trial_wall_seconds": ("Wall time it took.", _OF_TRIAL),
    "trial_flows": ("Flows of a finished trial by outcome.", (*_OF_TRIAL, "status")),
    "trial_slowdown": (_SLOWDOWN, (*_OF_TRIAL, "quantile")),
    "running_trial_seconds": ("The trial's own clock.", ("trial",)),
    "running_flows": ("Flows of a running trial: all, and done.", ("trial", "of")),
}
_RUNNING = {
    "tuner_changes": ("Answers of the tuner that changed queues.", ("trial",)),
    "late_samples": ("Readings over half a period off their time.", ("trial",)),
}


@dataclass(frozen=True)
class _Finished:
    """What is kept of a finished trial."""

    labels: tuple[str, str, str]
    valid: bool
    wall_s: float
    flows: int
    done: int
    slowdown: tuple[float, ...]


@dataclass(frozen=True)
class _Queues:
    """The queues of one trial: its columns have an entry a queue, -1 where there is none."""

    trial: str
    testbed: Testbed
    columns: dict[str, Any]


class RunCollector:
    """Makes the metrics of one run folder, for prometheus_client's registries."""

    def __init__(self, run: Path) -> None:
        """Take the folder. Raises InputError if it is no run folder."""
        self._reader = RunReader(find_run(run))
        self._finished: dict[str, _Finished] = {}

    def collect(self) -> Iterator[Any]:
        """Yield the metric families as of now."""
        state = self._reader.read()
        self._read_finished(state.folder)
        page = _Page()
        _add_run(page, state)
        _add_finished(page, self._finished.values())
        _add_running(page, state.trials)
        _add_queues(page, _queues(state))
        yield from page.families.values()

    def _read_finished(self, folder: Path) -> None:
        there = {path.name: path for path in finished_trials(folder)}
        self._finished = {name: one for name, one in self._finished.items() if name in there}
        for name, path in there.items():
            if name not in self._finished:
                try:
                    self._finished[name] = _summed_up(read_trial(path))
                except InputError:
                    continue  # damaged: it counts in the journal's figures alone


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


class _Page:
    """The metric families, and what is added to them."""

    def __init__(self) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        self.families: dict[str, Any] = {}
        for kind, metrics in (
            (GaugeMetricFamily, _GAUGES),
            (CounterMetricFamily, _RUNNING),
            (GaugeMetricFamily, {"queue_bytes": ("Bytes waiting.", _OF_QUEUE)}),
            (CounterMetricFamily, _of_queue(_COUNTERS)),
            (GaugeMetricFamily, _of_queue(_THRESHOLDS)),
        ):
            for name, (text, labels) in metrics.items():
                self.families[name] = kind(f"closloop_{name}", text, labels=labels)

    def add(self, name: str, labels: Sequence[str], value: float) -> None:
        """Add a value under its labels."""
        self.families[name].add_metric(labels, value)


def _of_queue(texts: Mapping[str, str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {f"queue_{name}": (text, _OF_QUEUE) for name, text in texts.items()}


def _add_run(page: _Page, state: RunState) -> None:
    tally = state.tally
    counts = {
        "planned": tally.trials,
        "done": tally.done,
        "running": len(tally.running),
        "failed": tally.failed,
        "invalid": tally.invalid,
    }
    for name, count in counts.items():
        page.add("run_trials", (state.name, name), count)
    page.add("run_active", (state.name,), 0 if state.ended else 1)


def _add_finished(page: _Page, finished: Iterable[_Finished]) -> None:
    for one in finished:
        page.add("trial_valid", one.labels, int(one.valid))
        page.add("trial_wall_seconds", one.labels, one.wall_s)
        page.add("trial_flows", (*one.labels, "done"), one.done)
        page.add("trial_flows", (*one.labels, "not done"), one.flows - one.done)
        for quantile, value in zip(_QUANTILES, one.slowdown, strict=False):
            page.add("trial_slowdown", (*one.labels, str(quantile)), value)


def _add_running(page: _Page, trials: Sequence[TrialState]) -> None:
    for trial in trials:
        page.add("running_flows", (trial.id, "all"), trial.flows)
        found = trial.snapshot
        if found is None:
            continue
        page.add("running_trial_seconds", (trial.id,), found.t_ns / 1e9)
        page.add("tuner_changes", (trial.id,), found.changes)
        page.add("late_samples", (trial.id,), found.late_samples)
        if found.flows_done >= 0:
            page.add("running_flows", (trial.id, "done"), found.flows_done)


def _queues(state: RunState) -> list[_Queues]:
    """Return the queues of the trials that run, else those of the trial that ended last."""
    names = ("qlen_bytes", *_COUNTERS, *_THRESHOLDS)
    if state.trials:
        return [
            _Queues(
                trial.id,
                trial.testbed,
                {name: getattr(trial.snapshot, name) for name in names},
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
    columns = {name: getattr(ports, name)[-1] for name in ("qlen_bytes", *_COUNTERS)}
    return [_Queues(trial.spec.id, trial.testbed, columns)]


def _add_queues(page: _Page, trials: Sequence[_Queues]) -> None:
    for one in trials:
        for number, queue in enumerate(one.testbed.queues):
            labels = (one.trial, queue.device, queue.name, str(queue.klass))
            for name, values in one.columns.items():
                if values[number] >= 0:
                    metric = "queue_bytes" if name == "qlen_bytes" else f"queue_{name}"
                    page.add(metric, labels, float(values[number]))


def metrics_text(run: Path) -> str:
    """Return the metrics as text. Raises InputError if `run` is no run folder."""
    prometheus = _library()
    text: str = prometheus.generate_latest(_registry(run)).decode()
    return text


@contextmanager
def serve(run: Path, address: str, port: int) -> Iterator[int]:
    """Serve the metrics while the context lasts; yield the port. 0 takes any that is free.

    Raises InputError if `run` is no run folder, NotReadyError if the port cannot be had.
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
