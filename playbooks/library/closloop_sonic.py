#!/usr/bin/python
"""Ansible module: set rows of a SONiC switch's CONFIG_DB, with undo."""

from __future__ import annotations

import re
import time

from ansible.module_utils.agent.sonic import configdb
from ansible.module_utils.agent.sonic.asics import unsupported_reason
from ansible.module_utils.agent.sonic.resp import ASIC_DB, CONFIG_DB, SOCKET, Redis, RedisError
from ansible.module_utils.agent.sonic.stream import CONSTANTS_FILE, can_stream
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.closloop import sonic_polls
from ansible.module_utils.closloop.reconcile import ARGUMENTS, Device, Refused, run
from ansible.module_utils.closloop.sonic_rows import (
    LISTS,
    lossless_rows,
    noted,
    parts,
    restored,
    stream_rows,
)
from ansible.module_utils.closloop.sonic_watchdog import (
    VERSION_FILE,
    Restart,
    asic_of,
    ports_to_restart,
    refuse_two_actions,
    set_rows,
)

DOCUMENTATION = r"""
module: closloop_sonic
short_description: Brings rows of SONiC's CONFIG_DB into one state
description:
  - Writes the fields asked for through the switch's Redis, each row in one go, referenced rows
    before those that refer to them, and reports a change only where a field differed.
  - Other fields of a row, and other rows, are left alone; priorities are added to C(pfc_enable),
    never taken away. WRED profiles are wholly its own. Former values are saved in
    C(/var/lib/closloop/provision); O(state) C(absent) puts them back, field by field, where nobody
    has changed what was written, and says where somebody has. Where orchagent ignores a removal or
    would crash, the default is written instead.
  - The running configuration only; C(config save) is left to the user.
options:
  desired:
    description: >-
      C(tables), by table, key and field, all text; C(telemetry_us), how often the depths of queues
      with a profile are streamed, where that can be had; C(socket), Redis's Unix socket.
    type: dict
extends_documentation_fragment: closloop
author: closloop
"""

EXAMPLES = r"""
- name: Mark between 20 and 80 KB
  closloop_sonic:
    desired:
      tables:
        WRED_PROFILE:
          CLOSLOOP: {green_min_threshold: "20000", green_max_threshold: "80000"}
"""

RETURN = r"""
lease:
  description: The lease that is left to the next module; empty if it was given back.
  type: str
  returned: success
skipped_steps:
  description: >-
    Polling intervals or streams that this switch cannot have, and what an undo leaves because
    somebody has changed it, with the reason.
  type: list
  returned: success
"""

_RANGE = re.compile(r"QUEUE\|(?P<port>[^|]+)\|(?P<first>\d+)-(?P<last>\d+)\Z")
_WRED_OBJECTS = "ASIC_STATE:SAI_OBJECT_TYPE_WRED:*"
# Orchagent makes a profile in well below a second.
_TIMEOUT_S, _LOOK_EVERY_S = 5.0, 0.05


class Tables(Device):
    """Keys are rows (`QUEUE|Ethernet0|3`). Values: wanted `fields` of a row, or a whole `row`."""

    name = "sonic"

    def __init__(self, redis: Redis, load=None) -> None:
        super().__init__()
        self.version_file = VERSION_FILE
        self.constants_file = CONSTANTS_FILE
        self._redis = redis
        self._load = load
        self._large = False

    def wanted(self, desired: dict) -> dict:
        """Return the wanted fields by row. Raises Refused without buffers for lossless queues."""
        self._large = sonic_polls.is_large(self._redis)
        tables = desired.get("tables", {})
        rows = {f"{table}|{key}": row for table in tables for key, row in tables[table].items()}
        lossless = {
            port: [int(number) for number in row.get("pfc_enable", "").split(",") if number]
            for port, row in tables.get("PORT_QOS_MAP", {}).items()
        }
        rows.update(lossless_rows(self._redis, lossless))
        rows.update(self._streams(desired))
        # each write of a profile sets every field that it has, so it has none but these
        return {
            key: {
                "row" if key.startswith("WRED_PROFILE|") else "fields": {
                    name: str(value) for name, value in row.items()
                }
            }
            for key, row in rows.items()
        }

    def _streams(self, desired: dict) -> dict:
        """Return the rows that stream depths; where the switch cannot, that is a skipped step."""
        if not desired.get("telemetry_us"):
            return {}
        rows = desired.get("tables", {}).get("QUEUE", {})
        queues = [key.split("|") for key in rows if rows[key].get("wred_profile")]
        try:
            asic, streams = asic_of(self.version_file), can_stream(self.constants_file)
            return stream_rows(self._redis, queues, desired["telemetry_us"], asic, streams)
        except RedisError:
            raise
        except Refused as error:
            self.skip("High Frequency Telemetry", f"{error.what}: {error.remedy}")
            return {}

    def read(self, keys: list) -> dict:
        """Return the whole rows."""
        rows = self._redis.hashes(CONFIG_DB, keys)
        return {key: {"row": row} if row else None for key, row in rows.items()}

    def noted(self, change, saved: dict) -> object:
        """Return what to save: of a profile the former row, of other rows the fields written."""
        kept = saved.get(change.key, {"was": {}, "wrote": {}})
        if "row" in change.after or not _by_field(kept):  # version 0.1 saved whole rows
            return super().noted(change, saved)
        before = change.before["row"] if change.before else {}
        asked = change.after["fields"]
        return noted(kept, before, self._merged(change.key, before, asked), asked)

    def restored(self, key: str, saved: object, present: object) -> object:
        """Return the row that an undo aims at; what is left to others is a skipped step."""
        if _by_field(saved):
            row, others = restored(key, saved, present["row"] if present else None)
            for reason in others:
                self.skip(f"undo of {key}", reason + " since, and is left so")
        else:
            row = configdb.row_after_undo(key, saved["row"] if saved else None)
        return None if row is None else {"row": row}

    def same(self, key: str, present: object, target: object) -> bool:
        """Return True if the row has the wanted fields, or equals the saved row."""
        return present == target or (
            target is not None
            and "fields" in target
            and present is not None
            and present["row"] == self._merged(key, present["row"], target["fields"])
        )

    def _merged(self, key: str, present: dict, fields: dict) -> dict:
        """Return a row with the wanted fields: lists of priorities grow, and never shrink."""
        row = {**present, **fields}
        for name in LISTS:
            if name in fields:
                there = parts(present.get(name, ""))
                both = there | parts(fields[name])
                row[name] = present[name] if there and both == there else ",".join(sorted(both))
        table, _, group = key.partition("|")
        wanted = fields.get("POLL_INTERVAL")
        if self._large and table == "FLEX_COUNTER_TABLE" and group in sonic_polls.GROUPS and wanted:
            row["POLL_INTERVAL"] = sonic_polls.first(present.get("POLL_INTERVAL", ""), wanted)
        return row

    def check(self, changes: list) -> None:
        """Refuse if an existing row covers several queues: an undo could not restore it."""
        ranges = [_RANGE.match(key) for key in self._redis.call(CONFIG_DB, "KEYS", "QUEUE|*-*")]
        for change in changes:
            table, _, rest = change.key.partition("|")
            port, _, queue = rest.rpartition("|")
            for found in ranges if table == "QUEUE" else ():
                if (
                    found
                    and found["port"] == port
                    and int(found["first"]) <= int(queue) <= int(found["last"])
                ):
                    raise Refused(
                        f"the row {found.group()} speaks for queue {queue} together with others",
                        "write a row for each queue in its place, then provision again",
                    )
        rows = ports_to_restart(self._redis, self._whole(changes))
        refuse_two_actions(self._redis, rows, self.version_file)

    def suspended(self, changes: list) -> dict:
        """Return the watchdog's rows that `apply` removes and sets again, as they are."""
        rows = ports_to_restart(self._redis, self._whole(changes))
        present = self.read([f"PFC_WD|{port}" for port, row in rows.items() if row])
        return {key: row for key, row in present.items() if row is not None}

    def put_back(self, values: dict) -> None:
        """Set the watchdog's rows that an interrupted `apply` has removed."""
        set_rows(self._redis, {key.partition("|")[2]: row["row"] for key, row in values.items()})

    def apply(self, changes: list) -> None:
        """Write rows, referenced ones first; then remove rows, in the opposite order.

        The PFC watchdog is stopped before, and started after.
        """
        whole = self._whole(changes)
        rows = ports_to_restart(self._redis, whole)
        refuse_two_actions(self._redis, rows, self.version_file)
        self._make_profiles([change for change in whole if change.key.startswith("WRED_PROFILE|")])
        watchdog = Restart(self._redis, rows)
        watchdog.stop()
        whole = [change for change in whole if change.key.partition("PFC_WD|")[2] not in rows]
        there = [change for change in whole if change.after is not None]
        gone = [change for change in whole if change.after is None]
        there.sort(key=lambda change: configdb.write_position(change.key))
        gone.sort(key=lambda change: -configdb.write_position(change.key))
        self._write(there)
        self._redis.run([(CONFIG_DB, ("DEL", change.key)) for change in gone])
        watchdog.start()
        self._poll(changes)

    def _whole(self, changes: list) -> list:
        result = []
        for change in changes:
            before = change.before["row"] if change.before else None
            after = change.after
            if after is not None:
                after = after.get("row") or self._merged(change.key, before or {}, after["fields"])
            result.append(change._replace(before=before, after=after))
        return result

    def _write(self, changes: list) -> None:
        commands = []
        for change in changes:
            row, before = change.after, change.before or {}
            # one command writes all fields that differ; other fields stay
            flat = [word for pair in row.items() if before.get(pair[0]) != pair[1] for word in pair]
            extra = [name for name in before if name not in row]
            # in one transaction, so that daemons never read a half-changed row
            commands.append((CONFIG_DB, ("MULTI",)))
            if flat:
                commands.append((CONFIG_DB, ("HSET", change.key, *flat)))
            if extra:
                commands.append((CONFIG_DB, ("HDEL", change.key, *extra)))
            commands.append((CONFIG_DB, ("EXEC",)))
        self._redis.run(commands)

    def _make_profiles(self, changes: list) -> None:
        """Make new WRED profiles before anything uses them, and see that the ASIC has them.

        ASICs have a finite table for them, whose size nothing tells. Raises Refused, with the
        profiles removed again, if it has too few left.
        """
        new = [change for change in changes if change.before is None and change.after]
        if not new:
            return
        rows = len(self._redis.call(CONFIG_DB, "KEYS", "WRED_PROFILE|*"))
        # profiles that are being removed, as after an undo, must be gone before any is counted
        present = self._objects(lambda count: count <= rows)
        self._write(new)
        made = self._objects(lambda count: count >= present + len(new)) - present
        if made >= len(new):
            return
        self._redis.run([(CONFIG_DB, ("DEL", change.key)) for change in new])
        raise Refused(
            f"the ASIC made {made} of the {len(new)} WRED profiles that its queues need, in "
            f"addition to the {present} that it has",
            "its table of profiles is full, or orchagent refused them (/var/log/syslog on the "
            "switch): tune fewer queues (closloop_queues), or remove profiles that nobody uses",
        )

    def _objects(self, reached) -> int:
        """Return the number of the ASIC's WRED profiles; wait a little until it is as it should."""
        end = time.monotonic() + _TIMEOUT_S
        while True:
            count = len(self._redis.call(ASIC_DB, "KEYS", _WRED_OBJECTS))
            if reached(count) or time.monotonic() > end:
                return count
            time.sleep(_LOOK_EVERY_S)

    def _poll(self, changes: list) -> None:
        """Let syncd's load decide how often a large switch reads its counters."""
        if not self._large:
            return
        wanted = {}
        for change in changes:
            table, _, group = change.key.partition("|")
            interval = ((change.after or {}).get("fields") or {}).get("POLL_INTERVAL")
            if table == "FLEX_COUNTER_TABLE" and group in sonic_polls.GROUPS and interval:
                wanted[group] = interval
        slower = sonic_polls.set_polls(self._redis, wanted, self._load) if wanted else ""
        if slower:
            self.skip(f"POLL_INTERVAL below {sonic_polls.FIRST_MS} ms", slower)

    def shown(self, key: str, value: object) -> str:
        """Return a row in a form for people."""
        if value is None:
            return "nothing"
        row = value.get("fields", value.get("row", {}))
        return " ".join(f"{name}={row[name]}" for name in sorted(row))


def _by_field(saved: object) -> bool:
    return bool(saved) and "wrote" in saved


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    redis = Redis(module.params["desired"].get("socket") or SOCKET)
    try:
        what, remedy = unsupported_reason(redis.hash(CONFIG_DB, "DEVICE_METADATA|localhost"))
        if what:
            module.fail_json(msg=what, remedy=remedy)
        run(module, Tables(redis))
    except RedisError as error:
        module.fail_json(msg=error.what, remedy=error.remedy)


if __name__ == "__main__":
    main()
