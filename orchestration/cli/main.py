"""`closloop`: global options, and the one place that maps errors to messages and exit codes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from orchestration.cli.verbs import Verbs, shown_only, verbs
from orchestration.core.errors import ClosloopError, InputError
from orchestration.core.problems import Code, Problem, in_words, to_json, unexpected

_DEBUG_VARIABLE = "CLOSLOOP_DEBUG"
_UNEXPECTED_EXIT_CODE = 1
# Warnings that were printed already.
_printed_warnings: set[str] = set()

app = typer.Typer(
    name="closloop",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Closed-loop congestion-control experiments on Clos fabrics.",
    epilog="Start with:  closloop doctor  |  closloop run examples/quickstart.yml  |  "
    "closloop init",
)
for verb in verbs().values():
    app.command(verb.name, help=verb.help, rich_help_panel=verb.panel)(shown_only)


def _show_version(requested: bool) -> None:
    if requested:
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
    """Handle the options that come before the verb."""
    if debug:
        os.environ[_DEBUG_VARIABLE] = "1"


def main() -> NoReturn:
    """Run the command line, and exit with a code of `orchestration.core.errors`."""
    warnings.showwarning = _print_notice
    as_json = "--json" in sys.argv[1:]
    try:
        code = app(prog_name="closloop", standalone_mode=not as_json)
    except Exception as error:
        if os.environ.get(_DEBUG_VARIABLE):
            raise
        problems, code = _problems_of(error)
        if as_json:
            from orchestration.cli.terminal import print_json, printed

            if not printed:
                print_json(to_json(problems, code))
        _print_problems(problems)
    sys.exit(code or 0)


def _problems_of(error: Exception) -> tuple[Sequence[Problem], int]:
    """Return an error's problems, and its exit code."""
    if isinstance(error, ClosloopError):
        return error.problems, error.exit_code
    if isinstance(error, typer.Abort):
        return [Problem("", "aborted", "", Code.INTERRUPTED)], _UNEXPECTED_EXIT_CODE
    # typer has a copy of click's exceptions, whose base it does not offer
    message = getattr(error, "format_message", None)
    if message is not None:
        where = getattr(getattr(error, "ctx", None), "command_path", "closloop")
        return [Problem("", message(), f"{where} --help", Code.USAGE)], InputError.exit_code
    remedy = "this is a bug in closloop; `closloop --debug ...` shows where"
    return [unexpected(error, remedy)], _UNEXPECTED_EXIT_CODE


def _print_notice(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning on one line, once: a FutureWarning as a notice, others with their class."""
    kind = "notice" if issubclass(category, FutureWarning) else category.__name__
    text = f"{kind}: {message}"
    if text not in _printed_warnings:
        _printed_warnings.add(text)
        print(text, file=sys.stderr)


def _print_problems(problems: Sequence[Problem]) -> None:
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        text = in_words(problems, console.width)
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    else:
        print(in_words(problems), file=sys.stderr)
