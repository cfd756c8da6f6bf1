"""`closloop push`, `pull` and `exporter`: runs in InfluxDB, and metrics for Prometheus."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.problems import Problem
from orchestration.telemetry.exporter import metrics_text, serve
from orchestration.telemetry.pull import pull as fetch
from orchestration.telemetry.sender import push as send
from orchestration.telemetry.settings import load_settings

_SERVER = (
    "The server is given by CLOSLOOP_INFLUX_URL, _ORG, _BUCKET and _TOKEN, or by "
    "~/.config/closloop/influx.toml (mode 600)."
)


@verb(_SERVER)
def push(
    runs: Annotated[list[Path], "Campaigns' folders, or folders of single trials."],
    again: Annotated[bool, "Send all data, also those that have been sent before."] = False,
    as_json: Json = False,
) -> None:
    """Send archived runs to InfluxDB. Given again, it continues; nothing is stored twice.

    Exit code: 0 all sent, 1 some trials could not be read or sent, 2 bad input, 3 not ready.

    Example: closloop push runs/quickstart
    """
    settings = load_settings()
    with waiting("sending") as show:
        pushed = send(runs, settings, again=again, say=_warn, progress=show)
    if as_json:
        print_json(vars(pushed))
    else:
        typer.echo(
            f"{pushed.trials} trials: {pushed.points} points in {pushed.requests} requests "
            f"sent to {settings.server}"
        )
    raise typer.Exit(1 if pushed.failed else 0)


@verb(_SERVER)
def pull(
    campaign: Annotated[str, "The campaign's name."],
    out: Annotated[Path, "--out", "-o", "Folder in which the run folder is made."] = Path("runs"),
    trials: Annotated[
        list[str] | None, "--trial", "Only this trial, by its id; repeatable."
    ] = None,
    as_json: Json = False,
) -> None:
    """Rebuild a campaign's run folder from InfluxDB, table by table, and check that it is complete.

    Exit code: 0 all rebuilt, 1 some are incomplete in the database, 2 bad input, 3 not ready.

    Example: closloop pull quickstart -o pulled
    """
    settings = load_settings()
    with waiting("fetching") as show:
        pulled = fetch(campaign, out, settings.server, trials or (), say=_warn, progress=show)
    if as_json:
        print_json({**vars(pulled), "folder": str(pulled.folder)})
    else:
        present = f", {len(pulled.present)} were there already" if pulled.present else ""
        typer.echo(f"{pulled.folder}: {len(pulled.rebuilt)} trials rebuilt{present}")
    raise typer.Exit(1 if pulled.broken else 0)


@verb()
def exporter(
    run: Annotated[Path, "The campaign's folder, running or done."],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 chooses a free one.")
    ] = 9464,
    address: Annotated[str, "Address to listen on."] = "127.0.0.1",
    once: Annotated[bool, "Print the metrics once and exit, for a textfile collector."] = False,
) -> None:
    """Serve a run's metrics in Prometheus' text format: its trials, and the queues of running ones.

    Example: closloop exporter runs/quickstart --port 9464
    """
    if once:
        typer.echo(metrics_text(run), nl=False)
        return
    with serve(run, address, port) as bound:
        typer.echo(f"http://{address}:{bound}/metrics (stop with Ctrl-C)", err=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            signal.pause()


def _warn(problem: Problem) -> None:
    print(problem, file=sys.stderr, flush=True)
