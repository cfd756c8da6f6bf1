"""The numbers by which host and guest know the fabric's namespaces and interfaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestration.core.topology import Port

# Namespaces are passed as file descriptors with fixed numbers, so that requests can name them.
FIRST_NAMESPACE_FD = 2_000
FIRST_IFINDEX = 10


def ifindex(port: Port) -> int:
    """Return the interface index of a port, unique in the whole fabric."""
    return FIRST_IFINDEX + port.index
