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
    """Typed keys by meaning: "next", "previous", "newest", "quit"; other keys are ignored."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def wait(self, seconds: float) -> list[str]:
        """Return the meanings of keys typed within `seconds`; return as soon as there are any."""
        handles = [] if self._handle is None else [self._handle]
        ready, _, _ = select.select(handles, [], [], seconds)
        if not ready or self._handle is None:
            return []
        typed = os.read(self._handle, 256).decode(errors="replace")
        if not typed:  # the terminal was closed
            return ["quit"]
        return meanings(typed)


def meanings(typed: str) -> list[str]:
    """Return the meanings of the keys in `typed`, in order."""
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
    """Read single keys from standard input while the context lasts; no keys without a terminal.

    Ctrl-C still interrupts.
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
    """Shows a run. `update` reads and draws; `press` selects a trial."""

    def __init__(self, folder: Path, live: Live, keys: str) -> None:
        self._reader = RunReader(folder)
        self._live = live
        self._keys = keys
        self._chosen = ""
        self._shown: TrialState | None = None

    def update(self) -> RunState:
        """Read the run's state and draw it."""
        state = self._reader.read()
        self._shown = choose(state, self._chosen, self._shown)
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

    def press(self, meaning: str, state: RunState) -> None:
        """Select another trial to show."""
        names = [trial.id for trial in state.trials]
        if meaning == "newest" or not names:
            self._chosen, self._shown = "", None
            return
        at = names.index(self._shown.id) if self._shown and self._shown.id in names else 0
        self._chosen = names[(at + (1 if meaning == "next" else -1)) % len(names)]


def choose(state: RunState, chosen: str, before: TrialState | None) -> TrialState | None:
    """Return the trial to show: the chosen one, else the newest with a reading, else `before`."""
    for trial in state.trials:
        if trial.id == chosen:
            return trial
    read = [trial for trial in state.trials if trial.snapshot is not None]
    if read:
        # Keep showing the same trial until it ends: a picture that jumps cannot be read.
        kept = [trial for trial in read if before is not None and trial.id == before.id]
        return kept[0] if kept else read[-1]
    return before


@contextmanager
def open_screen(folder: Path, console: Console, keys: str = _KEYS) -> Iterator[tuple[Screen, Keys]]:
    """Show the run of `folder` full-screen; the context restores the screen at its end."""
    with (
        open_keys() as typed,
        # No refresh thread: a run's workers are forked from this process.
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        yield Screen(folder, live, keys), typed


def watch_to_the_end(folder: Path, console: Console) -> RunState | None:
    """Show a run until it ends, and return its final state; None if the viewer quits."""
    with open_screen(folder, console) as (screen, keys):
        while True:
            state = screen.update()
            if state.ended:
                return state
            for meaning in keys.wait(_EVERY_S):
                if meaning == "quit":
                    return None
                screen.press(meaning, state)


@contextmanager
def open_run_screen(
    folder: Path,
) -> Iterator[tuple[Callable[[str], None], Callable[[TrialCounts], None]]]:
    """Show a run of this process full-screen; the context restores the screen at its end.

    Yields two functions: one stores a line to print afterwards, one draws the run's state.
    """
    console = Console(stderr=True)
    said: list[str] = []
    try:
        with open_screen(folder, console, f"Ctrl-C: stop the run   {_CHOOSE}") as (screen, keys):
            drawn_s = float("-inf")
            state: RunState | None = None

            def show(counts: TrialCounts) -> None:
                nonlocal drawn_s, state
                for meaning in keys.wait(0) if state is not None else ():
                    if meaning != "quit":  # here only Ctrl-C stops a run
                        assert state is not None
                        screen.press(meaning, state)
                        drawn_s = float("-inf")
                if time.monotonic() - drawn_s >= _EVERY_S:
                    drawn_s = time.monotonic()
                    state = screen.update()

            yield said.append, show
    finally:
        for text in said:
            console.print(text, highlight=False, markup=False)
