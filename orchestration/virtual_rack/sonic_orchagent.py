"""SONiC's orchagent for WRED profiles, queues and the PFC watchdog, and the ASIC's resulting state.

orchagent is the daemon that turns rows of CONFIG_DB into objects of SAI, the API of switch ASICs.
For WRED this module follows sonic-swss, orchagent/qosorch.cpp (202305 to 202605):

- A row with an unknown field, or with a minimum above its maximum, is refused as a whole.
- Each write of a row sets all of its fields in SAI, one after the other, whether they changed or
  not. If SAI refuses one, those before it stay set. Fields that were removed from the row keep
  their value.
- A threshold that would cross the present value of the other one is set after all other fields.
- A reference to a missing profile is retried, and so is the removal of a used profile.

ASIC_DB has the values that were requested. Those that the ASIC really uses can be read nowhere. As
in Mellanox' public SAI (mlnx_sai_wred.c), setting a threshold or a probability unbinds the profile
from its queues, edits it and binds it again, and each enabled colour takes one entry of a finite
table.

The PFC watchdog (`PfcWatchdog`) follows orchagent/pfcwdorch.cpp of the same releases:

- A port's watched queues are those of `pfcwd_sw_enable` at the moment when its row is set. Later
  changes of that field have no effect. If the field names no queue, the row waits.
- A queue that is watched keeps its action until its port's row is removed (`emplace`).
- With Broadcom's DLR_INIT, a row is refused if its action differs from that of the watched ports.
- The removal of a row that belongs to no port, such as GLOBAL, ends orchagent with SIGSEGV (fixed
  on master only: PR 4760).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestration.virtual_rack.sonic_model import (
    QUEUES,
    RedSettings,
    SwitchModel,
    queue_oid,
    wred_oid,
)

COLOURS = ("green", "yellow", "red")
_MAX_THRESHOLD_BYTES = 2**31 - 1
_ECN = {
    f"ecn_{name}": f"SAI_ECN_MARK_MODE_{name.upper()}"
    for name in (*COLOURS, "none", "green_yellow", "green_red", "yellow_red", "all")
}
_NO_PROFILE = "oid:0x0"
_UNBINDING = ("_THRESHOLD", "_PROBABILITY")


class RefusedRow(ValueError):  # noqa: N818 (names what happens to a row)
    """orchagent does not accept a row."""


@dataclass
class _Profile:
    oid: str
    attributes: dict[str, str] = field(default_factory=dict)

    def number(self, attribute: str, default: int = 0) -> int:
        return int(self.attributes.get(attribute, default))

    def colours(self) -> int:
        """Return the number of enabled colours."""
        return sum(self.attributes.get(f"{c.upper()}_ENABLE") == "true" for c in COLOURS)


class Orchagent:
    """orchagent, for WRED profiles and queues.

    `write(key, field, value)` sets a field in ASIC_DB, and with None as the field removes the key.
    `set_red(port, queue, settings)` sets RED of the forwarding plane. `log` is called with a
    message for each refused row.
    """

    def __init__(
        self,
        model: SwitchModel,
        write: Callable[[str, str | None, str], None],
        set_red: Callable[[str, int, RedSettings | None], None],
        log: Callable[[str], None],
    ) -> None:
        self._model = model
        self._write, self._set_red, self._log = write, set_red, log
        self._profiles: dict[str, _Profile] = {}
        self._stored: dict[str, dict[str, int]] = {}
        self._bound: dict[tuple[str, int], str] = {}
        self._waiting: dict[str, Mapping[str, str] | None] = {}
        self._profiles_created = 0
        self._port_index = {port.name: index for index, port in enumerate(model.ports)}

    def start(self) -> None:
        """Write the ASIC's queues, of which none marks."""
        for name in self._port_index:
            for queue in range(QUEUES):
                self._bind(name, queue, None)

    def apply_row(self, key: str, row: Mapping[str, str] | None) -> None:
        """Apply the present content of a row of CONFIG_DB, None if it has been removed."""
        self._waiting.pop(key, None)
        self._try_row(key, row)
        # rows that were waiting may be accepted now
        for other, waiting in list(self._waiting.items()):
            if other != key and other in self._waiting:
                del self._waiting[other]
                self._try_row(other, waiting)

    def _try_row(self, key: str, row: Mapping[str, str] | None) -> None:
        table, _, name = key.partition("|")
        try:
            if table == "WRED_PROFILE":
                done = self._remove_profile(name) if row is None else self._apply_profile(name, row)
            elif table == "QUEUE":
                done = self._apply_queue(name, row or {})
            else:
                return
        except RefusedRow as reason:
            self._log(f"{key}: refused: {reason}")
            return
        if not done:
            self._waiting[key] = row

    def _apply_profile(self, name: str, row: Mapping[str, str]) -> bool:
        attributes = self._parse(name, row)
        existing = self._profiles.get(name)
        if existing is None:
            self._create(name, attributes)
            return True
        for attribute, value in attributes:
            self._check_accepted(attribute, value)
            unbinds = attribute.endswith(_UNBINDING)
            if unbinds:
                self._set_red_of(name, None)
            existing.attributes[attribute] = value
            self._set_attribute(existing, attribute, value)
            self._set_red_of(name, self._red_settings(existing))
        return True

    def _create(self, name: str, attributes: list[tuple[str, str]]) -> None:
        """Create a profile with all its attributes in one call: completely or not at all."""
        attributes_with_defaults = dict([("WEIGHT", "0"), *attributes])
        for attribute, value in attributes:
            self._check_accepted(attribute, value)
        for colour in COLOURS:
            if attributes_with_defaults.get(f"{colour.upper()}_ENABLE") == "true":
                attributes_with_defaults.setdefault(f"{colour.upper()}_DROP_PROBABILITY", "100")
        profile = _Profile(wred_oid(self._profiles_created + 1), attributes_with_defaults)
        used = sum(max(1, other.colours()) for other in self._profiles.values())
        if used + max(1, profile.colours()) > self._model.traits.wred_profiles:
            raise RefusedRow("no free profile: SAI_STATUS_INSUFFICIENT_RESOURCES")
        self._profiles_created += 1
        self._profiles[name] = profile
        for attribute, value in attributes_with_defaults.items():
            self._set_attribute(profile, attribute, value)

    def _check_accepted(self, attribute: str, value: str) -> None:
        """Raise RefusedRow if SAI does not accept the value of an attribute."""
        if attribute.endswith("_THRESHOLD") and int(value) > self._model.pool_bytes:
            raise RefusedRow(f"{attribute} {value} is more than the buffer: SAI_STATUS_FAILURE")

    def _parse(self, name: str, row: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return a row's attributes, in the order in which they are set. Raises RefusedRow."""
        stored = self._stored.get(name, {})
        thresholds = dict(stored)
        at_once: list[tuple[str, str]] = []
        deferred: list[tuple[str, str]] = []
        for item, value in row.items():
            colour, _, rest = item.partition("_")
            attribute = item.upper()
            if item == "ecn":
                if value not in _ECN:
                    raise RefusedRow(f"ecn {value!r}")
                at_once.append(("ECN_MARK_MODE", _ECN[value]))
            elif colour in COLOURS and rest in ("min_threshold", "max_threshold"):
                bound = thresholds[attribute] = _integer(item, value, _MAX_THRESHOLD_BYTES)
                low = rest.startswith("min")
                other = stored.get(f"{colour.upper()}_{'MAX' if low else 'MIN'}_THRESHOLD", 0)
                crosses = other < bound if low else other > bound
                (deferred if crosses else at_once).append((attribute, value))
            elif colour in COLOURS and rest == "drop_probability":
                at_once.append((attribute, str(_integer(item, value, 100))))
            elif item in [f"wred_{name}_enable" for name in COLOURS]:
                if value not in ("true", "false"):
                    raise RefusedRow(f"{item} {value!r}")
                at_once.append((attribute.removeprefix("WRED_"), value))
            else:
                raise RefusedRow(f"unknown field {item!r}")
        for colour in COLOURS:
            minimum, maximum = (
                thresholds.get(f"{colour.upper()}_{end}_THRESHOLD", 0) for end in ("MIN", "MAX")
            )
            if minimum > maximum:
                raise RefusedRow(f"{colour} minimum {minimum} above maximum {maximum}")
        self._stored[name] = thresholds
        return at_once + deferred

    def _set_attribute(self, profile: _Profile, attribute: str, value: str) -> None:
        key = f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{profile.oid}"
        self._write(key, f"SAI_WRED_ATTR_{attribute}", value)

    def _remove_profile(self, name: str) -> bool:
        if name in self._bound.values():
            return False
        profile = self._profiles.pop(name, None)
        if profile is not None:
            self._write(f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{profile.oid}", None, "")
        return True

    def _apply_queue(self, name: str, row: Mapping[str, str]) -> bool:
        port, _, numbers = name.partition("|")
        first, _, last = numbers.partition("-")
        valid = [str(queue) for queue in range(QUEUES)]
        if port not in self._port_index or first not in valid or (last or first) not in valid:
            raise RefusedRow("no such queue")
        queues = range(int(first), int(last or first) + 1)
        profile = row.get("wred_profile")
        if profile is not None and profile not in self._profiles:
            return False
        for queue in queues:
            if self._bound.get((port, queue)) != profile:
                self._bind(port, queue, profile)
        return True

    def _bind(self, port: str, queue: int, profile: str | None) -> None:
        key = f"ASIC_STATE:SAI_OBJECT_TYPE_QUEUE:{queue_oid(self._port_index[port], queue)}"
        oid = self._profiles[profile].oid if profile else _NO_PROFILE
        self._write(key, "SAI_QUEUE_ATTR_WRED_PROFILE_ID", oid)
        if profile is None:
            self._bound.pop((port, queue), None)
            self._set_red(port, queue, None)
        else:
            self._bound[port, queue] = profile
            self._set_red(port, queue, self._red_settings(self._profiles[profile]))

    def _set_red_of(self, name: str, settings: RedSettings | None) -> None:
        for (port, queue), bound in self._bound.items():
            if bound == name:
                self._set_red(port, queue, settings)

    def _red_settings(self, profile: _Profile) -> RedSettings | None:
        """Return the RED settings of green, the only colour that the forwarding plane has."""
        mode = profile.attributes.get("ECN_MARK_MODE", "")
        low, high = (profile.number(f"GREEN_{end}_THRESHOLD") for end in ("MIN", "MAX"))
        if not mode.endswith("ALL") and "GREEN" not in mode:
            return None
        if not low or not high:
            return None
        rounded = self._model.rounded  # the ASIC does this, and reports it nowhere
        return RedSettings(
            rounded(low), rounded(high), profile.number("GREEN_DROP_PROBABILITY", 100)
        )


def _integer(name: str, value: str, maximum: int) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= maximum):
        raise RefusedRow(f"{name} {value!r}")
    return int(value)


_GLOBAL = "GLOBAL"
_ACTIONS = ("drop", "forward", "alert")
_FIELDS = ("PFC_WD_DETECTION_TIME", "PFC_WD_RESTORATION_TIME", "PFC_WD_ACTION", "PFC_WD_STATUS")
_PRIORITIES = frozenset("01234567")


class OrchagentCrash(Exception):  # noqa: N818 (names what happens)
    """orchagent would have ended by a signal here."""


class PfcWatchdog:
    """orchagent, for the PFC watchdog. `actions` are the actions by watched port and queue.

    `write(key, fields)` sets fields in COUNTERS_DB; a value of None removes a field. `poll(text)`
    sets syncd's polling interval in ms. `log` is called with a message for each refused row.
    """

    def __init__(
        self,
        model: SwitchModel,
        write: Callable[[str, Mapping[str, str | None]], None],
        poll: Callable[[str], None],
        log: Callable[[str], None],
    ) -> None:
        self._model = model
        self._write, self._poll, self._log = write, poll, log
        self._port_index = {port.name: index for index, port in enumerate(model.ports)}
        self._masks: dict[str, list[int]] = {}
        self._waiting: dict[str, Mapping[str, str]] = {}
        self._ports: dict[str, str] = {}  # the action of each watched port's last row
        self.actions: dict[tuple[str, int], str] = {}

    def apply_row(self, key: str, row: Mapping[str, str] | None) -> None:
        """Apply the present content of a row of CONFIG_DB, None if it has been removed."""
        table, _, name = key.partition("|")
        if table == "PORT_QOS_MAP":
            listed = (row or {}).get("pfcwd_sw_enable", "")
            self._masks[name] = [int(part) for part in listed.split(",") if part in _PRIORITIES]
            for port, waiting in list(self._waiting.items()):
                self._start(port, waiting)
        elif table == "PFC_WD" and row is None:
            self._stop(name)
        elif table == "PFC_WD" and name == _GLOBAL:
            self._poll((row or {}).get("POLL_INTERVAL", ""))
        elif table == "PFC_WD":
            self._start(name, row or {})

    def _start(self, name: str, row: Mapping[str, str]) -> None:
        self._waiting.pop(name, None)
        action = row.get("action", "drop")
        others = set(self._ports.values())
        refused = ""
        if name not in self._port_index:
            refused = "no such port"
        elif action not in _ACTIONS or not row.get("detection_time", "").isdigit():
            refused = "its action or detection_time is missing or wrong"
        elif self._model.traits.one_watchdog_action and others - {action}:
            refused = f"action {action}, but the switch's action is {others.pop()}"
        if refused:
            self._log(f"PFC_WD|{name}: refused: {refused}")
            return
        queues = self._masks.get(name, [])
        if not queues:
            self._waiting[name] = row
            return
        self._ports[name] = action
        for queue in queues:
            self.actions.setdefault((name, queue), action)
            microseconds = [
                str(int(row.get(field) or 0) * 1000)
                for field in ("detection_time", "restoration_time")
            ]
            self._write(
                self._key(name, queue), dict(zip(_FIELDS, (*microseconds, action), strict=False))
            )

    def _stop(self, name: str) -> None:
        if name not in self._port_index:
            raise OrchagentCrash(f"PFC_WD|{name} was removed: PfcWdOrch::deleteEntry, SIGSEGV")
        self._waiting.pop(name, None)
        self._ports.pop(name, None)
        for port, queue in [key for key in self.actions if key[0] == name]:
            del self.actions[port, queue]
            self._write(self._key(port, queue), dict.fromkeys(_FIELDS))

    def _key(self, name: str, queue: int) -> str:
        return f"COUNTERS:{queue_oid(self._port_index[name], queue)}"
