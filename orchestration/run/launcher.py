"""Launches campaigns, for both the command line and the Python API.

Other packages can extend a run by entry points: `closloop.executors` (where trials run) and
`closloop.sinks` (what receives the records live).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestration.core import plugins
from orchestration.core.builds import Build, BuildProgress, BuildsOnFirstUse
from orchestration.core.capabilities import capabilities
from orchestration.core.engines import engine_of
from orchestration.core.errors import NotReadyError, check_known
from orchestration.core.ports import HasEngines
from orchestration.render.numbers import clock_text
from orchestration.run.adaptive import Rounds, refuse_other_analysis_plan
from orchestration.run.backend_factory import RackAccess, backend
from orchestration.run.executors import THIS_MACHINE, Executor, check_disk
from orchestration.run.folder import RunFolder
from orchestration.run.runner import Listener, Runner, Summary
from orchestration.run.worker import work

if TYPE_CHECKING:
    from collectors.sinks.spool_observer import SpoolNote
    from orchestration.campaign.expand import Campaign
    from orchestration.core.ports import Backend
    from orchestration.core.topology import Testbed
    from orchestration.core.trial import TrialSpec
    from orchestration.run.checked import CheckedCampaign

EXECUTORS, SINKS = "closloop.executors", "closloop.sinks"


class LiveSink(Protocol):
    """Receives a run's records while it runs. A context manager."""

    def __enter__(self) -> Any:
        """Begin to receive records."""

    def __exit__(self, *about: object) -> None:
        """Receive the remaining records, and end."""

    def spool(self, trial: TrialSpec) -> SpoolNote:
        """Return where a trial's process puts its records for this sink."""

    def before(self, listener: Listener) -> Listener:
        """Return a listener that passes every event on to this sink and to `listener`."""


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
    open_progress: Callable[[], AbstractContextManager[BuildProgress]] | None = None,
) -> Summary:
    """Run a campaign into `out/<campaign>/`, and return the result.

    `jobs` trials run side by side, with 0 as many as possible. `open_display` gets a title;
    `part_of_many` is as for `run_campaign`. What the trials need and is built once on a machine is
    built first; `open_progress` shows that. Raises InputError or NotReadyError before anything is
    written, and Interrupted after SIGINT or SIGTERM.
    """
    live = live_sink(sink, out / campaign.name)
    runs_on = backend(campaign.trials[0].backend, rack, campaign.engine.engine)
    _build(_builds(runs_on, unfinished(campaign, out, fresh=fresh)), open_progress)
    side_by_side = jobs or default_jobs(campaign, runs_on, executor)
    silent: AbstractContextManager[Listener] = nullcontext(Listener())
    shown = open_display(f"{campaign.name} on {runs_on.name}") if open_display else silent
    with live or nullcontext(), shown as display:
        return run_campaign(
            campaign,
            runs_on,
            out,
            side_by_side,
            live.before(display) if live else display,
            fresh=fresh,
            spool=live.spool if live else None,
            part_of_many=part_of_many,
            executor=executor,
        )


def builds_before(campaign: CheckedCampaign, out: Path) -> Sequence[Build]:
    """Return what is built before the campaign's next trial on this machine.

    Raises InputError or NotReadyError as `backend_factory.backend` does.
    """
    name = campaign.trials[0].backend
    if capabilities(name).on_rack:
        return ()
    return _builds(backend(name, engine=campaign.engine.engine), unfinished(campaign, out))


def _builds(engine: Backend, trials: Sequence[TrialSpec]) -> Sequence[Build]:
    return engine.to_build(trials) if trials and isinstance(engine, BuildsOnFirstUse) else ()


def _build(
    builds: Sequence[Build],
    open_progress: Callable[[], AbstractContextManager[BuildProgress]] | None,
) -> None:
    """Build what is missing. Raises NotReadyError with all that the builds lack, or Interrupted."""
    if lacking := [problem for build in builds for problem in build.problems]:
        raise NotReadyError(lacking)
    if not builds:
        return
    silent: AbstractContextManager[BuildProgress] = nullcontext(_NoProgress())
    with open_progress() if open_progress else silent as progress:
        for build in builds:
            progress.phase(f"building {build.what}, once, in about {clock_text(build.wall_s)}")
            build.make(progress)


class _NoProgress:
    def phase(self, name: str) -> None:
        pass

    def step(self, done: int, total: int) -> None:
        pass


def unfinished(campaign: Campaign, out: Path, *, fresh: bool = False) -> list[TrialSpec]:
    """Return the trials that are not in `out/<campaign>/` yet; with `fresh`, all of them."""
    folder = RunFolder(out / campaign.name)
    return [trial for trial in campaign.trials if fresh or not folder.of(trial).exists()]


def default_jobs(campaign: Campaign, backend: Backend, executor: Executor = THIS_MACHINE) -> int:
    """Return how many trials can run side by side: one per core, or fewer if the backend cannot.

    A remote executor reports its own number of slots.
    """
    if campaign.runs_one_at_a_time:
        return 1
    if slots := executor.slots():
        return slots
    for jobs in range(min(len(os.sched_getaffinity(0)), len(campaign.trials)), 1, -1):
        try:
            for testbed, trials in _by_testbed(campaign.trials, campaign.testbeds):
                executor.check(backend, testbed, jobs, trials)
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
    executor: Executor = THIS_MACHINE,
) -> Summary:
    """Run the trials that `out/<campaign>/` does not hold yet, `jobs` of them side by side.

    The campaign was checked (`orchestration.run.checked`). `spool` returns where a live sink gets a
    trial's records. With `part_of_many`, the folder may hold other trials: a search, for example,
    decides on its trials step by step, and each step is such a campaign.

    Raises InputError or NotReadyError before anything is written, and what `Runner.run` raises.
    """
    folder = RunFolder(out / campaign.name)
    if campaign.repeats is not None and not fresh:
        refuse_other_analysis_plan(folder.path, campaign.repeats)
    todo = unfinished(campaign, out, fresh=fresh)
    for testbed, trials in _by_testbed(todo, campaign.testbeds):
        executor.check(backend, testbed, jobs, trials)
    check_disk(out, todo, campaign.testbeds)
    engine = backend.engine_facts(todo) if todo and isinstance(backend, HasEngines) else {}
    compare = campaign.question.compare
    rounds = Rounds(campaign.cells, campaign.trials, campaign.repeats, compare)
    with folder:
        folder.open(campaign, fresh=fresh, part_of_many=part_of_many, engine=engine_of(engine)[0])
        workers = executor.workers(backend, work)
        forks = executor.forks
        runner = Runner(
            rounds, campaign.testbeds, folder, workers, listener, spool, forks=forks, engine=engine
        )
        return runner.run(jobs)


def _by_testbed(
    trials: Iterable[TrialSpec], testbeds: Mapping[str, Testbed]
) -> Iterator[tuple[Testbed, list[TrialSpec]]]:
    groups: dict[str, list[TrialSpec]] = {}
    for trial in trials:
        groups.setdefault(trial.testbed, []).append(trial)
    return ((testbeds[name], group) for name, group in groups.items())


def live_sink(name: str, campaign_folder: Path) -> LiveSink | None:
    """Return the sink called `name` for a campaign's records, None for "".

    Raises InputError for an unknown name.
    """
    if not name:
        return None
    check_known("--sink", "no sink is called {!r}", [name], plugins.offered(SINKS))
    found: LiveSink = plugins.load(name, SINKS)(campaign_folder)
    return found


def executor_named(cluster: str) -> AbstractContextManager[Executor]:
    """Return the executor of a cluster, this machine's for "". A cluster is left with the context.

    `cluster` is as for the option --cluster. Raises InputError for a text that names no cluster,
    and NotReadyError for a cluster that is not ready.
    """
    if not cluster:
        return nullcontext(THIS_MACHINE)
    found: AbstractContextManager[Executor] = plugins.load("cluster", EXECUTORS)(cluster)
    return found
