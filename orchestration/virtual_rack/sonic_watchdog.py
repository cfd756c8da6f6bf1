"""The PFC watchdog of SONiC's orchagent: which queues syncd reads the depth of, and its traps.

This follows sonic-swss, orchagent/pfcwdorch.cpp (202305 to 202605):

- A port's queues are those of `pfcwd_sw_enable` at the moment its row is set; later changes of that
  field do nothing. Without any, the row waits.
- A queue that is watched keeps its action until its port's row is removed (`emplace`).
- With Broadcom's DLR_INIT, a row with another action than the watched ports have is refused.
- Removing a row that is no port's, such as GLOBAL, ends orchagent with SIGSEGV (fixed on master
  only: PR 4760).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestration.virtual_rack.sonic_model import SwitchModel, queue_oid

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
