#!/usr/bin/python
"""Ansible module: sets rows of a SONiC switch's CONFIG_DB, with undo."""

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
    fields_to_save,
    lossless_rows,
    priorities_in,
    row_after_undo,
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
  - Writes the desired fields through the switch's Redis, each row in one step, referenced rows
    before those that refer to them, and reports a change only where a field differed.
  - Other fields of a row, and other rows, stay as they are; priorities are added to C(pfc_enable),
    and never removed. WRED profiles belong to this module entirely. Former values are saved in
    C(/var/lib/closloop/provision); O(state) C(absent) restores each field that nobody has changed
    since, and reports those that somebody has. Where orchagent ignores a removal or would crash,
    the default is written instead.
  - Changes only the running configuration; C(config save) is left to the user.
options:
  desired:
    description: >-
      C(tables), by table, key and field, all text; C(telemetry_us), the interval at which the
      depths of queues with a profile are streamed, if the switch can; C(socket), Redis's Unix
      socket.
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
    Polling intervals or streams that this switch cannot have, and what an undo does not restore
    because somebody has changed it, each with the reason.
  type: list
  returned: success
"""

_RANGE = re.compile(r"QUEUE\|(?P<port>[^|]+)\|(?P<first>\d+)-(?P<last>\d+)\Z")
_WRED_OBJECTS = "ASIC_STATE:SAI_OBJECT_TYPE_WRED:*"
# Orchagent creates a profile in well below a second.
_TIMEOUT_S, _POLL_S = 5.0, 0.05


class Tables(Device):
    """Rows of CONFIG_DB. A key is a row's (`QUEUE|Ethernet0|3`).

    A value is a dict with the desired `fields` of a row, or with a whole `row`.
    """

    name = "sonic"

    def __init__(self, redis: Redis, load=None) -> None:
        super().__init__()
        self.version_file = VERSION_FILE
        self.constants_file = CONSTANTS_FILE
        self._redis = redis
        self._load = load
        self._is_large = False

    def desired_values(self, desired: dict) -> dict:
        """Return the desired fields by row. Raises Refused if lossless queues lack buffers."""
        self._is_large = sonic_polls.is_large(self._redis)
        tables = desired.get("tables", {})
        rows = {f"{table}|{key}": row for table in tables for key, row in tables[table].items()}
        lossless = {
            port: [int(number) for number in row.get("pfc_enable", "").split(",") if number]
            for port, row in tables.get("PORT_QOS_MAP", {}).items()
        }
        rows.update(lossless_rows(self._redis, lossless))
        rows.update(self._streams(desired))
        # each write of a profile sets all its fields, so it must have only these
        return {
            key: {
                "row" if key.startswith("WRED_PROFILE|") else "fields": {
                    name: str(value) for name, value in row.items()
                }
            }
            for key, row in rows.items()
        }

    def _streams(self, desired: dict) -> dict:
        """Return the rows that stream depths; if the switch cannot, that is a skipped step."""
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

    def value_to_save(self, change, saved: dict) -> object:
        """Return what to save: a profile's former row, and the written fields of other rows."""
        saved_row = saved.get(change.key, {"was": {}, "wrote": {}})
        if "row" in change.after or not _is_saved_by_field(
            saved_row
        ):  # version 0.1 saved whole rows
            return super().value_to_save(change, saved)
        before = change.before["row"] if change.before else {}
        desired_fields = change.after["fields"]
        return fields_to_save(
            saved_row, before, self._merged(change.key, before, desired_fields), desired_fields
        )

    def undo_target(self, key: str, saved: object, present: object) -> object:
        """Return the row that an undo should leave; fields of others are skipped steps."""
        if _is_saved_by_field(saved):
            row, others = row_after_undo(key, saved, present["row"] if present else None)
            for reason in others:
                self.skip(f"undo of {key}", reason + " since, and stays so")
        else:
            row = configdb.row_after_undo(key, saved["row"] if saved else None)
        return None if row is None else {"row": row}

    def is_same(self, key: str, present: object, target: object) -> bool:
        """Return True if the row has the desired fields, or equals the saved row."""
        return present == target or (
            target is not None
            and "fields" in target
            and present is not None
            and present["row"] == self._merged(key, present["row"], target["fields"])
        )

    def _merged(self, key: str, present: dict, fields: dict) -> dict:
        """Return a row with the desired fields. Priorities are added to lists, never removed."""
        row = {**present, **fields}
        for name in LISTS:
            if name in fields:
                written = priorities_in(present.get(name, ""))
                both = written | priorities_in(fields[name])
                row[name] = present[name] if written and both == written else ",".join(sorted(both))
        table, _, group = key.partition("|")
        wanted = fields.get("POLL_INTERVAL")
        if (
            self._is_large
            and table == "FLEX_COUNTER_TABLE"
            and group in sonic_polls.GROUPS
            and wanted
        ):
            row["POLL_INTERVAL"] = sonic_polls.initial_interval(
                present.get("POLL_INTERVAL", ""), wanted
            )
        return row

    def check(self, changes: list) -> None:
        """Raise Refused if an existing row covers several queues: an undo could not restore it."""
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
                        f"the row {found.group()} is for queue {queue} together with others",
                        "replace it by a row for each queue, then provision again",
                    )
        rows = ports_to_restart(self._redis, self._as_rows(changes))
        refuse_two_actions(self._redis, rows, self.version_file)

    def suspended(self, changes: list) -> dict:
        """Return the watchdog's rows that `apply` removes and sets again, as they are."""
        rows = ports_to_restart(self._redis, self._as_rows(changes))
        present = self.read([f"PFC_WD|{port}" for port, row in rows.items() if row])
        return {key: row for key, row in present.items() if row is not None}

    def put_back(self, values: dict) -> None:
        """Set the watchdog's rows that an interrupted `apply` has removed."""
        set_rows(self._redis, {key.partition("|")[2]: row["row"] for key, row in values.items()})

    def apply(self, changes: list) -> None:
        """Write rows, referenced ones first; then remove rows, in the opposite order.

        The PFC watchdog is stopped before, and started after.
        """
        row_changes = self._as_rows(changes)
        rows = ports_to_restart(self._redis, row_changes)
        refuse_two_actions(self._redis, rows, self.version_file)
        self._create_profiles(
            [change for change in row_changes if change.key.startswith("WRED_PROFILE|")]
        )
        watchdog = Restart(self._redis, rows)
        watchdog.stop()
        row_changes = [
            change for change in row_changes if change.key.partition("PFC_WD|")[2] not in rows
        ]
        written = [change for change in row_changes if change.after is not None]
        removed = [change for change in row_changes if change.after is None]
        written.sort(key=lambda change: configdb.write_position(change.key))
        removed.sort(key=lambda change: -configdb.write_position(change.key))
        self._write(written)
        self._redis.run([(CONFIG_DB, ("DEL", change.key)) for change in removed])
        watchdog.start()
        self._poll(changes)

    def _as_rows(self, changes: list) -> list:
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

    def _create_profiles(self, changes: list) -> None:
        """Create new WRED profiles before rows refer to them, and check that the ASIC has them.

        ASICs have a table for profiles, of a size that SONiC does not report. If it has too few
        entries left, this removes the profiles and raises Refused.
        """
        new = [change for change in changes if change.before is None and change.after]
        if not new:
            return
        rows = len(self._redis.call(CONFIG_DB, "KEYS", "WRED_PROFILE|*"))
        # wait until profiles that are being removed, as after an undo, no longer count
        present = self._wait_for_objects(lambda count: count <= rows)
        self._write(new)
        created = self._wait_for_objects(lambda count: count >= present + len(new)) - present
        if created >= len(new):
            return
        self._redis.run([(CONFIG_DB, ("DEL", change.key)) for change in new])
        raise Refused(
            f"the ASIC created {created} of the {len(new)} WRED profiles that its queues need, in "
            f"addition to the {present} that it has",
            "its table of profiles is full, or orchagent refused them (/var/log/syslog on the "
            "switch): tune fewer queues (closloop_queues), or remove profiles that nobody uses",
        )

    def _wait_for_objects(self, condition) -> int:
        """Wait a few seconds for a number of WRED profiles in the ASIC; return the number."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            count = len(self._redis.call(ASIC_DB, "KEYS", _WRED_OBJECTS))
            if condition(count) or time.monotonic() > deadline:
                return count
            time.sleep(_POLL_S)

    def _poll(self, changes: list) -> None:
        """Set how often a large switch reads its counters, as syncd's load allows."""
        if not self._is_large:
            return
        wanted = {}
        for change in changes:
            table, _, group = change.key.partition("|")
            interval = ((change.after or {}).get("fields") or {}).get("POLL_INTERVAL")
            if table == "FLEX_COUNTER_TABLE" and group in sonic_polls.GROUPS and interval:
                wanted[group] = interval
        reason = sonic_polls.set_polls(self._redis, wanted, self._load) if wanted else ""
        if reason:
            self.skip(f"POLL_INTERVAL below {sonic_polls.INITIAL_MS} ms", reason)

    def describe(self, key: str, value: object) -> str:
        """Return a row in a form for people."""
        if value is None:
            return "nothing"
        row = value.get("fields", value.get("row", {}))
        return " ".join(f"{name}={row[name]}" for name in sorted(row))


def _is_saved_by_field(saved: object) -> bool:
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
