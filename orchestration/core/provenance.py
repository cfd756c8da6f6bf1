"""The code that made a result: versions, and the commit when it ran from a git checkout."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions (name -> version) of everything that can change a trial's result.

    `commit` exists only in a git checkout; `+changes` is appended when tracked files differ from
    it.
    """
    found = {"closloop": _installed("closloop"), "python": platform.python_version()}
    found |= {name: _installed(name) for name in ("numpy", "pyarrow")}
    found["host_kernel"] = platform.release()
    commit = _commit(_ROOT)
    return {**found, "commit": commit} if commit else found


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit(root: Path) -> str:
    """Return the checkout's commit; "" outside a checkout, or without git."""
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}+changes" if changed else head


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
