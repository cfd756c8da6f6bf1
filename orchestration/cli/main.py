"""`closloop`: global options, and the one place that maps errors to messages and exit codes."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from orchestration.cli.verbs import VERBS, Verbs, shown_only
from orchestration.model.errors import ClosloopError

_DEBUG_VARIABLE = "CLOSLOOP_DEBUG"
_UNEXPECTED_EXIT_CODE = 1
# Warnings that were printed.
_said: set[str] = set()

app = typer.Typer(
    name="closloop",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Closed-loop congestion-control experiments on Clos fabrics.",
    epilog="Start with:  closloop doctor  |  closloop run examples/quickstart.yml  |  "
    "closloop init",
)
for verb in VERBS:
    app.command(verb.name, help=verb.help)(shown_only)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"closloop {version('closloop')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar=_DEBUG_VARIABLE, help="Show tracebacks of errors."),
    ] = False,
) -> None:
    """Take the options that come before the verb."""
    if debug:
        os.environ[_DEBUG_VARIABLE] = "1"


def main() -> NoReturn:
    """Run the command line and exit with a code of `orchestration.model.errors`."""
    warnings.showwarning = _print_notice
    try:
        app()
    except ClosloopError as error:
        if os.environ.get(_DEBUG_VARIABLE):
            raise
        _print_error(str(error))
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get(_DEBUG_VARIABLE):
            raise
        _print_error(
            f"unexpected {type(error).__name__}: {error}\n"
            "  -> this is a fault of closloop; `closloop --debug ...` shows where"
        )
        sys.exit(_UNEXPECTED_EXIT_CODE)
    sys.exit(0)


def _print_notice(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning on one line, once; those other than notices are printed with their class."""
    kind = "notice" if issubclass(category, FutureWarning) else category.__name__
    text = f"{kind}: {message}"
    if text not in _said:
        _said.add(text)
        print(text, file=sys.stderr)


def _print_error(text: str) -> None:
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True).print(text, style="red", highlight=False, markup=False)
    else:
        print(text, file=sys.stderr)
