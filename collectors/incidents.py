"""Incidents that the PFC watchdog has found, as events, facts and findings of a trial.

The watchdog finds queues that PFC pauses have stopped for long: a deadlock of queues that wait for
each other, a storm of pauses from a NIC, or congestion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestration.core.records import Event
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration

Kind = Literal["deadlock", "storm", "congestion", "restored"]
# In the order of the numbers that data paths use for them.
KINDS: tuple[Kind, ...] = ("deadlock", "storm", "congestion", "restored")


@dataclass(frozen=True)
class Incident:
    """What the watchdog has found at a queue.

    `queues` has labels of queues, each of which waits for the next one. In a deadlock, the last
    waits for the one at index `begin`; in a storm, the last is stopped by the port `peer`.
    """

    t_ns: int
    kind: Kind
    queues: tuple[str, ...]
    begin: int = 0
    peer: str = ""

    def words(self) -> str:
        """Return the incident in words, without its time."""
        chain = " > ".join(self.queues)
        match self.kind:
            case "deadlock":
                circle = self.queues[self.begin :]
                first = "" if not self.begin else f", which {self.queues[0]} waits for"
                return f"{' > '.join((*circle, circle[0]))} wait for each other{first}"
            case "storm":
                return f"{chain} is stopped by {self.peer}, which has no reason to"
            case "congestion":
                return f"{chain} is stopped by a queue that sends"
            case "restored":
                return f"{chain} obeys pauses again"


def incident(
    testbed: Testbed, t_ns: int, kind: Kind, numbers: Sequence[int], begin: int
) -> Incident:
    """Return an incident at queues that are given by their numbers in `Testbed.queues`."""
    queues = [testbed.queues[number] for number in numbers]
    labels = tuple(queue.label for queue in queues)
    return Incident(t_ns, kind, labels, begin, testbed.ports[queues[-1].peer].label)


def pfc_outcome(
    incidents: Sequence[Incident], lossless_drops: Mapping[str, int]
) -> tuple[list[Event], dict[str, Any]]:
    """Return a trial's events, and its facts, which include findings for its stamp.

    `lossless_drops` are packets of lossless classes that found no headroom, by switch.
    """
    findings = [
        _warning(f"pfc-{first.kind}", f"at {format_duration(first.t_ns, 4)} {first.words()}")
        for first in _first_of_each(incidents)
    ]
    if lossless_drops:
        name = max(lossless_drops, key=lambda switch: lossless_drops[switch])
        text = (
            f"{sum(lossless_drops.values())} packets of lossless classes found no headroom and "
            f"were dropped, {lossless_drops[name]} of them at {name}"
        )
        findings.append(_warning("headroom-exceeded", text))
    events = [Event(each.t_ns, f"pfc-{each.kind}", each.words()) for each in incidents]
    pfc = {
        "incidents": [asdict(each) for each in incidents],
        "lossless_drops": dict(lossless_drops),
    }
    return events, {"pfc": pfc, "findings": findings}


def _warning(code: str, text: str) -> dict[str, str]:
    return {"code": code, "severity": "warning", "text": text}


def _first_of_each(incidents: Sequence[Incident]) -> list[Incident]:
    """Return the first incident of each kind at the same queues, without those restored."""
    first: dict[tuple[str, frozenset[str]], Incident] = {}
    for each in incidents:
        queues = each.queues[each.begin :] if each.kind == "deadlock" else each.queues[-1:]
        if each.kind != "restored":
            first.setdefault((each.kind, frozenset(queues)), each)
    return list(first.values())
