"""How busy the machine is during a trial in real time, for the trial's facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_STAT = Path("/proc/stat")
# Of the fields of the line `cpu`: idle and iowait; behind the eighth, guests' time stands again.
_IDLE, _FIELDS = slice(3, 5), 8


class ProcessorLoad:
    """Watches all the machine's processors while its `with` lasts."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._begin = self._end = (0, 0)

    def __enter__(self) -> ProcessorLoad:
        self._begin = _ticks(self._stat.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        self._end = _ticks(self._stat.read_text())

    def facts(self) -> dict[str, float]:
        """Return `cpu_busy_share`, which the stamp judges; none if no time has passed."""
        total, idle = (now - then for now, then in zip(self._end, self._begin, strict=True))
        return {"cpu_busy_share": round(1 - idle / total, 4)} if total else {}

    def findings(self) -> Sequence[dict[str, str]]:
        """Return none: the stamp judges by the facts."""
        return ()


def _ticks(stat: str) -> tuple[int, int]:
    """Return the time of all processors and their idle time, in the kernel's ticks."""
    numbers = [int(word) for word in stat.splitlines()[0].split()[1 : 1 + _FIELDS]]
    return sum(numbers), sum(numbers[_IDLE])
