"""The registry of benchmarks: name -> function that measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from orchestration.bench import (
    decision_cost,
    engine,
    fan_in,
    large_runs,
    offered_load,
    policy_agreement,
    rack,
    rack_kills,
    real_kills,
    real_time,
    red,
    repeatable,
    rlcc_steady,
    sequential,
    speed,
    training_seeds,
)
from orchestration.bench.outcome import Outcome
from orchestration.core.errors import InputError

BENCHMARKS: dict[str, Callable[[], Outcome]] = {
    "rtt": red.round_trips,
    "lone-flow": red.lone_flow,
    "marking": red.marking_curve,
    "thresholds": red.threshold_change,
    "repeatable": repeatable.repeated_trial,
    "offered-load": offered_load.offered_load,
    "engine": engine.engine_speed,
    "data-path": speed.data_path_speed,
    "fabric-size": speed.fabric_size,
    "decision": decision_cost.decision_time,
    "decision-cost": decision_cost.decision_cost,
    "rl-cc-steady": rlcc_steady.rlcc_steady,
    "policy-agreement": policy_agreement.policy_agreement,
    "training-seeds": training_seeds.training_seeds,
    "fan-in-acc": fan_in.fan_in_benchmark("acc"),
    "fan-in-graphcc": fan_in.fan_in_benchmark("graphcc"),
    "fan-in-pet": fan_in.fan_in_benchmark("pet"),
    "sequential": sequential.sequential,
    "program": speed.start_up,
    "large-runs": large_runs.large_runs,
    "observing": large_runs.observing,
    "ssh-loop": rack.ssh_loop,
    "rack-real-time": rack.real_time_up,
    "rack-provision": rack.provisioning,
    "rack-kills": rack_kills.controller_killed,
    "real-rack-kills": real_kills.real_rack_kills,
    "rack-answer": rack.same_answer,
    "real-time": real_time.real_time,
}


def purpose(name: str) -> str:
    """Return what a benchmark measures, in a line: the first one of its function's docstring."""
    return (BENCHMARKS[name].__doc__ or "").splitlines()[0]


def select(names: Sequence[str], beside: Path | None = None) -> dict[str, Callable[[], Outcome]]:
    """Return the named benchmarks, or all for `all`.

    `beside` is a program to be measured beside the packet engine. Raises InputError for an unknown
    name, and if `beside` is given but no benchmark that takes it.
    """
    unknown = [name for name in names if name != "all" and name not in BENCHMARKS]
    if unknown:
        raise InputError.single(
            "bench",
            f"no benchmark is called {unknown[0]!r}",
            f"known: all, {', '.join(BENCHMARKS)}",
        )
    selected = BENCHMARKS if "all" in names else {name: BENCHMARKS[name] for name in names}
    if beside is None:
        return selected
    if "engine" not in selected:
        raise InputError.single(
            f"--beside {beside}",
            f"{', '.join(selected)}: no program is measured beside that",
            "leave it out, or run `engine`",
        )
    return {**selected, "engine": partial(engine.engine_speed, beside)}
