"""`closloop`: the verbs, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from orchestration.cli import bench, exchange, inventory, kernel, papers, rack, traffic
from orchestration.cli.calibrate import EPILOG as CALIBRATE_EPILOG
from orchestration.cli.calibrate import calibrate
from orchestration.cli.compare import EPILOG as COMPARE_EPILOG
from orchestration.cli.compare import compare
from orchestration.cli.doctor import EPILOG as DOCTOR_EPILOG
from orchestration.cli.doctor import doctor
from orchestration.cli.fidelity import EPILOG as FIDELITY_EPILOG
from orchestration.cli.fidelity import fidelity
from orchestration.cli.plan import plan
from orchestration.cli.provision import EPILOG as PROVISION_EPILOG
from orchestration.cli.provision import provision
from orchestration.cli.replay import replay
from orchestration.cli.report import report
from orchestration.cli.restore import EPILOG as RESTORE_EPILOG
from orchestration.cli.restore import restore
from orchestration.cli.run import run
from orchestration.cli.sql import EPILOG as SQL_EPILOG
from orchestration.cli.sql import sql
from orchestration.cli.telemetry import EPILOG as INFLUX_EPILOG
from orchestration.cli.telemetry import exporter, pull, push
from orchestration.cli.train import train
from orchestration.cli.watch import EPILOG as WATCH_EPILOG
from orchestration.cli.watch import watch
from orchestration.model.errors import ClosloopError

_DEBUG_VARIABLE = "CLOSLOOP_DEBUG"
_UNEXPECTED_EXIT_CODE = 1

app = typer.Typer(
    name="closloop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Closed-loop congestion-control experiments on Clos fabrics.",
    epilog="Start with:  closloop doctor  |  closloop run examples/quickstart.yml",
)
app.command()(run)
app.command()(plan)
app.command()(replay)
app.command(epilog=WATCH_EPILOG)(watch)
app.command(epilog=INFLUX_EPILOG)(push)
app.command(epilog=INFLUX_EPILOG)(pull)
app.command()(exporter)
app.command()(report)
app.command(epilog=SQL_EPILOG)(sql)
app.command(epilog=COMPARE_EPILOG)(compare)
app.command()(train)
app.command(epilog=CALIBRATE_EPILOG)(calibrate)
app.command(epilog=FIDELITY_EPILOG)(fidelity)
app.command(epilog=PROVISION_EPILOG)(provision)
app.command(epilog=RESTORE_EPILOG)(restore)
app.add_typer(inventory.app, name="inventory")
app.add_typer(traffic.app, name="traffic")
app.add_typer(rack.app, name="rack")
app.add_typer(exchange.importer, name="import")
app.add_typer(exchange.exporter, name="export")
app.add_typer(kernel.app, name="kernel")
app.command(epilog=DOCTOR_EPILOG)(doctor)
app.add_typer(bench.app, name="bench")
app.add_typer(papers.app, name="papers")


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
    """Run the command line and exit with the code of `orchestration.model.errors`."""
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


def _print_error(text: str) -> None:
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True).print(text, style="red", highlight=False, markup=False)
    else:
        print(text, file=sys.stderr)
