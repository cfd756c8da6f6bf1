"""What the verbs that work on a rack share: the inventory, passwords, and virtual racks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestration.device.ssh import Secrets
    from orchestration.wiring import RackAccess

INVENTORY_VARIABLE = "CLOSLOOP_INVENTORY"

InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        "-i",
        envvar=INVENTORY_VARIABLE,
        help="The rack's Ansible inventory, for --on hardware.",
    ),
]
InventoryArgument = Annotated[
    Path, typer.Argument(envvar=INVENTORY_VARIABLE, help="The rack's Ansible inventory.")
]
AskPass = Annotated[
    bool, typer.Option("--ask-pass", help="Ask for the password of the devices' users.")
]
AskBecomePass = Annotated[
    bool, typer.Option("--ask-become-pass", help="Ask for the password that sudo wants there.")
]


def rack_access(inventory: Path, ask_pass: bool, ask_become_pass: bool) -> RackAccess:
    """Return how to reach a rack, after asking for what has to be asked for."""
    from orchestration.wiring import RackAccess

    return RackAccess(inventory, secrets_of(ask_pass, ask_become_pass))


def secrets_of(ask_pass: bool, ask_become_pass: bool) -> Secrets:
    """Return the passwords: asked for, or from CLOSLOOP_SSH_PASSWORD, CLOSLOOP_BECOME_PASSWORD."""
    from orchestration.device.ssh import Secrets

    login = os.environ.get("CLOSLOOP_SSH_PASSWORD", "")
    become = os.environ.get("CLOSLOOP_BECOME_PASSWORD", "")
    if ask_pass:
        login = typer.prompt("SSH password", hide_input=True)
    if ask_become_pass:
        become = typer.prompt("sudo password", hide_input=True)
    return Secrets(login, become)


def enter_virtual_rack(inventory: Path | None) -> None:
    """If the inventory is a virtual rack's, run this command inside it and exit with its code."""
    if inventory is None:
        return
    from orchestration.virtual_rack.attach import run_inside

    code = run_inside(inventory, sys.argv[1:])
    if code is not None:
        raise typer.Exit(code)
