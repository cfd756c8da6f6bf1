"""Running the programs that a device is set up and looked at with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

REDIS_SOCKET = "/var/run/redis/redis.sock"


def run(argv: Sequence[str], text: str | None = None) -> str:
    """Run a program to its end and return what it printed.

    Raises RuntimeError with what it says if it fails.
    """
    done = subprocess.run(
        argv, input=text or "", capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise RuntimeError(f"{' '.join(argv)}: {said}")
    return done.stdout


def run_batch(program: str, lines: Iterable[str]) -> None:
    """Run lines of iproute2's `ip` or `tc`, if there are any."""
    if text := "".join(f"{line}\n" for line in lines):
        run([program, "-batch", "-"], text)
