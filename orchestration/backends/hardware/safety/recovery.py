"""Finds runs in the ledger that ended without restoring their devices, and restores those."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from inventory.rack import Rack
from orchestration.backends.hardware.safety.ledger import Ledger, OpenRun, RunOnRack, runs_on_rack
from orchestration.backends.hardware.safety.restore_result import RestoreResult, restore_result
from orchestration.core.errors import NotReadyError, check_known
from orchestration.device.client import AgentClient, Fleet, gather, holder_name, open_agents
from orchestration.device.errors import DeviceError, DeviceGone, printable
from orchestration.device.ssh import Secrets

RESTORE_TIMEOUT_S = 60.0
_SERVICES = ("state", "deadman", "lease")
# Restoring takes seconds.
_LEASE_S = 300.0
_WHY = "closloop restore"


def restore_runs(
    rack: Rack,
    inventory: Path,
    secrets: Secrets | None = None,
    forget: Collection[str] = (),
) -> list[RestoreResult]:
    """Restore every device that can be reached; return the outcome of all, the unreachable too.

    Devices of `forget` that cannot be restored are given up, in the ledger and on the device.
    Raises NotReadyError while a run is still active, InputError for an unknown name in `forget`.
    """
    ledger = Ledger.of(rack.name, inventory)
    runs = ledger.open_runs()
    known = {*rack.access, *(device for run in runs for device in run.snapshots)}
    check_known("--forget", "no device {!r}", forget, sorted(known), "there are ")
    services = dict.fromkeys(rack.access, _SERVICES)
    agents, problems = open_agents(rack.access.values(), rack.known_hosts_file, services, secrets)
    with Fleet(agents):
        outcomes = restore_open_runs(agents, ledger, forget)
    named = {outcome.device for outcome in outcomes}
    outcomes += [
        RestoreResult(error.device, False, error.what)
        for error in problems
        if error.device not in named
    ]
    places = {device: number for number, device in enumerate(rack.access)}
    return sorted(outcomes, key=lambda outcome: places.get(outcome.device, len(places)))


def dead_runs(ledger: Ledger) -> list[OpenRun]:
    """Return the user's runs that were not closed and have ended, of all ledgers.

    A device knows a run by its nonce, so those of other racks do no harm in `heir_of`.
    """
    return [run for run in ledger.open_runs() if not run.alive]


def restore_open_runs(
    agents: Mapping[str, AgentClient], ledger: Ledger, forget: Collection[str] = ()
) -> list[RestoreResult]:
    """Restore what dead runs changed on the devices that `agents` reach.

    Returns the outcome of each device, including unreachable ones of open runs. Devices that are
    held from elsewhere are left alone. Those of `forget` that cannot be restored are given up.
    Raises NotReadyError while a run on these devices is active.
    """
    runs = ledger.open_runs()
    parts = runs_on_rack(ledger, runs, agents, RESTORE_TIMEOUT_S)
    for part in parts:
        if part.run.alive:
            raise NotReadyError(
                f"the rack is in use by {part.run.holder} since {part.run.opened_at}: nothing was "
                "restored",
                "stop that run: it restores the rack itself",
            )
    nonce = uuid4().hex
    lease = {
        "holder": holder_name("closloop restore"),
        "nonce": nonce,
        "ttl_s": _LEASE_S,
        "heir_of": [run.run for run in runs if not run.alive],
        "restoring": True,
    }
    asked = {device: (agent, ("lease.take", lease)) for device, agent in agents.items()}
    taken = gather(asked, RESTORE_TIMEOUT_S)
    refused = {d: error for d, error in taken.items() if isinstance(error, DeviceError)}
    free = {device: agent for device, agent in agents.items() if device not in refused}
    try:
        outcomes = _settle(free, ledger, parts, force=True, refused=refused, forget=forget)
        seen = {outcome.device for outcome in outcomes}
        open_ = {outcome.device for outcome in outcomes if not outcome.settled}
        for device in sorted(set(agents) - open_):
            if device not in refused:
                other = _settle_others(agents[device], device, forget)
                # what else is there is said where it needs something
                if device not in seen or not other.settled:
                    outcomes.append(other)
            elif device not in seen:
                in_use = not isinstance(refused[device], DeviceGone)
                outcomes.append(
                    RestoreResult(device, in_use, f"{refused[device].what}: left alone")
                )
    finally:
        for agent in free.values():
            with suppress(DeviceError):
                call(agent, "lease.drop", nonce=nonce)
    return outcomes


def settle_dead_runs(agents: Mapping[str, AgentClient], ledger: Ledger) -> list[RestoreResult]:
    """Before a new run, restore what dead runs changed, where that is safe.

    It is safe if the dead-man's timer has fired or can be made to fire, or if the device has
    restarted. Raises NotReadyError for a device whose changes since then are unknown. The leases
    of all devices are held.
    """
    parts = runs_on_rack(ledger, dead_runs(ledger), agents, RESTORE_TIMEOUT_S)
    return _settle(agents, ledger, parts, force=False, refused={})


def _settle(
    agents: Mapping[str, AgentClient],
    ledger: Ledger,
    parts: Sequence[RunOnRack],
    *,
    force: bool,
    refused: Mapping[str, DeviceError],
    forget: Collection[str] = (),
) -> list[RestoreResult]:
    outcomes = []
    # the latest run first: the state that the earliest run found is the wanted one
    for part in reversed(parts):
        run, left = part.run, {*part.run.snapshots, *part.run.changed} - part.run.restored
        for device in sorted(left):
            name = part.names.get(device)
            if name is None:
                # a new run has nothing to say of devices that it does not use
                if not force:
                    continue
                outcome = _elsewhere(device, run, ledger)
            elif name in refused:
                outcome = RestoreResult(name, False, f"{refused[name].what}: left alone")
            else:
                outcome = _settle_device(agents.get(name), name, device, run, ledger, force)
            if not outcome.settled and outcome.device in forget:
                outcome = RestoreResult(
                    outcome.device, True, f"was given up, as told: {outcome.how}"
                )
            outcomes.append(outcome)
            if (outcome.settled and name is not None) or outcome.device in forget:
                ledger.restored(run.run, device, outcome.differences, outcome.how)
                run.restored.add(device)
        if not left - run.restored:
            ledger.close_run(run.run)
    return outcomes


def _elsewhere(device: str, run: OpenRun, ledger: Ledger) -> RestoreResult:
    """Return the outcome for a device of a run whose others are in this inventory."""
    other = run.inventory != ledger.inventory and Path(run.inventory).exists()
    how = (
        f"is none of this inventory's devices that answer; {run.holder} did not restore it, with "
        f"{run.inventory}"
    )
    return RestoreResult(device, other, how)


def _settle_device(
    agent: AgentClient | None, name: str, device: str, run: OpenRun, ledger: Ledger, force: bool
) -> RestoreResult:
    """Settle a device that is `device` in the run, and `name` now."""
    if agent is None:
        return RestoreResult(name, False, f"cannot be reached; {run.holder} did not restore it")
    try:
        settled = _settled_by_device(agent, device, run, force)
        return settled or _settled_by_ledger(agent, device, run, ledger, force)
    except DeviceError as error:
        return RestoreResult(name, False, f"could not be restored: {error.alone.line}")


def _settled_by_device(
    agent: AgentClient, device: str, run: OpenRun, force: bool
) -> RestoreResult | None:
    """Have the device restore what the run changed, if it remembers the run."""
    status = call(agent, "deadman.status")
    armed, record = status["armed"], _record_of(status, run.run)
    if armed and armed["nonce"] == run.run and record is None:
        record = call(agent, "deadman.fire", why="a run was found dead, its timer still armed")
        how = "was restored by its dead-man's timer, told to"
    # a timer of another account is none where this run is unresolved: it could not have been armed
    elif armed and (record is None or armed.get("trusted", True)):
        return RestoreResult(agent.device, False, f"is in use by {_holder(armed)}: left alone")
    else:
        if record is None:
            return None
        how = _itself(record)
        if record["unresolved"]:
            if record["boot"] == status["boot"] and not force:
                raise _unknown(agent.device, run)
            settled = _settle_proved(agent, run, device, record)
            if settled is None:
                return None
            record, how = settled, "was restored"
        elif not record["fired_at"]:
            record, how = {"restarted": True}, ""
    outcome = restore_result(agent.device, record or {}, how)
    if outcome.settled:
        call(agent, "deadman.clear", nonce=run.run)
    return outcome


def restored_itself(agent: AgentClient, nonce: str) -> RestoreResult | None:
    """Return the outcome of a device that has restored itself completely; remove its record."""
    record = _record_of(call(agent, "deadman.status"), nonce)
    if record is None or not record["resolved"]:
        return None
    call(agent, "deadman.clear", nonce=nonce)
    return restore_result(agent.device, record, _itself(record))


def _record_of(status: Mapping[str, Any], nonce: str) -> dict[str, Any] | None:
    """Return the device's record of a run.

    Another account's is taken only where it is unresolved: that something has been restored,
    another account may only claim.
    """
    records = [
        record
        for record in status["records"]
        if record["nonce"] == nonce and (record.get("trusted", True) or record["unresolved"])
    ]
    return min(records, key=lambda record: not record.get("trusted", True), default=None)


def _settle_proved(
    agent: AgentClient, run: OpenRun, device: str, record: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Have a device restore by its record of a run, and return what that then says.

    Another account's record must be of the ledger's snapshot. If it is not, it is a copy of the
    nonce, and None is returned.
    """
    proof = {"nonce": run.run, "snapshot": run.snapshots.get(device, "")}
    try:
        settled = call(agent, "deadman.settle", why=_WHY, **proof)
    except DeviceError as error:
        if record.get("trusted", True) or isinstance(error, DeviceGone):
            raise
        return None
    return next((dict(found) for found in settled if found["nonce"] == run.run), None)


def _holder(armed: Mapping[str, Any]) -> str:
    """Return who has armed a timer; of another account, with what the device's kernel says."""
    holder = printable(str(armed.get("holder")))
    if armed.get("trusted", True):
        return holder
    account = printable(str(armed.get("account")))
    return (
        f"{holder} (account {account}, process {armed.get('pid')}; not the account of this login "
        "and not root, so it is not told to restore anything)"
    )


def _itself(record: Mapping[str, Any]) -> str:
    when, why = (printable(str(record[name])) for name in ("fired_at", "why"))
    return f"has restored itself at {when} ({why})"


def _unknown(device: str, run: OpenRun) -> NotReadyError:
    return NotReadyError(
        f"{device}: {run.holder} left it unrestored at {run.opened_at}, and it is not known what "
        "was done to it since",
        "run `closloop restore` to put back what that run found",
    )


def _settled_by_ledger(
    agent: AgentClient, device: str, run: OpenRun, ledger: Ledger, force: bool
) -> RestoreResult:
    """Restore the ledger's snapshot on a device that does not remember the run."""
    name = run.snapshots.get(device)
    if name is None or device not in run.changed:
        return RestoreResult(agent.device, True, "was not changed yet")
    snapshot = ledger.load_snapshot(name, run.run)
    if call(agent, "deadman.status")["boot"] == snapshot.get("boot") and not force:
        raise _unknown(agent.device, run)
    answer = call(agent, "state.restore", snapshot=snapshot)
    return restore_result(agent.device, answer, "was restored")


def _settle_others(agent: AgentClient, device: str, forget: Collection[str]) -> RestoreResult:
    """Settle a device as far as no open run of this user names it."""
    try:
        status = call(agent, "deadman.status")
        if status["armed"]:
            holder = _holder(status["armed"])
            return RestoreResult(
                device, True, f"is in use by {holder}, of another ledger: left alone"
            )
        settled = _settle_all(agent, give_up=device in forget)
    except DeviceError as error:
        return RestoreResult(device, False, error.alone.line)
    if settled is None:
        return RestoreResult(device, True, "what was left on it was given up, as told")
    for record in settled:
        holder = printable(str(record["holder"]))
        return restore_result(device, record, f"was restored after {holder} fell silent")
    for record in status["records"]:
        if record.get("trusted", True):
            holder, when = (printable(str(record[name])) for name in ("holder", "fired_at"))
            return restore_result(
                device, record, f"has restored itself at {when} after {holder} fell silent"
            )
    return RestoreResult(device, True, "has nothing to restore")


def _settle_all(agent: AgentClient, *, give_up: bool) -> Sequence[Mapping[str, Any]] | None:
    """Have a device restore all that is left on it; return its records, None if it gave up some."""
    try:
        settled: Sequence[Mapping[str, Any]] = call(agent, "deadman.settle", why=_WHY)
        if not give_up or all(record["resolved"] for record in settled):
            return settled
    except DeviceError as error:
        if not give_up or isinstance(error, DeviceGone):
            raise
    call(agent, "deadman.forget")
    return None


def call(agent: AgentClient, op: str, **arguments: Any) -> Any:
    """Send one agent a request and wait for the answer. Raises DeviceError."""
    return agent.result(agent.post(op, **arguments), RESTORE_TIMEOUT_S)
