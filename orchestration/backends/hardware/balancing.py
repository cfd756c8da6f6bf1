"""Load balancing on a rack: its Linux switches choose paths while a trial runs.

The agents' part is orchestration/agent/linux_switch/paths.py. Only switches with several ports
towards a destination are asked for anything; all others have no flowlets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collectors.bpf.compile import path_choice_object
from inventory.rack import Rack
from inventory.routing import next_hops
from orchestration.agent.bpf.elf import read_program
from orchestration.backends.hardware.readiness import raise_problems
from orchestration.core.errors import TrialError
from orchestration.core.knobs import FLOWLET_TIMEOUT
from orchestration.core.load_balancing import (
    ECMP,
    MOST_TIMEOUT_NS,
    LoadBalancingSpec,
    overflow_findings,
    stream_of,
)
from orchestration.core.records import Change, Ints
from orchestration.core.signals import BALANCING_KEYS
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError

SERVICE = "paths"
_PROVISION = "run `closloop provision` on the inventory"
# A carrier that is lost takes a port out of the kernel's own choice, too: what its hash sends there
# would otherwise wait for a neighbour, and never come to the program.
SETTINGS = {"net/ipv4/conf/all/ignore_routes_with_linkdown": "1"}


def chooses(trial: TrialSpec) -> bool:
    """Return whether switches choose paths in a trial, other than by the hash of the flow."""
    return trial.load_balancing.kind != ECMP.kind


def choosers(rack: Rack) -> list[str]:
    """Return the switches that have several ports towards a destination."""
    return [name for name in rack.testbed.switches if _choices(rack, name)]


def services_for(rack: Rack, trials: Sequence[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return the agent's services that trials need besides a switch's own, by switch."""
    return dict.fromkeys(choosers(rack) if any(map(chooses, trials)) else (), (SERVICE,))


def check_platforms(rack: Rack, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every switch that is to choose paths and does not run Linux."""
    asked = next((one.load_balancing for one in trials if chooses(one)), ECMP)
    raise_problems(
        f"switches cannot do load balancing by {asked.kind}",
        [
            f"{name}: runs SONiC, no release of which chooses other than by the flow"
            for name in (choosers(rack) if asked != ECMP else ())
            if rack.access[name].platform == "sonic"
        ],
        "use `load_balancing: ecmp`, or Linux switches",
    )


def check_paths(rack: Rack, fleet: Fleet, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every switch, if one cannot choose paths as the trials ask.

    The agents load the program and end it again: no packet is sent another way. That they run Linux
    was checked before (`check_platforms`).
    """
    asked = list(dict.fromkeys(one.load_balancing for one in trials if chooses(one)))
    if not asked:
        return
    problems = []
    most = max(asked, key=lambda spec: spec.entries)
    requests = {
        name: (fleet.agents[name], ("paths.try", _program(rack, name, most)))
        for name in choosers(rack)
    }
    for name, answer in gather(requests).items():
        if isinstance(answer, DeviceError):
            problems.append(answer.problems[0].line)
        else:
            problems += _missing(rack, name, answer)
    raise_problems(
        f"switches cannot do load balancing by {asked[0].kind}",
        problems,
        f"leave out `load_balancing`, or {_PROVISION} if routes are missing",
    )


class Balancing:
    """The choice of paths of one trial. `known` has each switch's timeout, by column."""

    def __init__(self, rack: Rack, fleet: Fleet, trial: TrialSpec) -> None:
        testbed, spec = rack.testbed, trial.load_balancing
        self._rack, self._fleet, self._spec, self._seed = rack, fleet, spec, trial.seed
        self._choosers = choosers(rack)
        self._places = {name: place for place, name in enumerate(testbed.switches)}
        self._bounds = FLOWLET_TIMEOUT.bounds(testbed)
        timeouts = [spec.timeout_ns(testbed.device[name].tier) for name in testbed.switches]
        self.known: dict[str, Ints] = FLOWLET_TIMEOUT.named(np.array(timeouts, dtype=np.int64))
        self._last = np.zeros((len(testbed.switches), len(BALANCING_KEYS)), dtype=np.int64)
        self.is_by_flowlet = spec.kind == "flowlets"

    def begin(self) -> None:
        """Choose paths from now on. Raises DeviceError, or TrialError for routes that lack."""
        (timeouts,) = self.known.values()
        answers = self._fleet.ask(
            "paths.begin",
            {
                name: {
                    **_program(self._rack, name, self._spec),
                    "stream": stream_of(self._seed, self._places[name]),
                    # under spray, how long a flow's last port is remembered to count reroutes
                    "timeout_ns": int(timeouts[self._places[name]]) or MOST_TIMEOUT_NS,
                    "route_by": self._spec.route_by,
                    "spray": self._spec.kind == "spray",
                }
                for name in self._choosers
            },
        )
        lack = [text for name, said in answers.items() for text in _missing(self._rack, name, said)]
        if lack:
            raise TrialError("; ".join(lack), _PROVISION)

    def values(self) -> dict[str, Ints]:
        """Read the signals of all switches, arrays (switches,) by key. Raises DeviceError."""
        found = self._fleet.ask("paths.read", {name: {} for name in self._choosers})
        self._last = np.zeros_like(self._last)
        for name, row in found.items():
            self._last[self._places[name]] = [int(value) for value in row]
        return dict(zip(BALANCING_KEYS, self._last.T, strict=True))

    def turn(self, change: Change) -> Change:
        """Set timeouts; return those of its switches, as they have them.

        Raises ImpossibleSetting for what is out of bounds.
        """
        self._bounds.check(change)
        (column,) = self.known
        wanted = dict(zip(change.targets.tolist(), np.rint(change[column]).tolist(), strict=True))
        timeouts = self.known[column].copy()
        timeouts[list(wanted)] = list(wanted.values())
        asked = {
            name: {"timeout_ns": int(wanted[self._places[name]])}
            for name in self._choosers
            if self._places[name] in wanted
        }
        for name, said in self._fleet.ask("paths.set", asked).items():
            timeouts[self._places[name]] = int(said["timeout_ns"])
        self.known = {column: timeouts}
        return Change(change.knob, change.targets, {column: timeouts[change.targets]})

    def end(self) -> None:
        """Leave paths to the switches again."""
        self._fleet.ask("paths.end", {name: {} for name in self._choosers})

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record, of the last reading."""
        totals = dict(zip(BALANCING_KEYS, self._last.sum(axis=0).tolist(), strict=True))
        return {
            "load_balancing": {
                "flowlets": totals["switch.flowlets"],
                "reroutes": totals["switch.reroutes"],
                "overflows": {name: count for name, count in self._overflows().items() if count},
                "switches": self._choosers,
            }
        }

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the trial's stamp."""
        return overflow_findings(self._overflows())

    def _overflows(self) -> dict[str, int]:
        column = self._last[:, BALANCING_KEYS.index("switch.flowlet_overflows")]
        return dict(zip(self._places, column.tolist(), strict=True))


def _program(rack: Rack, device: str, spec: LoadBalancingSpec) -> dict[str, Any]:
    """Return what a switch's agent needs to load the program."""
    made = path_choice_object(spec.entries.bit_length() - 1)
    program = read_program(made.read_bytes(), maps=("prefixes",))
    return {"program": program.to_json(), "interfaces": list(rack.access[device].interfaces)}


def _choices(rack: Rack, device: str) -> set[frozenset[str]]:
    """Return the sets of interfaces among which a switch is to choose."""
    several = (ports for ports in next_hops(rack.testbed)[device].values() if len(ports) > 1)
    return {frozenset(map(rack.interface, ports)) for ports in several}


def _missing(rack: Rack, device: str, said: Mapping[str, Sequence[str]]) -> list[str]:
    """Return in words the choices that a switch's routes lack; `said` has ports by prefix."""
    have = {frozenset(map(str, ports)) for ports in said.values()}
    lacks = sorted(" and ".join(sorted(ports)) for ports in _choices(rack, device) - have)
    return [f"{device}: has no route by {ports} at once" for ports in lacks]
