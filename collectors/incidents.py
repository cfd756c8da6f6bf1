"""What a watchdog of pauses found, and what that makes a trial's events, facts and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestration.core.records import Event
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration

Kind = Literal["deadlock", "storm", "congestion", "restored"]
# By the numbers that data paths have for them.
KINDS: tuple[Kind, ...] = ("deadlock", "storm", "congestion", "restored")


@dataclass(frozen=True)
class Incident:
    """What the watchdog found at a queue: `queues` are their labels, each waits for the next.

    A deadlock's last one waits for that at `begin`; that of a storm is stopped by `peer`.
    """

    t_ns: int
    kind: Kind
    queues: tuple[str, ...]
    begin: int = 0
    peer: str = ""

    def words(self) -> str:
        """Return it as a sentence's end."""
        chain = " > ".join(self.queues)
        match self.kind:
            case "deadlock":
                circle = self.queues[self.begin :]
                led = "" if not self.begin else f", which {self.queues[0]} waits for"
                return f"{' > '.join((*circle, circle[0]))} wait for each other{led}"
            case "storm":
                return f"{chain} is stopped by {self.peer}, which has no reason to"
            case "congestion":
                return f"{chain} is stopped by a queue that sends"
            case "restored":
                return f"{chain} obeys pauses again"


def incident(
    testbed: Testbed, t_ns: int, kind: Kind, numbers: Sequence[int], begin: int
) -> Incident:
    """Return an incident at the queues of these numbers, in the order of `Testbed.queues`."""
    queues = [testbed.queues[number] for number in numbers]
    labels = tuple(queue.label for queue in queues)
    return Incident(t_ns, kind, labels, begin, testbed.ports[queues[-1].peer].label)


def pfc_outcome(
    incidents: Sequence[Incident], lossless_drops: Mapping[str, int]
) -> tuple[list[Event], dict[str, Any]]:
    """Return a trial's events and facts: what was found, and findings for its stamp.

    `lossless_drops` are packets of lossless classes that found no headroom, by switch, if any.
    """
    findings = [
        _warning(f"pfc-{one.kind}", f"at {format_duration(one.t_ns, 4)} {one.words()}")
        for one in _first_of_each(incidents)
    ]
    if lossless_drops:
        name = max(lossless_drops, key=lambda switch: lossless_drops[switch])
        text = (
            f"{sum(lossless_drops.values())} packets of lossless classes found no headroom and "
            f"were dropped, {lossless_drops[name]} of them at {name}"
        )
        findings.append(_warning("headroom-exceeded", text))
    events = [Event(one.t_ns, f"pfc-{one.kind}", one.words()) for one in incidents]
    found = {
        "incidents": [asdict(one) for one in incidents],
        "lossless_drops": dict(lossless_drops),
    }
    return events, {"pfc": found, "findings": findings}


def _warning(code: str, text: str) -> dict[str, str]:
    return {"code": code, "severity": "warning", "text": text}


def _first_of_each(incidents: Sequence[Incident]) -> list[Incident]:
    """Return the first incident of each kind and circle; what was restored needs no finding."""
    first: dict[tuple[str, frozenset[str]], Incident] = {}
    for one in incidents:
        about = one.queues[one.begin :] if one.kind == "deadlock" else one.queues[-1:]
        if one.kind != "restored":
            first.setdefault((one.kind, frozenset(about)), one)
    return list(first.values())
