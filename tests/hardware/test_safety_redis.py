"""Snapshot and restore of CONFIG_DB's rows, in a real Redis."""

import subprocess

import pytest

from orchestration.device.agent import state
from orchestration.device.agent.main import OperationError
from orchestration.device.agent.resp import CONFIG_DB, Redis

pytestmark = pytest.mark.redis

PROFILE = "WRED_PROFILE|AZURE_LOSSLESS"
QUEUE = "QUEUE|Ethernet0|3"
ROWS = {
    PROFILE: {"green_min_threshold": "1048576", "green_max_threshold": "2097152", "ecn": "ecn_all"},
    QUEUE: {"wred_profile": "AZURE_LOSSLESS", "scheduler": "scheduler.1"},
    "FLEX_COUNTER_TABLE|QUEUE": {"POLL_INTERVAL": "10000", "FLEX_COUNTER_STATUS": "enable"},
    "DEVICE_METADATA|localhost": {"hostname": "leaf1"},
}


@pytest.fixture
def redis(tmp_path, monkeypatch):
    path = str(tmp_path / "redis.sock")
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--daemonize", "no"],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    client = Redis(path, patience_s=20.0)
    for key, row in ROWS.items():
        client.call(CONFIG_DB, "HSET", key, *(word for pair in row.items() for word in pair))
    monkeypatch.setattr(state, "Redis", lambda: Redis(path, patience_s=0.2))
    yield client
    client.close()
    server.kill()
    server.wait()


def snapshot():
    return state.snapshot({"sonic": True})


def test_only_the_tables_that_runs_touch_are_in_it(redis):
    assert set(snapshot()["rows"]) == set(ROWS) - {"DEVICE_METADATA|localhost"}


def test_changed_lost_and_added_fields_and_rows_are_put_back(redis):
    wanted = snapshot()
    redis.call(CONFIG_DB, "HSET", PROFILE, "green_min_threshold", "1", "extra", "2")
    redis.call(CONFIG_DB, "DEL", QUEUE)
    redis.call(CONFIG_DB, "HSET", "DEVICE_METADATA|localhost", "hostname", "other")

    outcome = state.restore(wanted)

    assert outcome["changed"] == [f"row {PROFILE}", f"row {QUEUE}"]
    assert outcome["differences"] == []
    assert snapshot() == wanted
    # what the snapshot does not name is not touched
    assert redis.hash(CONFIG_DB, "DEVICE_METADATA|localhost") == {"hostname": "other"}


def test_a_row_of_somebody_elses_stays_and_is_said(redis):
    wanted = snapshot()
    redis.call(CONFIG_DB, "HSET", "WRED_PROFILE|THEIRS", "ecn", "ecn_none")

    (difference,) = state.restore(wanted)["differences"]

    assert (difference["part"], difference["where"]) == ("other row", "WRED_PROFILE|THEIRS")
    assert redis.hash(CONFIG_DB, "WRED_PROFILE|THEIRS") == {"ecn": "ecn_none"}


def test_orchagent_sees_a_profile_change_in_one_go(redis):
    wanted = snapshot()
    redis.call(CONFIG_DB, "HSET", PROFILE, "green_min_threshold", "1", "green_max_threshold", "2")
    before = int(commands(redis).get("cmdstat_hset", "calls=0").split("calls=")[1].split(",")[0])

    state.restore(wanted)

    after = int(commands(redis)["cmdstat_hset"].split("calls=")[1].split(",")[0])
    assert after - before == 1


def commands(redis):
    lines = redis.call(CONFIG_DB, "INFO", "commandstats").split()
    return dict(line.partition(":")[::2] for line in lines if ":" in line)


def test_a_redis_that_is_away_is_said_with_the_remedy(redis, tmp_path, monkeypatch):
    monkeypatch.setattr(state, "Redis", lambda: Redis(str(tmp_path / "none"), patience_s=0.0))
    with pytest.raises(OperationError, match="does not answer") as caught:
        snapshot()
    assert "docker ps" in caught.value.remedy
