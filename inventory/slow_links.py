"""A testbed file's `slow_links`: cables between switches that are slower than their tier's."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from inventory.generators import Fabric
from inventory.strictyaml import Document, StrictModel, must, suggest
from orchestration.core.errors import Problem
from orchestration.core.topology import LinkSpec

_SHARE = must(
    lambda value: 0 < value <= 1, "a share of {:g} of the links is none", "use 0.05 for 5 %"
)
_FACTOR = must(
    lambda value: 0 < value < 1, "a factor of {:g} slows nothing", "use more than 0, less than 1"
)


class SlowLinks(StrictModel):
    """Links between switches that have a part of their rate, named or drawn by a seed."""

    factor: Annotated[float, _FACTOR] = Field(description="what is left of the rate, like 0.5")
    share: Annotated[float, _SHARE] | None = None
    seed: Annotated[int, Field(ge=0)] = 1
    links: tuple[str, ...] = ()

    def slowed(self, fabric: Fabric) -> Fabric:
        """Return the fabric with these links slowed, in both directions."""
        devices, links = fabric
        chosen = set(self._chosen(links, _between_switches(fabric)))
        return devices, [
            replace(link, rate_bps=max(1, round(link.rate_bps * self.factor)))
            if number in chosen
            else link
            for number, link in enumerate(links)
        ]

    def _chosen(self, links: Sequence[LinkSpec], between: list[int]) -> list[int]:
        if self.share is None:
            named = set(self.links)
            return [n for n in between if named & {_name(links[n]), _name(links[n], back=True)}]
        draws = random.Random(self.seed)
        # of the module's methods, `random` alone is the same in all versions of Python
        order = {number: draws.random() for number in between}
        count = max(1, math.floor(self.share * len(between) + 0.5))
        return sorted(between, key=lambda number: order[number])[:count]


def problems(slow: SlowLinks, fabric: Fabric, document: Document) -> Iterator[Problem]:
    """Yield what is wrong with `slow_links` on this fabric."""
    between = _between_switches(fabric)
    known = [_name(fabric[1][number]) for number in between]
    where = ("slow_links",)
    if (slow.share is None) == (not slow.links):
        remedy = "give `share: 0.05`, or `links: [leaf1-spine1]`, one of the two"
        yield document.problem(where, "slow_links of no links, or chosen twice", remedy)
    elif not between:
        yield document.problem(where, "there are no links between switches", "remove it")
    either = {*known, *(_name(fabric[1][number], back=True) for number in between)}
    for place, name in enumerate(slow.links):
        if name not in either and known:
            what = f"there is no link {name!r} between switches"
            remedy = f"{suggest(name, known)}the first is {known[0]}"
            yield document.problem((*where, "links", place), what, remedy)


def _between_switches(fabric: Fabric) -> list[int]:
    devices, links = fabric
    switches = {device.name for device in devices if device.kind == "switch"}
    return [n for n, link in enumerate(links) if {link.a, link.b} <= switches]


def _name(link: LinkSpec, *, back: bool = False) -> str:
    return f"{link.b}-{link.a}" if back else f"{link.a}-{link.b}"
