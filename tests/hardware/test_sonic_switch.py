"""The sonic service against a real Redis; the virtual rack's bridge is the switch behind it.

With CLOSLOOP_SONIC_VS, the socket of another Redis, SONiC's own virtual switch is behind it
(scripts/sonic-vs.sh). What needs the bridge is then skipped where it does.
"""

import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from collectors.readers.sonic import operations
from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.backends.hardware.sonic.config import TABLES, desired_tables
from orchestration.backends.hardware.sonic.switch import SonicSwitch
from orchestration.device.agent.configdb import undone
from orchestration.device.agent.main import OperationError
from orchestration.device.agent.resp import (
    APPL_DB,
    ASIC_DB,
    CONFIG_DB,
    COUNTERS_DB,
    STATE_DB,
    Events,
    Redis,
    RedisError,
    RedisGone,
)
from orchestration.model.records import MISSING
from orchestration.virtual_rack import sonic_telemetry
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.sonic_model import (
    Marking,
    PortCounts,
    QueueCounts,
    Traits,
    config_rows,
    model_of,
    version_file,
)
from orchestration.virtual_rack.sonic_saved import before_reboot, config_save
from orchestration.virtual_rack.sonic_switch import READY, Bridge
from orchestration.virtual_rack.sonic_watchdog import Crash

pytestmark = pytest.mark.redis

_SPEC = importlib.util.spec_from_file_location(
    "configdb_rows", Path(__file__).parent / "configdb_rows.py"
)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
bring, dump = _MODULE.bring, _MODULE.dump

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

    def mark(self, port, queue, marking):
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
        self.model = model_of(layout, LEAF, traits)
        self.rack = Rack("rack", self.testbed, {LEAF: access_of(self.model)})
        self.plane, self.log = FakePlane(), []
        self.redis = Redis(server.path)
        version = server.folder / "sonic_version.yml"
        version.write_text(version_file(self.model))
        constants_file = server.folder / "constants.yml"
        if self.model.streams:
            constants_file.write_text(sonic_telemetry.constants())
        self.crash = None
        if server.real:
            if traits != Traits():
                pytest.skip(f"SONiC's virtual switch is none with {traits}")
            self.plane, self.log = Absent("forwarding plane"), Absent("log of refused rows")
            self._prepare()
        else:
            saved = server.folder / "config_db.json"
            self._bridge = Bridge(self.model, self.plane, server.path, self.log.append, saved)
            self._over = threading.Event()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self.await_ready()
        self.agent = FakeAgent()
        self._operations = operations(self.agent, server.path, str(version), str(constants_file))
        self.switch = SonicSwitch(self.rack, LEAF)

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
        except Crash as crash:
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
            self._over.set()
            self.redis.call(CONFIG_DB, "HSET", "FLEX_COUNTER_TABLE|PORT", "POLL_INTERVAL", "100")
            self._thread.join()
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
    deadline = time.monotonic() + 20
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


def test_a_change_reaches_red_and_is_read_back_from_the_asic(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    reading = rig.ask(
        rig.switch.set_request(
            np.array([0, 2]), np.array([5120, 25600]), np.array([51200, 51200]), np.array([0.2, 1])
        )
    )
    never = rig.testbed.queues[0].buffer_bytes
    assert reading.kmin_bytes.tolist()[:4] == [5120, never, 25600, never]
    assert reading.kmax_bytes.tolist()[:4] == [51200, never, 51200, never]
    assert reading.pmax.tolist()[:4] == [0.2, 1.0, 1.0, 1.0]
    ports = [port for port, _, _ in rig.places()]
    assert rig.plane.marking[ports[0], 3] == Marking(5120, 51200, 20)
    assert rig.plane.marking[ports[1], 3] == Marking(never, never, 100)
    row = rig.redis.hash(CONFIG_DB, f"WRED_PROFILE|{rig.places()[0][2]}")
    assert row["green_max_threshold"] == "51200"
    assert row["ecn"] == "ecn_green"


def test_what_is_reported_is_the_request_and_the_silicon_rounds_it_unseen(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    reading = set_all(rig, 5000, 50_001, 0.014)
    assert set(reading.kmin_bytes.tolist()) == {5000}
    assert set(reading.kmax_bytes.tolist()) == {50_001}
    assert set(reading.pmax.tolist()) == {0.01}
    port, queue, _ = rig.places()[0]
    assert rig.asic(port, queue)["SAI_WRED_ATTR_GREEN_MIN_THRESHOLD"] == "5000"
    assert rig.plane.marking[port, queue] == Marking(5120, 50_176, 1)
    assert set(set_all(rig, 0, 0, 0).kmax_bytes.tolist()) == {1}
    # an ASIC whose granularity nobody knows: nothing is expected of it
    expected = rig.switch.expected()
    assert expected["thresholds"][f"{port}|{queue}"] == [None, None]
    assert expected["asic"] == "has thresholds in units that are not known"


SPECTRUM = Traits(
    release="202511",
    platform="x86_64-nvidia_sn5640-r0",
    asic="mellanox",
    cell_bytes=192,
    step_cells=64,
    streams=True,
)


def test_what_a_known_asic_makes_of_thresholds_is_expected_and_not_read(server):
    rig = Rig(server, SPECTRUM)
    rig.provision()
    rig.ask(rig.switch.open_request())
    reading = set_all(rig, 5000, 50_001, 0.5)
    port, queue, _ = rig.places()[0]
    assert (reading.kmin_bytes[0], reading.kmax_bytes[0]) == (5000, 50_001)
    expected = rig.switch.expected()
    assert expected["step_bytes"] == 12_288
    assert expected["thresholds"][f"{port}|{queue}"] == [12_288, 61_440]
    assert rig.plane.marking[port, queue] == Marking(12_288, 61_440, 50)
    *_, said, blink = rig.switch.shortcomings(10**9)
    assert "rounded up to 12288 B (Spectrum: 64 cells of 192 B): expected, not read" in said
    assert blink.startswith("each change takes a profile off its queue for a moment")
    assert 0 < rig.switch.edit_ns == expected["longest_change_ns"] < 3 * 10**9
    assert f"less than {rig.switch.edit_ns / 1e6:.1f} ms" in blink
    assert "as requested in ASIC_DB" in rig.switch.sources()["thresholds"]
    rig.close()


def test_a_change_takes_only_the_profiles_that_differ_off_their_queues(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    set_all(rig, 5120, 51_200, 0.2)
    rig.plane.history.clear()
    set_all(rig, 5120, 51_200, 0.2)
    assert rig.plane.history == []
    kmax = np.full(8, 51_200)
    kmax[3] = 102_400
    rig.ask(rig.switch.set_request(np.arange(8), np.full(8, 5120), kmax, np.full(8, 0.2)))
    # green alone: its two thresholds and its probability, of five fields
    off = [place for place, marking in rig.plane.history if marking is None]
    assert off == [rig.places()[3][:2]] * 3
    assert len(rig.plane.history) == 3 + 5


def test_every_write_of_the_asic_keeps_minimum_below_maximum(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    oid = wred_oid(rig, 0)
    seen, over = [], threading.Event()
    watcher = threading.Thread(target=watch, args=(rig.server.path, oid, seen, over))
    events = Events(rig.server.path, ASIC_DB)
    watcher.start()
    for low, high in ((5120, 10_240), (1_024_000, 2_048_000), (256, 512), (512, 512), (256, 5120)):
        rig.ask(
            rig.switch.set_request(
                np.array([0]), np.array([low]), np.array([high]), np.array([0.5])
            )
        )
    over.set()
    watcher.join()
    assert {key for key, _ in events.take()} == {oid}
    events.close()
    assert all(low <= high for low, high in seen)
    assert seen[-1] == (256, 5120)


def watch(path, key, seen, over):
    """Read the ASIC's thresholds over and over, and once after it is over."""
    redis = Redis(path)
    names = [f"SAI_WRED_ATTR_GREEN_{end}_THRESHOLD" for end in ("MIN", "MAX")]
    last = False
    while not last:
        last = over.is_set()
        seen.append(tuple(map(int, redis.call(ASIC_DB, "HMGET", key, *names))))
    redis.close()


def wred_oid(rig, index):
    port, queue, _ = rig.places()[index]
    oid = rig.redis.call(COUNTERS_DB, "HGET", "COUNTERS_QUEUE_NAME_MAP", f"{port}:{queue}")
    row = rig.redis.hash(ASIC_DB, f"ASIC_STATE:SAI_OBJECT_TYPE_QUEUE:{oid}")
    return f"ASIC_STATE:SAI_OBJECT_TYPE_WRED:{row['SAI_QUEUE_ATTR_WRED_PROFILE_ID']}"


def test_counters_come_with_the_time_of_their_poll(provisioned):
    rig = provisioned
    port = rig.places()[1][0]
    rig.plane.counts[port, 3] = QueueCounts(1500, 10**12, 7 * 10**9, 12, 3)
    rig.ask(rig.switch.open_request())

    def reading():
        found = rig.ask(rig.switch.read_request())
        return found if found.qlen_bytes[1] == 1500 and found.tx_bytes[1] else None

    until(lambda: reading() is not None)
    before_ns = time.monotonic_ns()
    found = reading()
    assert found.tx_bytes[1] == 10**12
    assert found.tx_packets[1] == 7 * 10**9
    assert found.dropped_packets[1] == 3
    until(lambda: rig.ask(rig.switch.read_request()).marked_packets[1] == 12)
    assert np.all(found.t_ns < before_ns + 10**9)
    until(lambda: rig.ask(rig.switch.read_request()).t_ns.min() > before_ns)
    assert rig.switch.pauses.tolist() == [[0] * 8, [0] * 8]


def test_no_stamp_is_later_than_the_counters_it_comes_with(provisioned, monkeypatch):
    """The switch polls between any two commands of a reading, as a real one may."""
    rig = provisioned
    rig.call("sonic.open", queues=[list(place) for place in rig.places()])
    oid = rig.redis.call(COUNTERS_DB, "HGET", "COUNTERS_QUEUE_NAME_MAP", "Ethernet0:3")
    polls, run, future_ns = count(1), Redis.run, 10**18

    def run_with_polls(redis, commands):
        """Write counters that are their own time, then the stamp, as syncd does."""
        replies = []
        for command in commands:
            now = future_ns + next(polls)
            written = [("HSET", f"COUNTERS:{oid}", "SAI_QUEUE_STAT_BYTES", now)]
            written.append(("HSET", "COUNTERS:TIME_STAMP", _STAMP, now))
            run(redis, [(COUNTERS_DB, words) for words in written])
            replies += run(redis, [command])
        return replies

    monkeypatch.setattr(Redis, "run", run_with_polls)
    found = rig.call("sonic.read")
    assert future_ns < found["t_ns"][0] <= found["rows"][0][1]


_STAMP = "QUEUE_STAT_COUNTER_Queue_Counter_time_stamp"


def test_a_release_without_stamps_has_times_from_the_first_change_on(server):
    rig = Rig(server, replace(Traits(), release="202405"))
    rig.provision()
    port, _, _ = rig.places()[0]
    reading = rig.ask(rig.switch.open_request())
    assert rig.redis.call(COUNTERS_DB, "EXISTS", "COUNTERS:TIME_STAMP") == 0
    # the counters are there, and nobody knows since when
    assert set(reading.tx_bytes.tolist()) == {0}
    assert set(reading.t_ns.tolist()) == {MISSING}
    before_ns = time.monotonic_ns()
    rig.plane.counts[port, 3] = QueueCounts(1500, 10**6, 10**3, 0, 0)
    until(lambda: rig.ask(rig.switch.read_request()).tx_bytes[0] == 10**6)
    reading = rig.ask(rig.switch.read_request())
    said = reading.signal_t_ns["tx_bytes"]
    assert before_ns - 10**9 < said[0] < time.monotonic_ns()
    # other queues may not have been polled in the same sweep, and their times stay unknown
    assert set(said[1:].tolist()) == {MISSING}
    time.sleep(0.3)
    again = rig.ask(rig.switch.read_request())
    assert again.signal_t_ns["tx_bytes"][0] == said[0]
    for sent in range(2, 6):
        rig.plane.counts[port, 3] = QueueCounts(1500, sent * 10**6, 10**3, 0, 0)
        until(lambda sent=sent: rig.ask(rig.switch.read_request()).tx_bytes[0] == sent * 10**6)
    assert MISSING not in rig.ask(rig.switch.read_request()).signal_t_ns["tx_bytes"].tolist()
    rig.close()


def test_what_every_number_is_taken_from_is_said(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    assert dict(rig.switch.sources()) == {
        "tx_bytes": "COUNTERS_DB, polled by the switch every 100 ms",
        "tx_packets": "COUNTERS_DB, polled by the switch every 100 ms",
        "dropped_packets": "COUNTERS_DB, polled by the switch every 100 ms",
        "qlen_bytes": "the PFC watchdog's reading, every 100 ms",
        "marked_packets": "COUNTERS_DB, polled by the switch every 100 ms",
        "thresholds": "as requested in ASIC_DB, after every change; the ASIC is not read",
    }
    assert rig.switch.shortcomings(100_000_000) == [
        "pmax is whole percent; thresholds are recorded as requested, and the ASIC has them in "
        "units that are not known: expected, not read"
    ]
    assert "polled every 100 ms and sampled every 10 ms" in rig.switch.shortcomings(10_000_000)[0]
    about = rig.call("sonic.capabilities")
    assert (about["release"], about["hwsku"]) == ("202505", "closloop-virtual")
    assert about["wred_objects"] == len(rig.places()) + 1


def test_an_old_release_has_no_marks_and_a_watermark_is_no_depth(server):
    rig = Rig(server, replace(Traits(), release="202411"))
    rig.provision()
    oid = rig.redis.call(COUNTERS_DB, "HGET", "COUNTERS_QUEUE_NAME_MAP", "Ethernet0:3")
    depth = "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES"
    until(lambda: rig.redis.call(COUNTERS_DB, "HEXISTS", f"COUNTERS:{oid}", depth))
    rig.redis.call(CONFIG_DB, "DEL", "PFC_WD|Ethernet0")
    reading = rig.ask(rig.switch.open_request())
    assert set(reading.marked_packets.tolist()) == {MISSING}
    # the depth that the watchdog read last is still in the database, but it is no reading any more
    assert reading.qlen_bytes.tolist() == [MISSING] + [0] * 7
    assert "marked_packets" not in rig.switch.sources()
    assert "qlen_bytes" not in rig.switch.sources()
    said = rig.switch.shortcomings(10**9)
    assert said[0].startswith("offers no current queue depth")
    assert "recorded instead is the watermark, the peak of each 1000 ms" in said[0]
    assert said[1].startswith("counts no ECN marks: release 202411")
    rig.close()


STREAM = {
    "HIGH_FREQUENCY_TELEMETRY_PROFILE": {
        "CLOSLOOP": {"stream_state": "enabled", "poll_interval": "2000"}
    },
    "HIGH_FREQUENCY_TELEMETRY_GROUP": {
        "CLOSLOOP|QUEUE": {
            "object_names@": "Ethernet0|3,Ethernet4|3",
            "object_counters@": "CURR_OCCUPANCY_CELLS,BYTES",
        }
    },
}


@pytest.fixture
def streaming(server, monkeypatch):
    # the groups belong to the network namespace: other tests may run at the same time
    monkeypatch.setattr(sonic_telemetry, "USERS_GROUP", 1 + os.getpid() % 32)
    rig = Rig(server, SPECTRUM)
    rig.provision()
    yield rig
    rig.close()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NETLINK_USERSOCK needs CAP_NET_ADMIN")


@needs_root
def test_streamed_depths_are_finer_than_polls_and_have_their_own_times(streaming):
    rig = streaming
    ports = [port for port, _, _ in rig.places()]
    rig.ask(rig.switch.open_request())
    assert "watchdog" in rig.switch.sources()["qlen_bytes"]
    assert rig.call("sonic.capabilities")["telemetry"] == {"offered": True, "sessions": []}
    bring(rig.redis, STREAM, exact=False)
    session = "HIGH_FREQUENCY_TELEMETRY_SESSION_TABLE|CLOSLOOP|QUEUE"
    until(lambda: rig.redis.call(STATE_DB, "EXISTS", session))
    rig.ask(rig.switch.open_request())
    said = rig.call("sonic.capabilities")["telemetry"]["sessions"]
    assert said == [{"profile": "CLOSLOOP", "on": True, "poll_us": "2000", "depth": True}]

    depths, times = set(), []
    for depth in range(192, 192 * 50, 192):
        rig.plane.counts[ports[1], 3] = QueueCounts(depth, 0, 0, 0, 0)
        set_ns = time.monotonic_ns()
        until(lambda depth=depth: rig.ask(rig.switch.read_request()).qlen_bytes[1] == depth)
        reading = rig.ask(rig.switch.read_request())
        depths.add(int(reading.qlen_bytes[1]))
        times.append(int(reading.signal_t_ns["qlen_bytes"][1]))
        assert set_ns <= times[-1] <= time.monotonic_ns()
    assert len(depths) == 49
    # polls would be 100 ms apart; counters keep their polls' times
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sorted(gaps)[len(gaps) // 2] < 50 * 10**6
    assert reading.signal_t_ns["tx_bytes"][1] < times[-1]
    assert reading.t_ns[1] == min(reading.signal_t_ns[n][1] for n in ("tx_bytes", "marked_packets"))
    # a queue that no session has is the watchdog's, as before
    assert 2 not in rig.call("sonic.read")["streamed"]
    assert rig.switch.sources()["qlen_bytes"] == (
        "High Frequency Telemetry, every 2000 us, stamped by the switch's clock"
    )
    assert any("had no newer depth" in text for text in rig.switch.shortcomings(10**9))


@needs_root
def test_a_stream_that_ends_leaves_the_depths_to_the_polls(streaming):
    rig = streaming
    bring(rig.redis, STREAM, exact=False)
    session = "HIGH_FREQUENCY_TELEMETRY_SESSION_TABLE|CLOSLOOP|QUEUE"
    until(lambda: rig.redis.call(STATE_DB, "EXISTS", session))
    rig.ask(rig.switch.open_request())
    until(lambda: rig.call("sonic.read")["streamed"] == [0, 1])
    rig.redis.call(
        CONFIG_DB, "HSET", "HIGH_FREQUENCY_TELEMETRY_PROFILE|CLOSLOOP", "stream_state", "disabled"
    )
    until(lambda: rig.call("sonic.read")["streamed"] == [])
    rig.plane.counts["Ethernet0", 3] = QueueCounts(1920, 0, 0, 0, 0)
    until(lambda: rig.ask(rig.switch.read_request()).qlen_bytes[0] == 1920)
    before_ns = time.monotonic_ns()
    until(lambda: rig.ask(rig.switch.read_request()).signal_t_ns["qlen_bytes"][0] > before_ns)
    assert rig.redis.hash(STATE_DB, session)["stream_status"] == "disabled"
    rig.redis.call(CONFIG_DB, "DEL", "HIGH_FREQUENCY_TELEMETRY_GROUP|CLOSLOOP|QUEUE")
    until(lambda: not rig.redis.call(STATE_DB, "EXISTS", session))


def test_marks_that_are_turned_off_are_not_the_last_ones_counted(provisioned):
    rig = provisioned
    rig.redis.call(
        CONFIG_DB, "HSET", "FLEX_COUNTER_TABLE|WRED_ECN_QUEUE", "FLEX_COUNTER_STATUS", "disable"
    )
    assert set(rig.ask(rig.switch.open_request()).marked_packets.tolist()) == {MISSING}
    assert "WRED_ECN_QUEUE is off" in " ".join(rig.switch.shortcomings(10**9))


def test_before_provisioning_queues_share_a_profile_and_cannot_be_opened(rig):
    with pytest.raises(OperationError, match="queue 3 of Ethernet0 is not bound to WRED profile"):
        rig.call(*["sonic.open"], queues=[list(place) for place in rig.places()])
    shared = [["Ethernet0", 3, "AZURE_LOSSLESS"]]
    with pytest.raises(OperationError, match="is shared by 16 queues"):
        rig.call("sonic.open", queues=shared)
    with pytest.raises(OperationError, match="there is no port Ethernet99"):
        rig.call("sonic.open", queues=[["Ethernet99", 3, "X"]])
    with pytest.raises(OperationError, match="no counters for queue 9"):
        rig.call("sonic.open", queues=[["Ethernet0", 9, "X"]])


def test_impossible_thresholds_are_refused_before_anything_is_written(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    before = dump(rig.redis, ["WRED_PROFILE"])
    for change in (
        [0, 10, 5, 0.5],
        [0, -1, 5, 0.5],
        [0, 1, 5, 1.5],
        [99, 1, 5, 0.5],
        [0, 1, 2**31, 1],
    ):
        with pytest.raises(OperationError):
            rig.call("sonic.set", changes=[change])
    assert dump(rig.redis, ["WRED_PROFILE"]) == before


def test_what_the_switch_refuses_is_told_with_what_the_asic_has(provisioned, monkeypatch):
    monkeypatch.setattr("collectors.readers.sonic.APPLY_TIMEOUT_S", 0.2)
    rig = provisioned
    rig.log.clear()
    rig.ask(rig.switch.open_request())
    with pytest.raises(OperationError) as error:
        rig.call("sonic.set", changes=[[0, 5120, 2**30, 0.5]])
    assert "ASIC_DB has (5120, 16000000, 100)" in error.value.what
    assert any("more than the buffer" in line for line in rig.log)


def test_provisioning_twice_changes_nothing_and_undoing_leaves_no_difference(rig):
    first = dump(rig.redis, TABLES)
    stock = dict(rig.plane.marking)
    assert rig.provision()
    assert bring(rig.redis, desired_tables(rig.rack, LEAF), exact=False) == []
    changes = bring(rig.redis, first, exact=True)
    assert "- WRED_PROFILE|CLOSLOOP_Ethernet0_3" in changes
    after = {
        f"{table}|{key}": row
        for table, rows in dump(rig.redis, TABLES).items()
        for key, row in rows.items()
    }
    before = {f"{table}|{key}": row for table, rows in first.items() for key, row in rows.items()}
    # orchagent would go on polling, or crash, if these were removed
    assert after == {key: undone(key, before.get(key)) for key in {*before, *after}}
    assert bring(rig.redis, first, exact=True) == []
    assert rig.crash is None
    until(lambda: rig.plane.marking == stock)
    # what was bound was unbound first, so that nothing waits to be removed
    until(lambda: rig.call("sonic.capabilities")["wred_objects"] == 1)


def test_a_redis_that_restarts_empty_gives_one_clear_error(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    rig.server.stop()
    rig.server.start()
    with pytest.raises(OperationError) as error:
        rig.ask(rig.switch.read_request())
    assert "queue 3 of Ethernet0 is not bound to WRED profile CLOSLOOP_Ethernet0_3" in str(
        error.value
    )
    assert "closloop provision" in error.value.remedy
    rig.await_ready()
    rig.provision()
    assert rig.ask(rig.switch.read_request()).kmax_bytes[0] == 16_000_000
    assert rig.switch.restarts == 1


def test_a_cold_boot_starts_from_what_was_saved_and_a_warm_one_from_everything(provisioned):
    rig = provisioned
    profile = f"WRED_PROFILE|{rig.places()[0][2]}"
    config_save(rig.server.path, rig.server.folder / "config_db.json")
    rig.redis.call(CONFIG_DB, "HSET", profile, "green_min_threshold", "5120")

    def boot(*, warm):
        if warm:
            before_reboot(warm=True, socket=rig.server.path)
        rig.server.stop()
        if not warm:
            before_reboot(warm=False, folder=rig.server.folder)
        rig.server.start()
        rig.await_ready()
        return rig.redis.hash(CONFIG_DB, profile)["green_min_threshold"]

    assert boot(warm=True) == "5120"
    assert boot(warm=False) == "16000000"


def test_depth_is_said_of_listed_queues_only(provisioned):
    rig = provisioned
    port = rig.places()[0][0]
    rig.redis.call(CONFIG_DB, "HDEL", f"PORT_QOS_MAP|{port}", "pfcwd_sw_enable")
    assert rig.ask(rig.switch.open_request()).qlen_bytes[0] == MISSING


def test_a_redis_that_restarts_with_its_data_goes_on_as_before(provisioned):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    set_all(rig, 5120, 51_200, 0.2)
    rig.redis.call(0, "SAVE")
    rig.server.stop()
    rig.server.start()
    assert set(rig.ask(rig.switch.read_request()).kmax_bytes.tolist()) == {51_200}
    assert set(set_all(rig, 5120, 10_240, 0.2).kmax_bytes.tolist()) == {10_240}
    assert rig.switch.restarts == 1
    assert rig.switch.shortcomings(10**9)[-1] == "its Redis was restarted meanwhile (1 times)"


def test_a_redis_that_stays_away_is_named(provisioned, monkeypatch):
    rig = provisioned
    rig.ask(rig.switch.open_request())
    monkeypatch.setattr("orchestration.device.agent.resp._RETRY_S", 0.001)
    impatient = Redis(rig.server.path, patience_s=0.01)
    assert impatient.call(0, "PING") == "PONG"
    rig.server.stop()
    with pytest.raises(RedisGone, match="does not answer") as error:
        impatient.call(0, "PING")
    assert "docker ps" in error.value.remedy
    rig.server.start()
    assert impatient.call(0, "PING") == "PONG"
    assert impatient.restarts == 1
    rig.await_ready()


def test_replies_of_all_kinds_are_understood(server):
    server.own()
    redis = Redis(server.path)
    big = "x" * 1_000_000
    replies = redis.run(
        [
            (3, ("SET", "big", big)),
            (4, ("EXISTS", "big")),
            (3, ("GET", "big")),
            (3, ("GET", "none")),
            (3, ("KEYS", "none*")),
            (3, ("HSET", "h", "ä", 1)),
            (3, ("HGETALL", "h")),
            (3, ("EVAL", "return {1, {'a', {}}}", 0)),
        ]
    )
    assert replies == ["OK", 0, big, None, [], 1, ["ä", "1"], [1, ["a", []]]]
    assert redis.hash(3, "h") == {"ä": "1"}
    with pytest.raises(RedisError, match="refuses HGETALL big: WRONGTYPE"):
        redis.run([(3, ("GET", "h2")), (3, ("HGETALL", "big"))])
    with pytest.raises(RedisError, match="has not SONiC's databases"):
        redis.call(99, "PING")
    assert redis.call(3, "EXISTS", "big") == 1
    redis.close()


def test_the_events_of_one_database_are_told_in_order(server):
    server.own()
    redis, events = Redis(server.path), Events(server.path, CONFIG_DB)
    redis.run([(CONFIG_DB, ("HSET", "QUEUE|a", "x", n)) for n in range(3)])
    redis.run([(ASIC_DB, ("SET", "other", 1)), (CONFIG_DB, ("DEL", "QUEUE|a"))])
    assert events.take() == [("QUEUE|a", "hset")] * 3 + [("QUEUE|a", "del")]
    events.close()
    redis.close()
