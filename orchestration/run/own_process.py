"""What a run does to its own process: it notes signals, and spares threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted_signals(kill: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Record SIGINT and SIGTERM instead of ending; a second signal calls `kill`."""
    seen: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(signal.Signals(number))
        if len(seen) > 1:
            kill()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def spare_threads() -> None:
    """Keep NumPy single-threaded: trials run in parallel, one per core. Call it before NumPy."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
