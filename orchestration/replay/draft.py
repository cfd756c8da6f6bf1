"""A replay before it has a name and a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inventory.topology import Testbed
from orchestration.replay.campaign_file import ReplayCampaign
from orchestration.replay.tuner_entries import TunerEntry


@dataclass(frozen=True)
class Draft:
    """What one campaign will replay.

    `parent` is what is replayed, `apart` what tells this campaign from others of the same call,
    `others` the tuners beside the recordings, `testbed` the recorded one. `write` puts the
    recordings into a folder, given the testbed of the replay and the campaign's name.
    """

    parent: str
    apart: str
    backend: str
    testbed: Testbed | None
    others: tuple[TunerEntry, ...]
    notes: tuple[str, ...]
    write: Callable[[Path, Testbed, str], ReplayCampaign]
