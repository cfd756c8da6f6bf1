"""The kernel's configuration: what is asked for, its hash, and what a built kernel lacks of it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FRAGMENT = Path(__file__).with_name("config.fragment")
PRELUDE = Path(__file__).with_name("Kconfig.prelude")

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
    """Return a hash of the fragment's options and of the Kconfig prelude, comments left out."""
    lines = sorted(f"{name}={value}" for name, value in fragment_options().items())
    lines += _without_comments(PRELUDE.read_text())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def with_prelude(kconfig: str) -> str:
    """Return a kernel's top `Kconfig` with the prelude after its `mainmenu` line.

    The result goes to make as KBUILD_KCONFIG. So HZ changes without a change to the source tree,
    which may be the user's own.
    """
    match = re.search(r"^mainmenu .*\n", kconfig, re.MULTILINE)
    if match is None:
        raise ValueError("no mainmenu line in the top Kconfig")
    return f"{kconfig[: match.end()]}\n{PRELUDE.read_text()}{kconfig[match.end() :]}"


def _without_comments(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip() and line[0] != "#"]
