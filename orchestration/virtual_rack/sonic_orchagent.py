"""SONiC's orchagent for WRED profiles and queues, and the resulting state of the ASIC.

This follows sonic-swss, orchagent/qosorch.cpp (202305 to 202605):

- A row with an unknown field, or with a minimum above its maximum, is refused as a whole.
- Each write of a row sets every one of its fields in SAI, one after the other, whether it changed
  or not. If SAI refuses one, those before it stay. Fields that have left the row keep their value.
- A threshold that would cross the other end's present value is set after all other fields.
- A reference to a missing profile and the removal of a used profile are retried.

ASIC_DB has what was asked for; what the ASIC made of it is told to nobody. As in Mellanox' public
SAI (mlnx_sai_wred.c), setting a threshold or a probability unbinds the profile from its queues,
edits and binds it again, and each enabled colour takes one entry of a finite table.

The PFC watchdog (`Watchdog`) follows orchagent/pfcwdorch.cpp of the same releases:

- A port's queues are those of `pfcwd_sw_enable` at the moment its row is set; later changes of that
  field do nothing. Without any, the row waits.
- A queue that is watched keeps its action until its port's row is removed (`emplace`).
- With Broadcom's DLR_INIT, a row with another action than the watched ports have is refused.
- Removing a row that is no port's, such as GLOBAL, ends orchagent with SIGSEGV (fixed on master
  only: PR 4760).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestration.virtual_rack.sonic_model import (
    QUEUES,
    Marking,
    SwitchModel,
    queue_oid,
    wred_oid,
)

COLOURS = ("green", "yellow", "red")
_MAX = 2**31 - 1
_ECN = {
    f"ecn_{name}": f"SAI_ECN_MARK_MODE_{name.upper()}"
    for name in (*COLOURS, "none", "green_yellow", "green_red", "yellow_red", "all")
}
_NO_PROFILE = "oid:0x0"
_UNBINDING = ("_THRESHOLD", "_PROBABILITY")


class Refused(ValueError):  # noqa: N818 (names what happens to a row)
    """A row that orchagent does not accept."""


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
    """The daemon. `write(key, field, value)` sets ASIC_DB; a field of None removes the key.

    `mark(port, queue, marking)` sets the forwarding plane; `log` gets messages on refused rows.
    """

    def __init__(
        self,
        model: SwitchModel,
        write: Callable[[str, str | None, str], None],
        mark: Callable[[str, int, Marking | None], None],
        log: Callable[[str], None],
    ) -> None:
        self._model = model
        self._write, self._mark, self._log = write, mark, log
        self._profiles: dict[str, _Profile] = {}
        self._stored: dict[str, dict[str, int]] = {}
        self._bound: dict[tuple[str, int], str] = {}
        self._waiting: dict[str, Mapping[str, str] | None] = {}
        self._made = 0
        self._places = {port.name: place for place, port in enumerate(model.ports)}

    def start(self) -> None:
        """Write the ASIC's objects; no queue marks."""
        for name in self._places:
            for queue in range(QUEUES):
                self._bind(name, queue, None)

    def take(self, key: str, row: Mapping[str, str] | None) -> None:
        """Apply the present content of a row of CONFIG_DB, None if it has been removed."""
        self._waiting.pop(key, None)
        self._try(key, row)
        # rows that were waiting may be accepted now
        for other, waiting in list(self._waiting.items()):
            if other != key and other in self._waiting:
                del self._waiting[other]
                self._try(other, waiting)

    def _try(self, key: str, row: Mapping[str, str] | None) -> None:
        table, _, name = key.partition("|")
        try:
            if table == "WRED_PROFILE":
                done = self._remove(name) if row is None else self._profile(name, row)
            elif table == "QUEUE":
                done = self._queue(name, row or {})
            else:
                return
        except Refused as why:
            self._log(f"{key}: refused: {why}")
            return
        if not done:
            self._waiting[key] = row

    def _profile(self, name: str, row: Mapping[str, str]) -> bool:
        attributes = self._parse(name, row)
        known = self._profiles.get(name)
        if known is None:
            self._create(name, attributes)
            return True
        for attribute, value in attributes:
            self._accept(attribute, value)
            unbinds = attribute.endswith(_UNBINDING)
            if unbinds:
                self._mark_all(name, None)
            known.attributes[attribute] = value
            self._set(known, attribute, value)
            self._mark_all(name, self._marking(known))
        return True

    def _create(self, name: str, attributes: list[tuple[str, str]]) -> None:
        """Create an object with all attributes in one call; it exists completely or not at all."""
        wanted = dict([("WEIGHT", "0"), *attributes])
        for attribute, value in attributes:
            self._accept(attribute, value)
        for colour in COLOURS:
            if wanted.get(f"{colour.upper()}_ENABLE") == "true":
                wanted.setdefault(f"{colour.upper()}_DROP_PROBABILITY", "100")
        profile = _Profile(wred_oid(self._made + 1), wanted)
        used = sum(max(1, other.colours()) for other in self._profiles.values())
        if used + max(1, profile.colours()) > self._model.traits.wred_profiles:
            raise Refused("no free profile: SAI_STATUS_INSUFFICIENT_RESOURCES")
        self._made += 1
        self._profiles[name] = profile
        for attribute, value in wanted.items():
            self._set(profile, attribute, value)

    def _accept(self, attribute: str, value: str) -> None:
        """Raise Refused if SAI does not take an attribute."""
        if attribute.endswith("_THRESHOLD") and int(value) > self._model.pool_bytes:
            raise Refused(f"{attribute} {value} is more than the buffer: SAI_STATUS_FAILURE")

    def _parse(self, name: str, row: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the attributes in the order in which they are set."""
        stored = self._stored.get(name, {})
        after = dict(stored)
        first: list[tuple[str, str]] = []
        deferred: list[tuple[str, str]] = []
        for item, value in row.items():
            colour, _, rest = item.partition("_")
            attribute = item.upper()
            if item == "ecn":
                if value not in _ECN:
                    raise Refused(f"ecn {value!r}")
                first.append(("ECN_MARK_MODE", _ECN[value]))
            elif colour in COLOURS and rest in ("min_threshold", "max_threshold"):
                bound = after[attribute] = _whole(item, value, _MAX)
                low = rest.startswith("min")
                other = stored.get(f"{colour.upper()}_{'MAX' if low else 'MIN'}_THRESHOLD", 0)
                crosses = other < bound if low else other > bound
                (deferred if crosses else first).append((attribute, value))
            elif colour in COLOURS and rest == "drop_probability":
                first.append((attribute, str(_whole(item, value, 100))))
            elif item in [f"wred_{name}_enable" for name in COLOURS]:
                if value not in ("true", "false"):
                    raise Refused(f"{item} {value!r}")
                first.append((attribute.removeprefix("WRED_"), value))
            else:
                raise Refused(f"unknown field {item!r}")
        for colour in COLOURS:
            minimum, maximum = (
                after.get(f"{colour.upper()}_{end}_THRESHOLD", 0) for end in ("MIN", "MAX")
            )
            if minimum > maximum:
                raise Refused(f"{colour} minimum {minimum} above maximum {maximum}")
        self._stored[name] = after
        return first + deferred

    def _set(self, profile: _Profile, attribute: str, value: str) -> None:
        key = f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{profile.oid}"
        self._write(key, f"SAI_WRED_ATTR_{attribute}", value)

    def _remove(self, name: str) -> bool:
        if name in self._bound.values():
            return False
        profile = self._profiles.pop(name, None)
        if profile is not None:
            self._write(f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{profile.oid}", None, "")
        return True

    def _queue(self, name: str, row: Mapping[str, str]) -> bool:
        port, _, numbers = name.partition("|")
        first, _, last = numbers.partition("-")
        known = [str(queue) for queue in range(QUEUES)]
        if port not in self._places or first not in known or (last or first) not in known:
            raise Refused("no such queue")
        queues = range(int(first), int(last or first) + 1)
        profile = row.get("wred_profile")
        if profile is not None and profile not in self._profiles:
            return False
        for queue in queues:
            if self._bound.get((port, queue)) != profile:
                self._bind(port, queue, profile)
        return True

    def _bind(self, port: str, queue: int, profile: str | None) -> None:
        key = f"ASIC_STATE:SAI_OBJECT_TYPE_QUEUE:{queue_oid(self._places[port], queue)}"
        oid = self._profiles[profile].oid if profile else _NO_PROFILE
        self._write(key, "SAI_QUEUE_ATTR_WRED_PROFILE_ID", oid)
        if profile is None:
            self._bound.pop((port, queue), None)
            self._mark(port, queue, None)
        else:
            self._bound[port, queue] = profile
            self._mark(port, queue, self._marking(self._profiles[profile]))

    def _mark_all(self, name: str, marking: Marking | None) -> None:
        for (port, queue), bound in self._bound.items():
            if bound == name:
                self._mark(port, queue, marking)

    def _marking(self, profile: _Profile) -> Marking | None:
        """Return the marking of the colour green, the only one of the forwarding plane."""
        mode = profile.attributes.get("ECN_MARK_MODE", "")
        low, high = (profile.number(f"GREEN_{end}_THRESHOLD") for end in ("MIN", "MAX"))
        if not mode.endswith("ALL") and "GREEN" not in mode:
            return None
        if not low or not high:
            return None
        rounded = self._model.rounded  # by the silicon, and nobody is told
        return Marking(rounded(low), rounded(high), profile.number("GREEN_DROP_PROBABILITY", 100))


def _whole(name: str, value: str, maximum: int) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= maximum):
        raise Refused(f"{name} {value!r}")
    return int(value)


_GLOBAL = "GLOBAL"
_ACTIONS = ("drop", "forward", "alert")
_FIELDS = ("PFC_WD_DETECTION_TIME", "PFC_WD_RESTORATION_TIME", "PFC_WD_ACTION", "PFC_WD_STATUS")
_PRIORITIES = frozenset("01234567")


class Crash(Exception):  # noqa: N818 (names what happens)
    """Orchagent has ended by a signal."""


class Watchdog:
    """The daemon's part. `write(key, fields)` sets fields in COUNTERS_DB; None removes one.

    `poll(ms)` changes the interval at which syncd reads; `log` gets messages on refused rows.
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
        self._places = {port.name: place for place, port in enumerate(model.ports)}
        self._masks: dict[str, list[int]] = {}
        self._waiting: dict[str, Mapping[str, str]] = {}
        self._ports: dict[str, str] = {}  # the action of each watched port's last row
        self.actions: dict[tuple[str, int], str] = {}

    def take(self, key: str, row: Mapping[str, str] | None) -> None:
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
        others = {found for port, found in self._ports.items()}
        refused = ""
        if name not in self._places:
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
        if name not in self._places:
            raise Crash(f"PFC_WD|{name} was removed: PfcWdOrch::deleteEntry, SIGSEGV")
        self._waiting.pop(name, None)
        self._ports.pop(name, None)
        for port, queue in [place for place in self.actions if place[0] == name]:
            del self.actions[port, queue]
            self._write(self._key(port, queue), dict.fromkeys(_FIELDS))

    def _key(self, name: str, queue: int) -> str:
        return f"COUNTERS:{queue_oid(self._places[name], queue)}"
