"""Options that several verbs have, declared once; `verb` lets verbs take groups of them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from orchestration.device.ssh import Secrets
    from orchestration.wiring import RackAccess

INVENTORY_VARIABLE = "CLOSLOOP_INVENTORY"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]
On = Annotated[
    str | None, typer.Option("--on", help="The backend: emulated, fluid, simulated or hardware.")
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", "-j", min=0, help="Trials side by side; 0: one a core, as memory allows."
    ),
]
Repeats = Annotated[int | None, typer.Option("--repeats", help="Repeats, instead of the file's.")]
Out = Annotated[Path, typer.Option("--out", help="Where run folders are, or are made.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where run folders are, or are made.")]
Page = Annotated[Path, typer.Option("--output", "-o", help="The page to write.")]
Campaigns = Annotated[Path, typer.Option("--campaigns", help="Where the campaign files are.")]
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


@dataclasses.dataclass(frozen=True)
class Passwords:
    """Which passwords of a rack's devices are asked for."""

    ask_pass: Annotated[
        bool, typer.Option("--ask-pass", help="Ask for the password of the devices' users.")
    ] = False
    ask_become_pass: Annotated[
        bool, typer.Option("--ask-become-pass", help="Ask for the password that sudo wants there.")
    ] = False

    def secrets(self) -> Secrets:
        """Ask for them; else CLOSLOOP_SSH_PASSWORD and CLOSLOOP_BECOME_PASSWORD say them."""
        from orchestration.device.ssh import Secrets

        login = os.environ.get("CLOSLOOP_SSH_PASSWORD", "")
        become = os.environ.get("CLOSLOOP_BECOME_PASSWORD", "")
        if self.ask_pass:
            login = typer.prompt("SSH password", hide_input=True)
        if self.ask_become_pass:
            become = typer.prompt("sudo password", hide_input=True)
        return Secrets(login, become)

    def access(self, inventory: Path) -> RackAccess:
        """Return how to reach the rack of an inventory."""
        from orchestration.wiring import RackAccess

        return RackAccess(inventory, self.secrets())


def enter_virtual_rack(inventory: Path | None) -> None:
    """If the inventory is a virtual rack's, run this command inside it and exit with its code."""
    if inventory is None:
        return
    from orchestration.virtual_rack.attach import run_inside

    code = run_inside(inventory, sys.argv[1:])
    if code is not None:
        raise typer.Exit(code)


Result = TypeVar("Result")


def verb(epilog: str = "") -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a function a verb whose help ends with `epilog`.

    Of a parameter that is a dataclass, each field becomes an option; the function gets the object.
    """

    def wrap(function: Callable[..., Result]) -> Callable[..., Result]:
        hints = get_type_hints(function, include_extras=True)
        groups: dict[str, Any] = {
            name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
        }
        options: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name in groups:
                options += _options(groups[parameter.name], parameter.kind)
            else:
                options.append(parameter.replace(annotation=hints[parameter.name]))
        signature = inspect.Signature(options)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Result:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            for name, kind in groups.items():
                fields = [field.name for field in dataclasses.fields(kind)]
                given[name] = kind(**{field: given.pop(field) for field in fields})
            return function(**given)

        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {option.name: option.annotation for option in options}
        called.epilog = epilog or None  # type: ignore[attr-defined]
        return called

    return wrap


def _options(group: Any, kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            kind,
            default=list(field.default_factory())
            if callable(field.default_factory)
            else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
