"""The kernel's configuration: required options, their hash, and which of them a kernel lacks."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from orchestration.kernel.patches import DATA_PATH, REPLACEMENTS

FRAGMENT = Path(__file__).with_name("config.fragment")

_SET = re.compile(r"^(CONFIG_\w+)=(.+)$")
_UNSET = re.compile(r"^# (CONFIG_\w+) is not set$")
_OFF = "n"


def options(text: str) -> dict[str, str]:
    """Return the settings of a `.config` or a fragment, by name; `n` stands for "is not set"."""
    found = {}
    for line in text.splitlines():
        if match := _SET.match(line.strip()):
            found[match[1]] = match[2]
        elif match := _UNSET.match(line.strip()):
            found[match[1]] = _OFF
    return found


def fragment_options() -> dict[str, str]:
    """Return the options of the virtual-time kernel, on top of `defconfig`."""
    return options(FRAGMENT.read_text())


def unmet_options(config: str) -> list[str]:
    """Return a line for each option of the fragment that `config`, a full `.config`, lacks.

    An option that `config` does not name is off: Kconfig omits options that cannot be chosen.
    """
    got = options(config)
    return [
        f"{name}={got.get(name, _OFF)} instead of {wanted}"
        for name, wanted in fragment_options().items()
        if got.get(name, _OFF) != wanted
    ]


def config_hash() -> str:
    """Return a hash of the fragment's options, the source's patches and the data path."""
    lines = sorted(f"{name}={value}" for name, value in fragment_options().items())
    lines += [repr(change) for change in REPLACEMENTS]
    lines += [path.read_text() for path in DATA_PATH]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
