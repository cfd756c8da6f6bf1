"""The sonic service against a real Redis; the virtual rack's bridge is the switch behind it.

With CLOSLOOP_SONIC_VS, the socket of another Redis, SONiC's own virtual switch is behind it
(scripts/sonic-vs.sh). What needs the bridge is then skipped where it does.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.sonic.counters import operations
from orchestration.agent.sonic.resp import APPL_DB, ASIC_DB, CONFIG_DB, COUNTERS_DB, Redis
from orchestration.backends.hardware.sonic.config import TABLES, desired_tables
from orchestration.backends.hardware.sonic.switch import SonicSwitch
from orchestration.virtual_rack import sonic_telemetry
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.sonic_model import (
    PortCounts,
    Traits,
    config_rows,
    switch_model,
    version_file,
)
from orchestration.virtual_rack.sonic_orchagent import OrchagentCrash
from orchestration.virtual_rack.sonic_switch import READY, VirtualSonicSwitch

sys.path.insert(0, str(Path(__file__).parent))

from configdb_rows import bring

LEAF = "leaf1"


class Absent:
    """What SONiC's virtual switch does not offer: a test that comes to need it is skipped."""

    def __init__(self, what):
        self._what = what

    def __getattr__(self, _):
        pytest.skip(f"SONiC's virtual switch has no {self._what}")


class Server:
    """A redis-server of its own, as SONiC runs it, or that of SONiC's virtual switch."""

    def __init__(self, folder):
        self.folder = folder
        self.real = os.environ.get("CLOSLOOP_SONIC_VS", "")
        self.path = self.real or str(folder / "redis.sock")
        self.process = Absent("Redis that may be killed") if self.real else None

    def start(self):
        if self.real:
            asking = Redis(self.path)
            asking.call(0, "PING")
            asking.close()
            return
        argv = ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", ""]
        argv += ["--notify-keyspace-events", "AKE", "--dir", str(self.folder)]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        asking = Redis(self.path)
        asking.call(0, "PING")
        asking.close()

    def stop(self):
        self.process.kill()
        self.process.wait()

    def own(self):
        """Skip the test unless this is a Redis for tests, where any key may be written."""
        if self.real:
            pytest.skip("SONiC's virtual switch is for its own rows only")

    def end(self):
        """End it, unless it is somebody else's."""
        if not self.real:
            self.stop()


class FakePlane:
    """A forwarding plane that remembers what it was told, and counts what the test says."""

    def __init__(self):
        self.marking = {}
        self.counts = {}
        self.history = []

    def set_red(self, port, queue, marking):
        self.marking[port, queue] = marking
        self.history.append(((port, queue), marking))

    def queues(self):
        return dict(self.counts)

    def ports(self):
        return {"Ethernet0": PortCounts(tx_bytes=5)}


class Rig:
    """Redis, the bridge and the sonic service's operations, and the rack that they belong to."""

    def __init__(self, server, traits=Traits()):  # noqa: B008 (frozen)
        self.server = server
        self.testbed = load_testbed("graphcc")
        layout = Layout(self.testbed, sonic=(LEAF,))
        self.model = switch_model(layout, LEAF, traits)
        self.rack = Rack("rack", self.testbed, {LEAF: access_of(self.model)})
        self.plane, self.log = FakePlane(), []
        self.redis = Redis(server.path)
        version = server.folder / "sonic_version.yml"
        version.write_text(version_file(self.model))
        constants_file = server.folder / "constants.yml"
        if self.model.streams:
            constants_file.write_text(sonic_telemetry.constants_file())
        self.crash = None
        if server.real:
            if traits != Traits():
                pytest.skip(f"SONiC's virtual switch is none with {traits}")
            self.plane, self.log = Absent("forwarding plane"), Absent("log of refused rows")
            self._prepare()
        else:
            self._start()
        self.await_ready()
        self.agent = FakeAgent()
        self._operations = operations(self.agent, server.path, str(version), str(constants_file))
        self.switch = SonicSwitch(self.rack, LEAF)

    def _start(self):
        saved = self.server.folder / "config_db.json"
        self._bridge = VirtualSonicSwitch(
            self.model, self.plane, self.server.path, self.log.append, saved
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _stop(self):
        self._over.set()
        self.redis.call(CONFIG_DB, "HSET", "FLEX_COUNTER_TABLE|PORT", "POLL_INTERVAL", "100")
        self._thread.join()

    def reload(self):
        """Start the daemons anew with the rows that are there, as `config reload` does."""
        before = self.redis.hash(CONFIG_DB, "FLEX_COUNTER_TABLE|PORT")
        self._stop()
        self.redis.call(APPL_DB, "DEL", READY)
        self.redis.call(CONFIG_DB, "DEL", "FLEX_COUNTER_TABLE|PORT")
        flat = [word for pair in before.items() for word in pair]
        self.redis.call(CONFIG_DB, "HSET", "FLEX_COUNTER_TABLE|PORT", *flat)
        self._start()
        self.await_ready()

    def _prepare(self):
        """Give the virtual switch the rows that the bridge starts with."""
        stock = {
            key: row
            for key, row in config_rows(self.model).items()
            if not key.startswith(("PORT|", "DEVICE_METADATA|"))
        }
        tables = {key.partition("|")[0]: {} for key in stock} | {table: {} for table in TABLES}
        for key, row in stock.items():
            table, _, name = key.partition("|")
            tables[table][name] = row
        # removing a row of several queues unbinds them, whatever rows of their own say
        for key in self.redis.call(CONFIG_DB, "KEYS", "QUEUE|*-*"):
            self.redis.call(CONFIG_DB, "DEL", key)
        time.sleep(0.5)
        bring(self.redis, tables, exact=True)
        until(lambda: self.asic("Ethernet0", 3).get("SAI_WRED_ATTR_GREEN_DROP_PROBABILITY") == "5")

    def _run(self):
        try:
            self._bridge.run(self._over.is_set)
        except OrchagentCrash as crash:
            self.crash = crash

    def actions(self):
        """Return the PFC watchdog's actions by port and queue, as orchagent has them.

        The virtual switch only tells those of the rows that it took.
        """
        if not self.server.real:
            return dict(self._bridge.daemons.watchdog.actions)
        names = self.redis.hash(COUNTERS_DB, "COUNTERS_QUEUE_NAME_MAP")
        found = {}
        for name, oid in names.items():
            port, _, queue = name.partition(":")
            action = self.redis.call(COUNTERS_DB, "HGET", f"COUNTERS:{oid}", "PFC_WD_ACTION")
            if action:
                found[port, int(queue)] = action
        return found

    def await_ready(self):
        until(lambda: self.redis.call(APPL_DB, "EXISTS", READY))

    def provision(self):
        wanted = desired_tables(self.rack, LEAF)
        changed = bring(self.redis, wanted, exact=False)
        port, queue, _ = self.places()[0]
        until(lambda: self.asic(port, queue)["SAI_WRED_ATTR_GREEN_MAX_THRESHOLD"] == "16000000")
        return changed

    def places(self):
        return [tuple(place) for place in self.switch.open_request()[1]["queues"]]

    def call(self, op, **request):
        return self._operations[op](request)

    def ask(self, request):
        return self.switch.reading(self.call(request[0], **request[1]))

    def asic(self, port, queue):
        oid = self.redis.call(COUNTERS_DB, "HGET", "COUNTERS_QUEUE_NAME_MAP", f"{port}:{queue}")
        row = self.redis.hash(ASIC_DB, f"ASIC_STATE:SAI_OBJECT_TYPE_QUEUE:{oid}")
        wred = row["SAI_QUEUE_ATTR_WRED_PROFILE_ID"]
        return self.redis.hash(ASIC_DB, f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{wred}")

    def close(self):
        if not self.server.real:
            self._stop()
        self.redis.close()
        self.agent.end()


class FakeAgent:
    def __init__(self):
        self.ends, self.watched = [], {}

    def watch(self, fd, ready):
        self.watched[fd] = ready

    def forget(self, fd):
        del self.watched[fd]

    def at_end(self, do):
        self.ends.append(do)

    def end(self):
        for end in self.ends:
            end()


def access_of(model):
    names = tuple(port.name for port in model.ports)
    return Access(LEAF, "10.0.0.1", platform="sonic", interfaces=names)


def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def server():
    # pytest's own folders have names too long for a socket
    folder = Path(tempfile.mkdtemp(prefix="closloop-redis-"))
    server = Server(folder)
    server.start()
    yield server
    server.end()
    shutil.rmtree(folder)


@pytest.fixture
def rig(server):
    rig = Rig(server)
    yield rig
    rig.close()


@pytest.fixture
def provisioned(rig):
    rig.provision()
    return rig


def set_all(rig, kmin, kmax, pmax):
    count = len(rig.places())
    places = np.arange(count)
    full = np.full(count, 1)
    return rig.ask(rig.switch.set_request(places, full * kmin, full * kmax, full * pmax))


SPECTRUM = Traits(
    release="202511",
    platform="x86_64-nvidia_sn5640-r0",
    asic="mellanox",
    cell_bytes=192,
    step_cells=64,
    streams=True,
)


@pytest.fixture
def streaming(server, monkeypatch):
    # the groups belong to the network namespace: other tests may run at the same time
    monkeypatch.setattr(sonic_telemetry, "USERS_GROUP", 1 + os.getpid() % 32)
    rig = Rig(server, SPECTRUM)
    rig.provision()
    yield rig
    rig.close()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NETLINK_USERSOCK needs CAP_NET_ADMIN")
