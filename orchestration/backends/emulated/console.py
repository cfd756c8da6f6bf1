"""Messages from guest to host: JSON lines on the guest's console, known by their first word."""

from __future__ import annotations

import json
import os
from typing import Any

CONSOLE_MARK = "@closloop "


def say(**message: Any) -> None:
    """Send the host a message (in the guest)."""
    os.write(1, f"{CONSOLE_MARK}{json.dumps(message)}\n".encode())
