"""SONiC's orchagent for WRED profiles and queues, and the resulting state of the ASIC.

This follows sonic-swss, orchagent/qosorch.cpp. A row with an unknown field, or with a minimum above
its maximum, is refused as a whole. Removed fields keep their value. Thresholds are written one by
one, in an order that keeps minimum <= maximum. A reference to a missing profile and the removal of
a used profile are retried.
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
_MOST = 2**31 - 1
_ECN = {
    f"ecn_{name}": f"SAI_ECN_MARK_MODE_{name.upper()}"
    for name in (*COLOURS, "none", "green_yellow", "green_red", "yellow_red", "all")
}
_NO_PROFILE = "oid:0x0"


class Refused(ValueError):  # noqa: N818 (names what happens to a row)
    """A row that orchagent does not accept."""


@dataclass
class _Profile:
    oid: str
    attributes: dict[str, int | str] = field(default_factory=dict)
    thresholds: dict[tuple[str, str], int] = field(default_factory=dict)


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
        attributes, thresholds = self._parse(row)
        known = self._profiles.get(name)
        after = {**(known.thresholds if known else {}), **thresholds}
        for colour in COLOURS:
            low, high = after.get((colour, "MIN"), 0), after.get((colour, "MAX"), _MOST)
            if low > high:
                raise Refused(f"{colour} minimum {low} above maximum {high}")
        if known is None:
            self._made += 1
            known = self._profiles[name] = _Profile(wred_oid(self._made))
            for colour in COLOURS:
                enabled = attributes.get(f"{colour.upper()}_ENABLE") == "true"
                if enabled and f"{colour.upper()}_DROP_PROBABILITY" not in attributes:
                    attributes[f"{colour.upper()}_DROP_PROBABILITY"] = 100
            attributes["WEIGHT"] = 0
        for attribute, value in attributes.items():
            if known.attributes.get(attribute) != value:
                self._set(known, attribute, str(value))
                known.attributes[attribute] = value
        self._set_thresholds(known, thresholds)
        for (port, queue), bound in self._bound.items():
            if bound == name:
                self._mark(port, queue, self._marking(known))
        return True

    def _parse(
        self, row: Mapping[str, str]
    ) -> tuple[dict[str, int | str], dict[tuple[str, str], int]]:
        attributes: dict[str, int | str] = {}
        thresholds: dict[tuple[str, str], int] = {}
        for name, value in row.items():
            colour, _, rest = name.partition("_")
            if name == "ecn":
                if value not in _ECN:
                    raise Refused(f"ecn {value!r}")
                attributes["ECN_MARK_MODE"] = _ECN[value]
            elif colour in COLOURS and rest in ("min_threshold", "max_threshold"):
                bound = _whole(name, value, _MOST)
                if bound > self._model.pool_bytes:
                    raise Refused(f"{name} {value} is more than the buffer: SAI_STATUS_FAILURE")
                thresholds[colour, rest[:3].upper()] = bound
            elif colour in COLOURS and rest == "drop_probability":
                attributes[f"{colour.upper()}_DROP_PROBABILITY"] = _whole(name, value, 100)
            elif name in [f"wred_{item}_enable" for item in COLOURS]:
                if value not in ("true", "false"):
                    raise Refused(f"{name} {value!r}")
                attributes[f"{name.split('_')[1].upper()}_ENABLE"] = value
            else:
                raise Refused(f"unknown field {name!r}")
        return attributes, thresholds

    def _set_thresholds(self, profile: _Profile, wanted: dict[tuple[str, str], int]) -> None:
        for colour in COLOURS:
            ends = ["MIN", "MAX"]
            # a minimum above the old maximum is written after the new maximum
            if wanted.get((colour, "MIN"), 0) > profile.thresholds.get((colour, "MAX"), _MOST):
                ends.reverse()
            for end in ends:
                value = wanted.get((colour, end))
                if value is not None and profile.thresholds.get((colour, end)) != value:
                    self._set(profile, f"{colour.upper()}_{end}_THRESHOLD", str(value))
                    profile.thresholds[colour, end] = value

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

    def _marking(self, profile: _Profile) -> Marking | None:
        """Return the marking of the colour green, the only one of the forwarding plane."""
        mode = str(profile.attributes.get("ECN_MARK_MODE", ""))
        low, high = (profile.thresholds.get(("green", end)) for end in ("MIN", "MAX"))
        if not mode.endswith("ALL") and "GREEN" not in mode:
            return None
        if not low or not high:
            return None
        percent = profile.attributes.get("GREEN_DROP_PROBABILITY", 100)
        rounded = self._model.rounded  # by the silicon, and nobody is told
        return Marking(rounded(low), rounded(high), int(percent))


def _whole(name: str, value: str, most: int) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= most):
        raise Refused(f"{name} {value!r}")
    return int(value)
