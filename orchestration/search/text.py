"""What a search found, in sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestration.campaign.found import Found, FoundGroup, FoundInterval, FoundRank, Params
from orchestration.core.roce import DCQCN_PARAMETERS
from orchestration.render.numbers import percents
from orchestration.search.space import describe


def sentences(found: Found, file: str) -> list[str]:
    """Return what a user should know, in the order of its weight."""
    said = []
    for group in found.groups:
        said += _of_group(group)
        said += _of_nics(group.best_static)
    said += [f"note: {note}" for note in found.notes]
    return [*said, f"in a campaign: {{name: {found.tuner}, label: best-static, from: {file}}}"]


def _of_group(group: FoundGroup) -> list[str]:
    where = when_text(group.when)
    said = [f"best static setting{f' ({where})' if where else ''}: {_named(group.best_static)}"]
    said += [f"  {line}" for line in _alike(group.ranking)]
    if len(group.conditions) > 1:
        said.append(
            f"  headroom, its loss against the best of each condition: {share(group.headroom)} in "
            "the mean"
        )
    return said


def _of_nics(setting: Params) -> list[str]:
    """Return DCQCN's parameters as a campaign's hosts can have them, without a tuner."""
    own = {name: value for name, value in setting.items() if name in DCQCN_PARAMETERS}
    text = ", ".join(f"{name}: {json.dumps(value)}" for name, value in own.items())
    return [f"  as settings of NICs: host: {{roce: {{dcqcn: {{{text}}}}}}}"] if own else []


def _alike(ranking: Sequence[FoundRank]) -> list[str]:
    best = ranking[0].setting
    alike = [one for one in ranking[1:] if not one.told_apart]
    if not alike:
        return ["all others that were verified are worse beyond chance"] if ranking[1:] else []
    identical = [one for one in alike if one.behind is not None and one.behind.is_nothing]
    said = ["identical to it at every seed:"] if identical else []
    said += [f"  with {_difference(best, one.setting)}" for one in identical]
    others = [one for one in alike if one not in identical]
    said += ["cannot be told from it:"] if others else []
    return said + [
        f"  with {_difference(best, one.setting)}"
        + (f": {share(one.behind)}" if one.behind else "")
        for one in others
    ]


def _difference(best: Params, other: Params) -> str:
    return _named({name: value for name, value in other.items() if value != best[name]})


def when_text(when: Mapping[str, Any]) -> str:
    """Return a condition in words; "" if there is only one."""
    return ", ".join(f"{name} {level}" for name, level in when.items())


def share(interval: FoundInterval) -> str:
    """Return an interval of regret in per cent: `+3.1 % [+1.0, +5.2]`."""
    low, high = (math.nan if end is None else end for end in (interval.low, interval.high))
    return percents(interval.mean, low, high, digits=1).replace("%", " %")


def _named(params: Params) -> str:
    return describe(tuple(params.items()))
