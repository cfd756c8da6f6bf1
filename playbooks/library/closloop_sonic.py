#!/usr/bin/python
"""Ansible module: set rows of a SONiC switch's CONFIG_DB, with undo."""

from __future__ import annotations

import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.closloop.reconcile import ARGUMENTS, Device, Refused, run
from ansible.module_utils.device.agent import configdb
from ansible.module_utils.device.agent.asics import refusal
from ansible.module_utils.device.agent.resp import CONFIG_DB, SOCKET, Redis, RedisError, pairs

DOCUMENTATION = r"""
module: closloop_sonic
short_description: Brings rows of SONiC's CONFIG_DB into one state
description:
  - Writes the fields asked for through the switch's Redis, each row in one go, referenced rows
    before those that refer to them, and reports a change only where a field differed.
  - Other fields of a row, and other rows, are left alone. Former rows are saved in
    C(/var/lib/closloop/provision); O(state) C(absent) puts them back exactly.
  - The running configuration only; C(config save) is left to the user.
options:
  state:
    description: What to do. C(verified) changes nothing and fails if anything differs.
    choices: [present, verified, absent]
    default: present
  desired:
    description: C(tables), by table, key and field, all text; C(socket), Redis's Unix socket.
    type: dict
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
skipped_steps:
  description: Always empty; a switch either has CONFIG_DB or the module fails.
  type: list
  returned: success
"""

_RANGE = re.compile(r"QUEUE\|(?P<port>[^|]+)\|(?P<first>\d+)-(?P<last>\d+)\Z")


class Tables(Device):
    """Keys are rows (`QUEUE|Ethernet0|3`). Values: wanted `fields` of a row, or a whole `row`."""

    name = "sonic"

    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._redis = redis

    def wanted(self, desired: dict) -> dict:
        """Return the wanted fields by row."""
        return {
            f"{table}|{key}": {"fields": {name: str(value) for name, value in fields.items()}}
            for table, rows in desired.get("tables", {}).items()
            for key, fields in rows.items()
        }

    def read(self, keys: list) -> dict:
        """Return the whole rows."""
        replies = self._redis.run([(CONFIG_DB, ("HGETALL", key)) for key in keys])
        return {key: {"row": pairs(flat)} if flat else None for key, flat in zip(keys, replies)}

    def same(self, key: str, present: object, target: object) -> bool:
        """Return True if the row has the wanted fields, or equals the saved row."""
        if target is None or "row" in target:
            return present == target
        row = present["row"] if present else {}
        return all(row.get(name) == value for name, value in target["fields"].items())

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

    def apply(self, changes: list) -> None:
        """Write rows, referenced ones first; then remove rows, in the opposite order."""
        there = [change for change in changes if change.after is not None]
        gone = [change for change in changes if change.after is None]
        there.sort(key=lambda change: configdb.place(change.key))
        gone.sort(key=lambda change: -configdb.place(change.key))
        commands = []
        for change in there:
            if "fields" in change.after:
                row = change.before["row"] if change.before else {}
                fields = change.after["fields"]
                # one command writes all wanted fields that differ; other fields stay
                flat = [
                    word
                    for name, value in fields.items()
                    if row.get(name) != value
                    for word in (name, value)
                ]
                commands.append((CONFIG_DB, ("HSET", change.key, *flat)))
            else:
                row = change.after["row"]
                flat = [word for pair in row.items() for word in pair]
                extra = [name for name in (change.before or {"row": {}})["row"] if name not in row]
                # in one transaction, so that daemons never read a half-changed row
                commands.append((CONFIG_DB, ("MULTI",)))
                commands.append((CONFIG_DB, ("HSET", change.key, *flat)))
                if extra:
                    commands.append((CONFIG_DB, ("HDEL", change.key, *extra)))
                commands.append((CONFIG_DB, ("EXEC",)))
        commands += [(CONFIG_DB, ("DEL", change.key)) for change in gone]
        self._redis.run(commands)

    def shown(self, key: str, value: object) -> str:
        """Return a row in a form for people."""
        if value is None:
            return "nothing"
        row = value.get("fields", value.get("row", {}))
        return " ".join(f"{name}={row[name]}" for name in sorted(row))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    redis = Redis(module.params["desired"].get("socket") or SOCKET)
    try:
        what, remedy = refusal(redis.hash(CONFIG_DB, "DEVICE_METADATA|localhost"))
        if what:
            module.fail_json(msg=what, remedy=remedy)
        run(module, Tables(redis))
    except RedisError as error:
        module.fail_json(msg=error.what, remedy=error.remedy)


if __name__ == "__main__":
    main()
