"""All of a trial's traffic on a rack: flows that sockets send, and flows that programs send."""

from __future__ import annotations

from collections.abc import Mapping

from inventory.rack import Rack
from orchestration.device.fleet import Clock, Fleet
from orchestration.model.records import FlowRecords, Schedule
from orchestration.model.trial import SOCKETS, TrialSpec
from traffic.drivers.rack_flows import RackFlows
from traffic.drivers.rack_programs import (
    RackPrograms,
    check_programs,
    jobs_of,
    remarks,
    with_outcomes,
)


def uses_programs(trial: TrialSpec) -> bool:
    """Say whether programs send some of the trial's flows."""
    return any(spec.driver != SOCKETS for spec in trial.traffic)


class RackTraffic:
    """The traffic of one trial. All of it starts together, and none outlives the trial."""

    def __init__(self, trial: TrialSpec, rack: Rack, schedule: Schedule, fleet: Fleet) -> None:
        self._flows = RackFlows(trial, rack.testbed, schedule, fleet)
        self._programs: RackPrograms | None = None
        if uses_programs(trial):
            check_programs(fleet, rack.testbed.hosts, trial)
            self._programs = RackPrograms(jobs_of(trial, rack, schedule), fleet)
        self.remarks: list[str] = []

    def connect(self, clocks: Mapping[str, Clock]) -> None:
        """Make all connections, and start what has to be there before. Raises DeviceError."""
        self._flows.connect(clocks)
        if self._programs is not None:
            self._programs.connect(clocks)

    def start(self, t0_ns: int) -> None:
        """Have all begin at `t0_ns` of the controller's CLOCK_MONOTONIC."""
        self._flows.start(t0_ns)
        if self._programs is not None:
            self._programs.start(t0_ns)

    def all_done(self) -> bool:
        """Say whether every flow has ended. Raises TrialError if a driver failed."""
        flows = self._flows.all_done()
        return flows and (self._programs is None or self._programs.all_done())

    def stop(self) -> None:
        """Stop sending, wherever it can be reached."""
        self._flows.stop()
        if self._programs is not None:
            self._programs.stop()

    def records(self) -> FlowRecords:
        """Return what became of the flows; `remarks` has what programs said of theirs."""
        records = self._flows.records()
        if self._programs is None:
            return records
        outcomes = self._programs.outcomes()
        self.remarks = remarks(outcomes)
        return with_outcomes(records, outcomes)
