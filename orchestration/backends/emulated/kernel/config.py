"""The kernel's configuration: what is asked for, its hash, and what a built kernel lacks of it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from orchestration.backends.emulated.kernel.patches import REPLACEMENTS

FRAGMENT = Path(__file__).with_name("config.fragment")

_SET = re.compile(r"^(CONFIG_\w+)=(.+)$")
_UNSET = re.compile(r"^# (CONFIG_\w+) is not set$")
_OFF = "n"


def options(text: str) -> dict[str, str]:
    """Return what a `.config` or a fragment sets: name to value, `n` for "is not set"."""
    found = {}
    for line in text.splitlines():
        if match := _SET.match(line.strip()):
            found[match[1]] = match[2]
        elif match := _UNSET.match(line.strip()):
            found[match[1]] = _OFF
    return found


def fragment_options() -> dict[str, str]:
    """Return the options that the virtual-time kernel is built with, on top of `defconfig`."""
    return options(FRAGMENT.read_text())


def unmet_options(config: str) -> list[str]:
    """Return a line for each option of the fragment that `config`, a full `.config`, lacks.

    An option that `config` does not name is off: Kconfig leaves out what cannot be chosen.
    """
    got = options(config)
    return [
        f"{name}={got.get(name, _OFF)} instead of {wanted}"
        for name, wanted in fragment_options().items()
        if got.get(name, _OFF) != wanted
    ]


def config_hash() -> str:
    """Return a hash of the fragment's options and of what the source is changed in."""
    lines = sorted(f"{name}={value}" for name, value in fragment_options().items())
    lines += [repr(change) for change in REPLACEMENTS]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
