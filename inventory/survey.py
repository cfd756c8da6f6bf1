"""What a device said of itself, as pure data; `inventory.cabling` judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["wrong", "unproven"]
# In the order in which they are shown; each needs the ones before it only where one says so.
CHECKS = ("reachable", "login", "cabling", "rates", "MTU", "tools", "rights")


@dataclass(frozen=True)
class Neighbour:
    """Who announces itself at an interface over LLDP: only what it says, and all of it data.

    `port` is its port as `port_type` (ifname, mac, local, ifalias, …); `description` is the port's.
    """

    interface: str
    system: str = ""
    chassis: str = ""
    port_type: str = ""
    port: str = ""
    description: str = ""


@dataclass(frozen=True)
class InterfaceState:
    """One interface. `speed_bps` is -1 where the device does not tell, `offloads` then None."""

    exists: bool
    operstate: str = ""
    speed_bps: int = -1
    mtu_bytes: int = -1
    mac: str = ""
    driver: str = ""
    offloads: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Survey:
    """One device. `neighbours` is None where LLDP cannot be read, for `lldp_problem`.

    `system` is shown and kept, not judged. `programs` are versions by name, "" if not told.
    """

    device: str
    hostname: str
    interfaces: Mapping[str, InterfaceState]
    macs: Mapping[str, str] = field(default_factory=dict)
    neighbours: tuple[Neighbour, ...] | None = None
    lldp_problem: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    rdma_devices: tuple[str, ...] = ()
    is_root: bool = False
    may_change_qdiscs: bool = False
    system: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """Something wrong with a device, or that its survey leaves unproven, and what to do."""

    device: str
    check: str
    severity: Severity
    what: str
    remedy: str = ""
