"""Ctrl-C during a long query, which Python would otherwise see when the query is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from orchestration.query.database import Runs

_Result = TypeVar("_Result")
# DuckDB looks at an interrupt between pieces of work. A join of all with all has long pieces: its
# thread is left behind, and ends with the program.
_PATIENCE_S = 2.0


def interruptible(runs: Runs, work: Callable[[], _Result]) -> _Result:
    """Return what `work` does with `runs`; a KeyboardInterrupt stops its query first.

    In a program that has loaded pandas it comes when the query is over: DuckDB then keeps Python's
    lock. `closloop sql` loads none.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        runs.interrupt()
        thread.join(_PATIENCE_S)
        raise
