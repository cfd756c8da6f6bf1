"""How a guest talks to its host: lines of JSON on its console, known by their first word."""

from __future__ import annotations

import json
import os
from typing import Any

CONSOLE_MARK = "@closloop "


def say(**message: Any) -> None:
    """Tell the host something (in the guest)."""
    os.write(1, f"{CONSOLE_MARK}{json.dumps(message)}\n".encode())
