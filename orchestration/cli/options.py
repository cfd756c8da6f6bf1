"""Options that several verbs have, and `verb`, by which a verb can have groups of options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from orchestration.core.plugins import load_all

if TYPE_CHECKING:
    from orchestration.device.ssh import Secrets
    from orchestration.run.backend_factory import RackAccess

INVENTORY_VARIABLE = "CLOSLOOP_INVENTORY"

Json = Annotated[bool, "--json", "Print JSON, for programs."]
On = Annotated[str | None, "--on", "The backend: emulated, fluid, simulated or hardware."]
Clock = Annotated[
    str | None, "--clock", "The emulated backend's time: virtual, or real on this machine's kernel."
]
In = Annotated[
    str,
    "--in",
    "Where emulated trials run: process, or kernel (the virtual-time kernel); default: the process "
    "if all of them can.",
]
Scale = Annotated[
    str | None,
    "--scale",
    "With --clock real: by how much rates are divided and times multiplied; auto: as this machine "
    "needs.",
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", "-j", min=0, help="Trials side by side; 0: one per core, if memory allows."
    ),
]
Repeats = Annotated[int | None, "--repeats", "Repeats, instead of the file's."]
Out = Annotated[Path, "--out", "The folder of run folders."]
Runs = Annotated[Path, "--runs", "The folder of run folders."]
Page = Annotated[Path, "--output", "-o", "The page to write."]
Campaigns = Annotated[Path, "--campaigns", "The folder of campaign files."]
ClusterOption = Annotated[
    str,
    "--cluster",
    "Run trials on a Ray cluster: HOST:PORT, auto, or an inventory to start one on.",
]
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
    """Options: which passwords of a rack's devices to ask for."""

    ask_pass: Annotated[bool, "Ask for the password of the devices' users."] = False
    ask_become_pass: Annotated[bool, "Ask for their sudo password."] = False

    def secrets(self) -> Secrets:
        """Return the passwords: asked for, or those of the environment's variables.

        These are CLOSLOOP_SSH_PASSWORD and CLOSLOOP_BECOME_PASSWORD.
        """
        from orchestration.device.ssh import Secrets

        given = Secrets.of_environment()
        login, become = given.login, given.become
        if self.ask_pass:
            login = typer.prompt("SSH password", hide_input=True)
        if self.ask_become_pass:
            become = typer.prompt("sudo password", hide_input=True)
        return Secrets(login, become)

    def access(self, inventory: Path) -> RackAccess:
        """Return the access to the rack of an inventory."""
        from orchestration.run.backend_factory import RackAccess

        return RackAccess(inventory, self.secrets())


def enter_virtual_rack(inventory: Path | None) -> None:
    """Run this command again inside the rack, and exit with its code, if the rack is virtual.

    Functions of the entry-point group `closloop.racks` do that, each for its kind of rack. For
    other inventories and None, this returns.
    """
    if inventory is None:
        return
    for load in load_all("closloop.racks").values():
        code = load()(inventory, sys.argv[1:])
        if code is not None:
            raise typer.Exit(code)


Result = TypeVar("Result")


def verb(epilog: str = "") -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a function a verb whose help ends with `epilog`.

    `Annotated[Path, "What it is."]` declares an option, or an argument if the parameter is
    positional and has no default; a bool is a flag. Option names that differ from the parameter's
    come before the text: `Annotated[Path, "--out", "-o", "What it is."]`. If a parameter's type is
    a dataclass, each of its fields becomes an option, and the function gets the object.
    """

    def wrap(function: Callable[..., Result]) -> Callable[..., Result]:
        hints = get_type_hints(function, include_extras=True)
        groups: dict[str, Any] = {
            name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
        }
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name in groups:
                parameters += _fields(groups[parameter.name])
            else:
                parameters.append(_declared(parameter, hints[parameter.name]))
        signature = inspect.Signature(parameters)

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
        called.__annotations__ = {option.name: option.annotation for option in parameters}
        called.epilog = epilog or None  # type: ignore[attr-defined]
        return called

    return wrap


class Group(typer.Typer):
    """A group of verbs; each function added by `command` becomes a verb."""

    def __init__(self, text: str, epilog: str | None = None) -> None:
        super().__init__(no_args_is_help=True, help=text, epilog=epilog)

    def command(self, name: str | None = None, **how: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a verb to the group; `how` is passed to typer."""
        add = super().command(name, **how)
        return lambda function: add(verb()(function))


def _fields(group: Any) -> list[inspect.Parameter]:
    """Return a parameter for each field of a group of options, a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    parameters = []
    for field in dataclasses.fields(group):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if default is dataclasses.MISSING:  # a required option
            default = inspect.Parameter.empty
        option = inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default)
        parameters.append(_declared(option, hints[field.name]))
    return parameters


def _declared(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    """Return a parameter with the annotation that typer needs."""
    kind, *declared = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if declared and all(isinstance(text, str) for text in declared):
        *names, text = declared
        optional = parameter.default is not inspect.Parameter.empty
        if optional or names or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if kind is bool and not names:
                names = [f"--{parameter.name.replace('_', '-')}"]
            hint = Annotated[kind, typer.Option(*names, help=text)]
        else:
            hint = Annotated[kind, typer.Argument(help=text)]
    return parameter.replace(annotation=hint)
