"""Derive figures of each switch port from a snapshot, and a run's state as JSON-ready data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from collectors.snapshot import Snapshot
from orchestration.core.knobs import ECN, KNOBS
from orchestration.core.records import Floats, Ints
from orchestration.core.topology import Testbed
from orchestration.run.state import RunState, TrialState
from orchestration.watch.devices import devices_to_json, grown, known, plain_rows


@dataclass(frozen=True)
class PortFigures:
    """Arrays of shape (ports,), in the order of `Testbed.switch_ports`; NaN where unknown.

    Bytes and packets are sums over a port's queues; `fill` is that of the fullest queue. `fill` is
    the mean queue since the previous snapshot, divided by Kmax, or by the buffer where nothing
    marks. `peak_bytes`, `utilisation` (0..1, including framing), `marked_packets` and
    `marked_share` (of the packets sent) cover the same time.
    """

    window_ns: int
    queue_bytes: Floats
    peak_bytes: Floats
    fill: Floats
    utilisation: Floats
    sent_packets: Floats
    marked_packets: Floats
    marked_share: Floats
    dropped_packets: Floats


def port_figures(testbed: Testbed, snapshot: Snapshot) -> PortFigures:
    """Return the figures of all switch ports."""
    window_ns = snapshot.t_ns - snapshot.before_ns
    buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.float64)
    rates = np.array([port.rate_bps for port in testbed.switch_ports], dtype=np.float64)
    kmax = kmax_bytes(snapshot)
    limit = np.where(kmax > 0, kmax, buffers)
    sent_bytes = grown(snapshot, "tx_bytes")
    sent = grown(snapshot, "tx_packets")
    marked = grown(snapshot, "marked_packets")
    per_port = testbed.queues_per_port

    def added(values: Floats) -> Floats:
        total: Floats = values.reshape(-1, per_port).sum(axis=1)
        return total

    on_wire = added(sent_bytes) + testbed.framing_bytes * np.nan_to_num(added(sent))
    with np.errstate(divide="ignore", invalid="ignore"):
        use = on_wire * 8e9 / window_ns / rates if window_ns else np.full(len(rates), np.nan)
        share = np.where(added(sent) > 0, added(marked) / added(sent), added(marked) * 0)
    return PortFigures(
        window_ns=window_ns,
        queue_bytes=added(known(snapshot.qlen_bytes)),
        peak_bytes=added(known(snapshot.peak_bytes)),
        fill=(known(snapshot.mean_bytes) / limit).reshape(-1, per_port).max(axis=1),
        utilisation=use,
        sent_packets=added(sent),
        marked_packets=added(marked),
        marked_share=share,
        dropped_packets=added(known(snapshot.dropped_packets)),
    )


def kmax_bytes(snapshot: Snapshot) -> Ints:
    """Return the length in bytes from which each queue marks all packets, 0 where nothing marks."""
    absent = np.zeros(len(snapshot.peak_bytes), dtype=np.int64)
    found: Ints = snapshot.settings.get(ECN.name, {}).get("kmax_bytes", absent)
    return found


def fullest(figures: PortFigures, count: int) -> list[int]:
    """Return the indices of the ports with the fullest queues, fullest first; never empty ones."""
    fill = np.nan_to_num(figures.fill)
    order = np.argsort(-fill, kind="stable")[:count]
    return [int(port) for port in order if fill[port] > 0]


def state_to_json(state: RunState) -> dict[str, Any]:
    """Return the state as JSON-ready data: the run, and each running trial with all its ports.

    Unknown figures are None.
    """
    counts = state.counts
    left_s = None if state.ended else counts.left_s(state.now_s)
    return {
        "folder": str(state.folder),
        "ended": state.ended or None,
        "trials": counts.trials,
        "done": counts.done,
        "running": len(counts.running),
        "failed": counts.failed,
        "invalid": counts.invalid,
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
        "warm_up_ns": spec.warm_up_ns,
        "wall_s": round(now_s - trial.began_s, 1),
        "flows": trial.flows,
    }
    if snapshot is None:
        return about
    figures = port_figures(trial.testbed, snapshot)
    columns = {
        field.name: getattr(figures, field.name)
        for field in fields(figures)
        if field.name != "window_ns"
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
                **values,
            }
            for port, values in zip(trial.testbed.switch_ports, plain_rows(**columns), strict=True)
        ],
        **devices_to_json(trial.testbed, snapshot),
    }
