"""`closloop bench`: measures what the project claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestration.bench import (
    decision_cost,
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
    sequential,
    speed,
    training_seeds,
)
from orchestration.bench import decision_cost as decision
from orchestration.bench import large_runs as observing
from orchestration.bench import red as physics
from orchestration.bench import training_seeds as rlcc_steady
from orchestration.bench.outcome import Outcome
from orchestration.cli.options import Group
from orchestration.core.errors import InputError

BENCHMARKS: dict[str, Callable[[], Outcome]] = {
    "rtt": physics.round_trips,
    "lone-flow": physics.lone_flow,
    "marking": red.marking_curve,
    "thresholds": red.threshold_change,
    "repeatable": repeatable.repeated_trial,
    "offered-load": offered_load.offered_load,
    "data-path": speed.data_path_speed,
    "fabric-size": speed.fabric_size,
    "decision": decision.decision_time,
    "decision-cost": decision_cost.decision_cost,
    "rl-cc-steady": rlcc_steady.rlcc_steady,
    "policy-agreement": policy_agreement.policy_agreement,
    "training-seeds": training_seeds.training_seeds,
    "fan-in-acc": fan_in.of_tuner("acc"),
    "fan-in-graphcc": fan_in.of_tuner("graphcc"),
    "fan-in-pet": fan_in.of_tuner("pet"),
    "sequential": sequential.sequential,
    "program": speed.start_up,
    "large-runs": large_runs.large_runs,
    "observing": observing.observing,
    "ssh-loop": rack.ssh_loop,
    "rack-real-time": rack.real_time_up,
    "rack-provision": rack.provisioning,
    "rack-kills": rack_kills.controller_killed,
    "real-rack-kills": real_kills.real_rack_kills,
    "rack-answer": rack.same_answer,
    "real-time": real_time.real_time,
}


def purpose(name: str) -> str:
    """Return one line on what a benchmark measures."""
    return (BENCHMARKS[name].__doc__ or "").splitlines()[0]


def chosen(names: Sequence[str]) -> dict[str, Callable[[], Outcome]]:
    """Return the named benchmarks, or all for `all`. Raises InputError for an unknown name."""
    unknown = [name for name in names if name != "all" and name not in BENCHMARKS]
    if unknown:
        raise InputError.single(
            "bench",
            f"no benchmark is called {unknown[0]!r}",
            f"known: all, {', '.join(BENCHMARKS)}",
        )
    return BENCHMARKS if "all" in names else {name: BENCHMARKS[name] for name in names}


_BENCH_EPILOG = (
    "Examples:  closloop bench list  |  closloop bench run marking  |  "
    "closloop bench run all --markdown docs/generated/benchmarks.md"
)
bench = Group("Measure what the project claims.", _BENCH_EPILOG)


@bench.command("list")
def list_benchmarks() -> None:
    """List the benchmarks."""

    for name in BENCHMARKS:
        typer.echo(f"{name:14} {purpose(name)}")


@bench.command("run", epilog=_BENCH_EPILOG)
def run_benchmarks(
    names: Annotated[list[str], "Benchmarks, or `all`."],
    json_file: Annotated[Path | None, "--json", "Write the figures and raw data here."] = None,
    markdown: Annotated[
        Path | None, "Write the figures into this page, in place of their former ones."
    ] = None,
) -> None:
    """Run benchmarks; exit with 1 if a figure misses its target."""
    from orchestration.bench.outcome import as_json, as_markdown, as_text
    from orchestration.core.outputs import check_outputs, write_output

    check_outputs([path for path in (json_file, markdown) if path], [], "choose another")
    outcomes = []
    for name, measure in chosen(names).items():
        typer.echo(f"{name} …", err=True)
        outcome = measure()
        outcomes.append((name, outcome))
        typer.echo(as_text(outcome))
    if json_file:
        write_output(json_file, as_json(outcomes), "choose another with --json")
    if markdown:
        former = markdown.read_text() if markdown.exists() else ""
        write_output(markdown, as_markdown(outcomes, former), "choose another with --markdown")
    if not all(outcome.holds for _, outcome in outcomes):
        raise typer.Exit(1)
