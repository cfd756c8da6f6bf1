"""BPF programs that a rack's Linux switches run during a trial: choice of paths, flow tables.

The agents' parts are orchestration/agent/linux_switch/paths.py and flow_table.py. Only switches
with several ports towards a destination choose paths; all others have no flowlets. Flows are
counted on this machine, as on the emulated backend (collectors/readers/flows.py).
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from collectors.bpf.compile import ENTRY_BITS, flow_table_object, path_choice_object
from collectors.readers.flows import FlowCounts, queue_numbers
from inventory.rack import Rack
from inventory.routing import next_hops
from orchestration.agent.bpf.elf import Program, read_program
from orchestration.backends.common.rig import KnobSettings
from orchestration.backends.hardware.readiness import raise_problems
from orchestration.core.errors import TrialError
from orchestration.core.knobs import FLOWLET_TIMEOUT
from orchestration.core.load_balancing import (
    ECMP,
    MAX_TIMEOUT_NS,
    LoadBalancingSpec,
    balancing_facts,
    initial_random_state,
)
from orchestration.core.records import Ints
from orchestration.core.signals import BALANCING_KEYS, wants_flow_table
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError
from tuners.registry import create

_PATHS, _TABLES = "paths", "flowtable"  # the agent's services
_PROVISION = "run `closloop provision` on the inventory"
# A port without carrier must drop out of the kernel's own choice, too. Otherwise packets that the
# kernel's hash sends there would wait for a neighbour, and never reach the program.
SETTINGS = {"net/ipv4/conf/all/ignore_routes_with_linkdown": "1"}


def chooses_paths(trial: TrialSpec) -> bool:
    """Return whether switches choose paths in a trial other than by the flow's hash."""
    return trial.load_balancing.kind != ECMP.kind


def switches_with_choice(rack: Rack) -> list[str]:
    """Return the switches that have several ports towards a destination."""
    return [name for name in rack.testbed.switches if _choices(rack, name)]


def path_services(rack: Rack, trials: Sequence[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return, by switch, the agent's services that the choice of paths needs."""
    return dict.fromkeys(
        switches_with_choice(rack) if any(map(chooses_paths, trials)) else (), (_PATHS,)
    )


def table_services(rack: Rack, trials: Sequence[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return, by switch, the agent's services that flow tables need."""
    return dict.fromkeys(_linux_switches(rack) if _wants_tables(trials) else (), (_TABLES,))


def check_platforms(rack: Rack, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every switch that would choose paths and does not run Linux."""
    spec = next((trial.load_balancing for trial in trials if chooses_paths(trial)), ECMP)
    raise_problems(
        f"switches cannot do load balancing by {spec.kind}",
        [
            f"{name}: runs {rack.access[name].system.title}, which in every release chooses paths "
            "by the flow only"
            for name in (switches_with_choice(rack) if spec != ECMP else ())
            if not rack.access[name].is_linux
        ],
        "use `load_balancing: ecmp`, or Linux switches",
    )


def check_paths(rack: Rack, fleet: Fleet, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every switch, if one cannot choose paths as the trials need.

    The agents load the program and remove it again; no packet takes another path meanwhile. Whether
    the switches run Linux was checked before (`check_platforms`).
    """
    specs = list(dict.fromkeys(trial.load_balancing for trial in trials if chooses_paths(trial)))
    if not specs:
        return
    problems = []
    largest = max(specs, key=lambda spec: spec.entries)
    requests = {
        name: (fleet.agents[name], ("paths.try", _path_program(rack, name, largest)))
        for name in switches_with_choice(rack)
    }
    for name, answer in gather(requests).items():
        if isinstance(answer, DeviceError):
            problems.append(answer.problems[0].line)
        else:
            problems += _missing_routes(rack, name, answer)
    raise_problems(
        f"switches cannot do load balancing by {specs[0].kind}",
        problems,
        f"leave out `load_balancing`, or {_PROVISION} if routes are missing",
    )


class PathChoice:
    """The choice of paths of one trial. `timeouts` has each switch's flowlet timeout."""

    def __init__(self, rack: Rack, fleet: Fleet, trial: TrialSpec) -> None:
        testbed, spec = rack.testbed, trial.load_balancing
        self._rack, self._fleet, self._spec, self._seed = rack, fleet, spec, trial.seed
        self._switches = switches_with_choice(rack)
        self._index = {name: index for index, name in enumerate(testbed.switches)}
        preset = [[spec.timeout_ns(testbed.device[name].tier)] for name in testbed.switches]
        values = np.array(preset, dtype=np.int64)
        self.timeouts = KnobSettings(FLOWLET_TIMEOUT, testbed, values, self._set)
        self._last = np.zeros((len(testbed.switches), len(BALANCING_KEYS)), dtype=np.int64)
        self.is_by_flowlet = spec.kind == "flowlets"

    def begin(self) -> None:
        """Choose paths from now on. Raises DeviceError, or TrialError if routes are missing."""
        (timeouts,) = self.timeouts.known.values()
        answers = self._fleet.ask(
            "paths.begin",
            {
                name: {
                    **_path_program(self._rack, name, self._spec),
                    "stream": initial_random_state(self._seed, self._index[name]),
                    # with spray, how long a flow's last port is remembered, to count reroutes
                    "timeout_ns": int(timeouts[self._index[name]]) or MAX_TIMEOUT_NS,
                    "route_by": self._spec.route_by,
                    "spray": self._spec.kind == "spray",
                }
                for name in self._switches
            },
        )
        missing = [
            text
            for name, routes in answers.items()
            for text in _missing_routes(self._rack, name, routes)
        ]
        if missing:
            raise TrialError("; ".join(missing), _PROVISION)

    def values(self) -> dict[str, Ints]:
        """Read the signals of all switches, arrays (switches,) by key. Raises DeviceError."""
        answers = self._fleet.ask("paths.read", {name: {} for name in self._switches})
        self._last = np.zeros_like(self._last)
        for name, row in answers.items():
            self._last[self._index[name]] = [int(value) for value in row]
        return dict(zip(BALANCING_KEYS, self._last.T, strict=True))

    def _set(self, switches: Ints, timeouts_ns: Ints) -> Ints:
        """Set timeouts of switches; return those that they have afterwards.

        Switches that do not choose paths have no flowlets: theirs are returned unchanged.
        """
        timeouts = dict(zip(switches.tolist(), timeouts_ns.ravel().tolist(), strict=True))
        requests = {
            name: {"timeout_ns": timeouts[self._index[name]]}
            for name in self._switches
            if self._index[name] in timeouts
        }
        for name, answer in self._fleet.ask("paths.set", requests).items():
            timeouts[self._index[name]] = int(answer["timeout_ns"])
        return np.array([[timeouts[index]] for index in switches.tolist()], dtype=np.int64)

    def end(self) -> None:
        """Let the kernels of the switches choose paths again."""
        self._fleet.ask("paths.end", {name: {} for name in self._switches})

    def facts(self) -> dict[str, Any]:
        """Return facts and findings for the trial's record, from the last reading."""
        flowlets, reroutes, _, overflows = self._last.T.tolist()
        by_switch = dict(zip(self._index, overflows, strict=True))
        facts = balancing_facts(sum(flowlets), sum(reroutes), by_switch)
        facts["load_balancing"]["switches"] = self._switches
        return facts


def _path_program(rack: Rack, device: str, spec: LoadBalancingSpec) -> dict[str, Any]:
    path = path_choice_object(spec.entries.bit_length() - 1)
    return _loadable(rack, device, read_program(path.read_bytes(), maps=("prefixes",)))


def _loadable(rack: Rack, device: str, program: Program) -> dict[str, Any]:
    """Return what a switch's agent needs to load a program."""
    return {"program": program.to_json(), "interfaces": list(rack.access[device].interfaces)}


def _choices(rack: Rack, device: str) -> set[frozenset[str]]:
    """Return the sets of interfaces among which a switch is to choose."""
    choices = (ports for ports in next_hops(rack.testbed)[device].values() if len(ports) > 1)
    return {frozenset(map(rack.interface, ports)) for ports in choices}


def _missing_routes(rack: Rack, device: str, routes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return messages on ECMP routes that a switch lacks; `routes` has its ports by prefix."""
    actual = {frozenset(map(str, ports)) for ports in routes.values()}
    missing = sorted(" and ".join(sorted(ports)) for ports in _choices(rack, device) - actual)
    return [f"{device}: has no route through {ports} together" for ports in missing]


def _wants_tables(trials: Iterable[TrialSpec]) -> bool:
    return any(wants_flow_table(create(trial.tuner).observes) for trial in trials)


def check_tables(rack: Rack, fleet: Fleet, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every switch, if one cannot keep a flow table that trials need.

    The agents attach the program and remove it again.
    """
    if not _wants_tables(trials):
        return
    linux_switches = _linux_switches(rack)
    problems = [
        f"{name}: is a SONiC switch, whose ASIC forwards packets past any program"
        for name in rack.testbed.switches
        if name not in linux_switches
    ]
    requests = {
        name: (fleet.agents[name], ("table.try", _table_program(rack, name)))
        for name in linux_switches
        if not problems
    }
    errors = [answer for answer in gather(requests).values() if isinstance(answer, DeviceError)]
    problems += [error.problems[0].line for error in errors]
    raise_problems(
        "a tuner observes flows, and switches cannot keep a flow table",
        problems,
        "run the campaign emulated, or use a checkpoint that needs no flow table, such as "
        "pet-without-flows-dcqcn-1",
    )


class RackFlowTables:
    """The flow tables of one trial."""

    def __init__(self, rack: Rack, fleet: Fleet, trial: TrialSpec) -> None:
        self._rack, self._fleet = rack, fleet
        testbed, addresses = rack.testbed, rack.addresses.nics
        hosts = {
            socket.inet_aton(addresses[port.index]): number
            for number, host in enumerate(testbed.hosts)
            for port in testbed.ports_of[host]
        }
        self._flows = FlowCounts(hosts, len(testbed.queues), trial.samples_per_action)

    def begin(self) -> None:
        """Keep tables from now on. Raises DeviceError."""
        rack = self._rack
        answers = self._fleet.ask(
            "table.begin", {name: _table_program(rack, name) for name in _linux_switches(rack)}
        )
        for name, indices in answers.items():
            ifindex = dict(zip(rack.access[name].interfaces, map(int, indices), strict=True))
            queues = [queue for queue in rack.testbed.queues if queue.device == name]
            locations = [
                (ifindex[rack.interface(rack.testbed.ports[queue.index])], queue.klass)
                for queue in queues
            ]
            first = rack.testbed.queues.index(queues[0])
            self._flows.numbers[name] = queue_numbers(locations) + first

    def values(self) -> dict[str, Ints]:
        """Count the flows of the last slots, arrays (queues,) by key. Raises DeviceError."""
        return vars(self._flows.read(self._ask))

    def _ask(self, due: dict[str, bool]) -> dict[str, dict[str, Any]]:
        answers = self._fleet.ask("table.read", dict.fromkeys(self._flows.numbers, due))
        return {
            name: {**answer, "rows": base64.b64decode(answer["rows"])}
            for name, answer in answers.items()
        }

    def end(self) -> None:
        """Stop keeping tables."""
        self._fleet.ask("table.end", {name: {} for name in self._flows.numbers})

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record."""
        own = {
            "entries_per_switch": 1 << ENTRY_BITS,
            "flows_of_others": self._flows.flows_of_others,
        }
        return {"flow_table": {**self._flows.facts(), **own}}


def _linux_switches(rack: Rack) -> list[str]:
    return [name for name in rack.testbed.switches if rack.access[name].is_linux]


def _table_program(rack: Rack, device: str) -> dict[str, Any]:
    return _loadable(rack, device, read_program(flow_table_object(on_a_rack=True).read_bytes()))
