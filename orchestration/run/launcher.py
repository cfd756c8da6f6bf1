"""Starts campaigns: the one launcher of the command line and of the Python API.

What a run does beside this machine's trials is found through entry points: `closloop.executors`
(where trials run), `closloop.sinks` (what receives the records live).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestration.core import plugins
from orchestration.core.errors import NotReadyError, check_known
from orchestration.run.adaptive import Rounds, refuse_other_analysis_plan
from orchestration.run.backend_factory import RackAccess, backend
from orchestration.run.executors import THIS_MACHINE, Executor, check_disk
from orchestration.run.folder import RunFolder
from orchestration.run.runner import Listener, Runner, Summary
from orchestration.run.worker import work

if TYPE_CHECKING:
    from collectors.sinks.spooling import SpoolNote
    from orchestration.campaign.expand import Campaign
    from orchestration.core.ports import Backend
    from orchestration.core.topology import Testbed
    from orchestration.core.trial import TrialSpec
    from orchestration.run.checked import CheckedCampaign

EXECUTORS, SINKS = "closloop.executors", "closloop.sinks"


class LiveSink(Protocol):
    """Receives a run's records while it runs, as long as its context lasts."""

    def __enter__(self) -> Any:
        """Begin."""

    def __exit__(self, *about: object) -> None:
        """Receive the rest, and end."""

    def spool(self, trial: TrialSpec) -> SpoolNote:
        """Return where a trial's records are put for this sink."""

    def before(self, listener: Listener) -> Listener:
        """Return a listener that tells `listener` what it is told, and this sink."""


def launch(
    campaign: CheckedCampaign,
    out: Path,
    *,
    rack: RackAccess | None = None,
    jobs: int = 0,
    fresh: bool = False,
    executor: Executor = THIS_MACHINE,
    sink: str = "",
    part_of_many: bool = False,
    open_display: Callable[[str], AbstractContextManager[Listener]] | None = None,
) -> Summary:
    """Run a campaign into `out/<campaign>/`, and return how it went.

    `jobs` trials run side by side, with 0 as many as fit. `open_display` takes a title;
    `part_of_many` is as for `run_campaign`. Raises InputError or NotReadyError before anything is
    written, Interrupted after Ctrl-C.
    """
    live = live_sink(sink, out / campaign.name)
    engine = backend(campaign.trials[0].backend, rack)
    side_by_side = jobs or default_jobs(campaign, engine, executor)
    silent: AbstractContextManager[Listener] = nullcontext(Listener())
    shown = open_display(f"{campaign.name} on {engine.name}") if open_display else silent
    with live or nullcontext(), shown as display:
        return run_campaign(
            campaign,
            engine,
            out,
            side_by_side,
            live.before(display) if live else display,
            fresh=fresh,
            spool=live.spool if live else None,
            part_of_many=part_of_many,
            place=executor,
        )


def default_jobs(campaign: Campaign, backend: Backend, place: Executor = THIS_MACHINE) -> int:
    """Return how many trials can run side by side: one per core, or fewer if the backend cannot.

    A place that is not this machine says it. Raises NotReadyError if not even one can.
    """
    if campaign.runs_one_at_a_time:
        return 1
    if slots := place.slots():
        return slots
    for jobs in range(min(len(os.sched_getaffinity(0)), len(campaign.trials)), 1, -1):
        try:
            for testbed, trials in _by_testbed(campaign.trials, campaign.testbeds):
                place.check(backend, testbed, jobs, trials)
        except NotReadyError:
            continue
        return jobs
    return 1


def run_campaign(
    campaign: Campaign,
    backend: Backend,
    out: Path,
    jobs: int,
    listener: Listener,
    *,
    fresh: bool = False,
    spool: Callable[[TrialSpec], SpoolNote] | None = None,
    part_of_many: bool = False,
    place: Executor = THIS_MACHINE,
) -> Summary:
    """Run the trials that `out/<campaign>/` does not hold yet, `jobs` of them side by side.

    The campaign was checked (`orchestration.run.checked`). `spool` says where a trial's records go
    while it runs, if anywhere. With `part_of_many`, the folder may hold other trials: these are
    some of those that its owner decides on as it goes. `place` is where they run.

    Raises InputError or NotReadyError before anything is written, and what `Runner.run` raises.
    """
    folder = RunFolder(out / campaign.name)
    if campaign.repeats is not None and not fresh:
        refuse_other_analysis_plan(folder.path, campaign.repeats)
    todo = [trial for trial in campaign.trials if fresh or not folder.of(trial).exists()]
    for testbed, trials in _by_testbed(todo, campaign.testbeds):
        place.check(backend, testbed, jobs, trials)
    check_disk(out, todo, campaign.testbeds)
    rounds = Rounds(campaign.cells, campaign.trials, campaign.repeats)
    with folder:
        folder.open(campaign, fresh=fresh, part_of_many=part_of_many)
        workers = place.workers(backend, work)
        forks = place.forks
        runner = Runner(rounds, campaign.testbeds, folder, workers, listener, spool, forks=forks)
        return runner.run(jobs)


def _by_testbed(
    trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed]
) -> Iterator[tuple[Testbed, list[TrialSpec]]]:
    groups: dict[str, list[TrialSpec]] = {}
    for trial in trials:
        groups.setdefault(trial.testbed, []).append(trial)
    return ((testbeds[name], group) for name, group in groups.items())


def live_sink(name: str, campaign_folder: Path) -> LiveSink | None:
    """Return a sink of that name for a campaign's records, None for "".

    Raises InputError for an unknown name.
    """
    if not name:
        return None
    check_known("--sink", "no sink is called {!r}", [name], plugins.offered(SINKS))
    found: LiveSink = plugins.load(name, SINKS)(campaign_folder)
    return found


def executor_named(cluster: str) -> AbstractContextManager[Executor]:
    """Return this machine for "", else the cluster that a text names: joined, left at the end.

    Raises InputError for what names none, NotReadyError for one that is not ready.
    """
    if not cluster:
        return nullcontext(THIS_MACHINE)
    found: AbstractContextManager[Executor] = plugins.load("cluster", EXECUTORS)(cluster)
    return found
