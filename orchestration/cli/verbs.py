"""The verbs of all packages; the module of a verb is loaded when the verb is called.

A package, of closloop or of a user, declares its verbs as a tuple of `Verb` behind an entry point
of the group `closloop.verbs`. To import all of them took a third of the time of `closloop --help`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperGroup

from orchestration.core.plugins import PluginError, load_all
from orchestration.core.verb import PANELS, Verb

GROUP = "closloop.verbs"
# The package whose verbs come first under each heading.
_OWN = "core"


@cache
def verbs() -> dict[str, Verb]:
    """Return the verbs of all packages by name, in the order of the help.

    A package that cannot be loaded, and a verb whose name is taken, are left out with a warning.
    """
    by_name: dict[str, Verb] = {}
    packages = load_all(GROUP)
    for package in sorted(packages, key=lambda name: (name != _OWN, name)):
        try:
            declared = packages[package]()
        except PluginError as error:
            warnings.warn(str(error), FutureWarning, stacklevel=2)
            continue
        for verb in declared:
            if by_name.setdefault(verb.name, verb) is not verb:
                text = f"{package} offers another verb {verb.name!r}, which is left out"
                warnings.warn(text, FutureWarning, stacklevel=2)
    order = {panel: number for number, panel in enumerate(PANELS)}
    ranked = sorted(by_name.values(), key=lambda verb: order.get(verb.panel, len(order)))
    return {verb.name: verb for verb in ranked}


class Verbs(TyperGroup):
    """The group of all verbs: its help shows `verbs()`; it loads the verb that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the called verb's name, the verb with its options, and the remaining arguments."""
        name, shown, rest = super().resolve_command(ctx, args)
        return name, shown if name is None else load(name), rest


def load(name: str) -> Any:
    """Import a verb, and return its typer command."""
    target = resolve_name(verbs()[name].target)
    if not isinstance(target, typer.Typer):
        return command_of(name, target)
    app = typer.Typer(add_completion=False)
    app.add_typer(target, name=name)
    group: Any = typer.main.get_command(app)
    return group.commands[name]


def command_of(name: str, function: Callable[..., Any]) -> Any:
    """Return a function as a typer command."""
    app = typer.Typer(add_completion=False)
    app.command(name, epilog=getattr(function, "epilog", None))(function)
    return typer.main.get_command(app)


def shown_only() -> None:
    """Stand for a verb in the help, until the verb is loaded."""
