"""Parents that one campaign can replay: all that decides a trial but tuner, seed and repeat."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inventory.testbed_json import testbed_to_json
from orchestration.model.condition import in_words, settings, tuner_called
from orchestration.model.errors import InputError
from orchestration.model.trial import TrialSpec
from orchestration.replay.parents import Parent


@dataclass(frozen=True)
class Recording:
    """A parent, and as what it is replayed: its tuner's label, the repeat, the seed."""

    parent: Parent
    label: str
    repeat: int
    seed: int


@dataclass(frozen=True)
class Group:
    """The recordings of one campaign, by label and repeat. `factors` tells it from the others."""

    factors: str
    recordings: tuple[Recording, ...]

    @property
    def repeats(self) -> tuple[int, ...]:
        """The repeats that were recorded."""
        return tuple(sorted({item.repeat for item in self.recordings}))

    @property
    def first(self) -> Recording:
        """The recording whose settings stand for all."""
        return self.recordings[0]

    def of_repeat(self, repeat: int) -> tuple[Recording, ...]:
        """Return the recordings of a repeat, which have the same flows."""
        return tuple(item for item in self.recordings if item.repeat == repeat)


def group_parents(parents: Sequence[Parent]) -> tuple[Group, ...]:
    """Return the parents in groups, a campaign each; repeats keep their numbers, so they pair."""
    found: dict[str, list[Parent]] = {}
    for parent in parents:
        found.setdefault(_key(parent), []).append(parent)
    several = len(found) > 1
    return tuple(
        Group(_factors(group[0].trial.spec) if several else "", tuple(_recordings(group)))
        for group in found.values()
    )


def _key(parent: Parent) -> str:
    """Return the same text for parents of one condition, which one campaign file can describe.

    The fabric itself stands in place of the name of its file.
    """
    spec = parent.trial.spec
    shared = settings(dataclasses.replace(spec, testbed="", files={}))
    times = (spec.duration_ns, spec.drain_ns, spec.action_period_ns)
    # imported flows have no patterns that would tell them apart
    imported = "" if spec.traffic else tuner_called(spec)
    fabric = testbed_to_json(parent.trial.testbed)
    return json.dumps([shared, times, imported, fabric], sort_keys=True)


def _recordings(group: Sequence[Parent]) -> Iterator[Recording]:
    """Yield a recording for each parent, sorted by label and repeat."""
    specs = [parent.trial.spec for parent in group]
    labels = [tuner_called(spec) for spec in specs]
    repeats = [spec.repeat for spec in specs]
    if len(set(zip(labels, repeats, strict=True))) < len(group):
        # a factor that varies the tuner's own parameters is part of what it is called
        labels = ["-".join(str(value) for value in spec.cell.values()) or spec.id for spec in specs]
    if len(set(labels)) == 1 and (min(repeats) < 1 or len(set(repeats)) < len(repeats)):
        repeats = list(range(1, len(group) + 1))
    seen: dict[tuple[str, int], Parent] = {}
    for parent, label, repeat in zip(group, labels, repeats, strict=True):
        other = seen.setdefault((label, repeat), parent)
        if other is not parent:
            raise InputError.single(
                str(parent.trial.folder),
                f"is repeat {repeat} of {label!r}, as {other.trial.folder.name} is",
                "replay them one by one, or choose with --trials",
            )
    for (label, repeat), parent in sorted(seen.items(), key=lambda item: item[0]):
        yield Recording(parent, label, repeat, parent.trial.spec.seed)


def _factors(spec: TrialSpec) -> str:
    """Return `load-0.3-size-1MB`, as far as factors tell conditions apart."""
    return "-".join(in_words(spec.cell, "-")) or tuner_called(spec)
