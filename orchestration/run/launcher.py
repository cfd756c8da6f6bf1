"""Starts campaigns: the one launcher of the command line and of the Python API.

What a run does beside this machine's trials is found through entry points: `closloop.executors`
(where trials run), `closloop.sinks` (what receives the records live).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from inventory.files import load_testbed
from orchestration.campaign.arriving import foretold
from orchestration.campaign.marks import marking
from orchestration.core import plugins
from orchestration.core.errors import check_known
from orchestration.run.place import THIS_MACHINE, Place
from orchestration.run.runner import Listener, Summary, default_jobs, run_campaign
from orchestration.run.wiring import RackAccess, backend

if TYPE_CHECKING:
    from collectors.sinks.spooling import SpoolNote
    from orchestration.campaign.expand import Campaign
    from orchestration.core.trial import TrialSpec

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


class Silent:
    """A `Listener` that shows nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *event: None


def launch(
    campaign: Campaign,
    out: Path,
    *,
    rack: RackAccess | None = None,
    jobs: int = 0,
    fresh: bool = False,
    executor: Place = THIS_MACHINE,
    sink: str = "",
    open_display: Callable[[str], AbstractContextManager[Listener]] | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Run a campaign into `out/<campaign>/`, and return how it went.

    `jobs` trials run side by side, with 0 as many as fit. `open_display` takes a title, `notice`
    what a user should know before the run. Raises InputError or NotReadyError before anything is
    written, Interrupted after Ctrl-C.
    """
    live = live_sink(sink, out / campaign.name)
    engine = backend(campaign.trials[0].backend, rack)
    side_by_side = jobs or default_jobs(campaign, engine, executor)
    if not jobs and any(trial.clock for trial in campaign.trials):
        notice("in real time, on this machine's kernel: one trial at a time")
    ignored = marking(campaign.trials, cache(load_testbed)).sentences
    for text in filter(None, (*ignored, foretold(campaign.trials))):
        notice(text)
    silent: AbstractContextManager[Listener] = nullcontext(Silent())
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
            place=executor,
        )


def live_sink(name: str, campaign_folder: Path) -> LiveSink | None:
    """Return a sink of that name for a campaign's records, None for "".

    Raises InputError for an unknown name.
    """
    if not name:
        return None
    check_known("--sink", "no sink is called {!r}", [name], plugins.offered(SINKS))
    found: LiveSink = plugins.load(name, SINKS)(campaign_folder)
    return found


def executor_named(cluster: str) -> AbstractContextManager[Place]:
    """Return this machine for "", else the cluster that a text names: joined, left at the end.

    Raises InputError for what names none, NotReadyError for one that is not ready.
    """
    if not cluster:
        return nullcontext(THIS_MACHINE)
    found: AbstractContextManager[Place] = plugins.load("cluster", EXECUTORS)(cluster)
    return found
