"""What a search was asked for, checked against the campaign before anything runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from inventory.files import load_testbed
from orchestration.analysis.metric import Metric
from orchestration.analysis.metrics import METRICS
from orchestration.campaign.expand import expand, read_cells
from orchestration.core.condition import TUNER
from orchestration.core.errors import InputError, check_known
from orchestration.core.topology import Testbed
from orchestration.core.trial import REPEAT, ReplaySpec, Scalar
from orchestration.search.halving import Effort
from orchestration.search.space import Space
from orchestration.search.spaces import dcqcn_space, threshold_space, timeout_space, with_ranges
from orchestration.search.trials import Scene, search_name

Over = Literal["thresholds", "dcqcn", "timeouts"]
OVER: tuple[Over, ...] = ("thresholds", "dcqcn", "timeouts")
# A tuner to check the campaign with, by what is searched; its parameters are then replaced.
_TUNERS: dict[Over, dict[str, Scalar]] = {
    "thresholds": {"name": "static", "kmin_bytes": 5_000, "kmax_bytes": 200_000},
    "dcqcn": {"name": "static", "kmin_bytes": 5_000, "kmax_bytes": 200_000},
    "timeouts": {"name": "timeout", "timeout_ns": 200_000},
}


@dataclass(frozen=True)
class Group:
    """Conditions, by their numbers, that shall share a best static setting, and their space."""

    when: dict[str, Scalar]
    conditions: tuple[int, ...]
    space: Space


@dataclass(frozen=True)
class SearchRequest:
    """A search: the campaign's file, what is searched, the metric that judges, and the effort.

    `by` are the factors for each of whose levels a best static setting is wanted. With
    `with_dcqcn`, DCQCN's parameters are searched beside thresholds where hosts are under DCQCN.
    `ranges` are `NAME=LEAST:MOST`.
    """

    file: Path
    backend: str | None = None
    over: Over = "thresholds"
    metric: str = "slowdown_mean"
    with_dcqcn: bool = False
    by: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    effort: Effort = field(default_factory=Effort)

    @cached_property
    def objective(self) -> Metric:
        """The metric. Raises InputError for an unknown one, or one that may be 0."""
        check_known("--metric", "no setting is chosen by {!r}", [self.metric], METRICS.objectives)
        return METRICS[self.metric]

    @cached_property
    def scene(self) -> Scene:
        """The campaign's conditions. Raises InputError for what cannot be searched."""
        check_known("--over", "nothing is called {!r}", [self.over], OVER, "use ")
        tuner = _TUNERS[self.over]
        cells = read_cells(self.file, backend=self.backend, repeats=1, tuners=[tuner])
        first = cells[0].file
        trials = {repr(one.cell): one for one in expand(cells, os.path.dirname(self.file))}
        own = [trials[repr({TUNER: first.tuners[0].called, **cell.labels})] for cell in cells]
        moving = any(
            isinstance(flows, ReplaySpec) and REPEAT in flows.file
            for one in own
            for flows in one.traffic
        )
        if first.parent is not None or moving:
            raise InputError.single(
                str(self.file),
                "replays recorded trials, and a search needs flows of its own seeds",
                "search the campaign that was recorded",
            )
        name = search_name(first.campaign)
        return Scene(
            campaign_name=first.campaign,
            name=name,
            path=self.file,
            source=self.file.read_text(encoding="utf-8"),
            seed=first.seed,
            tuner=str(tuner["name"]),
            templates=tuple(replace(one, campaign=name) for one in own),
            cells=tuple(cell.labels for cell in cells),
        )

    @cached_property
    def testbeds(self) -> dict[str, Testbed]:
        """The testbeds of the conditions, by the names that trials have them under."""
        names = dict.fromkeys(one.testbed for one in self.scene.templates)
        return {name: load_testbed(name) for name in names}

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The conditions by the levels of `by`. Raises InputError for an unknown factor."""
        scene = self.scene
        none = "the campaign has no factor {!r}"
        check_known("--by", none, self.by, scene.cells[0], "its factors are ")
        found: dict[tuple[Scalar, ...], list[int]] = {}
        for number, cell in enumerate(scene.cells):
            found.setdefault(tuple(cell[name] for name in self.by), []).append(number)
        return tuple(
            Group(dict(zip(self.by, levels, strict=True)), tuple(numbers), self._space(numbers))
            for levels, numbers in found.items()
        )

    def _space(self, conditions: Sequence[int]) -> Space:
        templates = [self.scene.templates[number] for number in conditions]
        testbeds = [self.testbeds[one.testbed] for one in templates]
        nics = [one.host.roce for one in templates]
        under = all(nic is not None and nic.control == "dcqcn" for nic in nics)
        if self.over == "timeouts":
            if self.with_dcqcn:
                raise InputError.single("--with-dcqcn", "is for thresholds", "leave it out")
            return with_ranges(timeout_space(), self.ranges)
        # where groups differ, those that are not under DCQCN do without its parameters
        needed = self.over == "dcqcn" or (self.with_dcqcn and not self.by)
        if needed and not under:
            raise InputError.single(
                str(self.file),
                "not all conditions have hosts under DCQCN, whose parameters are wanted",
                "search them apart, with --by and the factor that decides it",
            )
        if self.over == "dcqcn":
            return with_ranges(dcqcn_space(nics[0]), self.ranges)
        wide = self.with_dcqcn and under
        space = threshold_space(testbeds, nics[0], dcqcn=wide)
        return with_ranges(space, self.ranges)
