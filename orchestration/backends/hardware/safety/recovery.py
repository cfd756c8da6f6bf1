"""Runs that ended without restoring their devices: found in the ledger, and put right."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from orchestration.backends.hardware.safety.ledger import Ledger, OpenRun
from orchestration.backends.hardware.safety.outcome import Outcome, outcome_of
from orchestration.device.errors import DeviceError, printable
from orchestration.model.errors import NotReadyError

RESTORE_TIMEOUT_S = 60.0


class Agent(Protocol):
    """What is needed of `client.AgentClient`."""

    device: str

    def post(self, op: str, **arguments: Any) -> int:
        """Send a request."""

    def result(self, number: int, timeout_s: float = ...) -> Any:
        """Wait for its answer."""

    def poll(self) -> None:
        """Take in answers that have arrived."""


def restore_open_runs(agents: Mapping[str, Agent], ledger: Ledger) -> list[Outcome]:
    """Restore what dead runs left behind on the devices that `agents` reach.

    Returns what became of each device, the others of the open runs included. What only somebody
    else's ledger names is left alone. Raises NotReadyError while a run of this ledger goes on.
    """
    runs = ledger.open_runs()
    for run in runs:
        if run.alive:
            raise NotReadyError(
                f"the rack is in use by {run.holder} since {run.opened_at}: nothing was restored",
                "stop that run: it restores the rack itself",
            )
    outcomes = _settle(agents, ledger, runs, force=True)
    seen = {outcome.device for outcome in outcomes}
    for device in sorted(set(agents) - seen):
        outcomes.append(_untouched(agents[device], device))
    return outcomes


def settle_dead_runs(agents: Mapping[str, Agent], ledger: Ledger) -> list[Outcome]:
    """Put right what dead runs left, where there is no doubt, before a new run begins.

    That is: their dead-man's timers have fired, or are told to, or the device has restarted. Raises
    NotReadyError for a device of which it is not known what has been done to it since.
    """
    return _settle(
        agents, ledger, [run for run in ledger.open_runs() if not run.alive], force=False
    )


def _settle(
    agents: Mapping[str, Agent], ledger: Ledger, runs: list[OpenRun], force: bool
) -> list[Outcome]:
    outcomes = []
    # the latest first: what an earlier run found is what is wanted in the end
    for run in reversed(runs):
        found = []
        for device in sorted({*run.snapshots, *run.changed} - run.restored):
            found.append(_settle_device(agents.get(device), device, run, ledger, force))
            if found[-1].settled:
                ledger.restored(run.run, device, found[-1].differences, found[-1].how)
        if all(outcome.settled for outcome in found):
            ledger.close_run(run.run)
        outcomes += found
    return outcomes


def _settle_device(
    agent: Agent | None, device: str, run: OpenRun, ledger: Ledger, force: bool
) -> Outcome:
    if agent is None:
        return Outcome(device, False, f"cannot be reached; {run.holder} did not restore it")
    try:
        outcome = _settled_by_timer(agent, run) or _settled_by_ledger(agent, run, ledger, force)
    except DeviceError as error:
        return Outcome(device, False, f"could not be restored: {error.what}")
    if outcome.settled:
        with suppress(DeviceError):
            call(agent, "lease.drop", holder=run.holder)
    return outcome


def _settled_by_timer(agent: Agent, run: OpenRun) -> Outcome | None:
    """Have the run's dead-man's timer do it, if it is there or has done it."""
    status = call(agent, "deadman.status")
    armed, fired = status.get("armed"), status.get("fired")
    if armed and armed.get("holder") == run.holder:
        fired = call(agent, "deadman.fire", why="a run was found dead, its timer still armed")
        how = "was restored by its dead-man's timer, told to"
    elif armed:
        holder = printable(str(armed.get("holder")))
        return Outcome(agent.device, False, f"is in use by {holder}: left alone")
    elif fired and fired.get("holder") == run.holder:
        why = printable(str(fired.get("why")))
        how = f"has restored itself at {printable(str(fired.get('fired_at')))} ({why})"
    else:
        return None
    outcome = outcome_of(agent.device, fired, how)
    if outcome.settled:
        call(agent, "deadman.clear")
        return outcome
    # the timer has given up: it is tried once more from the ledger's snapshot
    return None


def _settled_by_ledger(agent: Agent, run: OpenRun, ledger: Ledger, force: bool) -> Outcome:
    name = run.snapshots.get(agent.device)
    if name is None or agent.device not in run.changed:
        return Outcome(agent.device, True, "was not changed yet")
    snapshot = ledger.load_snapshot(name)
    if call(agent, "state.snapshot").get("boot") == snapshot.get("boot") and not force:
        raise NotReadyError(
            f"{agent.device}: {run.holder} left it unrestored at {run.opened_at}, and it is not "
            "known what was done to it since",
            "run `closloop restore` to put back what that run found",
        )
    outcome = restore_from(agent, snapshot)
    if outcome.settled:
        call(agent, "deadman.clear")
    return outcome


def restore_from(agent: Agent, snapshot: dict[str, Any]) -> Outcome:
    """Have an agent put a snapshot back. Raises DeviceError."""
    answer = call(agent, "state.restore", snapshot=snapshot)
    return outcome_of(agent.device, answer, "was restored")


def _untouched(agent: Agent, device: str) -> Outcome:
    """Say what there is on a device that no open run of the ledger names."""
    try:
        status = call(agent, "deadman.status")
    except DeviceError as error:
        return Outcome(device, False, error.what)
    if status.get("armed"):
        holder = printable(str(status["armed"].get("holder")))
        return Outcome(device, True, f"is in use by {holder}, of another ledger: left alone")
    if status.get("fired"):
        fired = status["fired"]
        holder = printable(str(fired.get("holder")))
        when = printable(str(fired.get("fired_at")))
        return outcome_of(
            device, fired, f"has restored itself at {when} after {holder} fell silent"
        )
    return Outcome(device, True, "has nothing to restore")


def call(agent: Agent, op: str, **arguments: Any) -> Any:
    """Ask one agent and wait. Raises DeviceError."""
    return agent.result(agent.post(op, **arguments), RESTORE_TIMEOUT_S)
