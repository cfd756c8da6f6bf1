"""The virtual rack's SONiC-like switch behaves as orchagent and syncd do."""

import pytest

from orchestration.virtual_rack.reboot import load_config, save_config
from orchestration.virtual_rack.sonic_counters import FlexCounters
from orchestration.virtual_rack.sonic_model import (
    KernelQueue,
    PortCounts,
    PortModel,
    QueueCounts,
    RedSettings,
    SwitchModel,
    Traits,
    config_rows,
)
from orchestration.virtual_rack.sonic_orchagent import Orchagent, OrchagentCrash, PfcWatchdog
from orchestration.virtual_rack.sonic_switch import read_ports

MS = 1_000_000
PROFILE = {
    "ecn": "ecn_all",
    "wred_green_enable": "true",
    "green_min_threshold": "5120",
    "green_max_threshold": "51200",
    "green_drop_probability": "20",
}

WATCHED = {"action": "alert", "detection_time": "200", "restoration_time": "200"}
FIELDS = (
    "ECN_MARK_MODE",
    "GREEN_ENABLE",
    "GREEN_MIN_THRESHOLD",
    "GREEN_MAX_THRESHOLD",
    "GREEN_DROP_PROBABILITY",
)


def make_model(**traits):
    leaf = {3: KernelQueue(0x30000, 0x20001, 1_000_000)}
    ports = tuple(PortModel(name, 10**10, leaf) for name in ("Ethernet0", "Ethernet4"))
    return SwitchModel("leaf1", ports, traits=Traits(**traits))


class Asic:
    """Orchagent over a dict for ASIC_DB and one for the forwarding plane."""

    def __init__(self, **traits):
        self.rows, self.writes, self.marking, self.log = {}, [], {}, []
        self.history = []
        self.orchagent = Orchagent(make_model(**traits), self.write, self.set_red, self.log.append)
        self.orchagent.start()
        self.writes.clear()
        self.apply_row = self.orchagent.apply_row

    def write(self, key, field, value):
        if field is None:
            del self.rows[key]
        else:
            self.rows.setdefault(key, {})[field] = value
            self.writes.append((field.removeprefix("SAI_WRED_ATTR_"), value))

    def set_red(self, port, queue, marking):
        self.marking[port, queue] = marking
        self.history.append(((port, queue), marking))

    def profiles(self):
        return [row for key, row in self.rows.items() if "SAI_OBJECT_TYPE_WRED" in key]


@pytest.fixture
def asic():
    asic = Asic()
    asic.apply_row("WRED_PROFILE|P", PROFILE)
    asic.apply_row("QUEUE|Ethernet0|3-4", {"wred_profile": "P"})
    return asic


def test_a_bound_profile_marks_and_is_the_asics(asic):
    assert asic.marking["Ethernet0", 3] == RedSettings(5120, 51_200, 20)
    assert asic.marking["Ethernet4", 3] is None
    (row,) = asic.profiles()
    assert row["SAI_WRED_ATTR_ECN_MARK_MODE"] == "SAI_ECN_MARK_MODE_ALL"
    assert row["SAI_WRED_ATTR_WEIGHT"] == "0"
    assert row["SAI_WRED_ATTR_GREEN_MAX_THRESHOLD"] == "51200"


@pytest.mark.parametrize(
    ("low", "high", "last"),
    [
        ("256", "512", "GREEN_MAX_THRESHOLD"),
        ("102400", "204800", "GREEN_MIN_THRESHOLD"),
        ("51200", "51200", "GREEN_DROP_PROBABILITY"),
        ("6400", "12800", "GREEN_DROP_PROBABILITY"),
    ],
)
def test_every_field_is_set_in_an_order_that_is_never_invalid(asic, low, high, last):
    asic.writes.clear()
    wanted = {**PROFILE, "green_min_threshold": low, "green_max_threshold": high}
    asic.apply_row("WRED_PROFILE|P", wanted)
    fields = [field for field, _ in asic.writes]
    assert sorted(fields) == sorted(FIELDS)
    assert fields[-1] == last
    assert asic.marking["Ethernet0", 3] == RedSettings(int(low), int(high), 20)


def test_each_threshold_and_the_probability_unbind_the_profile_for_a_moment(asic):
    asic.history.clear()
    asic.apply_row("WRED_PROFILE|P", {**PROFILE, "green_max_threshold": "102400"})
    seen = [marking for place, marking in asic.history if place == ("Ethernet0", 3)]
    assert seen.count(None) == 3
    assert seen[-1] == RedSettings(5120, 102_400, 20)


def test_a_field_that_sai_refuses_leaves_those_before_it_set(asic):
    wanted = {"green_drop_probability": "7", **PROFILE, "green_max_threshold": "1000449"}
    asic.apply_row("WRED_PROFILE|P", {**wanted, "green_drop_probability": "7"})
    assert "is more than the buffer: SAI_STATUS_FAILURE" in asic.log[0]
    assert asic.marking["Ethernet0", 3] == RedSettings(5120, 51_200, 7)


def test_each_enabled_colour_takes_one_entry_of_the_table():
    asic = Asic(wred_profiles=4)
    three = {f"wred_{colour}_enable": "true" for colour in ("green", "yellow", "red")}
    asic.apply_row("WRED_PROFILE|P", {**PROFILE, **three})
    asic.apply_row("WRED_PROFILE|Q", PROFILE)
    asic.apply_row("WRED_PROFILE|R", PROFILE)
    assert len(asic.profiles()) == 2
    assert asic.log == [
        "WRED_PROFILE|R: refused: no free profile: SAI_STATUS_INSUFFICIENT_RESOURCES"
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"green_min_threshold": "51201"}, "green minimum 51201 above maximum 51200"),
        ({"weight": "1"}, "unknown field 'weight'"),
        ({"green_max_threshold": str(2**31)}, "green_max_threshold '2147483648'"),
        ({"green_max_threshold": "-1"}, "green_max_threshold '-1'"),
        ({"green_max_threshold": "²"}, "green_max_threshold '²'"),
        ({"green_drop_probability": "101"}, "green_drop_probability '101'"),
        ({"ecn": "all"}, "ecn 'all'"),
    ],
)
def test_a_refused_row_changes_nothing(asic, change, why):
    asic.writes.clear()
    asic.apply_row("WRED_PROFILE|P", {**PROFILE, "green_drop_probability": "7", **change})
    assert asic.writes == []
    assert asic.log[0].startswith("WRED_PROFILE|P: refused: ")
    assert asic.log[0].endswith(why)
    assert asic.marking["Ethernet0", 3] == RedSettings(5120, 51_200, 20)


def test_fields_taken_away_keep_their_value(asic):
    asic.apply_row("WRED_PROFILE|P", {"ecn": "ecn_all", "green_max_threshold": "10240"})
    assert asic.marking["Ethernet0", 3] == RedSettings(5120, 10_240, 20)


def test_a_profile_made_without_probability_drops_always():
    asic = Asic()
    row = {name: value for name, value in PROFILE.items() if not name.endswith("probability")}
    asic.apply_row("WRED_PROFILE|P", row)
    assert asic.profiles()[0]["SAI_WRED_ATTR_GREEN_DROP_PROBABILITY"] == "100"


def test_the_silicon_rounds_thresholds_and_asic_db_has_the_requests():
    asic = Asic(cell_bytes=1000, step_cells=3)
    asic.apply_row("WRED_PROFILE|P", PROFILE)
    asic.apply_row("QUEUE|Ethernet4|3", {"wred_profile": "P"})
    assert asic.marking["Ethernet4", 3] == RedSettings(6000, 54_000, 20)
    (row,) = asic.profiles()
    assert row["SAI_WRED_ATTR_GREEN_MIN_THRESHOLD"] == "5120"


def test_a_queue_waits_for_its_profile_and_a_profile_for_its_queues():
    asic = Asic()
    asic.apply_row("QUEUE|Ethernet0|3", {"wred_profile": "P"})
    assert asic.marking["Ethernet0", 3] is None
    asic.apply_row("WRED_PROFILE|P", PROFILE)
    assert asic.marking["Ethernet0", 3] == RedSettings(5120, 51_200, 20)
    asic.apply_row("WRED_PROFILE|P", None)
    assert len(asic.profiles()) == 1
    asic.apply_row("QUEUE|Ethernet0|3", {"scheduler": "scheduler.0"})
    assert asic.marking["Ethernet0", 3] is None
    assert asic.profiles() == []


def test_a_profile_that_marks_no_green_packet_marks_nothing(asic):
    asic.apply_row("WRED_PROFILE|P", {**PROFILE, "ecn": "ecn_yellow_red"})
    assert asic.marking["Ethernet0", 3] is None


@pytest.mark.parametrize("key", ["Ethernet9|3", "Ethernet0|8", "Ethernet0|x", "Ethernet0", "a|b|c"])
def test_a_queue_that_does_not_exist_is_refused(asic, key):
    asic.apply_row(f"QUEUE|{key}", {"wred_profile": "P"})
    assert asic.log == [f"QUEUE|{key}: refused: no such queue"]


class Plane:
    """Counts what the test says."""

    def __init__(self):
        self.counts = {("Ethernet0", 3): QueueCounts(1000, 2000, 2, 1, 0)}
        self.port = {"Ethernet0": PortCounts()}
        self.reads = 0

    def set_red(self, port, queue, marking):
        pass

    def queues(self):
        self.reads += 1
        return self.counts

    def ports(self):
        return self.port


class Counters:
    def __init__(self, **traits):
        self.db, self.plane, self.log = {}, Plane(), []
        model = make_model(**traits)
        self.watchdog = PfcWatchdog(model, self.write, self.poll_watchdog, self.log.append)
        self.flex = FlexCounters(model, self.plane, self.write, lambda: self.watchdog.actions)
        for key, row in config_rows(model).items():
            self.apply_row(key, row)

    def poll_watchdog(self, text):
        self.flex.set_interval("PFCWD", text)

    def apply_row(self, key, row, now_ns=0):
        self.watchdog.apply_row(key, row)
        self.flex.apply_row(key, row, now_ns)

    def write(self, key, fields):
        row = self.db.setdefault(key, {})
        row.update(fields)
        for name in [name for name, value in row.items() if value is None]:
            del row[name]

    def queue(self):
        return self.db["COUNTERS:oid:0x15000000000004"]


def test_groups_are_polled_at_once_and_then_at_their_intervals():
    counters = Counters()
    counters.flex.poll(0)
    assert counters.queue() == {
        "SAI_QUEUE_STAT_PACKETS": "2",
        "SAI_QUEUE_STAT_BYTES": "2000",
        "SAI_QUEUE_STAT_DROPPED_PACKETS": "0",
        "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": "1000",
    }
    assert counters.flex.next_ns() == 1000 * MS  # of PORT
    counters.apply_row("FLEX_COUNTER_TABLE|QUEUE", {"POLL_INTERVAL": "100"}, 0)
    assert counters.flex.next_ns() == 100 * MS
    # below the floor
    counters.apply_row("FLEX_COUNTER_TABLE|QUEUE", {"POLL_INTERVAL": "1"}, 0)
    assert counters.flex.next_ns() == 100 * MS
    counters.plane.counts["Ethernet0", 3] = QueueCounts(0, 3000, 3)
    counters.flex.poll(250 * MS)
    assert counters.queue()["SAI_QUEUE_STAT_BYTES"] == "3000"
    stamps = counters.db["COUNTERS:TIME_STAMP"]
    assert stamps["QUEUE_STAT_COUNTER_Queue_Counter_time_stamp"] == str(250 * MS)
    assert stamps["PORT_STAT_COUNTER_Port_Counter_time_stamp"] == "0"
    # a late poll does not shift those after it
    assert counters.flex.next_ns() == 300 * MS


def test_a_group_that_is_off_is_not_polled():
    counters = Counters()
    for group in ("QUEUE", "PORT", "QUEUE_WATERMARK", "PFCWD"):
        row = {"FLEX_COUNTER_STATUS": "disable"}
        counters.apply_row(f"FLEX_COUNTER_TABLE|{group}", row, 0)
    assert counters.flex.next_ns() is None
    counters.flex.poll(10**12)
    assert (counters.db, counters.plane.reads) == ({}, 0)


def test_marks_are_counted_where_release_and_asic_do_and_the_group_is_on():
    on = {"FLEX_COUNTER_STATUS": "enable"}
    for traits, expected in (
        ({}, "1"),
        ({"release": "202411"}, None),
        ({"counts_marks": False}, None),
    ):
        counters = Counters(**traits)
        counters.apply_row("FLEX_COUNTER_TABLE|WRED_ECN_QUEUE", on, 0)
        counters.flex.poll(0)
        assert counters.queue().get("SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS") == expected


def test_the_depth_is_read_for_watched_queues_only():
    counters = Counters()
    counters.apply_row("PFC_WD|Ethernet0", WATCHED)
    counters.flex.poll(0)
    depths = {
        key: row["SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES"]
        for key, row in counters.db.items()
        if "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES" in row
    }
    assert depths == {
        "COUNTERS:oid:0x15000000000004": "1000",
        "COUNTERS:oid:0x15000000000005": "0",
    }


def test_a_row_or_an_interval_that_is_removed_lets_polling_go_on():
    counters = Counters()
    counters.apply_row("FLEX_COUNTER_TABLE|QUEUE", {"POLL_INTERVAL": "100"})
    counters.flex.poll(0)
    for row in (None, {"FLEX_COUNTER_STATUS": "enable"}, {"POLL_INTERVAL": ""}):
        counters.apply_row("FLEX_COUNTER_TABLE|QUEUE", row)
        assert counters.flex.next_ns() == 100 * MS


def test_a_watched_queue_keeps_its_action_until_its_row_is_removed():
    counters = Counters()
    counters.apply_row("PFC_WD|Ethernet0", {**WATCHED, "action": "drop"})
    counters.apply_row("PFC_WD|Ethernet0", WATCHED)
    assert counters.watchdog.actions == {("Ethernet0", 3): "drop", ("Ethernet0", 4): "drop"}
    assert counters.queue()["PFC_WD_ACTION"] == "alert"
    counters.apply_row("PFC_WD|Ethernet0", None)
    assert "PFC_WD_ACTION" not in counters.queue()
    counters.apply_row("PFC_WD|Ethernet0", WATCHED)
    assert counters.watchdog.actions["Ethernet0", 3] == "alert"


def test_queues_are_those_that_were_listed_when_the_row_was_set():
    counters = Counters()
    counters.apply_row("PORT_QOS_MAP|Ethernet0", {"pfc_enable": "3,4"})
    counters.apply_row("PFC_WD|Ethernet0", WATCHED)
    assert counters.watchdog.actions == {}
    counters.apply_row("PORT_QOS_MAP|Ethernet0", {"pfcwd_sw_enable": "1"})
    assert list(counters.watchdog.actions) == [("Ethernet0", 1)]
    counters.apply_row("PORT_QOS_MAP|Ethernet0", {"pfcwd_sw_enable": "1,2"})
    assert list(counters.watchdog.actions) == [("Ethernet0", 1)]


def test_with_dlr_init_all_watched_ports_have_one_action():
    counters = Counters(one_watchdog_action=True)
    counters.apply_row("PFC_WD|Ethernet4", {**WATCHED, "action": "drop"})
    counters.apply_row("PFC_WD|Ethernet0", WATCHED)
    assert counters.log == [
        "PFC_WD|Ethernet0: refused: action alert, but the switch's action is drop"
    ]
    counters.apply_row("PFC_WD|Ethernet4", None)
    counters.apply_row("PFC_WD|Ethernet0", WATCHED)
    assert counters.watchdog.actions["Ethernet0", 3] == "alert"


def test_removing_the_watchdog_s_global_row_ends_orchagent():
    counters = Counters()
    counters.apply_row("PFC_WD|GLOBAL", {"POLL_INTERVAL": "200"})
    with pytest.raises(OrchagentCrash, match="SIGSEGV"):
        counters.apply_row("PFC_WD|GLOBAL", None)


def test_the_watermark_is_the_most_since_the_poll_before():
    counters = Counters()
    counters.apply_row("FLEX_COUNTER_TABLE|QUEUE", {"POLL_INTERVAL": "100"}, 0)
    counters.apply_row("FLEX_COUNTER_TABLE|QUEUE_WATERMARK", {"POLL_INTERVAL": "1000"}, 0)
    counters.flex.poll(0)
    for at_ms, depth in ((100, 9000), (200, 10), (1000, 20)):
        counters.plane.counts["Ethernet0", 3] = QueueCounts(depth)
        counters.flex.poll(at_ms * MS)
    assert counters.queue()["SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES"] == "9000"
    counters.flex.poll(2000 * MS)
    assert counters.queue()["SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES"] == "20"


def test_rates_are_bytes_a_second_and_smoothed():
    counters = Counters()
    counters.flex.poll(0)
    counters.plane.port = {"Ethernet0": PortCounts(tx_bytes=1000)}
    counters.flex.poll(1000 * MS)
    assert counters.db["RATES:oid:0x1000000000001"]["TX_BPS"] == "1000.0"
    counters.flex.poll(2000 * MS)
    assert float(counters.db["RATES:oid:0x1000000000001"]["TX_BPS"]) == pytest.approx(820)
    row = counters.db["COUNTERS:oid:0x1000000000001"]
    assert row["SAI_PORT_STAT_IF_OUT_OCTETS"] == "1000"
    assert row["SAI_PORT_STAT_PFC_3_RX_PKTS"] == "0"


def test_ports_are_read_from_the_kernels_table():
    text = (
        "Inter-|   Receive                   |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop\n"
        "    lo: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n"
        "Ethernet0:     100       2    3    4    0     0     0         0      500 6 7 8 0 0 0 0\n"
    )
    assert read_ports(text, {"Ethernet0": 1}) == {
        "Ethernet0": PortCounts(100, 2, 3, 4, 500, 6, 7, 8)
    }


def test_a_saved_configuration_is_read_back(tmp_path):
    file = tmp_path / "sonic" / "config_db.json"
    assert load_config(file) is None
    rows = config_rows(make_model())
    save_config(rows, file)
    assert load_config(file) == rows
