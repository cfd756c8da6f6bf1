"""Finds runs in the ledger that ended without restoring their devices, and restores those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from inventory.rack import Rack
from orchestration.backends.hardware.safety.ledger import Ledger, OpenRun
from orchestration.device.agent.state import RESTORABLE
from orchestration.device.client import open_agents
from orchestration.device.errors import DeviceError, DeviceGone, printable
from orchestration.device.fleet import Agent, Fleet, gather
from orchestration.device.holder import holder_name
from orchestration.device.ssh import Secrets
from orchestration.model.errors import NotReadyError

RESTORE_TIMEOUT_S = 60.0
_SERVICES = ("state", "deadman", "lease")
# Parts of a snapshot that runs do not change.
_OTHERS = ("fingerprint", "new row", "saved row")
_SHOWN = 5
# Restoring takes seconds.
_LEASE_S = 300.0
_WHY = "closloop restore"


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
        how = "has restarted since"
        how += "" if answer.get("changed") else ", so nothing of the run is left on it"
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
    if difference["part"] == "new row":
        return f"{where} was added meanwhile, not by this run"
    if difference["part"] == "lost row":
        return (
            f"{where} is gone: the switch's configuration was loaded anew, or somebody removed it"
        )
    if difference["part"] == "saved row":
        return (
            f"{where} has this run's thresholds in {difference['what']}, since somebody saved the "
            "configuration meanwhile: do it again now (config save)"
        )
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


def dead_runs(ledger: Ledger) -> list[OpenRun]:
    """Return the runs that were not closed and have ended."""
    return [run for run in ledger.open_runs() if not run.alive]


def restore_open_runs(agents: Mapping[str, Agent], ledger: Ledger) -> list[Outcome]:
    """Restore what dead runs changed on the devices that `agents` reach.

    Returns the outcome of each device, including unreachable ones of open runs. Devices that are
    held from elsewhere are left alone. Raises NotReadyError while a run of this ledger is active.
    """
    runs = ledger.open_runs()
    for run in runs:
        if run.alive:
            raise NotReadyError(
                f"the rack is in use by {run.holder} since {run.opened_at}: nothing was restored",
                "stop that run: it restores the rack itself",
            )
    nonce = uuid4().hex
    lease = {
        "holder": holder_name("closloop restore"),
        "nonce": nonce,
        "ttl_s": _LEASE_S,
        "heir_of": [run.run for run in runs],
        "restoring": True,
    }
    asked = {device: (agent, ("lease.take", lease)) for device, agent in agents.items()}
    taken = gather(asked, RESTORE_TIMEOUT_S)
    refused = {d: error for d, error in taken.items() if isinstance(error, DeviceError)}
    free = {device: agent for device, agent in agents.items() if device not in refused}
    try:
        outcomes = _settle(free, ledger, runs, force=True, refused=refused)
        seen = {outcome.device for outcome in outcomes}
        for device in sorted(set(agents) - seen):
            if device in refused:
                in_use = not isinstance(refused[device], DeviceGone)
                said_ = f"{refused[device].what}: left alone"
                outcomes.append(Outcome(device, in_use, said_))
            else:
                outcomes.append(_settle_others(agents[device], device))
    finally:
        for agent in free.values():
            with suppress(DeviceError):
                call(agent, "lease.drop", nonce=nonce)
    return outcomes


def settle_dead_runs(agents: Mapping[str, Agent], ledger: Ledger) -> list[Outcome]:
    """Before a new run, restore what dead runs changed, where that is safe.

    It is safe if the dead-man's timer has fired or can be made to fire, or if the device has
    restarted. Raises NotReadyError for a device whose changes since then are unknown. The leases
    of all devices are held.
    """
    return _settle(agents, ledger, dead_runs(ledger), force=False, refused={})


def _settle(
    agents: Mapping[str, Agent],
    ledger: Ledger,
    runs: list[OpenRun],
    *,
    force: bool,
    refused: Mapping[str, DeviceError],
) -> list[Outcome]:
    outcomes = []
    # the latest run first: the state that the earliest run found is the wanted one
    for run in reversed(runs):
        found = []
        for device in sorted({*run.snapshots, *run.changed} - run.restored):
            if device in refused:
                outcome = Outcome(device, False, f"{refused[device].what}: left alone")
            else:
                outcome = _settle_device(agents.get(device), device, run, ledger, force)
            found.append(outcome)
            if outcome.settled:
                ledger.restored(run.run, device, outcome.differences, outcome.how)
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
        return _settled_by_device(agent, run, force) or _settled_by_ledger(
            agent, run, ledger, force
        )
    except DeviceError as error:
        return Outcome(device, False, f"could not be restored: {error.what}")


def _settled_by_device(agent: Agent, run: OpenRun, force: bool) -> Outcome | None:
    """Have the device restore what the run changed, if it remembers the run."""
    status = call(agent, "deadman.status")
    armed = status["armed"]
    if armed and armed["nonce"] == run.run:
        record = call(agent, "deadman.fire", why="a run was found dead, its timer still armed")
        how = "was restored by its dead-man's timer, told to"
    elif armed:
        holder = printable(str(armed.get("holder")))
        return Outcome(agent.device, False, f"is in use by {holder}: left alone")
    else:
        record = _record_of(status, run.run)
        if record is None:
            return None
        how = _itself(record)
        if record["unresolved"]:
            if record["boot"] == status["boot"] and not force:
                raise _unknown(agent.device, run)
            record = _record_of({"records": call(agent, "deadman.settle", why=_WHY)}, run.run)
            how = "was restored"
        elif not record["fired_at"]:
            record, how = {"restarted": True}, ""
    outcome = outcome_of(agent.device, record or {}, how)
    if outcome.settled:
        call(agent, "deadman.clear", nonce=run.run)
    return outcome


def restored_itself(agent: Agent, nonce: str) -> Outcome | None:
    """Return the outcome of a device that has restored itself completely; remove its record."""
    record = _record_of(call(agent, "deadman.status"), nonce)
    if record is None or not record["resolved"]:
        return None
    call(agent, "deadman.clear", nonce=nonce)
    return outcome_of(agent.device, record, _itself(record))


def _record_of(status: Mapping[str, Any], nonce: str) -> dict[str, Any] | None:
    return next((record for record in status["records"] if record["nonce"] == nonce), None)


def _itself(record: Mapping[str, Any]) -> str:
    when, why = (printable(str(record[name])) for name in ("fired_at", "why"))
    return f"has restored itself at {when} ({why})"


def _unknown(device: str, run: OpenRun) -> NotReadyError:
    return NotReadyError(
        f"{device}: {run.holder} left it unrestored at {run.opened_at}, and it is not known what "
        "was done to it since",
        "run `closloop restore` to put back what that run found",
    )


def _settled_by_ledger(agent: Agent, run: OpenRun, ledger: Ledger, force: bool) -> Outcome:
    """Restore the ledger's snapshot on a device that does not remember the run."""
    name = run.snapshots.get(agent.device)
    if name is None or agent.device not in run.changed:
        return Outcome(agent.device, True, "was not changed yet")
    snapshot = ledger.load_snapshot(name)
    if call(agent, "deadman.status")["boot"] == snapshot.get("boot") and not force:
        raise _unknown(agent.device, run)
    answer = call(agent, "state.restore", snapshot=snapshot)
    return outcome_of(agent.device, answer, "was restored")


def _settle_others(agent: Agent, device: str) -> Outcome:
    """Settle a device that no open run of this ledger names."""
    try:
        status = call(agent, "deadman.status")
        if status["armed"]:
            holder = printable(str(status["armed"].get("holder")))
            return Outcome(device, True, f"is in use by {holder}, of another ledger: left alone")
        for record in call(agent, "deadman.settle", why=_WHY):
            holder = printable(str(record["holder"]))
            return outcome_of(device, record, f"was restored after {holder} fell silent")
    except DeviceError as error:
        return Outcome(device, False, error.what)
    for record in status["records"]:
        holder, when = (printable(str(record[name])) for name in ("holder", "fired_at"))
        return outcome_of(
            device, record, f"has restored itself at {when} after {holder} fell silent"
        )
    return Outcome(device, True, "has nothing to restore")


def call(agent: Agent, op: str, **arguments: Any) -> Any:
    """Send one agent a request and wait for the answer. Raises DeviceError."""
    return agent.result(agent.post(op, **arguments), RESTORE_TIMEOUT_S)
