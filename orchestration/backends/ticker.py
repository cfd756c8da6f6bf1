"""Sleeps until exact times."""

from __future__ import annotations

import ctypes
import time


class Ticker:
    """Sleeps until absolute times without timer slack."""

    def __init__(self) -> None:
        pr_set_timerslack = 29
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1, 0, 0, 0)

    def sleep_until(self, at_ns: int) -> None:
        """Return at CLOCK_MONOTONIC `at_ns`; at once if that has passed."""
        left = at_ns - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
            # converted to float seconds, the time may fall short by some nanoseconds
            while time.monotonic_ns() < at_ns:
                time.sleep(1e-9)
