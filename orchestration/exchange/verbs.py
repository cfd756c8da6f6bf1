"""`closloop import` and `closloop export`: a command for each entry point of their groups.

The help shows the functions' docstrings, read from the source. A command's module is loaded only
when the command is called, because loading all libraries takes half a second.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import print_json, waiting
from orchestration.cli.verbs import command_of
from orchestration.core.errors import InputError
from orchestration.core.plugins import PluginError, load, offered
from orchestration.exchange import VERBS

if TYPE_CHECKING:
    from orchestration.exchange.imported import Imported


class _Commands(Mapping[str, Any]):
    """The commands of an entry-point group by name, each loaded when it is asked for."""

    def __init__(self, group: str) -> None:
        self.group = group

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(offered(self.group)))

    def __len__(self) -> int:
        return len(offered(self.group))

    def __getitem__(self, name: str) -> Any:
        if name not in offered(self.group):
            raise KeyError(name)
        try:
            function = load(name, self.group)
        except PluginError as error:
            raise InputError([error.problem.relocated(self.group)]) from error
        if get_type_hints(function).get("return") is not type(None):
            function = _joining(function)
        return command_of(name, verb()(function))

    def docstring(self, name: str) -> str:
        """Return the docstring of an entry point's function from its source, which is not run.

        It is "" if the source cannot be found or read; calling the command then says why.
        """
        module, _, function = offered(self.group)[name].partition(":")
        with suppress(ImportError, SyntaxError):
            spec = find_spec(module)
            get_source = getattr(spec and spec.loader, "get_source", lambda _: "")
            for node in ast.parse(get_source(module) or "").body:
                if isinstance(node, ast.FunctionDef) and node.name == function:
                    return ast.get_docstring(node) or ""
        return ""


class _Importers(TyperGroup):
    """The group of all importers."""

    group = "closloop.importers"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands(self.group)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that only has the help of the real one, which is not loaded."""
        if cmd_name not in offered(self.group):
            return None
        return TyperCommand(cmd_name, help=self.commands.docstring(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Load the called command; return its name, the command, and the remaining arguments."""
        name, shown, rest = super().resolve_command(ctx, args)
        return name, shown if name is None else self.commands[name], rest


class _Exporters(_Importers):
    """The group of all exporters."""

    group = "closloop.exporters"


importer = typer.Typer(cls=_Importers, no_args_is_help=True, help=VERBS[0].help)
exporter = typer.Typer(cls=_Exporters, no_args_is_help=True, help=VERBS[1].help)


@dataclass(frozen=True)
class NewTrial:
    """Options: label, seed and repeat of an imported trial, and the output format."""

    label: Annotated[
        str, "Its name in reports, in the tuner's place (default: the importer chooses)."
    ] = ""
    seed: Annotated[int | None, "Its seed: runs of the same flows are paired by it."] = None
    repeat: Annotated[int | None, "Its number among the repeats."] = None
    as_json: Json = False

    def write(self, imported: Imported, out: Path) -> None:
        """Write imported results into a run folder, and print a summary."""
        from orchestration.exchange.imported import write_imported

        label = self.label or imported.label
        with waiting("writing"):
            written = write_imported(imported, out, label=label, seed=self.seed, repeat=self.repeat)
        if self.as_json:
            data = {
                "folder": str(written.folder),
                "label": label,
                "testbed": imported.testbed.name,
                "flows": written.flows,
                "done": written.done,
                "valid": written.stamp.valid,
                "missing": list(imported.missing),
                "reasons": [reason.text for reason in written.stamp.reasons],
            }
            print_json(data)
            return
        typer.echo(
            f"{written.folder}: {written.flows} flows, {written.done} done, on "
            f"{len(imported.testbed.hosts)} hosts and {len(imported.testbed.switches)} switches"
        )
        for item in imported.missing:
            typer.echo(f"  not imported: {item}")
        for reason in written.stamp.reasons:
            if reason.code != "imported":
                typer.echo(f"  {reason.severity}: {reason.text}")
        typer.echo(f"next: closloop report {out}")


def _joining(function: Callable[..., Imported]) -> Callable[..., None]:
    """Return an importer as a command that writes its results, with the options for that."""

    @wraps(function)
    def joining(*, out: Path, trial: NewTrial, **options: Any) -> None:
        with waiting("reading"):
            imported = function(**options)
        trial.write(imported, out)

    added: dict[str, Any] = {
        "out": Annotated[Path, "--out", "-o", "The run folder that the trial is added to."],
        "trial": NewTrial,
    }
    signature = inspect.signature(function)
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in added]
    joined = [*signature.parameters.values(), *own]
    joining.__signature__ = signature.replace(parameters=joined)  # type: ignore[attr-defined]
    joining.__annotations__ = {**function.__annotations__, **added, "return": None}
    return joining
