"""Thresholds on a SONiC switch, and what is said when it refuses, restarts or stays away."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from orchestration.agent.main import OperationError
from orchestration.agent.sonic.configdb import row_after_undo
from orchestration.agent.sonic.resp import (
    ASIC_DB,
    CONFIG_DB,
    COUNTERS_DB,
    Events,
    Redis,
    RedisError,
    RedisGone,
)
from orchestration.backends.hardware.sonic.config import TABLES, desired_tables
from orchestration.virtual_rack.reboot import config_save, prepare_redis_data
from orchestration.virtual_rack.sonic_model import (
    RedSettings,
)

sys.path.insert(0, str(Path(__file__).parent))

from configdb_rows import bring, dump
from sonic_rig import LEAF, SPECTRUM, Rig, set_all, until

pytestmark = pytest.mark.redis


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
    assert rig.plane.marking[ports[0], 3] == RedSettings(5120, 51200, 20)
    assert rig.plane.marking[ports[1], 3] == RedSettings(never, never, 100)
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
    assert rig.plane.marking[port, queue] == RedSettings(5120, 50_176, 1)
    assert set(set_all(rig, 0, 0, 0).kmax_bytes.tolist()) == {1}
    # an ASIC whose granularity nobody knows: nothing is expected of it
    expected = rig.switch.expected()
    assert expected["thresholds"][f"{port}|{queue}"] == [None, None]
    assert expected["asic"] == "has thresholds in units that are not known"


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
    assert rig.plane.marking[port, queue] == RedSettings(12_288, 61_440, 50)
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
    monkeypatch.setattr("orchestration.agent.sonic.counters.APPLY_TIMEOUT_S", 0.2)
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
    assert after == {key: row_after_undo(key, before.get(key)) for key in {*before, *after}}
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
            prepare_redis_data(warm=True, socket=rig.server.path)
        rig.server.stop()
        if not warm:
            prepare_redis_data(warm=False, folder=rig.server.folder)
        rig.server.start()
        rig.await_ready()
        return rig.redis.hash(CONFIG_DB, profile)["green_min_threshold"]

    assert boot(warm=True) == "5120"
    assert boot(warm=False) == "16000000"


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
    monkeypatch.setattr("orchestration.agent.sonic.resp._RETRY_S", 0.001)
    impatient = Redis(rig.server.path, restart_timeout_s=0.01)
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
    with pytest.raises(RedisError, match="does not have SONiC's databases"):
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
