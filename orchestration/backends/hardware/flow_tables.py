"""Flow tables on a rack, kept by its Linux switches in trials whose tuner looks at flows.

The agents' part is collectors/readers/flow_agent.py. Flows are counted here, as on the emulated
backend (collectors/readers/flows.py).
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from collectors.bpf.compile import ENTRY_BITS, rack_flow_table_object
from collectors.bpf.elf import read_program
from collectors.readers.flow_layout import CLEANUP_EVERY_SLOTS, WINDOW_SLOTS
from collectors.readers.flows import parts, per_queue, queue_keys, queue_numbers, read_rows
from inventory.rack import Rack
from orchestration.backends.hardware.readiness import raise_problems, words_of
from orchestration.device.errors import DeviceError
from orchestration.device.fleet import Fleet, gather
from orchestration.model.records import Ints
from orchestration.model.signals import wants_flow_table
from orchestration.model.trial import TrialSpec
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
    problems += [words_of(said) for said in gather(asked).values() if isinstance(said, DeviceError)]
    raise_problems(
        "a tuner looks at flows, and switches keep no flow table",
        problems,
        "run it emulated, or here with a checkpoint that needs none, as pet-without-flows-dcqcn-1",
    )


class RackFlowTables:
    """The flow tables of one trial."""

    def __init__(self, rack: Rack, fleet: Fleet, trial: TrialSpec) -> None:
        self._rack, self._fleet = rack, fleet
        testbed = rack.testbed
        addresses = rack.addresses.nics
        known = sorted(
            (int.from_bytes(socket.inet_aton(addresses[port.index]), "little"), number)
            for number, host in enumerate(testbed.hosts)
            for port in testbed.ports_of[host]
        )
        self._addresses = np.array([address for address, _ in known], dtype=np.int64)
        self._host_of = np.array([host for _, host in known], dtype=np.int64)
        self._per_slot = max(1, trial.action_period_ns // trial.sample_period_ns)
        self._numbers: dict[str, Ints] = {}
        self._readings = 0
        self._facts = {"scheduled_cleanups": 0, "removed_on_schedule": 0, "threshold_cleanups": 0}
        self._facts |= {"removed_at_threshold": 0, "most_entries_used": 0, "flows_of_others": 0}
        self._last: dict[str, tuple[int, int]] = {}

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
            self._numbers[name] = queue_numbers(places) + first

    def values(self) -> dict[str, Ints]:
        """Count the flows of the last slots, arrays (queues,) by key. Raises DeviceError."""
        self._readings += 1
        slots, left = divmod(self._readings, self._per_slot)
        ends_slot = left == 0
        on_schedule = ends_slot and slots % CLEANUP_EVERY_SLOTS == 0
        asked = {"ends_slot": ends_slot, "on_schedule": on_schedule}
        answers = self._fleet.ask("table.read", dict.fromkeys(self._numbers, asked))
        self._facts["scheduled_cleanups"] += on_schedule
        found = [self._flows(name, said) for name, said in answers.items()]
        queue, receiver, sender, size = (
            np.concatenate(columns) for columns in zip(*found, strict=True)
        )
        testbed = self._rack.testbed
        counts = (len(testbed.queues), len(testbed.hosts))
        return vars(per_queue(queue, receiver, sender, size, *counts))

    def end(self) -> None:
        """Keep no tables any more."""
        self._fleet.ask("table.end", {name: {} for name in self._numbers})

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record."""
        totals = {
            "expired_taken_over": sum(taken for taken, _ in self._last.values()),
            "packets_not_counted": sum(missed for _, missed in self._last.values()),
        }
        size = {"window_slots": WINDOW_SLOTS, "entries_per_switch": 1 << ENTRY_BITS}
        return {"flow_table": {**size, **self._facts, **totals}}

    def _flows(self, name: str, said: dict[str, Any]) -> tuple[Ints, Ints, Ints, Ints]:
        """Return a switch's flows between hosts: queue, receiver, sender and bytes of each."""
        facts = self._facts
        facts["most_entries_used"] = max(facts["most_entries_used"], int(said["used"]))
        kind = "removed_at_threshold" if said["by_threshold"] else "removed_on_schedule"
        facts["threshold_cleanups"] += bool(said["by_threshold"])
        facts[kind] += int(said["removed"])
        self._last[name] = int(said["taken_over"]), int(said["not_counted"])
        rows = read_rows(base64.b64decode(said["rows"]))
        receivers, senders, sizes = parts(rows)
        to, to_known = self._hosts(receivers)
        by, by_known = self._hosts(senders)
        ours = to_known & by_known
        facts["flows_of_others"] = max(facts["flows_of_others"], int((~ours).sum()))
        queues = self._numbers[name][queue_keys(rows[ours])]
        return queues, to[ours], by[ours], sizes[ours]

    def _hosts(self, addresses: Ints) -> tuple[Ints, Any]:
        """Return the numbers of hosts by address, and which of these are hosts' at all."""
        at = np.minimum(np.searchsorted(self._addresses, addresses), len(self._addresses) - 1)
        return self._host_of[at], self._addresses[at] == addresses


def _keepers(rack: Rack) -> list[str]:
    return [name for name in rack.testbed.switches if rack.access[name].platform == "linux"]


def _program(rack: Rack, device: str) -> dict[str, Any]:
    """Return what a switch's agent needs to load the program."""
    program = read_program(rack_flow_table_object().read_bytes())
    return {"program": program.to_json(), "interfaces": list(rack.access[device].interfaces)}
