"""Metrics of each switch port from a snapshot, and the state of a run as JSON-ready data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from collectors.snapshot import Snapshot
from orchestration.core.condition import campaign_tuner_name
from orchestration.core.knobs import ECN, KNOBS
from orchestration.core.records import Floats, Ints
from orchestration.core.topology import Testbed
from orchestration.results.question import arm_of, read_question
from orchestration.run.state import RunState, TrialState
from orchestration.watch.devices import devices_to_json, increase, json_rows, nan_if_unknown


@dataclass(frozen=True)
class PortMetrics:
    """Arrays of shape (ports,), in the order of `Testbed.switch_ports`; NaN where unknown.

    Bytes and packets are sums over a port's queues. `fill` is the mean length of a queue since the
    previous snapshot, divided by Kmax, or by the buffer's size where nothing marks; the fullest
    queue of a port counts. `peak_bytes`, `utilisation` (0 to 1, with framing), `marked_packets` and
    `marked_share` (of the packets sent) are of the same time, whose length is `window_ns`.
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


def port_metrics(testbed: Testbed, snapshot: Snapshot) -> PortMetrics:
    """Return the metrics of all switch ports."""
    window_ns = snapshot.t_ns - snapshot.before_ns
    buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.float64)
    rates = np.array([port.rate_bps for port in testbed.switch_ports], dtype=np.float64)
    kmax = kmax_bytes(snapshot)
    limit = np.where(kmax > 0, kmax, buffers)
    sent_bytes = increase(snapshot, "tx_bytes")
    sent = increase(snapshot, "tx_packets")
    marked = increase(snapshot, "marked_packets")
    per_port = testbed.queues_per_port

    def per_port_sum(values: Floats) -> Floats:
        total: Floats = values.reshape(-1, per_port).sum(axis=1)
        return total

    on_wire = per_port_sum(sent_bytes) + testbed.framing_bytes * np.nan_to_num(per_port_sum(sent))
    with np.errstate(divide="ignore", invalid="ignore"):
        utilisation = (
            on_wire * 8e9 / window_ns / rates if window_ns else np.full(len(rates), np.nan)
        )
        share = np.where(
            per_port_sum(sent) > 0,
            per_port_sum(marked) / per_port_sum(sent),
            per_port_sum(marked) * 0,
        )
    return PortMetrics(
        window_ns=window_ns,
        queue_bytes=per_port_sum(nan_if_unknown(snapshot.qlen_bytes)),
        peak_bytes=per_port_sum(nan_if_unknown(snapshot.peak_bytes)),
        fill=(nan_if_unknown(snapshot.mean_bytes) / limit).reshape(-1, per_port).max(axis=1),
        utilisation=utilisation,
        sent_packets=per_port_sum(sent),
        marked_packets=per_port_sum(marked),
        marked_share=share,
        dropped_packets=per_port_sum(nan_if_unknown(snapshot.dropped_packets)),
    )


def kmax_bytes(snapshot: Snapshot) -> Ints:
    """Return the length in bytes from which each queue marks all packets, 0 where nothing marks."""
    absent = np.zeros(len(snapshot.peak_bytes), dtype=np.int64)
    found: Ints = snapshot.settings.get(ECN.name, {}).get("kmax_bytes", absent)
    return found


def fullest_ports(metrics: PortMetrics, count: int) -> list[int]:
    """Return the indices of the ports with the fullest queues, fullest first; never empty ones."""
    fill = np.nan_to_num(metrics.fill)
    order = np.argsort(-fill, kind="stable")[:count]
    return [int(port) for port in order if fill[port] > 0]


def state_to_json(state: RunState) -> dict[str, Any]:
    """Return the state as JSON-ready data: the run, and each running trial with all its ports.

    Unknown values are None.
    """
    counts = state.counts
    left_s = None if state.ended else counts.left_s(state.now_s)
    compare = read_question(state.folder).compare
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
        "running_trials": [_trial(trial, state.now_s, compare) for trial in state.trials],
    }


def _trial(trial: TrialState, now_s: float, compare: str) -> dict[str, Any]:
    spec, snapshot = trial.spec, trial.snapshot
    about: dict[str, Any] = {
        "trial": trial.id,
        "tuner": spec.tuner.name,
        "arm": arm_of(spec, campaign_tuner_name(spec), compare),
        "cell": dict(spec.cell),
        "backend": spec.backend,
        "testbed": spec.testbed,
        "duration_ns": spec.duration_ns,
        "warm_up_ns": spec.warm_up_ns,
        "wall_s": round(now_s - trial.began_s, 1),
        "flows": trial.flows,
    }
    if snapshot is None:
        return about
    metrics = port_metrics(trial.testbed, snapshot)
    return about | {
        "t_ns": snapshot.t_ns,
        "window_ns": metrics.window_ns,
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
        "ports": _ports_to_json(trial.testbed, metrics),
        **devices_to_json(trial.testbed, snapshot),
    }


def _ports_to_json(testbed: Testbed, metrics: PortMetrics) -> list[dict[str, Any]]:
    names = [field.name for field in fields(metrics) if field.name != "window_ns"]
    rows = json_rows(**{name: getattr(metrics, name) for name in names})
    return [
        {
            "device": port.device,
            "port": port.name,
            "to": testbed.peer_device(port).name,
            **values,
        }
        for port, values in zip(testbed.switch_ports, rows, strict=True)
    ]
