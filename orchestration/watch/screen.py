"""The full-screen live view of a run, and its keys."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from orchestration.run.state import RunReader, RunState, TrialCounts, TrialState
from orchestration.watch.view import view

_LEFT, _RIGHT = ("\x1b[D", "\x1bOD", "p"), ("\x1b[C", "\x1bOC", "n")
_ENDS = ("q", "Q", "\x04")


class Keys:
    """Reads keys as the commands "next", "previous", "newest" and "quit"; others are ignored."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def wait(self, seconds: float) -> list[str]:
        """Wait at most `seconds` for typed keys; return their commands, in order."""
        handles = [] if self._handle is None else [self._handle]
        ready, _, _ = select.select(handles, [], [], seconds)
        if not ready or self._handle is None:
            return []
        typed = os.read(self._handle, 256).decode(errors="replace")
        if not typed:  # the terminal was closed
            return ["quit"]
        return parse_keys(typed)


def parse_keys(typed: str) -> list[str]:
    """Return the commands of the keys in `typed`, in order."""
    found = []
    while typed:
        for keys, meaning in ((_LEFT, "previous"), (_RIGHT, "next"), (_ENDS, "quit")):
            if key := next((key for key in keys if typed.startswith(key)), ""):
                found.append(meaning)
                break
        else:
            key = typed[0]
            if key == "a":
                found.append("newest")
        typed = typed[len(key) :]
    return found


@contextmanager
def open_keys() -> Iterator[Keys]:
    """Read single keys from standard input while the context lasts. Ctrl-C still interrupts.

    There are no keys if standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSANOW)
        yield Keys(handle)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


_EVERY_S = 0.25
_CHOOSE = "left, right: another trial   a: the newest"
_KEYS = f"q: quit   {_CHOOSE}"


class Screen:
    """Shows a run on the terminal. `keys` is the line that explains the keys."""

    def __init__(self, folder: Path, live: Live, keys: str) -> None:
        self._reader = RunReader(folder)
        self._live = live
        self._keys = keys
        self._chosen = ""
        self._shown: TrialState | None = None

    def update(self) -> RunState:
        """Read the run's state from its folder, draw it, and return it."""
        state = self._reader.read()
        self._shown = select_trial(state, self._chosen, self._shown)
        console = self._live.console
        lines = view(
            state,
            self._shown,
            console.width,
            console.height,
            keys=self._keys,
            ascii_only=console.options.ascii_only,
        )
        self._live.update(Group(*lines), refresh=True)
        return state

    def select(self, meaning: str, state: RunState) -> None:
        """Select another trial to show, by the command of a key."""
        names = [trial.id for trial in state.trials]
        if meaning == "newest" or not names:
            self._chosen, self._shown = "", None
            return
        at = names.index(self._shown.id) if self._shown and self._shown.id in names else 0
        self._chosen = names[(at + (1 if meaning == "next" else -1)) % len(names)]


def select_trial(state: RunState, chosen: str, before: TrialState | None) -> TrialState | None:
    """Return the trial to show: the one with the id `chosen`, else the newest one with a reading.

    `before` is the trial that was shown before: it is kept as long as it runs, and if no trial has
    a reading yet.
    """
    for trial in state.trials:
        if trial.id == chosen:
            return trial
    read = [trial for trial in state.trials if trial.snapshot is not None]
    if read:
        # Keep showing the same trial until it ends, because a picture that jumps cannot be read.
        same_trial = [trial for trial in read if before is not None and trial.id == before.id]
        return same_trial[0] if same_trial else read[-1]
    return before


@contextmanager
def open_screen(folder: Path, console: Console, keys: str = _KEYS) -> Iterator[tuple[Screen, Keys]]:
    """Show the run of `folder` on the full screen, which is restored when the context ends."""
    with (
        open_keys() as typed,
        # no thread that refreshes the screen, because a run's workers are forked from this process
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        yield Screen(folder, live, keys), typed


def watch_to_the_end(folder: Path, console: Console) -> RunState | None:
    """Show a run until it ends, and return its final state, or None if the viewer quits before."""
    with open_screen(folder, console) as (screen, keys):
        while True:
            state = screen.update()
            if state.ended:
                return state
            for meaning in keys.wait(_EVERY_S):
                if meaning == "quit":
                    return None
                screen.select(meaning, state)


@contextmanager
def open_run_screen(
    folder: Path,
) -> Iterator[tuple[Callable[[str], None], Callable[[TrialCounts], None]]]:
    """Show a run of this process on the full screen, which is restored when the context ends.

    Yields two functions: the first stores a line, which is printed after that, and the second draws
    the run's state.
    """
    console = Console(stderr=True)
    lines: list[str] = []
    try:
        with open_screen(folder, console, f"Ctrl-C: stop the run   {_CHOOSE}") as (screen, keys):
            drawn_s = float("-inf")
            state: RunState | None = None

            def show(_: TrialCounts) -> None:
                nonlocal drawn_s, state
                for meaning in keys.wait(0) if state is not None else ():
                    if meaning != "quit":  # here only Ctrl-C stops a run
                        assert state is not None
                        screen.select(meaning, state)
                        drawn_s = float("-inf")
                if time.monotonic() - drawn_s >= _EVERY_S:
                    drawn_s = time.monotonic()
                    state = screen.update()

            yield lines.append, show
    finally:
        for text in lines:
            console.print(text, highlight=False, markup=False)
