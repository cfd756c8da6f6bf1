"""Finds runs in the ledger that ended without restoring their devices, and restores those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.rack import Rack
from orchestration.backends.hardware.safety.ledger import Ledger, OpenRun
from orchestration.device.agent.state import RESTORABLE
from orchestration.device.client import open_agents
from orchestration.device.errors import DeviceError, printable
from orchestration.device.fleet import Agent, Fleet
from orchestration.device.ssh import Secrets
from orchestration.model.errors import NotReadyError

RESTORE_TIMEOUT_S = 60.0
_SERVICES = ("state", "deadman", "lease")
# Parts of a snapshot that runs do not change.
_OTHERS = ("fingerprint", "other row")
_SHOWN = 5


@dataclass(frozen=True)
class Outcome:
    """One device, restored or not.

    `how` says who restored it, or why nobody did. `changed` are the settings that were put back,
    `differences` those that still differ from the snapshot (`agent.state.Difference` as a dict).
    `settled` devices need nothing more.
    """

    device: str
    settled: bool
    how: str
    changed: tuple[str, ...] = ()
    differences: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def text(self) -> str:
        """The outcome for people, in one or more lines."""
        lines = [f"{self.device}: {self.how}"]
        if self.changed:
            lines[0] += f"; {len(self.changed)} settings put back"
        shown = [f"{self.device}: {said(item)}" for item in self.differences[:_SHOWN]]
        more = len(self.differences) - _SHOWN
        return "\n".join([*lines, *shown, *([f"{self.device}: and {more} more"] * (more > 0))])


def outcome_of(device: str, answer: Mapping[str, Any], how: str) -> Outcome:
    """Return the outcome in an agent's answer, or in a dead-man's record."""
    differences = tuple(_difference(item) for item in _items(answer.get("differences")))
    error = str(answer.get("error") or "")
    if answer.get("restarted"):
        how = "has restarted since, so nothing of the run is left on it"
    left = [item for item in differences if item["part"] in RESTORABLE]
    if error:
        how = f"could not be restored: {printable(error)}"
    elif left:
        how = f"{how}, but not entirely"
    changed = tuple(printable(str(item)) for item in _items(answer.get("changed")))
    return Outcome(device, not left and not error, how, changed, differences)


def is_foreign(difference: Mapping[str, Any]) -> bool:
    """Return whether a difference is in something that runs do not change."""
    return difference["part"] in _OTHERS


def said(difference: Mapping[str, Any]) -> str:
    """Return a difference in words."""
    where = difference["where"]
    if difference["part"] == "fingerprint":
        return f"its {where} were changed meanwhile, not by this run"
    if difference["part"] == "other row":
        return f"{where} was added meanwhile, not by this run"
    what = f"{where} {difference['what']}".strip()
    return f"{what} is {difference['found']}, not {difference['wanted']} as before the run"


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _difference(item: Any) -> dict[str, str]:
    names = ("part", "where", "what", "wanted", "found")
    found = item if isinstance(item, dict) else {}
    return {name: printable(str(found.get(name))) for name in names}


def restore_runs(rack: Rack, inventory: Path, secrets: Secrets | None = None) -> list[Outcome]:
    """Restore every device that can be reached; return the outcome of all, the unreachable too.

    Raises NotReadyError while a run is still active.
    """
    services = dict.fromkeys(rack.access, _SERVICES)
    agents, problems = open_agents(rack.access.values(), rack.known_hosts_file, services, secrets)
    with Fleet(agents):
        outcomes = restore_open_runs(agents, Ledger.of(rack.name, inventory))
    known = {outcome.device for outcome in outcomes}
    outcomes += [
        Outcome(error.device, False, error.what) for error in problems if error.device not in known
    ]
    return sorted(outcomes, key=lambda outcome: list(rack.access).index(outcome.device))


def restore_open_runs(agents: Mapping[str, Agent], ledger: Ledger) -> list[Outcome]:
    """Restore what dead runs changed on the devices that `agents` reach.

    Returns the outcome of each device, including unreachable ones of open runs. Runs in other
    ledgers are left alone. Raises NotReadyError while a run of this ledger is active.
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
    """Before a new run, restore what dead runs changed, where that is safe.

    It is safe if the dead-man's timer has fired or can be made to fire, or if the device has
    restarted. Raises NotReadyError for a device whose changes since then are unknown.
    """
    return _settle(
        agents, ledger, [run for run in ledger.open_runs() if not run.alive], force=False
    )


def _settle(
    agents: Mapping[str, Agent], ledger: Ledger, runs: list[OpenRun], force: bool
) -> list[Outcome]:
    outcomes = []
    # the latest run first: the state that the earliest run found is the wanted one
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
    """Have the run's dead-man's timer restore the device, if it is armed or has fired."""
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
    # the timer has given up: restore once more, from the ledger's snapshot
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
    """Make an agent restore a snapshot. Raises DeviceError."""
    answer = call(agent, "state.restore", snapshot=snapshot)
    return outcome_of(agent.device, answer, "was restored")


def _untouched(agent: Agent, device: str) -> Outcome:
    """Return the outcome of a device that no open run of this ledger names."""
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
    """Send one agent a request and wait for the answer. Raises DeviceError."""
    return agent.result(agent.post(op, **arguments), RESTORE_TIMEOUT_S)
