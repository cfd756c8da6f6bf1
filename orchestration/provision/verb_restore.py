"""`closloop restore`: puts a rack back as it was before runs and provisioning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import InventoryArgument, Json, Passwords, enter_virtual_rack, verb
from orchestration.cli.terminal import print_json
from orchestration.render.table import Row, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from orchestration.backends.hardware.safety.outcomes import Outcome


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
    from orchestration.provision.verb_provision import show_provisioning

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


def _show_restored(outcomes: list[Outcome]) -> None:
    rows = [
        Row([o.device, o.how, str(len(o.changed) or "")], style="" if o.settled else "bad")
        for o in outcomes
    ]
    show(table(("device", "", "put back"), (), rows, "runs"))
    show(*(outcome.text for outcome in outcomes if outcome.differences))


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "device": outcome.device,
        "settled": outcome.settled,
        "how": outcome.how,
        "changed": list(outcome.changed),
        "differences": [dict(item) for item in outcome.differences],
    }
