"""What a search found, as the file that campaigns refer to, and in sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestration.campaign.found import Found, FoundGroup, FoundInterval, FoundRank, Params
from orchestration.model.roce import DCQCN_PARAMETERS
from orchestration.render.numbers import percents
from orchestration.search.space import describe

_SIMPLE = (str, int, float, bool, type(None))


def found_yaml(found: Found) -> str:
    """Return what was found as YAML, which `read_found` reads."""
    head = [
        "# Written by closloop search: the best static settings of a campaign. Campaigns use it by",
        f"#   {{name: {found.tuner}, label: best-static, from: THIS FILE}}",
        f"#   {{name: {found.tuner}, label: oracle, from: THIS FILE, of: condition}}",
        "# Regrets are shares: 0.05 is 5 % worse than the best. docs/search.md says what it means.",
    ]
    data = found.model_dump(mode="json", by_alias=True)
    return "\n".join([*head, *_lines(data, ""), ""])


def _lines(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, list) and value and not all(isinstance(v, _SIMPLE) for v in value):
            yield f"{indent}{key}:"
            for item in value:
                yield from _item(item, indent)
        elif isinstance(value, list) and value and key == "notes":
            yield f"{indent}{key}:"
            yield from (f"{indent}- {_flow(note)}" for note in value)
        elif isinstance(value, dict) and any(isinstance(v, list) for v in value.values()):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {_flow(value)}"


def _item(item: Mapping[str, Any], indent: str) -> Iterator[str]:
    lines = list(_lines(item, f"{indent}  "))
    yield f"{indent}- {lines[0].strip()}"
    yield from lines[1:]


def _flow(value: Any) -> str:
    """Return a value on one line. Texts have JSON's quotes, which YAML reads alike."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {_flow(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


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
    return [f"  as settings of NICs: host: {{roce: {{dcqcn: {_flow(own)}}}}}"] if own else []


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
