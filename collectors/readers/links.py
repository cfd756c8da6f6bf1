"""The device's ports: do they have a carrier, and how often has it come or gone?

    links.read    {interfaces} -> {name: [carrier: 1 or 0, changes of it since boot]}

An interface that is not there has no carrier, and -1 changes.
"""

from __future__ import annotations

import os
from typing import Any

from orchestration.device.agent.main import Agent, Operation, OperationError

NET = "/sys/class/net"


def read_links(request: dict[str, Any], net: str = NET) -> dict[str, list[int]]:
    """Return carrier and changes of each interface."""
    names = [str(name) for name in request["interfaces"]]
    for name in names:
        if os.sep in name:
            raise OperationError(f"{name!r} is no interface", "correct closloop_links")
    return {name: _link(os.path.join(net, name)) for name in names}


def _link(folder: str) -> list[int]:
    # a port that is shut has no carrier to read: EINVAL
    return [max(0, _number(folder, "carrier")), _number(folder, "carrier_changes")]


def _number(folder: str, name: str) -> int:
    try:
        with open(os.path.join(folder, name)) as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {"links.read": read_links}
