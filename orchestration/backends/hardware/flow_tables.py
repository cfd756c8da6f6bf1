"""Flow tables on a rack, kept by its Linux switches in trials whose tuner looks at flows.

The agents' part is orchestration/agent/linux_switch/flow_table.py. Flows are counted here, as on
the emulated backend (collectors/readers/flows.py).
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from collectors.bpf.compile import ENTRY_BITS, flow_table_object
from collectors.readers.flows import FlowCounts, queue_numbers
from inventory.rack import Rack
from orchestration.agent.bpf.elf import read_program
from orchestration.backends.hardware.readiness import raise_problems
from orchestration.core.records import Ints
from orchestration.core.signals import wants_flow_table
from orchestration.core.trial import TrialSpec
from orchestration.device.client import Fleet, gather
from orchestration.device.errors import DeviceError
from tuners.registry import create

SERVICE = "flowtable"


def wants(trials: Iterable[TrialSpec]) -> bool:
    """Return whether a trial's tuner looks at flows."""
    return any(wants_flow_table(create(trial.tuner).observes) for trial in trials)


def services_for(rack: Rack, trials: Iterable[TrialSpec]) -> dict[str, tuple[str, ...]]:
    """Return the agent's services that trials need besides a switch's own, by switch."""
    return dict.fromkeys(_keepers(rack) if wants(trials) else (), (SERVICE,))


def check_tables(rack: Rack, fleet: Fleet, trials: Sequence[TrialSpec]) -> None:
    """Raise NotReadyError, naming every switch, if one cannot keep a flow table that trials need.

    The agents attach the program and take it away again.
    """
    if not wants(trials):
        return
    keepers = _keepers(rack)
    problems = [
        f"{name}: is a SONiC switch, whose ASIC forwards packets past any program"
        for name in rack.testbed.switches
        if name not in keepers
    ]
    asked = {
        name: (fleet.agents[name], ("table.try", _program(rack, name)))
        for name in keepers
        if not problems
    }
    problems += [
        said.problems[0].line for said in gather(asked).values() if isinstance(said, DeviceError)
    ]
    raise_problems(
        "a tuner looks at flows, and switches keep no flow table",
        problems,
        "run it emulated, or here with a checkpoint that needs none, as pet-without-flows-dcqcn-1",
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
        per_slot = max(1, trial.action_period_ns // trial.sample_period_ns)
        self._flows = FlowCounts(hosts, len(testbed.queues), per_slot)

    def begin(self) -> None:
        """Keep tables from now on. Raises DeviceError."""
        rack, keepers = self._rack, _keepers(self._rack)
        answers = self._fleet.ask("table.begin", {name: _program(rack, name) for name in keepers})
        for name, indices in answers.items():
            index = dict(zip(rack.access[name].interfaces, map(int, indices), strict=True))
            mine = [queue for queue in rack.testbed.queues if queue.device == name]
            places = [
                (index[rack.interface(rack.testbed.ports[queue.index])], queue.klass)
                for queue in mine
            ]
            first = rack.testbed.queues.index(mine[0])
            self._flows.numbers[name] = queue_numbers(places) + first

    def values(self) -> dict[str, Ints]:
        """Count the flows of the last slots, arrays (queues,) by key. Raises DeviceError."""
        return vars(self._flows.read(self._ask))

    def _ask(self, due: dict[str, bool]) -> dict[str, dict[str, Any]]:
        answers = self._fleet.ask("table.read", dict.fromkeys(self._flows.numbers, due))
        return {
            name: {**said, "rows": base64.b64decode(said["rows"])} for name, said in answers.items()
        }

    def end(self) -> None:
        """Keep no tables any more."""
        self._fleet.ask("table.end", {name: {} for name in self._flows.numbers})

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record."""
        own = {
            "entries_per_switch": 1 << ENTRY_BITS,
            "flows_of_others": self._flows.flows_of_others,
        }
        return {"flow_table": {**self._flows.facts(), **own}}


def _keepers(rack: Rack) -> list[str]:
    return [name for name in rack.testbed.switches if rack.access[name].platform == "linux"]


def _program(rack: Rack, device: str) -> dict[str, Any]:
    """Return what a switch's agent needs to load the program."""
    program = read_program(flow_table_object(on_a_rack=True).read_bytes())
    return {"program": program.to_json(), "interfaces": list(rack.access[device].interfaces)}
