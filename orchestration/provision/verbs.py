"""`closloop provision` brings a rack into the state that experiments need; `restore` undoes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import InventoryArgument, Json, Passwords, enter_virtual_rack, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError
from orchestration.render.table import Row, Span, Style, Table, strong, table
from orchestration.render.terminal import renderable, show

if TYPE_CHECKING:
    from inventory.rack import Rack
    from orchestration.backends.hardware.safety.restore_result import RestoreResult
    from orchestration.device.ssh import Secrets
    from orchestration.provision.outcome import ProvisionResult, Step
    from orchestration.provision.run import What

_NOT_READY = 3


@verb(
    "Examples:  closloop provision rack.yml  |  closloop provision rack.yml --verify  |  "
    "closloop provision rack.yml --check --limit leaf1,h1  |  closloop provision rack.yml --undo"
)
def provision(
    inventory: InventoryArgument,
    *,
    verify: Annotated[bool, "Change nothing; fail if a device differs."] = False,
    undo: Annotated[bool, "Restore the settings from before provisioning."] = False,
    check: Annotated[bool, "Change nothing; show what would be changed."] = False,
    limit: Annotated[
        str, typer.Option(metavar="DEVICES", help="Only these devices, separated by commas.")
    ] = "",
    undo_on_failure: Annotated[
        bool, "If a device fails, undo it and the devices changed in this run."
    ] = False,
    dcqcn: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a DCQCN parameter, such as rp_ai_rate=5."),
    ] = None,
    install_collector: Annotated[bool, "Install InfluxDB and Grafana on the collector."] = False,
    save_inventory: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Only write an inventory for running the playbooks by hand.",
        ),
    ] = None,
    passwords: Passwords,
    as_json: Json = False,
) -> None:
    """Bring a rack's devices into the state that experiments need; it can be undone.

    A second run changes nothing. A device that fails does not stop the others.
    """
    from inventory.ansible import load_rack
    from orchestration.provision import run
    from orchestration.provision.desired import RoceSettings

    enter_virtual_rack(inventory)
    what = _kind_of_run(verify, undo, check)
    roce = RoceSettings(dcqcn=parameters(dcqcn or []))
    rack = load_rack(inventory)
    if save_inventory is not None:
        run.save_inventory(rack, save_inventory, roce=roce)
        typer.echo(
            f"written: {save_inventory}; run it in {run.PLAYBOOKS_FOLDER}: "
            f"ansible-playbook -i {save_inventory.absolute()} site.yml"
        )
        return
    secrets = passwords.secrets()
    devices = [name.strip() for name in limit.split(",") if name.strip()]
    result = show_provisioning(
        rack,
        what,
        secrets,
        quiet=True,
        limit=devices,
        check=check,
        roce=roce,
        install_collector=install_collector,
    )
    undo_result: ProvisionResult | None = None
    if result.failed and undo_on_failure and what == "provision" and not check:
        to_undo = sorted({*result.failed, *result.changed})
        undo_result = show_provisioning(rack, "undo", secrets, quiet=True, limit=to_undo)
    if as_json:
        undo_data = {"undo": undo_result.to_json()} if undo_result else {}
        print_json({**result.to_json(), **undo_data}, indent=2)
    else:
        _show(result, check=check)
        if undo_result is not None:
            _show(undo_result)
        elif result.failed and what == "provision" and not check:
            typer.echo(f"what was changed stays; to undo it: closloop provision {inventory} --undo")
    if result.failed:
        raise typer.Exit(_NOT_READY)


def show_provisioning(
    rack: Rack, what: What, secrets: Secrets, *, quiet: bool = False, **more: Any
) -> ProvisionResult:
    """Provision and show the progress and, unless `quiet`, the result.

    `more` are further arguments of `orchestration.provision.run.provision`.
    """
    from orchestration.provision.run import provision as run_playbooks

    with _progress() as listener:
        result = run_playbooks(rack, what, secrets=secrets, listener=listener, **more)
    if not quiet:
        _show(result)
    return result


def parameters(texts: list[str]) -> dict[str, int]:
    """Parse DCQCN parameters from `name=value` texts. Raises InputError."""
    result = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name.isidentifier() and value.isdecimal()):
            raise InputError.single(
                "--dcqcn", f"{text!r} is not NAME=VALUE", "write it like rp_ai_rate=5"
            )
        result[name] = int(value)
    return result


def _kind_of_run(verify: bool, undo: bool, check: bool) -> What:
    if verify and undo:
        raise InputError.single("--verify, --undo", "they exclude each other", "leave one out")
    if verify and check:
        raise InputError.single(
            "--verify, --check", "neither changes anything", "leave one of them out"
        )
    return "verify" if verify else "undo" if undo else "provision"


_STYLES: dict[str, Style] = {
    "running": "",
    "changed": "warning",
    "unchanged": "good",
    "failed": "bad",
}


@contextmanager
def _progress() -> Iterator[Callable[[Step], None]]:
    """Show each device's step on standard error: live on a terminal, else a line per step."""
    if not sys.stderr.isatty():
        yield _print_step
        return
    from rich.console import Console
    from rich.live import Live

    steps: dict[str, Step] = {}
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=10) as live:

        def show(step: Step) -> None:
            steps[step.device] = step
            live.update(renderable(steps_table(steps)))

        yield show


def _print_step(step: Step) -> None:
    if step.state != "running":
        print(f"{step.device}: {step.task}: {step.state}", file=sys.stderr, flush=True)


def steps_table(steps: dict[str, Step]) -> Table:
    """Return each device's latest step."""
    rows = [
        [device, Span(step.state, _STYLES[step.state]), step.task]
        for device, step in sorted(steps.items())
    ]
    return table(("", "", ""), (), rows, heads=False)


def _show(result: ProvisionResult, *, check: bool = False) -> None:
    show(result_table(result))
    for device in result.devices.values() if check else ():
        show(*(f"{device.device}: {line}" for line in device.changes))
    for step, reason, devices in skipped_steps(result):
        show(f"skipped on {devices}: {step}: {reason}")
    for name in result.failed:
        show(str(result.devices[name].problem))
    show(f"{_verdict(result, check)}, {result.took.in_words()}")


def _verdict(result: ProvisionResult, check: bool) -> str:
    succeeded = len(result.devices) - len(result.failed)
    states = {
        "provision": "in the desired state",
        "verify": "in the desired state",
        "undo": "restored",
    }
    state = "checked" if check else states[result.what]
    would = "would be changed" if check else "changed"
    return f"{succeeded} of {len(result.devices)} devices {state}, {len(result.changed)} {would}"


def result_table(result: ProvisionResult) -> Table:
    """Return the result as a table with a row per device."""
    seconds = "virtual s" if result.took.virtual else "seconds"
    rows = [
        [
            strong(device.device),
            Span("failed", "bad") if device.failure else "",
            str(device.tasks),
            str(device.changed),
            str(len(device.changes)),
            str(len(device.skipped)),
            f"{device.seconds:.1f}",
        ]
        for device in result.devices.values()
    ]
    return table(("device", ""), ("tasks", "changed", "settings", "skipped", seconds), rows)


def skipped_steps(result: ProvisionResult) -> list[tuple[str, str, str]]:
    """Return each skipped step with the reason and the names of the devices."""
    devices: dict[tuple[str, str], list[str]] = {}
    for device in result.devices.values():
        for skipped in device.skipped:
            devices.setdefault((skipped.step, skipped.reason), []).append(device.device)
    return [(step, reason, ", ".join(names)) for (step, reason), names in devices.items()]


@verb(
    "Examples:  closloop restore rack.yml  |  closloop restore rack.yml --runs-only  |  "
    "closloop restore rack.yml --forget leaf1"
)
def restore(
    inventory: InventoryArgument,
    *,
    runs_only: Annotated[
        bool, "Restore only after runs; keep deployed policies and provisioning."
    ] = False,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE",
            help="Discard what cannot be restored on this device, because it was replaced or has "
            "another account's record that is not trusted. Repeatable.",
        ),
    ] = None,
    passwords: Passwords,
    as_json: Json = False,
) -> None:
    """Restore a rack after dead runs, and undo deployed policies and provisioning.

    Only settings that the ledger and provisioning's own records name are changed. Runs restore what
    they change themselves; this is for runs that could not. A device is refused if its machine id
    or MAC addresses show that it is not the one of the run. A record that another account has left
    on a device is used only if the ledger has it. `--forget` closes such entries without restoring.

    Exit code: 0 everything is restored, 1 a device is not, 3 a run still goes on.
    """
    from inventory.ansible import load_rack
    from orchestration.backends.hardware.safety.recovery import restore_runs
    from orchestration.provision.policies import restore_on_rack
    from orchestration.provision.verb_deploy import show_reports

    enter_virtual_rack(inventory)
    rack = load_rack(inventory)
    secrets = passwords.secrets()
    outcomes = restore_runs(rack, inventory, secrets, forget or ())
    data: dict[str, Any] = {"runs": [_as_json(outcome) for outcome in outcomes]}
    succeeded = all(outcome.settled for outcome in outcomes)
    if not as_json:
        _show_restored(outcomes)
    if succeeded and not runs_only:
        policies = restore_on_rack(rack, inventory, secrets=secrets)
        data["policies"] = [host.to_json() for host in policies]
        succeeded = not any(host.error for host in policies)
        if not as_json and not succeeded:
            show_reports(policies)
    if succeeded and not runs_only:
        result = show_provisioning(rack, "undo", secrets, quiet=as_json)
        data["provisioning"] = result.to_json()
        succeeded = not result.failed
    if as_json:
        print_json(data)
    raise typer.Exit(0 if succeeded else 1)


def _show_restored(outcomes: list[RestoreResult]) -> None:
    rows = [
        Row([o.device, o.how, str(len(o.changed) or "")], style="" if o.settled else "bad")
        for o in outcomes
    ]
    show(table(("device", "", "restored"), (), rows, "runs"))
    show(*(outcome.text for outcome in outcomes if outcome.differences))


def _as_json(outcome: RestoreResult) -> dict[str, Any]:
    return {
        "device": outcome.device,
        "settled": outcome.settled,
        "how": outcome.how,
        "changed": list(outcome.changed),
        "differences": [dict(item) for item in outcome.differences],
    }
