"""Finished trials that a campaign no longer describes: its network or its setting has changed."""

from __future__ import annotations

from pathlib import Path

from orchestration.artifacts.reader import finished_trials
from orchestration.campaign.expand import Campaign

STALE_SUFFIX = ".stale"


def put_aside(campaign: Campaign, runs: Path) -> int:
    """Move such trials from `runs/<campaign>/` to `runs/<campaign>.stale/`; return how many.

    The others stay, and count as finished. One whose namesake was put aside before gets a number.
    """
    known = {trial.id for trial in campaign.trials}
    folder = runs / campaign.name
    stale = [path for path in finished_trials(folder) if path.name not in known]
    target = folder.with_name(folder.name + STALE_SUFFIX)
    for path in stale:
        target.mkdir(exist_ok=True)
        path.rename(_unused(target / path.name))
    return len(stale)


def _unused(path: Path) -> Path:
    number, candidate = 1, path
    while candidate.exists():
        candidate = path.with_name(f"{path.name}.{number}")
        number += 1
    return candidate
