"""How late this machine wakes a process: run as a program of its own beside a trial.

    python timer_lag.py PERIOD_NS     until SIGTERM; then it prints how late, as JSON

It sleeps until absolute times, a period apart. A process that does nothing else is as late as a
sender or an agent that has slept. Standard library only: it is not to be late by itself.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from array import array

_PR_SET_TIMERSLACK, _PR_SET_PDEATHSIG = 29, 1


class _End(Exception):  # noqa: N818 (not an error)
    pass


def _end(*_: object) -> None:
    raise _End


def watch(period_ns: int) -> dict[str, int]:
    """Sleep from time to time until SIGTERM; return how late it was."""
    late = array("q")
    signal.signal(signal.SIGTERM, _end)
    try:
        print("ready", flush=True)
        due_ns = time.monotonic_ns()
        while True:
            now_ns = time.monotonic_ns()
            # times that passed while it was late are one lateness, not many
            due_ns += max(1, -(-(now_ns - due_ns) // period_ns)) * period_ns
            time.sleep((due_ns - now_ns) / 1e9)
            late.append(max(0, time.monotonic_ns() - due_ns))
    except _End:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranked = sorted(late) or [0]
    return {
        "count": len(late),
        "p50_ns": ranked[len(ranked) // 2],
        "p99_ns": ranked[len(ranked) * 99 // 100],
        "max_ns": ranked[-1],
    }


if __name__ == "__main__":
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    print(json.dumps(watch(int(sys.argv[1]))), flush=True)
