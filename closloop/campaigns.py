"""Campaigns from Python: plan, run, summarise and compare them as the command line does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestration.analysis.comparison.result import RunComparison
    from orchestration.analysis.summary import Summary as Results
    from orchestration.campaign.plan import Plan
    from orchestration.run.runner import Summary

RUNS = Path("runs")


def plan(
    campaign: str | Path,
    *,
    on: str | None = None,
    clock: str | None = None,
    repeats: int | None = None,
    jobs: int = 0,
    engine: str = "",
) -> Plan:
    """Return what a campaign file would run, in which order, and how long it would take.

    `on` names another backend than the file does, `clock` another clock of the emulated backend
    ("real"), and `repeats` another number of repeats. `jobs` trials run side by side; 0 stands for
    one per core, or for 1 if the campaign's trials can only run one at a time. `engine` is that of
    emulated trials, "process" or "kernel"; "" stands for the process if all of them can run there.
    Raises InputError for a file that is wrong, or that does not fit the backend or the engine.
    """
    from orchestration.campaign.expand import load_campaign
    from orchestration.campaign.plan import make_plan
    from orchestration.run.checked import checked

    loaded = load_campaign(campaign, backend=on, clock=clock, repeats=repeats)
    loaded = checked(loaded, with_policies=True, engine=engine)
    cores = 1 if loaded.runs_one_at_a_time else len(os.sched_getaffinity(0))
    return make_plan(loaded, jobs or cores, RUNS, loaded.engine.engine)


def run(
    campaign: str | Path,
    *,
    on: str | None = None,
    clock: str | None = None,
    repeats: int | None = None,
    out: str | Path = RUNS,
    jobs: int = 0,
    fresh: bool = False,
    inventory: str | Path | None = None,
    engine: str = "",
) -> Summary:
    """Run a campaign file into `out/<campaign>/`, and return a summary.

    Called again after an interruption, it resumes. With `fresh`, earlier results are first moved
    aside. `on`, `clock`, `repeats`, `jobs` and `engine` are as for `plan`. `inventory` is the file
    of the rack, for the hardware backend. Call it from the main thread: it forks a process for each
    trial. What trials need and is built once on a machine, as the kernel for TCP, is built first.
    Raises InputError or NotReadyError before anything is written, and Interrupted after Ctrl-C.
    """
    from orchestration.core.machine import limit_numpy_threads

    limit_numpy_threads()

    from orchestration.campaign.expand import load_campaign
    from orchestration.device.ssh import Secrets
    from orchestration.run.backend_factory import RackAccess
    from orchestration.run.checked import checked
    from orchestration.run.launcher import launch

    loaded = load_campaign(campaign, backend=on, clock=clock, repeats=repeats)
    rack = None if inventory is None else RackAccess(Path(inventory), Secrets())
    return launch(checked(loaded, engine=engine), Path(out), rack=rack, jobs=jobs, fresh=fresh)


def summarise(
    run: str | Path, *, compare: str = "", baseline: str = "", judge: str | Sequence[str] = ()
) -> Results:
    """Return what `closloop report` shows of a run: its conditions with their arms and comparisons.

    `compare` names the factor whose levels are the arms, `baseline` the arm that others are
    compared with, and `judge` the metrics that decide which is best; without them they are the
    campaign's. Raises InputError for a folder without finished trials, a file that cannot be read,
    and unknown names.
    """
    from orchestration.analysis.summary import summarise as summarise_run

    judges = [judge] if isinstance(judge, str) else judge
    return summarise_run(Path(run), baseline, compare=compare, judge=judges)


def compare(
    *runs: str | Path, margins: Mapping[str, float] | None = None
) -> tuple[RunComparison, ...]:
    """Compare each run with the first: equivalent, different, or not enough data.

    A run is the folder of a trial, of a campaign, or of several campaigns. `margins` say, by
    metric, within which share a difference does not matter; the default is 0.1. Raises InputError
    for a folder that is no run, and for runs without trials that can be paired.
    """
    from orchestration.analysis.comparison.equivalence import parse_margins
    from orchestration.analysis.comparison.result import compare_runs

    texts = [f"{name}={100 * share:g}%" for name, share in (margins or {}).items()]
    return tuple(compare_runs([Path(run) for run in runs], parse_margins(texts)))
