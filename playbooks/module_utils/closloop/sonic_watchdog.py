"""Rows of SONiC's PFC watchdog, which finds stuck queues and also reads the depths of queues.

Orchagent (sonic-swss, pfcwdorch.cpp, 202305 to 202605) reads the list of a port's watched queues
(`pfcwd_sw_enable`) only when it processes the port's row, and a queue that is already watched keeps
its action. So a row is removed before it is set again, as the command `pfcwd` does. COUNTERS_DB
shows which queues are watched.
"""

from __future__ import annotations

import time

from ansible.module_utils.agent.small_files import fields, text
from ansible.module_utils.agent.sonic.resp import CONFIG_DB, COUNTERS_DB, STATE_DB, Redis
from ansible.module_utils.closloop.reconcile import Refused

VERSION_FILE = "/etc/sonic/sonic_version.yml"
GLOBAL = "GLOBAL"
_TABLE = "PFC_WD|"
# Orchagent processes a row in well below a second. It may process a port's row before
# `pfcwd_sw_enable`, and then needs the row again.
_TIMEOUT_S, _POLL_S, _MAX_TRIES = 5.0, 0.05, 3


def ports_to_restart(redis: Redis, changes: list) -> dict:
    """Return the rows of PFC_WD, by port, that orchagent must process again; None for no row.

    These are the rows that change, and those of ports whose list of watched queues changes.
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
    """Set the rows of PFC_WD by port, each in one step; for None, nothing is set."""
    commands = []
    for port, row in rows.items():
        flat = [word for pair in row.items() for word in pair] if row else []
        commands += [(CONFIG_DB, ("HSET", _TABLE + port, *flat))] if flat else []
    redis.run(commands)


def _watched(row: dict | None) -> str:
    return (row or {}).get("pfcwd_sw_enable", "")


def refuse_two_actions(redis: Redis, rows: dict, version_file: str) -> None:
    """Raise Refused if `rows` lead to two actions on a switch that has one for all its ports.

    Broadcom's ASICs with DLR_INIT have only one: orchagent refuses a row whose action differs from
    that of the ports that are watched already, and reports this only in its log.
    """
    if asic_of(version_file) != "broadcom":
        return
    if redis.hash(STATE_DB, "SWITCH_CAPABILITY|switch").get("PFC_DLR_INIT_CAPABLE") != "true":
        return
    present = redis.rows(CONFIG_DB, _TABLE + "*")
    present.pop(_TABLE + GLOBAL, None)
    after = {**{key[len(_TABLE) :]: row for key, row in present.items()}, **rows}
    actions = {port: _action(row) for port, row in after.items() if row}
    own_actions = {actions[port] for port in rows if port in actions}
    others = sorted(port for port in actions if port not in rows and {actions[port]} != own_actions)
    if not own_actions or (not others and len(own_actions) == 1):
        return
    others = others or sorted(port for port in rows if port in actions)
    shown = ", ".join(others[:4]) + (" and others" if len(others) > 4 else "")
    raise Refused(
        f"this switch has one PFC watchdog action for all its ports (DLR_INIT): it refuses "
        f"{' and '.join(sorted(own_actions))} while {shown} have another",
        f"stop the watchdog there (`pfcwd stop {' '.join(others)}`), or set the same action",
    )


def _action(row: dict) -> str:
    return row.get("action", "drop")


def asic_of(version_file: str) -> str:
    """Return the kind of a switch's ASIC, like broadcom, "" if the version file lacks it."""
    return fields(text(version_file), ":").get("asic_type", "")


class Restart:
    """Removes rows of PFC_WD and sets them again, and waits until orchagent has applied them.

    Call `stop` before other rows are written, and `start` afterwards.
    """

    def __init__(self, redis: Redis, rows: dict) -> None:
        self._redis, self._rows = redis, rows
        self._oids = redis.hash(COUNTERS_DB, "COUNTERS_QUEUE_NAME_MAP") if rows else {}

    def stop(self) -> None:
        """Remove the rows, and wait until no queue of their ports is watched.

        If queues stay watched, this restores the rows and raises Refused.
        """
        ports = list(self._rows)
        present = {port: self._redis.hash(CONFIG_DB, _TABLE + port) for port in ports}
        self._redis.run([(CONFIG_DB, ("DEL", _TABLE + port)) for port in ports])
        unwatched = {(port, str(queue)): None for port in ports for queue in range(8)}
        if not self._wait_for_actions(unwatched):
            set_rows(self._redis, present)
            raise Refused(
                f"the PFC watchdog of {', '.join(ports)} does not stop",
                "check that orchagent runs (`docker ps`, /var/log/syslog on the switch)",
            )

    def start(self) -> None:
        """Set the rows, and wait until the listed queues are watched. Raises Refused."""
        rows = {port: row for port, row in self._rows.items() if row}
        wanted = {}
        for port, row in rows.items():
            listed = _watched(self._redis.hash(CONFIG_DB, "PORT_QOS_MAP|" + port))
            wanted.update({(port, queue): _action(row) for queue in listed.split(",") if queue})
        for attempt in range(_MAX_TRIES):
            if attempt:
                self.stop()
            set_rows(self._redis, rows)
            if self._wait_for_actions(wanted):
                return
        raise Refused(
            f"the PFC watchdog does not apply its rows for {', '.join(rows)}",
            "look for what orchagent refused in the switch's /var/log/syslog",
        )

    def _wait_for_actions(self, wanted: dict) -> bool:
        """Wait until queues have these actions, None for not watched; return whether they have."""
        known = {queue: self._oids.get(":".join(queue)) for queue in wanted}
        queues = [queue for queue, oid in known.items() if oid]
        commands = [
            (COUNTERS_DB, ("HGET", f"COUNTERS:{known[queue]}", "PFC_WD_ACTION")) for queue in queues
        ]
        deadline = time.monotonic() + _TIMEOUT_S
        while queues:
            found = self._redis.run(commands)
            if all(action == wanted[queue] for queue, action in zip(queues, found)):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True
