"""The user's folders of closloop: what can be made again, and what must be kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """Return a folder of what can be made again: in $XDG_CACHE_HOME/closloop, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "closloop", *parts)


def state_folder(*parts: str) -> Path:
    """Return a folder of what must be kept: in $XDG_STATE_HOME/closloop, or in ~/.local/state."""
    return Path(
        os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "closloop", *parts
    )
