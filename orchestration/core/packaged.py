"""What the package closloop-kernel brings, where it is installed: a built kernel, BPF programs.

It is a wheel that `closloop kernel wheel` makes. Its folders are those of the user's cache.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "closloop_kernel"
KERNEL, BPF, SOURCES = "kernel", "bpf", "sources"


def packaged(part: str) -> Path | None:
    """Return the package's folder of that name; None without the package."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / part
    return folder if folder.is_dir() else None
