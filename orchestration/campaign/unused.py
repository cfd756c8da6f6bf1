"""Settings of a campaign that change nothing in some or all of its conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from inventory.unused_settings import UnusedSetting, unused_settings
from orchestration.core.condition import factor_labels
from orchestration.core.records import Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec


@dataclass(frozen=True)
class UnusedIn:
    """A setting that changes nothing under `conditions`, which may be all of a campaign's."""

    setting: UnusedSetting
    conditions: tuple[str, ...]
    everywhere: bool

    @property
    def sentence(self) -> str:
        """The message of a plan."""
        where = "all trials" if self.everywhere else self.conditions[0]
        if not self.everywhere and self.conditions[1:]:
            where += f" and {len(self.conditions) - 1} more conditions"
        return f"{where}: {self.setting.text}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {**asdict(self.setting), "conditions": list(self.conditions)}


def unused_in_campaign(
    trials: Iterable[TrialSpec],
    testbeds: Mapping[str, Testbed],
    schedule_of: Callable[[TrialSpec, Testbed], Schedule],
) -> tuple[UnusedIn, ...]:
    """Return the settings that change nothing, each with its conditions.

    The first trial of each condition is examined; `schedule_of` returns its flows.
    """
    first: dict[str, TrialSpec] = {}
    for trial in trials:
        first.setdefault(", ".join(factor_labels(trial.cell)), trial)
    found: dict[UnusedSetting, list[str]] = {}
    for label, trial in sorted(first.items()):
        testbed = testbeds[trial.testbed]
        for setting in unused_settings(trial, testbed, partial(schedule_of, trial, testbed)):
            found.setdefault(setting, []).append(label)
    return tuple(
        UnusedIn(setting, tuple(labels), len(labels) == len(first))
        for setting, labels in found.items()
    )
