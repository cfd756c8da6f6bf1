"""`closloop provision` and `restore`: a rack into the state that experiments need, and back."""

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
    verify: Annotated[bool, "Change nothing; fail where a device differs."] = False,
    undo: Annotated[bool, "Put back what was there before provisioning."] = False,
    check: Annotated[bool, "Change nothing; show what would be changed."] = False,
    limit: Annotated[
        str, typer.Option(metavar="DEVICES", help="Only these devices, with commas between.")
    ] = "",
    undo_on_failure: Annotated[
        bool, "If a device fails, undo it and those changed in this run."
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
            help="Do nothing but write an inventory to run the playbooks on by hand.",
        ),
    ] = None,
    passwords: Passwords,
    as_json: Json = False,
) -> None:
    """Bring a rack's devices into the state that experiments need; it can be undone.

    Run twice, it changes nothing the second time. A device that fails does not stop the others.
    """
    from inventory.ansible import load_rack
    from orchestration.provision import run
    from orchestration.provision.desired import RoceSettings

    enter_virtual_rack(inventory)
    what = _what(verify, undo, check)
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
    taken_back: ProvisionResult | None = None
    if result.failed and undo_on_failure and what == "provision" and not check:
        again = sorted({*result.failed, *result.changed})
        taken_back = show_provisioning(rack, "undo", secrets, quiet=True, limit=again)
    if as_json:
        undone = {"undo": taken_back.to_json()} if taken_back else {}
        print_json({**result.to_json(), **undone}, indent=2)
    else:
        _show(result, check=check)
        if taken_back is not None:
            _show(taken_back)
        elif result.failed and what == "provision" and not check:
            typer.echo(f"what was changed stays; to undo: closloop provision {inventory} --undo")
    if result.failed:
        raise typer.Exit(_NOT_READY)


def show_provisioning(
    rack: Rack, what: What, secrets: Secrets, *, quiet: bool = False, **more: Any
) -> ProvisionResult:
    """Provision, showing progress and, unless `quiet`, the result; `more` goes to the function."""
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


def _what(verify: bool, undo: bool, check: bool) -> What:
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
        yield _say_plainly
        return
    from rich.console import Console
    from rich.live import Live

    steps: dict[str, Step] = {}
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=10) as live:

        def show(step: Step) -> None:
            steps[step.device] = step
            live.update(renderable(steps_table(steps)))

        yield show


def _say_plainly(step: Step) -> None:
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
        show(f"left out on {devices}: {step}: {reason}")
    for name in result.failed:
        show(str(result.devices[name].problem))
    show(f"{_verdict(result, check)}, {result.took.in_words()}")


def _verdict(result: ProvisionResult, check: bool) -> str:
    good = len(result.devices) - len(result.failed)
    done = {"provision": "in their state", "verify": "in their state", "undo": "as they were"}
    would = "would be changed" if check else "changed"
    return (
        f"{good} of {len(result.devices)} devices {'checked' if check else done[result.what]}, "
        f"{len(result.changed)} {would}"
    )


def result_table(result: ProvisionResult) -> Table:
    """Return the result: a row per device."""
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
    return table(("device", ""), ("tasks", "changed", "settings", "left out", seconds), rows)


def skipped_steps(result: ProvisionResult) -> list[tuple[str, str, str]]:
    """Return the skipped steps: step, reason, and devices, which may be many."""
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
        bool, "Put back what runs left; keep deployed policies and what provisioning made."
    ] = False,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE",
            help="Give up what cannot be put back on this device: it was replaced, or another "
            "account's record on it is not believed. Repeatable.",
        ),
    ] = None,
    passwords: Passwords,
    as_json: Json = False,
) -> None:
    """Put a rack back as it was found: what dead runs left, deployed policies, provisioning.

    Only what the ledger and provisioning's own records name is touched. Runs restore what they
    change themselves; this is for those that could not. A device that is not the one a run was on,
    by its machine id or MAC addresses, is refused, and what another account has left on a device is
    obeyed only if the ledger has it: `--forget` closes such entries and restores nothing.

    Exit code: 0 everything is as it was, 1 a device is not, 3 a run still goes on.
    """
    from inventory.ansible import load_rack
    from orchestration.backends.hardware.safety.recovery import restore_runs
    from orchestration.provision.policies import restore_on_rack
    from orchestration.provision.verb_deploy import show_hosts

    enter_virtual_rack(inventory)
    rack = load_rack(inventory)
    secrets = passwords.secrets()
    outcomes = restore_runs(rack, inventory, secrets, forget or ())
    data: dict[str, Any] = {"runs": [_as_json(outcome) for outcome in outcomes]}
    good = all(outcome.settled for outcome in outcomes)
    if not as_json:
        _show_restored(outcomes)
    if good and not runs_only:
        policies = restore_on_rack(rack, inventory, secrets=secrets)
        data["policies"] = [host.to_json() for host in policies]
        good = not any(host.error for host in policies)
        if not as_json and not good:
            show_hosts(policies)
    if good and not runs_only:
        result = show_provisioning(rack, "undo", secrets, quiet=as_json)
        data["provisioning"] = result.to_json()
        good = not result.failed
    if as_json:
        print_json(data)
    raise typer.Exit(0 if good else 1)


def _show_restored(outcomes: list[RestoreResult]) -> None:
    rows = [
        Row([o.device, o.how, str(len(o.changed) or "")], style="" if o.settled else "bad")
        for o in outcomes
    ]
    show(table(("device", "", "put back"), (), rows, "runs"))
    show(*(outcome.text for outcome in outcomes if outcome.differences))


def _as_json(outcome: RestoreResult) -> dict[str, Any]:
    return {
        "device": outcome.device,
        "settled": outcome.settled,
        "how": outcome.how,
        "changed": list(outcome.changed),
        "differences": [dict(item) for item in outcome.differences],
    }
