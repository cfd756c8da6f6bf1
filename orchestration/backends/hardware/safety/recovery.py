"""Finds dead runs in the ledger, which ended without restoring their devices, and restores these.

To *settle* a device is to restore it, or to find out that there is nothing to restore. First the
device is asked: if it remembers the run, it restores itself by its own snapshot. Otherwise the
ledger's snapshot is used.
"""

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
    """Restore every device that can be reached; return the results of all, also the unreachable.

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
    order = {device: number for number, device in enumerate(rack.access)}
    return sorted(outcomes, key=lambda outcome: order.get(outcome.device, len(order)))


def dead_runs(ledger: Ledger) -> list[OpenRun]:
    """Return the user's runs, of all ledgers, that were not closed although they have ended.

    Devices know a run by its nonce, so it does no harm to name runs on other racks in `heir_of`.
    """
    return [run for run in ledger.open_runs() if not run.alive]


def restore_open_runs(
    agents: Mapping[str, AgentClient], ledger: Ledger, forget: Collection[str] = ()
) -> list[RestoreResult]:
    """Restore what dead runs changed on the devices that `agents` reach.

    Returns the result of each device, including unreachable ones of open runs. Devices that another
    run holds are left alone. Those of `forget` that cannot be restored are given up. Raises
    NotReadyError while a run on these devices is active.
    """
    runs = ledger.open_runs()
    parts = runs_on_rack(ledger, runs, agents, RESTORE_TIMEOUT_S)
    for part in parts:
        if part.run.alive:
            raise NotReadyError(
                f"the rack has been in use by {part.run.holder} since {part.run.opened_at}: "
                "nothing was restored",
                "stop that run: it then restores the rack itself",
            )
    nonce = uuid4().hex
    refused = _take_leases(agents, nonce, [run.run for run in runs if not run.alive])
    free = {device: agent for device, agent in agents.items() if device not in refused}
    try:
        outcomes = _settle(free, ledger, parts, force=True, refused=refused, forget=forget)
        reported = {outcome.device for outcome in outcomes}
        unsettled = {outcome.device for outcome in outcomes if not outcome.settled}
        for device in sorted(set(agents) - unsettled):
            if device not in refused:
                other = _settle_others(agents[device], device, forget)
                # a device has a second result only if that one needs something
                if device not in reported or not other.settled:
                    outcomes.append(other)
            elif device not in reported:
                in_use = not isinstance(refused[device], DeviceGone)
                outcomes.append(
                    RestoreResult(device, in_use, f"{refused[device].what}: left alone")
                )
    finally:
        for agent in free.values():
            with suppress(DeviceError):
                call(agent, "lease.drop", nonce=nonce)
    return outcomes


def _take_leases(
    agents: Mapping[str, AgentClient], nonce: str, heir_of: Sequence[str]
) -> dict[str, DeviceError]:
    """Take a lease on every device for a restore; return the errors of devices that refuse it.

    The lease replaces those of the runs `heir_of`.
    """
    lease = {
        "holder": holder_name("closloop restore"),
        "nonce": nonce,
        "ttl_s": _LEASE_S,
        "heir_of": list(heir_of),
        "restoring": True,
    }
    requests = {device: (agent, ("lease.take", lease)) for device, agent in agents.items()}
    answers = gather(requests, RESTORE_TIMEOUT_S)
    return {device: error for device, error in answers.items() if isinstance(error, DeviceError)}


def settle_dead_runs(agents: Mapping[str, AgentClient], ledger: Ledger) -> list[RestoreResult]:
    """Before a new run, restore what dead runs changed, where that is safe.

    It is safe if the dead-man's timer has fired or can be made to fire, or if the device has
    restarted. Raises NotReadyError for a device that somebody may have changed since. The caller
    must hold the leases of all devices.
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
    """Settle the devices of dead runs, in the ledger too; return their results.

    With `force`, a device is restored although somebody may have changed it since. `refused` has
    the errors of devices whose lease could not be taken.
    """
    outcomes = []
    # the latest run first: the state before the earliest run is to be restored in the end
    for part in reversed(parts):
        run, open_devices = part.run, {*part.run.snapshots, *part.run.changed} - part.run.restored
        for device in sorted(open_devices):
            name = part.names.get(device)
            if name is None:
                # a new run does not report devices that it does not use
                if not force:
                    continue
                outcome = _elsewhere(device, run, ledger)
            elif name in refused:
                outcome = RestoreResult(name, False, f"{refused[name].what}: left alone")
            else:
                outcome = _settle_device(agents.get(name), name, device, run, ledger, force)
            if not outcome.settled and outcome.device in forget:
                outcome = RestoreResult(
                    outcome.device, True, f"was given up, as requested: {outcome.how}"
                )
            outcomes.append(outcome)
            if (outcome.settled and name is not None) or outcome.device in forget:
                ledger.restored(run.run, device, outcome.differences, outcome.how)
                run.restored.add(device)
        if not open_devices - run.restored:
            ledger.close_run(run.run)
    return outcomes


def _elsewhere(device: str, run: OpenRun, ledger: Ledger) -> RestoreResult:
    """Return the result for a device of a run that only has other devices in this inventory."""
    in_other_inventory = run.inventory != ledger.inventory and Path(run.inventory).exists()
    how = (
        "is not among the devices of this inventory that answer; a run with the inventory "
        f"{run.inventory} has not restored it: {run.holder}"
    )
    return RestoreResult(device, in_other_inventory, how)


def _settle_device(
    agent: AgentClient | None, name: str, device: str, run: OpenRun, ledger: Ledger, force: bool
) -> RestoreResult:
    """Settle a device that was called `device` in the run, and is called `name` now."""
    if agent is None:
        return RestoreResult(name, False, f"cannot be reached; {run.holder} has not restored it")
    try:
        settled = _settled_by_device(agent, device, run, force)
        return settled or _settled_by_ledger(agent, device, run, ledger, force)
    except DeviceError as error:
        return RestoreResult(name, False, f"could not be restored: {error.alone.line}")


def _settled_by_device(
    agent: AgentClient, device: str, run: OpenRun, force: bool
) -> RestoreResult | None:
    """Let the device restore what the run changed; return None if it does not remember the run."""
    status = call(agent, "deadman.status")
    armed, record = status["armed"], _record_of(status, run.run)
    if armed and armed["nonce"] == run.run and record is None:
        record = call(agent, "deadman.fire", why="a run was found dead, its timer still armed")
        how = "was restored by its dead-man's timer, on request"
    # another account cannot arm a timer while this run is unresolved: such a timer is ignored
    elif armed and (record is None or armed.get("trusted", True)):
        holder = _describe_holder(armed)
        return RestoreResult(agent.device, False, f"is in use by {holder}: left alone")
    else:
        if record is None:
            return None
        how = _describe_self_restore(record)
        if record["unresolved"]:
            if record["boot"] == status["boot"] and not force:
                raise _unknown_changes(agent.device, run)
            settled = _settle_by_record(agent, run, device, record)
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
    """Return the result of a device that has restored itself completely, and clear its record.

    Returns None if it has not, or has no record of the run with this nonce.
    """
    record = _record_of(call(agent, "deadman.status"), nonce)
    if record is None or not record["resolved"]:
        return None
    call(agent, "deadman.clear", nonce=nonce)
    return restore_result(agent.device, record, _describe_self_restore(record))


def _record_of(status: Mapping[str, Any], nonce: str) -> dict[str, Any] | None:
    """Return the device's record of a run, None if it has none.

    A record that another account wrote is used only if it is unresolved: if it says that the device
    was restored, that may be a false claim.
    """
    records = [
        record
        for record in status["records"]
        if record["nonce"] == nonce and (record.get("trusted", True) or record["unresolved"])
    ]
    return min(records, key=lambda record: not record.get("trusted", True), default=None)


def _settle_by_record(
    agent: AgentClient, run: OpenRun, device: str, record: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Let a device restore itself by its record of a run; return the record afterwards.

    A record that another account wrote must have the ledger's snapshot. If it has not, somebody has
    copied the nonce, and None is returned.
    """
    proof = {"nonce": run.run, "snapshot": run.snapshots.get(device, "")}
    try:
        settled = call(agent, "deadman.settle", why=_WHY, **proof)
    except DeviceError as error:
        if record.get("trusted", True) or isinstance(error, DeviceGone):
            raise
        return None
    return next((dict(each) for each in settled if each["nonce"] == run.run), None)


def _describe_holder(armed: Mapping[str, Any]) -> str:
    """Return who has armed a timer; for another account, with what the device's kernel reports."""
    holder = printable(str(armed.get("holder")))
    if armed.get("trusted", True):
        return holder
    account = printable(str(armed.get("account")))
    return (
        f"{holder} (account {account}, process {armed.get('pid')}; neither the account of this "
        "login nor root, so it is not asked to restore anything)"
    )


def _describe_self_restore(record: Mapping[str, Any]) -> str:
    when, why = (printable(str(record[name])) for name in ("fired_at", "why"))
    return f"has restored itself at {when} ({why})"


def _unknown_changes(device: str, run: OpenRun) -> NotReadyError:
    return NotReadyError(
        f"{device}: {run.holder}, begun at {run.opened_at}, has not restored it, and it is not "
        "known what was changed on it since",
        "run `closloop restore` to put back the settings that it had before that run",
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
        raise _unknown_changes(agent.device, run)
    answer = call(agent, "state.restore", snapshot=snapshot)
    return restore_result(agent.device, answer, "was restored")


def _settle_others(agent: AgentClient, device: str, forget: Collection[str]) -> RestoreResult:
    """Settle what runs that are not in this user's ledgers have left on a device."""
    try:
        status = call(agent, "deadman.status")
        if status["armed"]:
            holder = _describe_holder(status["armed"])
            return RestoreResult(
                device, True, f"is in use by {holder}, of another ledger: left alone"
            )
        settled = _settle_all(agent, give_up=device in forget)
    except DeviceError as error:
        return RestoreResult(device, False, error.alone.line)
    if settled is None:
        return RestoreResult(device, True, "what was left on it was given up, as requested")
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
    """Let a device restore everything that is left on it; return its records of that.

    With `give_up`, it forgets what it cannot restore: then None is returned.
    """
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
