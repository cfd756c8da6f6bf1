"""The hardware backend: checks that a rack is ready, and runs one trial at a time on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inventory.ansible import load_rack
from orchestration.backends.hardware.agents import RackAgents, services_for, switches_of
from orchestration.backends.hardware.marking_check import check_marking
from orchestration.backends.hardware.readiness import (
    check_free,
    check_queues,
    check_same_fabric,
    check_scale,
    check_sources,
)
from orchestration.backends.hardware.safety.guard import ControllerSlept
from orchestration.backends.hardware.safety.recovery import dead_runs
from orchestration.backends.hardware.settings import check_controls, check_programs
from orchestration.backends.hardware.switch_programs import (
    check_paths,
    check_platforms,
    check_tables,
    path_services,
)
from orchestration.backends.hardware.trial import attempt
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.ports import TrialRun
from orchestration.core.records import Event, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.device.errors import DeviceError, DeviceGone
from orchestration.device.ssh import Secrets
from traffic.drivers import rack_programs
from tuners.registry import create

# How often a trial is tried if the controller slept, or devices were lost and came back.
_ATTEMPTS = 3


class HardwareBackend:
    """Runs trials on the rack of an Ansible inventory, one at a time."""

    name = "hardware"

    def __init__(self, inventory: Path, secrets: Secrets | None = None) -> None:
        self._rack = load_rack(inventory)
        self._agents = RackAgents(self._rack, inventory, secrets)

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError unless these trials can run on the rack.

        The rack must be wired as `testbed`, reachable, provisioned and free. Its switches must
        offer every signal that a tuner observes, and RoCE senders must slow down on CE packets.
        """
        if jobs > 1:
            raise NotReadyError("a rack runs one trial at a time", "use --jobs 1")
        rack = self._rack
        check_same_fabric(rack, testbed)
        check_scale(rack, trials)
        check_controls(rack, testbed, trials)
        tuners = {trial.tuner.name: create(trial.tuner) for trial in trials}
        check_platforms(rack, trials)
        over_rdma = [trial for trial in trials if rack_programs.uses_rdma(trial)]
        host_services = rack_programs.services_for(over_rdma[0]) if over_rdma else ()
        with self._agents.open(host_services, services_for(rack, trials)) as fleet:
            switches = switches_of(rack)
            check_queues(fleet, switches)
            check_paths(rack, fleet, trials)
            check_programs(rack, fleet, trials)
            check_tables(rack, fleet, trials)
            check_sources(switches, tuners)
            own = {run.run for run in dead_runs(self._agents.ledger)}
            check_free(fleet.ask("lease.show", {device: {} for device in fleet.agents}), own)
            if over_rdma:
                guard = self._agents.guard(fleet, over_rdma[0])
                check_marking(rack, fleet, guard, switches, over_rdma)

    def offers(self, trials: Sequence[TrialSpec], testbed: Testbed) -> list[dict[str, Any]]:
        """Return the sources of every switch's signals, and its shortcomings for these trials.

        Raises NotReadyError as `check` does.
        """
        check_same_fabric(self._rack, testbed)
        check_platforms(self._rack, trials)
        period_ns = min(trial.sample_period_ns for trial in trials)
        with self._agents.open(device_services=path_services(self._rack, trials)) as fleet:
            switches = switches_of(self._rack)
            check_queues(fleet, switches)
            check_paths(self._rack, fleet, trials)
        return [
            {
                "switch": switch.device,
                "sources": dict(switch.sources()),
                "shortcomings": list(switch.shortcomings(period_ns)),
            }
            for switch in switches
        ]

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial; whatever happens, restore every device that can be reached.

        If this machine slept during the trial, or devices were unreachable for a while, the trial
        is repeated from its start, and nothing of the failed attempt is kept. Raises TrialError.
        """
        if run.trial.faults:
            raise TrialError(
                "the hardware backend does not cut links",
                "run campaigns with faults on the emulated backend",
            )
        notes: list[str] = []
        for _ in range(_ATTEMPTS):
            try:
                record = attempt(self._agents, run)
            except (DeviceGone, ControllerSlept) as error:
                notes.append(f"{error.message}; the trial was run again")
                self._agents.await_devices(error)
            except DeviceError as error:
                raise TrialError(error.problems) from error
            else:
                repeated = (Event(0, "warning", note) for note in notes)
                return replace(record, events=(*repeated, *record.events))
        raise TrialError(
            f"{_ATTEMPTS} attempts failed: {'; '.join(notes)}",
            "find out what interrupts the connections; `closloop restore` restores the devices",
        )
