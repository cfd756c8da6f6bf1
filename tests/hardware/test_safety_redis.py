"""Snapshot and restore of CONFIG_DB's rows, in a real Redis."""

import json
import subprocess

import pytest

from orchestration.agent.main import OperationError
from orchestration.agent.safety import state
from orchestration.agent.sonic import configdb
from orchestration.agent.sonic.resp import CONFIG_DB, Redis

pytestmark = pytest.mark.redis

PROFILE = "WRED_PROFILE|CLOSLOOP_Ethernet0_3"
QUEUE = "QUEUE|Ethernet0|3"
THEIRS = "WRED_PROFILE|AZURE_LOSSLESS"
OWN = [PROFILE, QUEUE]
ROWS = {
    PROFILE: {"green_min_threshold": "1048576", "green_max_threshold": "2097152", "ecn": "ecn_all"},
    QUEUE: {"wred_profile": "CLOSLOOP_Ethernet0_3", "scheduler": "scheduler.1"},
    THEIRS: {"green_min_threshold": "250000", "ecn": "ecn_all"},
    "QUEUE|Ethernet0|4": {"wred_profile": "AZURE_LOSSLESS"},
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
    client = Redis(path, restart_timeout_s=20.0)
    for key, row in ROWS.items():
        client.call(CONFIG_DB, "HSET", key, *(word for pair in row.items() for word in pair))
    monkeypatch.setattr(configdb, "Redis", lambda: Redis(path, restart_timeout_s=0.2))
    yield client
    client.close()
    server.kill()
    server.wait()


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The file of `config save`, not written yet."""
    file = tmp_path / "config_db.json"
    monkeypatch.setattr(configdb, "SAVED_CONFIG", str(file))
    return file


def snapshot():
    return state.snapshot({"rows": OWN})


def everything(redis):
    return {key: redis.hash(CONFIG_DB, key) for key in sorted(redis.call(CONFIG_DB, "KEYS", "*"))}


def test_only_the_runs_own_rows_are_in_it(redis):
    assert set(snapshot()["rows"]) == set(OWN)


def test_changed_lost_and_added_fields_are_put_back_and_nothing_else_is_touched(redis):
    wanted, before = snapshot(), everything(redis)
    redis.call(CONFIG_DB, "HSET", PROFILE, "green_min_threshold", "1", "extra", "2")
    redis.call(CONFIG_DB, "HDEL", PROFILE, "ecn")
    # edits of others during the run: in the same tables, and in others
    theirs = {
        THEIRS: {"green_min_threshold": "300000", "ecn": "ecn_green"},
        "QUEUE|Ethernet0|4": {"wred_profile": "OTHER"},
        "FLEX_COUNTER_TABLE|QUEUE": {"POLL_INTERVAL": "1000", "FLEX_COUNTER_STATUS": "enable"},
        "DEVICE_METADATA|localhost": {"hostname": "other"},
        "WRED_PROFILE|NEW": {"ecn": "ecn_none"},
    }
    for key, row in theirs.items():
        redis.call(CONFIG_DB, "HSET", key, *(word for pair in row.items() for word in pair))

    outcome = state.restore(wanted)

    assert outcome == {"changed": [f"row {PROFILE}"], "differences": [], "restarted": False}
    assert snapshot() == wanted
    assert everything(redis) == {**before, **theirs}


def test_after_a_reboot_rows_are_compared_and_put_back(redis):
    """Warm and fast reboots load CONFIG_DB from Redis's dump: tuned thresholds survive."""
    wanted = {**snapshot(), "boot": "the one before"}
    redis.call(CONFIG_DB, "HSET", PROFILE, "green_min_threshold", "1")

    outcome = state.restore(wanted)

    assert outcome == {"changed": [f"row {PROFILE}"], "differences": [], "restarted": True}
    assert redis.hash(CONFIG_DB, PROFILE) == ROWS[PROFILE]


def test_rows_that_a_cold_reboot_did_not_load_are_not_made_again(redis):
    wanted = {**snapshot(), "boot": "the one before"}
    redis.call(CONFIG_DB, "DEL", PROFILE, QUEUE)

    outcome = state.restore(wanted)

    assert outcome["changed"] == []
    assert [item["part"] for item in outcome["differences"]] == ["lost row", "lost row"]
    assert redis.call(CONFIG_DB, "EXISTS", PROFILE, QUEUE) == 0


def test_a_configuration_saved_during_the_run_is_said(redis, saved):
    wanted = snapshot()
    tuned = {**ROWS[PROFILE], "green_min_threshold": "1"}
    saved.write_text(json.dumps({"WRED_PROFILE": {PROFILE.partition("|")[2]: tuned}}))

    (difference,) = state.restore(wanted)["differences"]

    assert (difference["part"], difference["what"]) == ("saved row", PROFILE)
    saved.write_text("{torn")
    assert state.restore(wanted)["differences"] == []


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
    monkeypatch.setattr(
        configdb, "Redis", lambda: Redis(str(tmp_path / "none"), restart_timeout_s=0.0)
    )
    with pytest.raises(OperationError, match="does not answer") as caught:
        snapshot()
    assert "docker ps" in caught.value.remedy
