"""What produced a result: versions and commit of the code, or the settings of an imported run."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestration.core.units import format_size

_ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the version, by name, of everything that can change a trial's result.

    `commit` exists only in a git checkout; it ends with `+changes` if tracked files differ from it.
    """
    by_name = {"closloop": _installed("closloop"), "python": platform.python_version()}
    by_name |= {name: _installed(name) for name in ("numpy", "pyarrow")}
    by_name["host_kernel"] = platform.release()
    commit = _commit(_ROOT)
    return {**by_name, "commit": commit} if commit else by_name


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


HPCC_FORMAT = "HPCC ns-3"
# The hosts' congestion control in the spec of an imported trial; its facts have the real one.
IMPORTED_CONTROL = "imported"
# The fact that names the congestion control, and its value if no imported file names it.
CONGESTION_CONTROL, UNKNOWN_CONTROL = "congestion_control", "unknown"


def import_settings(facts: Mapping[str, Any], buffer_bytes: int) -> dict[str, str]:
    """Return, by name and in words, the settings of an imported run that its spec does not have.

    Results depend on them too. They are in `facts["imported"]["settings"]` of the run's trials.
    Folders that version 0.2 imported lack that entry; for these, the settings are those of every
    run of HPCC's simulator, with a switch buffer of `buffer_bytes`.
    """
    imported = facts.get("imported")
    if not isinstance(imported, Mapping):
        return {}
    settings = imported.get("settings")
    if isinstance(settings, Mapping):
        return {str(name): str(words) for name, words in settings.items()}
    if imported.get("format") != HPCC_FORMAT:
        return {}
    parameters = facts.get("hpcc_parameters")
    window = parameters.get("HAS_WIN", "1") != "0" if isinstance(parameters, Mapping) else False
    return {
        "shared-buffer": shared_buffer_words(buffer_bytes),
        "pfc": "PFC",
        **({"window": "a window of a bandwidth-delay product for each flow"} if window else {}),
    }


def shared_buffer_words(buffer_bytes: int) -> str:
    """Return the size of a switch's shared buffer in words."""
    mib, rest = divmod(buffer_bytes, 2**20)
    size = format_size(buffer_bytes) if rest else f"{mib}MiB"
    return f"a buffer of {size} that a switch's ports share"
