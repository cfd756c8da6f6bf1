"""The name under which this controller holds devices."""

from __future__ import annotations

import getpass
import socket


def holder_name(what: str) -> str:
    """Return who holds a device, from which machine, and what for: `ann@laptop restore`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()} {what}"
