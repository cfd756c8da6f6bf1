"""What is read of a SONiC switch: counters with their times, depths polled and streamed."""

import itertools
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from orchestration.agent.sonic.resp import CONFIG_DB, COUNTERS_DB, STATE_DB, Redis
from orchestration.core.records import MISSING
from orchestration.virtual_rack.sonic_model import (
    QueueCounts,
    Traits,
)

sys.path.insert(0, str(Path(__file__).parent))

from configdb_rows import bring
from sonic_rig import Rig, needs_root, until

pytestmark = pytest.mark.redis

_STAMP = "QUEUE_STAT_COUNTER_Queue_Counter_time_stamp"


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
        "pmax is in whole percent; thresholds are recorded as requested, and the ASIC has them in "
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
    assert said[1].startswith("counts no CE packets: release 202411")
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
        "High Frequency Telemetry, every 2000 us, with time stamps of the switch's clock"
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


def test_depth_is_said_of_listed_queues_only(provisioned):
    rig = provisioned
    port = rig.places()[0][0]
    rig.redis.call(CONFIG_DB, "HDEL", f"PORT_QOS_MAP|{port}", "pfcwd_sw_enable")
    assert rig.ask(rig.switch.open_request()).qlen_bytes[0] == MISSING
