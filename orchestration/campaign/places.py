"""Where a campaign's file names the tuner of a trial, for problems found after it was read."""

from __future__ import annotations

from collections.abc import Callable

from inventory.strictyaml import Loc, parse
from orchestration.campaign.expand import Campaign
from orchestration.core import plugins
from orchestration.core.condition import tuner_called
from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec


def tuner_places(campaign: Campaign) -> Callable[[TrialSpec], str]:
    """Return what gives `file:line` of a trial's tuner; the campaign's name if the file has none.

    A campaign that a program made, such as a step of a search, names no tuners of its own.
    """
    try:
        document = parse(campaign.source, str(campaign.path))
    except InputError:
        return lambda trial: trial.campaign
    listed = document.data.get("tuners")
    if not listed:
        return lambda trial: trial.campaign
    places: dict[str, Loc] = {}
    for index, item in enumerate(listed if isinstance(listed, list) else ()):
        fields = item if isinstance(item, dict) else {"name": item}
        label = str(fields.get("label") or plugins.short_name(str(fields.get("name"))))
        places.setdefault(label, ("tuners", index))

    def place(trial: TrialSpec) -> str:
        return document.where(places.get(tuner_called(trial), ("tuners",)))

    return place
