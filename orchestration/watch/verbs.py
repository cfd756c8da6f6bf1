"""`closloop watch`: shows a run in progress on the terminal."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import verb
from orchestration.cli.terminal import print_json

if TYPE_CHECKING:
    from orchestration.run.state import RunReader


_LINE_EVERY_S = 5.0
_INTERRUPTED = 130


@verb("Examples: closloop watch   |   closloop watch runs/quickstart   |   closloop watch --json")
def watch(
    run_folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run folder, or a folder of run folders: then the newest one."
        ),
    ] = Path("runs"),
    once: Annotated[bool, "Print the present state once and end."] = False,
    as_json: Annotated[bool, "--json", "Print the present state once, as JSON."] = False,
) -> None:
    """Watch a run: trials, queues and links of the fabric, marks, the tuner's actions, warnings.

    Only the run folder is read, so this works over SSH and from another machine that shares the
    files. Nothing is written, and the run is not disturbed. Keys: q ends, left and right select
    another running trial. Without a terminal a line is printed at every change. Exit code: 0, or
    130 after Ctrl-C.
    """
    from orchestration.run.state import RunReader, find_run

    folder = find_run(run_folder)
    if as_json:
        from orchestration.watch.ports import state_to_json

        print_json(state_to_json(RunReader(folder).read()), indent=None)
        return
    if once:
        _print_once(RunReader(folder))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if sys.stdout.isatty():
            _on_screen(folder)
        else:
            _in_lines(RunReader(folder))
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def _print_once(reader: RunReader) -> None:
    from rich.console import Console

    from orchestration.watch.screen import select_trial
    from orchestration.watch.view import view

    console = Console()
    state = reader.read()
    shown = select_trial(state, "", None)
    on_terminal = sys.stdout.isatty()
    height = console.height if on_terminal else 60
    for line in view(
        state,
        shown,
        console.width,
        height - 1,
        ascii_only=console.options.ascii_only,
        whole=not on_terminal,
    ):
        console.print(line, highlight=False, no_wrap=True, crop=on_terminal, overflow="ignore")


def _on_screen(folder: Path) -> None:
    from rich.console import Console

    from orchestration.watch.screen import watch_to_the_end
    from orchestration.watch.view import view

    console = Console()
    state = watch_to_the_end(folder, console)
    if state is not None:
        for line in view(state, None, console.width, 12):
            console.print(line, highlight=False)


def _in_lines(reader: RunReader) -> None:
    """Print a status line at every change, for logs and pipes."""
    from orchestration.run.state import status_line

    last_counts = ""
    while True:
        state = reader.read()
        counts = (state.counts.done, state.counts.failed, len(state.counts.running), state.ended)
        if str(counts) != last_counts:
            last_counts = str(counts)
            ending = f" {state.ended}" if state.ended else ""
            print(f"{state.name}{ending}: {status_line(state.counts, state.now_s)}", flush=True)
        if state.ended:
            return
        time.sleep(_LINE_EVERY_S)
