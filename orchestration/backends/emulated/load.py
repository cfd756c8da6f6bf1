"""How busy the machine was during a trial in real time, for the trial's facts."""

from __future__ import annotations

from pathlib import Path

_STAT = Path("/proc/stat")
# Of the fields of the line `cpu`: idle and iowait.
_IDLE = slice(3, 5)
# guest time is part of user time, too
_FIELDS = 8


class ProcessorLoad:
    """The load of all the machine's processors since this object was made."""

    def __init__(self) -> None:
        self._begin = _ticks(_STAT.read_text())

    def facts(self) -> dict[str, float]:
        """Return `cpu_busy_share`, by which the stamp judges; none if no time has passed."""
        total, idle = (
            now - then for now, then in zip(_ticks(_STAT.read_text()), self._begin, strict=True)
        )
        return {"cpu_busy_share": round(1 - idle / total, 4)} if total else {}


def _ticks(stat: str) -> tuple[int, int]:
    """Return the time of all processors and their idle time, in the kernel's ticks."""
    numbers = [int(word) for word in stat.splitlines()[0].split()[1 : 1 + _FIELDS]]
    return sum(numbers), sum(numbers[_IDLE])
