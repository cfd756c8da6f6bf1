"""The fact `load` in a trial's folder: what its numbers mean, by the version that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestration.core.trial import ConcurrentSpec
from orchestration.results.reader import TrialResult

LOAD_FACT = "load"
AMOUNTS = ("offered", "delivered", "discarded")


def is_current(fact: Mapping[str, Any]) -> bool:
    """Return whether a fact `load` means by `delivered` what receivers accepted.

    Earlier versions counted what arrived, discarded bytes too, and had no `discarded_bytes`. Flows
    that last as long as the trial offered 0 bytes then.
    """
    return "discarded_bytes" in fact


def written_shares(result: TrialResult) -> dict[str, float | None]:
    """Return the shares of the hosts' line rates that a trial wrote down, by key; else None.

    What an earlier version wrote is left out where it meant something else.
    """
    fact = result.facts.get(LOAD_FACT) or {}
    keys = [f"{name}_load" for name in AMOUNTS]
    known = set(keys)
    if not is_current(fact):
        known = set() if any(map(_lasts, result.spec.traffic)) else {"offered_load"}
    return {key: fact.get(key) if key in known else None for key in keys}


def _lasts(pattern: object) -> bool:
    return isinstance(pattern, ConcurrentSpec) and not pattern.size_bytes
