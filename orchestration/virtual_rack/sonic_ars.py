"""SONiC's adaptive routing as the stand-in's orchagent has it, and the resulting ASIC_DB.

This follows sonic-swss PR 3597 (arsorch.cpp, routeorch.cpp of 79345568d), which no release has:

- Nothing is taken unless SAI takes a profile of the switch at all; capabilities are in STATE_DB.
- An object that is there gets all its attributes again when its row changes.
- A port takes part when there is a profile and its row.
- A group of next hops gets the object that its interfaces name when its routes are installed. What
  changes later changes no group; a group that has an object keeps it from being removed.
- A profile that is removed while a port takes part keeps orchagent at that row for ever.

The kernel forwards as ever: no flowlet is switched here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestration.device.agent import ars
from orchestration.virtual_rack.sonic_model import Rows, SwitchModel, object_id, port_oid

# In the order of the rows that name each other.
TABLES = (ars.OBJECT, ars.PROFILE, "ARS_INTERFACE")
# Types of SAI objects; those of ARS came later than most, and nothing looks at their numbers.
_HOP, _GROUP, _INTERFACE, _MEMBER, _ARS_PROFILE, _ARS = 4, 5, 6, 45, 101, 102
_STATE = "ASIC_STATE:SAI_OBJECT_TYPE_"
_MODES = {"per_flowlet_quality": "FLOWLET_QUALITY", "per_packet_quality": "PER_PACKET_QUALITY"}
_KNOWN = {
    "SAI_OBJECT_TYPE_SWITCH": ("SAI_SWITCH_ATTR_ARS_PROFILE",),
    "SAI_OBJECT_TYPE_ARS_PROFILE": ("SAI_ARS_PROFILE_ATTR_ALGO",),
    "SAI_OBJECT_TYPE_ARS": (
        "SAI_ARS_ATTR_MODE",
        "SAI_ARS_ATTR_IDLE_TIME",
        "SAI_ARS_ATTR_MAX_FLOWS",
    ),
    "SAI_OBJECT_TYPE_PORT": ("SAI_PORT_ATTR_ARS_ENABLE",),
    "SAI_OBJECT_TYPE_NEXT_HOP_GROUP": ("SAI_NEXT_HOP_GROUP_ATTR_ARS_OBJECT_ID",),
}


def capability_rows(lacks: tuple[str, ...] = ()) -> Rows:
    """Return STATE_DB's rows of what SAI takes; attributes in `lacks` it does not."""
    return {
        f"ARS_CAPABILITY_TABLE|{kind}|{name}": dict.fromkeys(
            ("create", "set", "get"), "false" if name in lacks else "true"
        )
        for kind, names in _KNOWN.items()
        for name in names
    }


class Adaptive:
    """The part of orchagent. `write(key, field, value)` sets ASIC_DB, a field of None removes.

    `hung` says what it goes round for ever, if it does: then it takes no other row of any table.
    """

    def __init__(
        self,
        model: SwitchModel,
        write: Callable[[str, str | None, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._model, self._write, self._log = model, write, log
        self._has = model.traits.adaptive
        self._lacks = model.traits.adaptive_lacks
        self._places = {port.name: place for place, port in enumerate(model.ports)}
        self._objects: dict[str, str] = {}
        self._profile = ""
        self._ports: dict[str, str] = {}
        self._waiting: dict[str, Mapping[str, str]] = {}
        self._bound = ""
        self._made = 0
        self.hung = ""

    def take(self, key: str, row: Mapping[str, str] | None) -> None:
        """Apply the present content of a row of CONFIG_DB, None if it has been removed."""
        table, _, name = key.partition("|")
        if not self._has or self.hung or table not in TABLES:
            return
        if table == ars.OBJECT:
            self._object(name, row)
        elif table == ars.PROFILE:
            self._take_profile(name, row)
        elif row is not None and not self._profile:
            self._waiting[name] = row
        else:
            self._port(name, row)

    def _object(self, name: str, row: Mapping[str, str] | None) -> None:
        oid = self._objects.get(name)
        if row is None:
            self._objects.pop(name, None)
            if (
                oid and oid != self._bound
            ):  # else SAI_STATUS_OBJECT_IN_USE, and only the name is forgotten
                self._write(f"{_STATE}ARS:{oid}", None, "")
            return
        if oid is None:
            self._made += 1
            oid = self._objects[name] = object_id(_ARS, self._made)
        mode = _MODES.get(row.get(ars.MODE, ""), "FLOWLET_QUALITY")
        values = {
            "MODE": f"SAI_ARS_MODE_{mode}",
            "IDLE_TIME": str(int(row.get(ars.IDLE, "256"))),
            "MAX_FLOWS": row.get("max_flows", "512"),
        }
        for attribute, value in values.items():
            if f"SAI_ARS_ATTR_{attribute}" not in self._lacks:
                self._write(f"{_STATE}ARS:{oid}", f"SAI_ARS_ATTR_{attribute}", value)

    def _take_profile(self, name: str, row: Mapping[str, str] | None) -> None:
        key = f"{_STATE}ARS_PROFILE:{object_id(_ARS_PROFILE, 1)}"
        if row is None:
            if self._ports:
                self.hung = f"profile {name} was removed while {', '.join(self._ports)} take part"
                return
            self._profile = ""
            self._write(key, None, "")
            return
        if "SAI_ARS_PROFILE_ATTR_ALGO" in self._lacks:
            self.hung = f"SAI takes nothing of profile {name}"
            return
        self._profile = name
        self._write(key, "SAI_ARS_PROFILE_ATTR_ALGO", "SAI_ARS_PROFILE_ALGO_EWMA")
        waiting, self._waiting = self._waiting, {}
        for port, fields in waiting.items():
            self._port(port, fields)

    def _port(self, name: str, row: Mapping[str, str] | None) -> None:
        self._waiting.pop(name, None)
        if name not in self._places:
            self._log(f"ARS_INTERFACE|{name}: there is no such port")
            return
        if row is None:
            self._ports.pop(name, None)
        else:
            self._ports[name] = row.get(ars.OBJECT_NAME, "")
        said = "false" if row is None else "true"
        key = f"{_STATE}PORT:{port_oid(self._places[name])}"
        self._write(key, "SAI_PORT_ATTR_ARS_ENABLE", said)

    def install_routes(self) -> None:
        """Make the group of next hops by the ports to other switches, with the object they name."""
        hops = [port.name for port in self._model.ports if port.to_switch]
        if not self._has or len(hops) < 2:
            return
        group = object_id(_GROUP, 1)
        named = {self._ports.get(port, "") for port in hops}
        oid = self._objects.get(named.pop(), "") if len(named) == 1 and self._profile else ""
        self._write(f"{_STATE}NEXT_HOP_GROUP:{group}", "SAI_NEXT_HOP_GROUP_ATTR_TYPE", "ECMP")
        if oid:
            attribute = "SAI_NEXT_HOP_GROUP_ATTR_ARS_OBJECT_ID"
            self._write(f"{_STATE}NEXT_HOP_GROUP:{group}", attribute, oid)
        self._bound = oid
        for number, port in enumerate(hops, 1):
            hop, way = object_id(_HOP, number), object_id(_INTERFACE, number)
            interface = f"{_STATE}ROUTER_INTERFACE:{way}"
            member = f"{_STATE}NEXT_HOP_GROUP_MEMBER:{object_id(_MEMBER, number)}"
            of = "SAI_NEXT_HOP_GROUP_MEMBER_ATTR_NEXT_HOP"
            oid_of_port = port_oid(self._places[port])
            self._write(interface, "SAI_ROUTER_INTERFACE_ATTR_PORT_ID", oid_of_port)
            self._write(f"{_STATE}NEXT_HOP:{hop}", "SAI_NEXT_HOP_ATTR_ROUTER_INTERFACE_ID", way)
            self._write(member, f"{of}_GROUP_ID", group)
            self._write(member, f"{of}_ID", hop)
