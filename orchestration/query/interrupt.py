"""Ctrl-C during a long query, which Python would otherwise see when the query is over."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from orchestration.query.database import Runs

_Result = TypeVar("_Result")


def interruptible(runs: Runs, work: Callable[[], _Result]) -> _Result:
    """Return what `work` does with `runs`; a KeyboardInterrupt stops its query first."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            runs.interrupt()
            raise
