"""Adaptive routing on a SONiC switch: whether it can be turned on, turning it on, and off again.

The switch's own models decide what is written (`device.agent.ars`), its capabilities whether it is
written at all. Two things keep orchagent at one row for ever (sonic-swss PR 3597, arsorch.cpp of
79345568d, doTaskArsProfile: `continue` without the next row):

- a profile of which SAI takes no attribute;
- a profile that is removed before all of its interfaces are.

So capabilities are looked at before, and each step is seen in ASIC_DB before the next.
"""

from __future__ import annotations

import re
import time

from ansible.module_utils.closloop.reconcile import Refused
from ansible.module_utils.device.agent import ars
from ansible.module_utils.device.agent.resp import ASIC_DB, CONFIG_DB, STATE_DB, Redis
from ansible.module_utils.device.agent.yang import MODELS, read_tables

STEP = "adaptive routing"
_REMEDY = (
    "remove closloop_flowlet_idle_time from the inventory, and use `load_balancing: ecmp`, or a "
    "Linux switch"
)
_CAPABILITY = "ARS_CAPABILITY_TABLE|"
# Attributes without which orchagent does not turn it on, does so in part, or never ends.
_NEEDED = (
    "SAI_OBJECT_TYPE_SWITCH|SAI_SWITCH_ATTR_ARS_PROFILE",
    "SAI_OBJECT_TYPE_ARS_PROFILE|SAI_ARS_PROFILE_ATTR_ALGO",
    "SAI_OBJECT_TYPE_ARS|SAI_ARS_ATTR_MODE",
    "SAI_OBJECT_TYPE_ARS|SAI_ARS_ATTR_IDLE_TIME",
    "SAI_OBJECT_TYPE_NEXT_HOP_GROUP|SAI_NEXT_HOP_GROUP_ATTR_ARS_OBJECT_ID",
)
_PORT = "SAI_OBJECT_TYPE_PORT|SAI_PORT_ATTR_ARS_ENABLE"
_IDLE = "SAI_OBJECT_TYPE_ARS|SAI_ARS_ATTR_IDLE_TIME"
_TIMEOUT_S, _LOOK_EVERY_S = 5.0, 0.05
# `config reload` would do it, too, but without rows that nobody saved.
_AGAIN = "have their routes installed again: restart the routing daemon (`systemctl restart bgp`)"


def release_of(version_file: str) -> str:
    """Return the release of SONiC, like 202505, as far as the switch says one."""
    try:
        with open(version_file, encoding="utf-8", errors="replace") as file:
            text = file.read(65_536)
    except OSError:
        return "of an unknown version"
    for name in ("release", "build_version"):
        found = re.search(rf"^{name}:\s*['\"]?([^'\"\n]*)", text, re.MULTILINE)
        if found and found[1].strip() not in ("", "none"):
            return found[1].strip()
    return "of an unknown version"


class AdaptiveRouting:
    """Adaptive routing of one switch. `models` is the folder of its YANG models."""

    def __init__(self, redis: Redis, version_file: str, models: str = MODELS) -> None:
        self._redis, self._version_file, self._models = redis, version_file, models

    def rows(self, desired: dict) -> dict:
        """Return the rows for `desired`: `idle_us` and `ports`. Raises Refused, with the reason."""
        ports = desired["ports"]
        schema = read_tables(ars.PREFIX, self._models)
        try:
            rows = ars.rows(schema, desired["idle_us"], ports)
        except ars.Missing as missing:
            raise Refused(
                f"it runs SONiC {release_of(self._version_file)}, whose {missing}: flowlet "
                "switching needs adaptive routing",
                _REMEDY,
            ) from None
        except ValueError as error:
            raise Refused(
                f"its schema does not take closloop_flowlet_idle_time: {error}",
                "correct it in the inventory",
            ) from None
        self._refuse_incapable()
        self._refuse_others()
        return rows

    def _can(self, attribute: str, how: str) -> bool:
        return self._redis.hash(STATE_DB, _CAPABILITY + attribute).get(how) == "true"

    def _refuse_incapable(self) -> None:
        if not self._redis.call(STATE_DB, "KEYS", _CAPABILITY + "*"):
            raise Refused(
                f"it runs SONiC {release_of(self._version_file)}, whose schema has adaptive "
                "routing and whose orchagent has not: STATE_DB has no ARS_CAPABILITY_TABLE",
                _REMEDY,
            )
        lacks = [name.partition("|")[2] for name in _NEEDED if not self._can(name, "create")]
        if lacks:
            raise Refused(
                f"its ASIC has no adaptive routing: SAI does not take {', '.join(lacks)} "
                "(ARS_CAPABILITY_TABLE in STATE_DB)",
                _REMEDY,
            )

    def _refuse_others(self) -> None:
        keys = self._redis.call(CONFIG_DB, "KEYS", f"{ars.PROFILE}|*")
        others = sorted({key.partition("|")[2] for key in keys} - {ars.NAME})
        if others:
            raise Refused(
                f"it has the adaptive routing profile {', '.join(others)} already, and SONiC has "
                "one at most",
                "remove that one first, with the interfaces that it serves",
            )

    def apply(self, changes: list, write) -> str:
        """Make changes of whole rows by `write`, one kind of row after the other.

        Returns what is left to do by hand, or "". Raises Refused, with new rows removed again, if
        the ASIC does not get what was written.
        """
        if not changes:
            return ""
        gone = [change for change in changes if change.after is None]
        there = [change for change in changes if change.after is not None]
        left = [self._remove([change.key for change in gone])]
        if there:
            left.append(self._make(there, write))
        return "; ".join(filter(None, left))

    def _make(self, changes: list, write) -> str:
        ordered = {}
        for change in changes:
            ordered.setdefault(change.key.partition("|")[0], []).append(change)
        idle_us = self._idle_us(changes)
        self._refuse_fixed(changes, idle_us)
        for table in sorted(ordered, key=_place):
            write(ordered[table])
            if table == ars.PROFILE and not self._reached(self._profiles):
                self._take_back(changes, "the ASIC did not get the profile of adaptive routing")
        ports = _ports(changes) if self._can(_PORT, "set") else []

        def done() -> bool:
            has = str(idle_us) in ars.idle_times(self._redis).values()
            return has and len(ars.enabled(self._redis, ports)) == len(ports)

        if not self._reached(done):
            what = f"the ASIC did not get the idle time of {idle_us} us"
            self._take_back(changes, what + (f" on {', '.join(ports)}" if ports else ""))
        found = ars.state(self._redis, self._all_ports())
        without = found["groups"] - found["bound"].get(str(idle_us), 0)
        if not without:
            return ""
        return (
            f"{without} of {found['groups']} groups of next hops were made before it was on, and "
            f"go on choosing by the flow: {_AGAIN}"
        )

    def _idle_us(self, changes: list) -> int:
        row = self._redis.hash(CONFIG_DB, f"{ars.OBJECT}|{ars.NAME}")
        for change in changes:
            if change.key.startswith(ars.OBJECT + "|"):
                row = change.after
        return int(row.get(ars.IDLE, "0"))

    def _refuse_fixed(self, changes: list, idle_us: int) -> None:
        """Refuse to change an object that is there if SAI only takes its idle time at birth."""
        for change in changes:
            former = (change.before or {}).get(ars.IDLE)
            if former not in (None, str(idle_us)) and not self._can(_IDLE, "set"):
                raise Refused(
                    f"its ASIC keeps the idle time of {former} us that it began with: SAI cannot "
                    "set it later",
                    "undo with `closloop provision --undo`, then provision again",
                )

    def _take_back(self, changes: list, what: str) -> None:
        new = [change.key for change in changes if change.before is None]
        self._remove(new)
        raise Refused(
            f"{what} within {_TIMEOUT_S:.0f} s",
            "see what orchagent says of ARS in the switch's /var/log/syslog; the new rows were "
            "removed again",
        )

    def _remove(self, keys: list) -> str:
        """Remove rows: interfaces, the profile, the object, each after the one before is gone."""
        if not keys:
            return ""
        tables = [key.partition("|")[0] for key in keys]
        before = ars.state(self._redis, self._all_ports())
        ours = [key for key, table in zip(keys, tables) if table in ars.INTERFACES]
        ports = [key.partition("|")[2] for key in ours]
        self._delete(ours)
        if self._can(_PORT, "set"):
            off = self._reached(lambda: not ars.enabled(self._redis, ports))
        else:
            # nothing tells when orchagent has taken the rows
            time.sleep(1.0 if ours else 0.0)
            off = True
        if not off:
            raise Refused(
                f"adaptive routing does not end on {', '.join(ports)}",
                "see whether orchagent runs (`docker ps`, /var/log/syslog on the switch)",
            )
        profiles = [key for key, table in zip(keys, tables) if table == ars.PROFILE]
        self._delete(profiles)
        if profiles and not self._reached(lambda: not self._profiles()):
            raise Refused(
                "the ASIC keeps the profile of adaptive routing",
                "see what orchagent says of ARS in the switch's /var/log/syslog",
            )
        self._delete([key for key, table in zip(keys, tables) if table == ars.OBJECT])
        bound = sum(before["bound"].values())
        if not bound:
            return ""
        return f"{bound} groups of next hops go on choosing by flowlets: {_AGAIN}"

    def _delete(self, keys: list) -> None:
        self._redis.run([(CONFIG_DB, ("DEL", key)) for key in keys])

    def _profiles(self) -> list:
        return self._redis.call(ASIC_DB, "KEYS", ars.PROFILES)

    def _all_ports(self) -> list:
        """Return all ports that take part, as CONFIG_DB has them."""
        keys = []
        for table in ars.INTERFACES:
            keys += self._redis.call(CONFIG_DB, "KEYS", f"{table}|*")
        return [key.partition("|")[2] for key in keys]

    def _reached(self, true) -> bool:
        end = time.monotonic() + _TIMEOUT_S
        while not true():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True


def _ports(changes: list) -> list:
    parts = [change.key.partition("|") for change in changes]
    return [port for table, _, port in parts if table in ars.INTERFACES]


def _place(table: str) -> int:
    order = (ars.OBJECT, ars.PROFILE, *ars.INTERFACES)
    return order.index(table) if table in order else len(order)
