"""Sends archived runs: campaigns' folders, or single trials'."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.sinks.influx import InfluxConnection
from orchestration.artifacts.found import trial_folders
from orchestration.model.errors import InputError, NotReadyError, TrialError
from orchestration.telemetry.delivery import Delivery, GaveUp, Refused
from orchestration.telemetry.sender import Say, Sender
from orchestration.telemetry.settings import Settings

# How long a server in trouble is waited for before giving up: what was sent is noted.
TROUBLE_S = 60.0


@dataclass
class Pushed:
    """What came of it. `failed` names the trials whose folders could not be read."""

    trials: int = 0
    points: int = 0
    requests: int = 0
    failed: list[str] = field(default_factory=list)


def push(
    runs: Sequence[Path],
    settings: Settings,
    *,
    again: bool = False,
    say: Say,
    progress: Callable[[str], None] = lambda text: None,
    trouble_s: float = TROUBLE_S,
) -> Pushed:
    """Send what the server lacks of the trials in `runs`.

    Raises InputError for what is no run, NotReadyError if the server does not take the token or
    knows no such bucket, TrialError if it was in trouble for `trouble_s`; what was confirmed
    before is noted and not sent again.
    """
    wanted = _trials(runs)
    connection = InfluxConnection(settings.server)
    well_s = time.monotonic()

    def patient() -> bool:
        nonlocal well_s
        now_s = time.monotonic()
        if not delivery.trouble:
            well_s = now_s
        return now_s - well_s < trouble_s

    delivery = Delivery(connection, patient, say)
    pushed = Pushed()
    try:
        for campaign, folders in wanted.items():
            home = settings.home(campaign)
            with Sender(campaign, home, delivery, say) as sender:
                sender.send_spooled()
                for folder in folders:
                    progress(f"{folder.name}, {delivery.points} points sent")
                    sender.send_archive(folder, again=again)
                    pushed.trials += 1
                pushed.failed += sorted(sender.damaged)
    except Refused as refused:
        answer = refused.answer
        raise NotReadyError(answer.text, answer.remedy) from refused
    except GaveUp as error:
        raise TrialError(
            f"{delivery.trouble}; gave up after {trouble_s:.0f} s",
            "the same command goes on from here",
        ) from error
    finally:
        connection.close()
    pushed.points, pushed.requests = delivery.points, delivery.requests
    return pushed


def _trials(runs: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the trials' folders by their campaign's folder."""
    wanted: dict[Path, list[Path]] = {}
    for run in runs:
        place = run.absolute()
        found = trial_folders(place)
        if not found and not _spool_only(place):
            raise InputError.single(
                str(run),
                "is no run folder: it has no finished trials",
                "name a folder such as runs/quickstart, or one of a trial in it",
            )
        if not found:
            wanted.setdefault(place, [])
        for folder in found:
            wanted.setdefault(folder.parent, []).append(folder)
    return wanted


def _spool_only(place: Path) -> bool:
    return (place / ".telemetry").is_dir()
