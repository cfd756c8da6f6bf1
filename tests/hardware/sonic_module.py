"""The Ansible module for SONiC, loaded as Ansible does, and a rig that is provisioned by it."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestration.agent.sonic.resp import CONFIG_DB, COUNTERS_DB, Redis
from orchestration.backends.hardware.sonic.config import desired_tables
from orchestration.virtual_rack.sonic_model import Traits

sys.path.insert(0, str(Path(__file__).parent))

from sonic_rig import Rig

ansible_utils = pytest.importorskip("ansible.module_utils")

INTERN = sys.intern
PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
ansible_utils.__path__ = [
    *ansible_utils.__path__,
    str(PLAYBOOKS / "module_utils"),
    str(PLAYBOOKS.parent / "orchestration"),
]

from ansible.module_utils.closloop.reconcile import Saved, reconcile  # noqa: E402

spec = importlib.util.spec_from_file_location(
    "closloop_sonic", PLAYBOOKS / "library" / "closloop_sonic.py"
)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
# Ansible puts an object there that torch, in the same process here, cannot trace.
sys.intern = INTERN


class Switch(Rig):
    """A rig that is provisioned by the module."""

    def __init__(self, redis_server, traits, queues=(3,), load=None):
        super().__init__(redis_server, traits)
        access = replace(self.rack.access["leaf1"], queues=queues)
        self.rack = replace(self.rack, access={**self.rack.access, "leaf1": access})
        self.load = load
        self.version_file = str(redis_server.folder / "sonic_version.yml")
        self.written, self.also = [], {}

    def bring(self, state="present", check_mode=False):
        written = self.written

        class Recorder(Redis):
            def run(self, commands):
                written.extend(
                    words[:2] for db, words in commands if words[0] in ("HSET", "DEL", "HDEL")
                )
                return super().run(commands)

        tables = module.Tables(Recorder(self.server.path), self.load)
        tables.version_file = self.version_file
        tables.constants_file = str(self.server.folder / "constants.yml")
        tables.models = str(self.server.folder / "yang-models")
        saved = Saved("sonic", str(self.server.folder / "closloop" / "provision"))
        desired = {"tables": desired_tables(self.rack, "leaf1"), **self.also}
        result = reconcile(tables, desired, saved, state, check_mode)
        assert self.crash is None
        return result

    def write(self, key, **fields):
        flat = [word for pair in fields.items() for word in pair]
        self.redis.call(CONFIG_DB, "HSET", key, *flat)

    def row(self, key):
        return self.redis.hash(CONFIG_DB, key)

    def rows(self):
        keys = self.redis.call(CONFIG_DB, "KEYS", "*|*")
        return {key: self.row(key) for key in keys}

    def counters(self, port, queue):
        oid = self.redis.call(COUNTERS_DB, "HGET", "COUNTERS_QUEUE_NAME_MAP", f"{port}:{queue}")
        return self.redis.hash(COUNTERS_DB, f"COUNTERS:{oid}")


def switches(server):
    """Yield a function that starts a switch with traits, and queues to provision; then end them."""
    made = []

    def make(queues=(3,), load=None, **traits):
        made.append(Switch(server, Traits(**traits), queues, load))
        return made[-1]

    yield make
    for switch in made:
        switch.close()


def without_defaults(rows, stock):
    """Leave out what an undo must leave: intervals and rows whose removal orchagent ignores."""
    return {
        key: {name: value for name, value in row.items() if name in stock[key]}
        for key, row in rows.items()
        if key in stock or not key.startswith(("FLEX_COUNTER_TABLE|", "PFC_WD|GLOBAL"))
    }
