"""New SSH keys, made by OpenSSH's `ssh-keygen`."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROGRAM, PACKAGE = "ssh-keygen", "openssh-client"


def new_key(file: Path, comment: str) -> None:
    """Write a private key without a passphrase to `file`, and the public one to `file`.pub.

    Raises FileNotFoundError without ssh-keygen, and CalledProcessError if it cannot write.
    """
    argv = [PROGRAM, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def public_words(file: Path) -> str:
    """Return the public key beside a private one as `ssh-ed25519 AAAA...`, without its comment."""
    return " ".join(file.with_name(f"{file.name}.pub").read_text(encoding="ascii").split()[:2])
