"""A run's state as plain data, for programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from orchestration.model.knobs import KNOBS
from orchestration.watch.ports import port_figures
from orchestration.watch.state import RunState, TrialState


def state_to_json(state: RunState) -> dict[str, Any]:
    """Return the state as JSON-ready data: the run, and each running trial with all its ports.

    Figures that a device does not offer are null.
    """
    tally = state.tally
    left_s = None if state.ended else tally.left_s(state.now_s)
    return {
        "folder": str(state.folder),
        "ended": state.ended or None,
        "trials": tally.trials,
        "done": tally.done,
        "running": len(tally.running),
        "failed": tally.failed,
        "invalid": tally.invalid,
        "left_s": None if left_s is None else round(left_s, 1),
        "remarks": [
            {"trial": trial, "kind": kind, "text": text} for trial, kind, text in state.remarks
        ],
        "running_trials": [_trial(trial, state.now_s) for trial in state.trials],
    }


def _trial(trial: TrialState, now_s: float) -> dict[str, Any]:
    spec, snapshot = trial.spec, trial.snapshot
    about: dict[str, Any] = {
        "trial": trial.id,
        "tuner": spec.tuner.name,
        "backend": spec.backend,
        "testbed": spec.testbed,
        "duration_ns": spec.duration_ns,
        "wall_s": round(now_s - trial.began_s, 1),
        "flows": trial.flows,
    }
    if snapshot is None:
        return about
    figures = port_figures(trial.testbed, snapshot)
    columns = {
        name: _plain(getattr(figures, name))
        for name in (
            "queue_bytes",
            "peak_bytes",
            "fill",
            "utilisation",
            "sent_packets",
            "marked_packets",
            "marked_share",
            "dropped_packets",
        )
    }
    return about | {
        "t_ns": snapshot.t_ns,
        "window_ns": figures.window_ns,
        "samples": snapshot.samples,
        "late_samples": snapshot.late_samples,
        "flows_done": None if snapshot.flows_done < 0 else snapshot.flows_done,
        "changes": snapshot.changes,
        "recent_changes": [
            {
                "t_ns": change.t_ns,
                "applied_ns": change.applied_ns,
                "knob": change.knob,
                f"{KNOBS[change.knob].scope}s": change.targets,
                **change.ranges,
            }
            for change in snapshot.recent
        ],
        "ports": [
            {
                "device": port.device,
                "port": port.name,
                "to": trial.testbed.peer_device(port).name,
                **{name: values[number] for name, values in columns.items()},
            }
            for number, port in enumerate(trial.testbed.switch_ports)
        ],
    }


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]
