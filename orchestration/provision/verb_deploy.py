"""`closloop deploy` deploys a congestion control by name, for campaigns or on a rack's hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.compile import check_loads
from orchestration.cli.options import Json, Passwords, enter_virtual_rack, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError
from orchestration.core.problems import Problem

if TYPE_CHECKING:
    from orchestration.provision.policies import HostPolicy

Rack = Annotated[
    Path | None,
    typer.Option("--inventory", "-i", help="On this rack's hosts, instead of for campaigns."),
]


@verb(
    "Examples:  closloop deploy my_policy.c --name edge  |  closloop deploy model.json  |  "
    "closloop deploy --undo edge  |  closloop deploy --list  |  "
    "closloop deploy model.json --name edge -i rack.yml  |  closloop deploy --status -i rack.yml"
)
def deploy(
    source: Annotated[Path | None, typer.Argument(help="my_policy.c, or model.json.")] = None,
    name: Annotated[str, "Name to deploy it under; default: the file's name."] = "",
    undo: Annotated[str, "Put the version before in force again, of this name."] = "",
    show: Annotated[bool, "--list", "Show what is deployed for campaigns."] = False,
    *,
    status: Annotated[bool, "With -i: show what the hosts and NICs report."] = False,
    inventory: Rack = None,
    limit: Annotated[
        str, typer.Option(metavar="HOSTS", help="Only these hosts, separated by commas.")
    ] = "",
    base_rtt: Annotated[str, "With -i: the base RTT, like 12us; default: the smallest seen."] = "",
    passwords: Passwords,
    as_json: Json = False,
) -> None:
    """Put a congestion control in force, for campaigns or on a rack's hosts; reversible.

    A campaign uses it by `host: {congestion_control: {program: deployed:NAME, parameters: […]}}`.
    With an inventory, a model runs on its hosts: in BlueField-3 NICs (closloop_pcc) by DOCA PCC, on
    other hosts as pacing of TCP. If a kernel or NIC refuses it, the previous version stays in
    force.

    Exit code: 0 in force, 2 refused, 3 a compiler is missing, the store cannot be written, or a
    host is not ready.
    """

    if sum([source is not None, bool(undo), show, status]) != 1:
        raise InputError.single(
            "deploy",
            "one of a file, --undo, --list and --status is needed",
            "closloop deploy --help",
        )
    if inventory is None:
        if status or limit or base_rtt:
            raise InputError.single(
                "--status, --limit, --base-rtt", "apply to hosts", "add -i INVENTORY"
            )
        _for_campaigns(source, name, undo)
        return
    if show:
        raise InputError.single("--list", "applies to campaigns", "use --status with -i")
    enter_virtual_rack(inventory)
    from inventory.ansible import load_rack
    from orchestration.core.units import parse_duration_ns
    from orchestration.provision import policies

    rack, secrets = load_rack(inventory), passwords.secrets()
    hosts = [text.strip() for text in limit.split(",") if text.strip()]
    if source is not None:
        base_rtt_ns = parse_duration_ns(base_rtt) if base_rtt else 0
        reports = policies.deploy_on_rack(
            rack,
            inventory,
            source,
            name or source.stem,
            base_rtt_ns=base_rtt_ns,
            limit=hosts,
            secrets=secrets,
        )
    elif undo:
        reports = policies.undo_on_rack(rack, inventory, undo, limit=hosts, secrets=secrets)
    else:
        reports = policies.status_of_rack(rack, limit=hosts, secrets=secrets)
    if as_json:
        print_json([host.to_json() for host in reports])
    else:
        show_reports(reports)
    if any(host.error for host in reports):
        raise typer.Exit(3)


def show_reports(reports: list[HostPolicy]) -> None:
    """Print a line for each host: its report, or its error."""
    for host in reports:
        policy = host.problem if host.error else Problem("", host.text)
        typer.echo(policy.relocated(host.device))


def _for_campaigns(source: Path | None, name: str, undo: str) -> None:
    from orchestration.policies.compile import deploy as deploy_for_campaigns
    from orchestration.policies.compile import model_of
    from orchestration.policies.store import DeployedPolicy, deployed_names

    if source is not None:
        policy_name = name or source.stem
        made = deploy_for_campaigns(source, policy_name, check_loads)
        typer.echo(f"{policy_name}: version {made.number} is in force ({made.digest})")
    elif undo:
        back = DeployedPolicy(undo).undo()
        typer.echo(
            f"{undo}: version {back.number} is in force again ({back.digest})"
            if back
            else f"{undo}: no version is in force, as before the first"
        )
    else:
        for known in deployed_names():
            policy = DeployedPolicy(known)
            current = policy.current()
            for version in policy.versions():
                model = model_of(version)
                words = [f"{known}@{version.number}", version.digest]
                words += [f"model {model}"] if model else []
                words += ["in force"] if version == current else []
                typer.echo("  ".join(words))
