"""SONiC's PFC watchdog, which reads the queues' depth: its rows, and what orchagent makes of them.

Orchagent (sonic-swss, pfcwdorch.cpp, 202305 to 202605) reads a port's queues (`pfcwd_sw_enable`)
only when it takes the port's row, and a queue that is watched keeps its action. So a row is removed
before it is set anew, as the command `pfcwd` does. Which queues are watched is seen in COUNTERS_DB.
"""

from __future__ import annotations

import time

from ansible.module_utils.agent.small_files import fields, text
from ansible.module_utils.agent.sonic.resp import CONFIG_DB, COUNTERS_DB, STATE_DB, Redis
from ansible.module_utils.closloop.reconcile import Refused

VERSION_FILE = "/etc/sonic/sonic_version.yml"
GLOBAL = "GLOBAL"
_TABLE = "PFC_WD|"
# Orchagent takes a row in well below a second. It may take a port's row before `pfcwd_sw_enable`,
# and then needs the row again.
_TIMEOUT_S, _LOOK_EVERY_S, _TRIES = 5.0, 0.05, 3


def ports_to_restart(redis: Redis, changes: list) -> dict:
    """Return the rows of PFC_WD, by port, that orchagent must take anew; None for no row.

    They are those that change, and those of ports whose list of watched queues changes.
    """
    rows = {}
    for change in changes:
        table, _, port = change.key.partition("|")
        if table == "PORT_QOS_MAP" and _watched(change.before) != _watched(change.after):
            present = redis.hash(CONFIG_DB, _TABLE + port)
            if present:
                rows.setdefault(port, present)
        elif table == "PFC_WD" and port != GLOBAL:
            rows[port] = change.after
    return rows


def set_rows(redis: Redis, rows: dict) -> None:
    """Set the rows of PFC_WD by port, each in one step; a port without a row gets none."""
    commands = []
    for port, row in rows.items():
        flat = [word for pair in row.items() for word in pair] if row else []
        commands += [(CONFIG_DB, ("HSET", _TABLE + port, *flat))] if flat else []
    redis.run(commands)


def _watched(row: dict | None) -> str:
    return (row or {}).get("pfcwd_sw_enable", "")


def refuse_two_actions(redis: Redis, rows: dict, version_file: str) -> None:
    """Raise Refused if `rows` lead to two actions on a switch that has one for all its ports.

    Broadcom with DLR_INIT has: orchagent refuses a row whose action is not that of the ports that
    are watched already, and says so in its log only.
    """
    if asic_of(version_file) != "broadcom":
        return
    if redis.hash(STATE_DB, "SWITCH_CAPABILITY|switch").get("PFC_DLR_INIT_CAPABLE") != "true":
        return
    present = redis.rows(CONFIG_DB, _TABLE + "*")
    present.pop(_TABLE + GLOBAL, None)
    after = {**{key[len(_TABLE) :]: row for key, row in present.items()}, **rows}
    actions = {port: _action(row) for port, row in after.items() if row}
    ours = {actions[port] for port in rows if port in actions}
    others = sorted(port for port in actions if port not in rows and {actions[port]} != ours)
    if not ours or (not others and len(ours) == 1):
        return
    others = others or sorted(port for port in rows if port in actions)
    shown = ", ".join(others[:4]) + (" and others" if len(others) > 4 else "")
    raise Refused(
        f"this switch has one PFC watchdog action for all its ports (DLR_INIT): it refuses "
        f"{' and '.join(sorted(ours))} while {shown} run with another",
        f"stop the watchdog there (`pfcwd stop {' '.join(others)}`), or set the same action",
    )


def _action(row: dict) -> str:
    return row.get("action", "drop")


def asic_of(version_file: str) -> str:
    """Return the kind of a switch's ASIC, like broadcom; empty if it is not said."""
    return fields(text(version_file), ":").get("asic_type", "")


class Restart:
    """Removes rows of PFC_WD and sets them anew, and sees that orchagent follows.

    Call `stop` before other rows are written, `start` afterwards.
    """

    def __init__(self, redis: Redis, rows: dict) -> None:
        self._redis, self._rows = redis, rows
        self._oids = redis.hash(COUNTERS_DB, "COUNTERS_QUEUE_NAME_MAP") if rows else {}

    def stop(self) -> None:
        """Remove the rows, and wait until no queue of theirs is watched.

        Raises Refused, with the rows as they were.
        """
        ports = list(self._rows)
        present = {port: self._redis.hash(CONFIG_DB, _TABLE + port) for port in ports}
        self._redis.run([(CONFIG_DB, ("DEL", _TABLE + port)) for port in ports])
        nothing = {(port, str(queue)): None for port in ports for queue in range(8)}
        if not self._reached(nothing):
            set_rows(self._redis, present)
            raise Refused(
                f"the PFC watchdog of {', '.join(ports)} does not stop",
                "see whether orchagent runs (`docker ps`, /var/log/syslog on the switch)",
            )

    def start(self) -> None:
        """Set the rows, and wait until the listed queues are watched. Raises Refused."""
        rows = {port: row for port, row in self._rows.items() if row}
        wanted = {}
        for port, row in rows.items():
            listed = _watched(self._redis.hash(CONFIG_DB, "PORT_QOS_MAP|" + port))
            wanted.update({(port, queue): _action(row) for queue in listed.split(",") if queue})
        for attempt in range(_TRIES):
            if attempt:
                self.stop()
            set_rows(self._redis, rows)
            if self._reached(wanted):
                return
        raise Refused(
            f"the PFC watchdog does not take its rows for {', '.join(rows)}",
            "look for what orchagent refused in the switch's /var/log/syslog",
        )

    def _reached(self, wanted: dict) -> bool:
        """Wait until the watched queues' actions are as wanted; None is not watched."""
        known = {place: self._oids.get(":".join(place)) for place in wanted}
        places = [place for place, oid in known.items() if oid]
        commands = [
            (COUNTERS_DB, ("HGET", f"COUNTERS:{known[place]}", "PFC_WD_ACTION")) for place in places
        ]
        end = time.monotonic() + _TIMEOUT_S
        while places:
            found = self._redis.run(commands)
            if all(action == wanted[place] for place, action in zip(places, found)):
                return True
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True
