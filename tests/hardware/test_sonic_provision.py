"""The Ansible module for SONiC on a real Redis; the switch behind it is the virtual rack's."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from orchestration.agent.sonic.resp import CONFIG_DB, COUNTERS_DB, STATE_DB
from orchestration.virtual_rack import sonic_telemetry

sys.path.insert(0, str(Path(__file__).parent))

from sonic_module import module, switches, without_defaults
from sonic_rig import SPECTRUM, needs_root, until

from ansible.module_utils.closloop import sonic_polls, sonic_watchdog  # isort: skip
from ansible.module_utils.closloop.reconcile import Refused, Saved  # isort: skip

pytestmark = pytest.mark.redis

WATCHED = {"action": "alert", "detection_time": "200", "restoration_time": "200"}


@pytest.fixture
def make(server):
    """Return a function that starts a switch with traits, and queues to provision."""
    yield from switches(server)


def test_rows_are_written_in_order_once_and_undo_puts_back_what_was_there(make):
    switch = make()
    stock = switch.rows()
    assert switch.bring()["changed"] is True
    tables = [key.partition("|")[0] for word, key in switch.written if word == "HSET"]
    assert tables[0] == "WRED_PROFILE"
    order = ("DSCP_TO_TC_MAP", "QUEUE", "PORT_QOS_MAP", "PFC_WD")
    first = [tables.index(table) for table in order]
    assert first == sorted(first)
    # what was not asked for stays
    assert switch.row("QUEUE|Ethernet0|3")["scheduler"] == "scheduler.1"
    now = switch.rows()
    switch.written.clear()
    assert switch.bring()["changed"] is False
    assert (switch.rows(), switch.written) == (now, [])
    switch.bring("absent")
    assert without_defaults(switch.rows(), stock) == stock


def test_undo_never_removes_the_watchdogs_global_row_and_orchagent_lives(make):
    switch = make()
    switch.bring()
    switch.bring("absent")
    assert switch.row("PFC_WD|GLOBAL") == {"POLL_INTERVAL": "100"}
    assert not [key for key in switch.rows() if key.startswith("PFC_WD|Ethernet")]
    assert "PFC_WD_ACTION" not in switch.counters("Ethernet0", 3)
    # it is alive: a change still arrives
    switch.bring()
    assert switch.counters("Ethernet0", 3)["PFC_WD_ACTION"] == "alert"


def test_undo_of_an_interval_writes_the_former_or_the_default_one(make):
    switch = make()
    switch.write("FLEX_COUNTER_TABLE|PORT", POLL_INTERVAL="5000")
    switch.bring()
    assert switch.row("FLEX_COUNTER_TABLE|QUEUE")["POLL_INTERVAL"] == "100"
    switch.bring("absent")
    assert switch.row("FLEX_COUNTER_TABLE|PORT")["POLL_INTERVAL"] == "5000"
    assert switch.row("FLEX_COUNTER_TABLE|QUEUE")["POLL_INTERVAL"] == "10000"
    # there was no such row, and its polling stops only if it is told to
    assert switch.row("FLEX_COUNTER_TABLE|WRED_ECN_QUEUE")["FLEX_COUNTER_STATUS"] == "disable"
    until(lambda: is_still(switch))


def is_still(switch):
    """Return whether queues are not read in four intervals of before: some were due already."""
    before = polled(switch)
    time.sleep(0.4)
    return polled(switch) == before


def polled(switch):
    """Return when the groups of queues were read last."""
    stamps = switch.redis.hash(COUNTERS_DB, "COUNTERS:TIME_STAMP")
    return {name: at for name, at in stamps.items() if "QUEUE_STAT_COUNTER_" in name}


def test_a_watchdog_row_is_removed_before_it_is_set_anew(make):
    switch = make()
    switch.write("PFC_WD|Ethernet0", **{**WATCHED, "action": "drop"})
    until(lambda: switch.counters("Ethernet0", 3).get("PFC_WD_ACTION") == "drop")
    switch.bring()
    assert switch.actions()["Ethernet0", 3] == "alert"
    switch.bring("absent")
    assert switch.actions() == {("Ethernet0", 3): "drop", ("Ethernet0", 4): "drop"}


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_sigkill_while_a_watchdog_row_is_removed_loses_nothing_once_undone(make, state):
    switch = make()
    switch.write("PFC_WD|Ethernet0", **{**WATCHED, "action": "drop"})
    until(lambda: switch.actions().get(("Ethernet0", 3)) == "drop")
    stock = switch.rows()
    if state == "absent":
        switch.bring()
    child = os.fork()
    if not child:
        # before it waits for orchagent
        sonic_watchdog.Restart._wait_for_actions = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        try:
            switch.bring(state)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert switch.row("PFC_WD|Ethernet0") == {}
    switch.bring("absent")
    assert without_defaults(switch.rows(), stock) == stock
    assert switch.actions() == {("Ethernet0", 3): "drop", ("Ethernet0", 4): "drop"}


def test_a_lossy_queue_has_a_depth_and_no_pfc(make):
    switch = make(queues=(1,))
    # somebody watches the port already, and orchagent reads the list with the row only
    switch.write("PFC_WD|Ethernet0", **WATCHED)
    until(lambda: ("Ethernet0", 3) in switch.actions())
    switch.bring()
    assert switch.row("PORT_QOS_MAP|Ethernet0")["pfc_enable"] == "3,4"
    depth = "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES"
    until(lambda: depth in switch.counters("Ethernet0", 1))
    assert ("Ethernet0", 1) in switch.actions()


def test_priorities_are_added_to_somebodys_and_never_taken_away(make):
    switch = make()
    switch.write("PORT_QOS_MAP|Ethernet4", pfc_enable="6", pfcwd_sw_enable="6")
    switch.bring()
    assert switch.row("PORT_QOS_MAP|Ethernet0")["pfc_enable"] == "3,4"
    assert switch.row("PORT_QOS_MAP|Ethernet4")["pfc_enable"] == "3,6"
    assert switch.row("PORT_QOS_MAP|Ethernet4")["pfcwd_sw_enable"] == "3,6"
    switch.bring("absent")
    assert switch.row("PORT_QOS_MAP|Ethernet4")["pfc_enable"] == "6"


def left(result):
    return {entry["step"]: entry["reason"] for entry in result["skipped_steps"]}


def test_undo_keeps_what_somebody_has_set_since_in_the_same_rows(make):
    switch = make()
    switch.write("PORT_QOS_MAP|Ethernet0", pfc_enable="4")
    stock = switch.rows()
    switch.bring()
    # another field of a row, and another priority in a list that provisioning added to
    switch.write("PORT_QOS_MAP|Ethernet0", tc_to_dscp_map="theirs", pfc_enable="3,4,6")
    switch.write("QUEUE|Ethernet0|3", scheduler="scheduler.0")
    # the same field: it does not hold what provisioning wrote any more
    switch.write("PORT_QOS_MAP|Ethernet4", dscp_to_tc_map="AZURE_2")
    switch.write("FLEX_COUNTER_TABLE|PORT", POLL_INTERVAL="300")
    # rows that provisioning made
    switch.write("PFC_WD|Ethernet4", action="drop")
    switch.write("DSCP_TO_TC_MAP|CLOSLOOP", **{"5": "6"})
    switch.redis.call(CONFIG_DB, "DEL", "FLEX_COUNTER_TABLE|QUEUE_WATERMARK")

    assert left(switch.bring("absent", check_mode=True))  # foretold
    told = left(switch.bring("absent"))
    assert told == {
        "undo of PORT_QOS_MAP|Ethernet4": "dscp_to_tc_map has been set to AZURE_2 since, and stays "
        "so",
        "undo of FLEX_COUNTER_TABLE|PORT": "POLL_INTERVAL has been set to 300 since, and stays so",
        "undo of PFC_WD|Ethernet4": "action has been set to drop since, and stays so",
        "undo of DSCP_TO_TC_MAP|CLOSLOOP": "5 has been set to 6 since, and stays so",
        "undo of FLEX_COUNTER_TABLE|QUEUE_WATERMARK": "POLL_INTERVAL has been removed since, and "
        "stays so",
    }
    row = switch.row("PORT_QOS_MAP|Ethernet0")
    former = stock["PORT_QOS_MAP|Ethernet0"]
    assert row == {**former, "tc_to_dscp_map": "theirs", "pfc_enable": "4,6"}
    queue = {**stock["QUEUE|Ethernet0|3"], "scheduler": "scheduler.0"}
    assert switch.row("QUEUE|Ethernet0|3") == queue
    assert switch.row("PORT_QOS_MAP|Ethernet4")["dscp_to_tc_map"] == "AZURE_2"
    # half a row of the watchdog would be none
    assert switch.row("PFC_WD|Ethernet4") == {**WATCHED, "action": "drop"}
    assert switch.row("PFC_WD|Ethernet0") == {}
    assert switch.row("DSCP_TO_TC_MAP|CLOSLOOP") == {"5": "6"}
    assert switch.bring("absent")["changed"] is False


def test_rows_that_version_0_1_saved_whole_go_back_whole(make):
    switch = make()
    stock = switch.rows()
    switch.bring()
    saved = Saved("sonic", str(switch.server.folder / "closloop" / "provision"))
    saved.load()
    old = {key: stock.get(key) for key in saved.values}
    saved.values = {key: row and {"row": row} for key, row in old.items()}
    saved.store()
    switch.write("QUEUE|Ethernet0|3", wred_profile="")
    assert switch.bring()["changed"] is True
    switch.bring("absent")
    assert without_defaults(switch.rows(), stock) == stock


def broadcom(switch):
    Path(switch.version_file).write_text("asic_type: broadcom\n")
    return switch


def test_with_dlr_init_another_action_elsewhere_is_refused_before_anything_is_changed(make):
    switch = broadcom(make(one_watchdog_action=True))
    switch.write("PFC_WD|Ethernet64", **{**WATCHED, "action": "drop"})
    before = switch.rows()
    for check_mode in (True, False):
        with pytest.raises(Refused, match="refuses alert while Ethernet64 have another") as error:
            switch.bring(check_mode=check_mode)
        assert "pfcwd stop Ethernet64" in error.value.remedy
    assert switch.rows() == before


def test_with_dlr_init_all_rows_are_removed_before_any_is_set(make):
    switch = broadcom(make(one_watchdog_action=True))
    ports = [port.name for port in switch.model.ports]
    for port in ports:
        switch.write(f"PFC_WD|{port}", **{**WATCHED, "action": "drop"})
    until(lambda: len(switch.actions()) == 2 * len(ports))
    switch.bring()
    assert set(switch.actions().values()) == {"alert"}
    switch.bring("absent")
    assert set(switch.actions().values()) == {"drop"}


def test_a_lossless_queue_without_a_buffer_is_refused(make):
    switch = make()
    switch.redis.call(CONFIG_DB, "DEL", "BUFFER_PG|Ethernet0|3-4")
    switch.write("BUFFER_PG|Ethernet4|3-4", profile="ingress_lossy_profile")
    before = switch.rows()
    with pytest.raises(Refused) as error:
        switch.bring()
    assert error.value.what.endswith(
        "there is none at Ethernet0 priority group 3, Ethernet4 priority group 3"
    )
    assert "config qos reload" in error.value.remedy
    assert switch.rows() == before


def test_a_lossy_queue_needs_no_headroom(make):
    switch = make(queues=(1,))
    switch.redis.call(CONFIG_DB, "DEL", "BUFFER_PG|Ethernet0|3-4")
    assert switch.bring()["changed"] is True


def test_where_the_switch_computes_buffers_a_missing_row_is_added(make):
    switch = make(buffer_model="dynamic")
    switch.redis.call(CONFIG_DB, "DEL", "BUFFER_PG|Ethernet0|3-4")
    switch.bring()
    assert switch.row("BUFFER_PG|Ethernet0|3") == {"profile": "NULL"}
    assert switch.row("BUFFER_PG|Ethernet4|3") == {}
    assert switch.bring()["changed"] is False
    switch.bring("absent")
    assert switch.row("BUFFER_PG|Ethernet0|3") == {}


def test_an_asic_with_too_few_free_profiles_is_refused_and_nothing_is_bound(make, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.3)
    # the stock profile takes three entries, one a colour
    switch = make(wred_profiles=8)
    before = switch.rows()
    with pytest.raises(Refused, match="created 5 of the 8 WRED profiles that its queues need"):
        switch.bring()
    assert switch.rows() == before
    assert switch.call("sonic.capabilities")["wred_objects"] == 1


def test_provisioning_right_after_an_undo_counts_no_profile_that_is_going(make, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT_S", 20.0)
    switch = make()
    switch.bring()
    if not switch.server.real:
        orchagent = switch._bridge.daemons.orchagent
        remove = orchagent._remove_profile

        def slowly(name):
            time.sleep(0.05)
            return remove(name)

        monkeypatch.setattr(orchagent, "_remove_profile", slowly)
    switch.bring("absent")
    assert switch.bring()["changed"] is True


def test_colours_of_an_earlier_version_leave_the_profile(make):
    switch = make()
    switch.bring()
    switch.write("WRED_PROFILE|CLOSLOOP_Ethernet0_3", ecn="ecn_all", red_max_threshold="16000000")
    switch.bring()
    assert set(switch.row("WRED_PROFILE|CLOSLOOP_Ethernet0_3")) == {
        "ecn",
        "wred_green_enable",
        "green_min_threshold",
        "green_max_threshold",
        "green_drop_probability",
    }


def test_a_row_that_speaks_for_several_queues_is_refused(make):
    switch = make()
    switch.redis.call(CONFIG_DB, "DEL", "QUEUE|Ethernet0|3", "QUEUE|Ethernet0|4")
    switch.write("QUEUE|Ethernet0|3-4", scheduler="scheduler.1")
    before = switch.rows()
    with pytest.raises(Refused, match=r"row QUEUE\|Ethernet0\|3-4 is for queue 3 together"):
        switch.bring()
    assert switch.rows() == before


@pytest.fixture
def large(make):
    """Return a function that makes a switch with many ports, and syncd's load at its polls."""

    def large(*loads):
        left = list(loads)
        switch = make(load=lambda: left.pop(0))
        if switch.server.real:
            pytest.skip("SONiC's virtual switch has 32 ports, and no room for rows of others")
        for number in range(100, 200):
            switch.write(f"PORT|Ethernet{number}", admin_status="up")
        return switch

    return large


def polls(switch):
    groups = sonic_polls.GROUPS
    return {switch.row(f"FLEX_COUNTER_TABLE|{group}")["POLL_INTERVAL"] for group in groups}


@pytest.mark.parametrize(
    ("loads", "interval", "why"),
    [
        ((0.1, 0.5), "100", []),
        ((0.3,), "500", ["syncd takes 0.30 cores at 500 ms already"]),
        ((0.1, 1.3), "500", ["syncd takes 1.30 cores at 100 ms"]),
        ((None,), "500", ["syncd's load cannot be measured: there is no process of that name"]),
    ],
)
def test_a_large_switch_begins_at_500_ms_and_syncds_load_decides(large, loads, interval, why):
    switch = large(*loads)
    result = switch.bring()
    assert [entry["reason"] for entry in result["skipped_steps"]] == why
    assert polls(switch) == {interval}
    assert ["HSET", "FLEX_COUNTER_TABLE|QUEUE"] in [list(words) for words in switch.written]
    # what was decided holds
    assert switch.bring()["changed"] is False
    assert switch.bring("verified")["differences"] == []
    assert polls(switch) == {interval}


def test_the_load_of_syncd_is_its_processor_time(tmp_path):
    for pid, name, ticks in (("7", "syncd", (10, 5)), ("8", "a (b) c", (99, 99))):
        folder = tmp_path / pid
        folder.mkdir()
        fields = ["S", *["0"] * 10, *map(str, ticks), "0"]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (tmp_path / "self").mkdir()
    assert sonic_polls._ticks(str(tmp_path)) == {"7": 15}
    assert sonic_polls.syncd_cores(str(tmp_path), 0.01) == 0.0
    assert sonic_polls.syncd_cores(str(tmp_path / "self"), 0.01) is None


def test_a_watchdog_that_orchagent_does_not_take_is_an_error(make, monkeypatch):
    monkeypatch.setattr(sonic_watchdog, "_TIMEOUT_S", 0.2)
    switch = make()
    rows = {"Ethernet0": {"action": "alert"}}
    watchdog = sonic_watchdog.Restart(switch.redis, rows)
    watchdog.stop()
    with pytest.raises(Refused, match="the PFC watchdog does not apply its rows for Ethernet0"):
        watchdog.start()


GROUP = "HIGH_FREQUENCY_TELEMETRY_GROUP|CLOSLOOP|QUEUE"
SESSION = "HIGH_FREQUENCY_TELEMETRY_SESSION_TABLE|CLOSLOOP|QUEUE"
# sonic-high-frequency-telemetry.yang (sonic-buildimage 4bdc0cd): what QUEUE's object_counters match
YANG_COUNTERS = (
    "PACKETS|BYTES|DROPPED_PACKETS|CURR_OCCUPANCY_BYTES|WATERMARK_BYTES|WRED_ECN_MARKED_PACKETS|"
    "TRIM_PACKETS|CURR_OCCUPANCY_CELLS|WATERMARK_CELLS"
)


@needs_root
def test_depths_are_streamed_when_asked_for_and_no_more_after_an_undo(make, monkeypatch):
    monkeypatch.setattr(sonic_telemetry, "USERS_GROUP", 1 + os.getpid() % 32)
    switch = make(**vars(SPECTRUM))
    stock = switch.rows()
    switch.also = {"telemetry_us": 2000}
    assert switch.bring()["skipped_steps"] == []
    profile = switch.row("HIGH_FREQUENCY_TELEMETRY_PROFILE|CLOSLOOP")
    assert profile == {"stream_state": "enabled", "poll_interval": "2000"}
    # the model's conditions: a name is port|number, the port has buffers, the counter is listed
    group = switch.row(GROUP)
    assert re.fullmatch(YANG_COUNTERS, group["object_counters@"])
    for name in group["object_names@"].split(","):
        port, _, number = name.partition("|")
        assert number.isdigit()
        assert switch.row(f"BUFFER_QUEUE|{port}|3-4")
    assert len(group["object_names@"].split(",")) == len(switch.places())
    until(lambda: switch.redis.call(STATE_DB, "EXISTS", SESSION))
    switch.ask(switch.switch.open_request())
    until(lambda: switch.call("sonic.read")["streamed"] == list(range(len(switch.places()))))
    assert "every 2000 us" in switch.switch.sources()["qlen_bytes"]
    assert switch.bring()["changed"] is False
    switch.bring("absent")
    assert without_defaults(switch.rows(), stock) == stock
    until(lambda: not switch.redis.call(STATE_DB, "EXISTS", SESSION))


@pytest.mark.parametrize(
    ("traits", "row", "why"),
    [
        ({"streams": False}, None, "it has no High Frequency Telemetry"),
        ({"asic": "broadcom"}, None, "it is not known what an ASIC of kind 'broadcom' can stream"),
        ({}, "HIGH_FREQUENCY_TELEMETRY_PROFILE|theirs", "it has the profile theirs already"),
        ({}, "-BUFFER_QUEUE|Ethernet4|3-4", "Ethernet4 has no row in BUFFER_QUEUE"),
    ],
)
def test_what_cannot_be_streamed_is_left_out_with_the_reason_and_the_rest_is_set(
    make, traits, row, why
):
    switch = make(**{**vars(SPECTRUM), **traits})
    if row:
        if row.startswith("-"):
            switch.redis.call(CONFIG_DB, "DEL", row[1:])
        else:
            switch.write(row, stream_state="disabled", poll_interval="1000")
    switch.also = {"telemetry_us": 2000}
    (skipped,) = switch.bring()["skipped_steps"]
    assert skipped["step"] == "High Frequency Telemetry"
    assert skipped["reason"].startswith(why)
    assert switch.row(GROUP) == {}
    assert switch.row("WRED_PROFILE|CLOSLOOP_Ethernet0_3")
