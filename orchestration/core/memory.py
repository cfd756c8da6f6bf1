"""This machine's memory."""

from __future__ import annotations

from pathlib import Path


def available_memory_bytes() -> int:
    """Return what can be used without swapping: MemAvailable of `/proc/meminfo` (proc(5))."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemAvailable in /proc/meminfo")
