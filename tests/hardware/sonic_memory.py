"""A SONiC-like switch in memory, and the Ansible module at work on it: no process, no waiting.

The daemons are those of the virtual rack (`virtual_rack.sonic_switch`); only Redis is a dict.
"""

import sys
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from interrupted import Writes
from sonic_module import Saved, module, reconcile
from sonic_rig import FakePlane

from orchestration.agent.sonic.configdb import row_after_undo
from orchestration.agent.sonic.resp import CONFIG_DB, Redis
from orchestration.virtual_rack.sonic_model import version_file
from orchestration.virtual_rack.sonic_switch import VirtualSonicSwitch

_WRITING = ("DEL", "FLUSHDB", "HDEL", "HSET")


class Memory:
    """The databases, and the events of CONFIG_DB that nobody has taken yet."""

    def __init__(self):
        self.rows = defaultdict(dict)
        self.events = []

    def do(self, db, name, *words):
        """Run one command."""
        rows = self.rows[db]
        if name == "KEYS":
            return [key for key in rows if fnmatchcase(key, words[0])]
        key = words[0] if words else ""
        if name == "HGETALL":
            return [word for pair in rows.get(key, {}).items() for word in pair]
        if name == "HGET":
            return rows.get(key, {}).get(words[1])
        if name == "EXISTS":
            return int(key in rows)
        if name == "FLUSHDB":
            return rows.clear()
        event = (key, name.lower())
        if name == "HSET":
            rows.setdefault(key, {}).update(zip(words[1::2], words[2::2], strict=True))
        elif name == "DEL":
            rows.pop(key, None)
        elif name == "HDEL":
            for field in words[1:]:
                rows[key].pop(field, None)
            if not rows[key]:
                del rows[key]
                event = (key, "del")
        else:
            raise AssertionError(name)
        if db == CONFIG_DB:
            self.events.append(event)
        return 1


class MemoryRedis(Redis):
    """A connection. Before each write, and each transaction, `writes` is told."""

    def __init__(self, memory, look=lambda: None, writes=None):
        super().__init__("in memory")
        self._memory, self._look, self._writes = memory, look, writes or Writes()

    def run(self, commands):
        replies, queued = [], None
        for db, (name, *words) in commands:
            words = [word.decode() if isinstance(word, bytes) else str(word) for word in words]
            if name == "MULTI":
                queued = []
            elif name == "EXEC":
                self._writes.next()
                replies.append([self._memory.do(*command) for command in queued])
                queued = None
                continue
            elif queued is not None:
                queued.append((db, name, *words))
            else:
                if name in _WRITING:
                    self._writes.next()
                if db != CONFIG_DB:
                    self._look()
                replies.append(self._memory.do(db, name, *words))
                continue
            replies.append("QUEUED")
        return replies


class MemorySwitch:
    """A switch. `silent` is whether orchagent takes no rows.

    It takes rows as late as can be: when somebody looks for what it has made of them.
    """

    def __init__(self, model, desired, folder, rows=None):
        self.memory, self.folder, self.desired = Memory(), folder, desired
        self.silent, self.log = False, []
        folder.mkdir()
        self._version = folder / "sonic_version.yml"
        self._version.write_text(version_file(model))
        self._bridge = VirtualSonicSwitch(
            model, FakePlane(), "", self.log.append, folder / "config_db.json"
        )
        self._bridge._redis = MemoryRedis(self.memory)
        self._bridge._fill_databases()
        for key, row in (rows or {}).items():
            self.memory.rows[CONFIG_DB][key] = dict(row)
        self._bridge.daemons.orchagent.start()
        self._bridge._apply_changes(
            [(key, "hset") for key in self._bridge._keys()], self._bridge.daemons
        )
        self._bridge._flush()
        self.memory.events.clear()
        self.first = self.rows()
        self.first_actions = self.actions()

    def look(self):
        """Let orchagent take what was written."""
        if not self.silent and self.memory.events:
            events, self.memory.events = self.memory.events, []
            self._bridge._apply_changes(events, self._bridge.daemons)
            self._bridge._flush()

    def bring(self, state="present", writes=None, check_mode=False):
        """Run the module, in a process that may be killed before one of its writes."""
        writes = writes or Writes()
        tables = module.Tables(MemoryRedis(self.memory, self.look, writes))
        tables.version_file = str(self._version)
        saved = Saved("sonic", str(self.folder / "closloop" / "provision"))
        with writes.to_files():
            return reconcile(tables, self.desired, saved, state, check_mode)

    def rows(self):
        """Return all rows of CONFIG_DB."""
        return {key: dict(row) for key, row in self.memory.rows[CONFIG_DB].items()}

    def actions(self):
        """Return the watchdog's actions by port and queue, as orchagent has them."""
        self.look()
        return dict(self._bridge.daemons.watchdog.actions)

    def operator(self, name, *words):
        """Run a command on CONFIG_DB as somebody else."""
        return self.memory.do(CONFIG_DB, name, *words)

    def left(self):
        """Return what an undo has left: rows, watched queues and files that are not as at first.

        Where removing a row does nothing or harm, its default may be left.
        """
        rows, actions = self.rows(), self.actions()
        keys = [
            key
            for key in {**self.first, **rows}
            if rows.get(key) not in (self.first.get(key), row_after_undo(key, self.first.get(key)))
        ]
        places = [
            place
            for place in {**self.first_actions, **actions}
            if actions.get(place) != self.first_actions.get(place)
        ]
        return keys + places + [path.name for path in self.folder.glob("closloop")]
