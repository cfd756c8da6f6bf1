"""Programs beside a trial that measure how late this machine is: `timer_lag`, `shaper_lag`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_END_S = 5.0
# Of fewer moments a 99th percentile says nothing.
LEAST_COUNT = 100


@dataclass(frozen=True)
class Lag:
    """How late a machine was, in ns, at `count` moments; 0 of none."""

    p50_ns: int = 0
    p99_ns: int = 0
    count: int = 0

    def exceeds(self, bound_ns: int) -> bool:
        """Return whether it was later than a bound, more often than once in a hundred times."""
        return self.count >= LEAST_COUNT and self.p99_ns > bound_ns

    def facts(self) -> dict[str, Any]:
        """Return the numbers for a trial's record, in us."""
        return {
            "p50": round(self.p50_ns / 1e3, 1),
            "p99": round(self.p99_ns / 1e3, 1),
            "count": self.count,
        }


class LagProgram:
    """A program of this package that runs until it is told to end, and then says how late it was.

    It has no lag where it does not run, as a shaper without root's rights.
    """

    def __init__(self, module: ModuleType, *words: str) -> None:
        # isolated, so that it starts without the project's modules
        argv = [sys.executable, "-IS", str(module.__file__), *words]
        self._process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.pid = self._process.pid

    def await_start(self) -> None:
        """Wait until it measures, or has ended."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> Lag:
        """End it; return what it says."""
        self._process.terminate()
        text = ""
        with suppress(subprocess.TimeoutExpired):
            text, _ = self._process.communicate(timeout=_END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        said = json.loads(text) if text.strip() else {}
        return Lag(*(int(said.get(name, 0)) for name in ("p50_ns", "p99_ns", "count")))
