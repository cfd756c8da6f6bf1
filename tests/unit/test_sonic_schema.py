"""What a SONiC switch would refuse is refused here: tables, fields, ranges, references."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.backends.hardware.sonic.schema import check
from orchestration.backends.hardware.sonic.tables import MOST_BYTES, listed, number, queue_range

PORTS = {"Ethernet0": 8, "Ethernet4": 8}

GOOD = {
    "WRED_PROFILE": {
        "HPCC": {
            "ecn": "ecn_all",
            "wred_green_enable": "true",
            "wred_yellow_enable": "true",
            "wred_red_enable": "true",
            "green_min_threshold": "100000",
            "green_max_threshold": "400000",
            "green_drop_probability": "20",
            "yellow_min_threshold": "100000",
            "yellow_max_threshold": "400000",
            "red_min_threshold": "100000",
            "red_max_threshold": "400000",
        }
    },
    "SCHEDULER": {"scheduler.1": {"type": "DWRR", "weight": "15"}},
    "QUEUE": {
        "Ethernet0|3-4": {"scheduler": "scheduler.1", "wred_profile": "HPCC"},
        "Ethernet4|3": {"wred_profile": "HPCC"},
    },
    "DSCP_TO_TC_MAP": {"AZURE": {"3": "3", "63": "1"}},
    "TC_TO_QUEUE_MAP": {"AZURE": {"3": "3"}},
    "TC_TO_PRIORITY_GROUP_MAP": {"AZURE": {"3": "3"}},
    "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": {"3": "3"}},
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP": {"AZURE": {"3": "3"}},
    "PORT_QOS_MAP": {
        "global": {"dscp_to_tc_map": "AZURE"},
        "Ethernet0": {"dscp_to_tc_map": "AZURE", "tc_to_queue_map": "AZURE", "pfc_enable": "3,4"},
    },
    "BUFFER_POOL": {"egress": {"type": "egress", "mode": "dynamic", "size": "12000000"}},
    "BUFFER_PROFILE": {"q": {"pool": "egress", "size": "1518", "dynamic_th": "-2"}},
    "BUFFER_PG": {"Ethernet0|3-4": {"profile": "NULL"}},
    "BUFFER_QUEUE": {"Ethernet0|0-7": {"profile": "q"}},
    "FLEX_COUNTER_TABLE": {"QUEUE": {"FLEX_COUNTER_STATUS": "enable", "POLL_INTERVAL": "100"}},
    "PFC_WD": {
        "GLOBAL": {"POLL_INTERVAL": "200"},
        "Ethernet0": {"action": "alert", "detection_time": "200", "restoration_time": "200"},
    },
    "WATERMARK_TABLE": {"TELEMETRY_INTERVAL": {"interval": "30"}},
}


def said(tables, ports=PORTS, **more):
    return [str(problem) for problem in check(tables, ports, **more)]


def changed(table, key, **fields):
    """GOOD with fields of one row changed; a field that is None is taken out."""
    row = {**GOOD[table].get(key, {}), **fields}
    row = {name: value for name, value in row.items() if value is not None}
    return {**GOOD, table: {**GOOD[table], key: row}}


def test_a_full_configuration_is_valid():
    assert said(GOOD) == []


CASES = {
    "min above max": (
        changed("WRED_PROFILE", "HPCC", green_min_threshold="400001"),
        "WRED_PROFILE|HPCC: green_min_threshold 400001 is above green_max_threshold 400000",
    ),
    "missing profile": (
        changed("QUEUE", "Ethernet4|3", wred_profile="DCTCP"),
        "QUEUE|Ethernet4|3: wred_profile must name a row of WRED_PROFILE, not 'DCTCP'",
    ),
    "old brackets": (
        changed("QUEUE", "Ethernet4|3", wred_profile="[WRED_PROFILE|HPCC]"),
        "QUEUE|Ethernet4|3: wred_profile must name a row of WRED_PROFILE, "
        "not '[WRED_PROFILE|HPCC]'",
    ),
    "no such queue": (
        changed("QUEUE", "Ethernet4|8", wred_profile="HPCC"),
        "QUEUE|Ethernet4|8: there is no queue 8: Ethernet4 has 0 to 7",
    ),
    "range beyond": (
        changed("QUEUE", "Ethernet4|5-9", wred_profile="HPCC"),
        "QUEUE|Ethernet4|5-9: there is no queue 9: Ethernet4 has 0 to 7",
    ),
    "no range": (
        changed("QUEUE", "Ethernet4|5-4", wred_profile="HPCC"),
        "QUEUE|Ethernet4|5-4: '5-4' is no queue: write 3, or 3-4 for several",
    ),
    "no such port": (
        changed("QUEUE", "Ethernet8|3", wred_profile="HPCC"),
        "QUEUE|Ethernet8|3: there is no port Ethernet8\n  -> the ports are Ethernet0, Ethernet4",
    ),
    "key without queue": (
        changed("QUEUE", "Ethernet4", wred_profile="HPCC"),
        "QUEUE|Ethernet4: is no key: it must be interface|number, or a range of them",
    ),
    "two rows for a queue": (
        changed("QUEUE", "Ethernet0|4", wred_profile="HPCC"),
        "QUEUE|Ethernet0|4: sets wred_profile of 4, which Ethernet0|3-4 sets, too\n"
        "  -> have one row a queue",
    ),
    "more than orchagent reads": (
        changed("WRED_PROFILE", "HPCC", red_max_threshold=str(MOST_BYTES + 1)),
        "WRED_PROFILE|HPCC: red_max_threshold must be a whole number from 1 to 2147483647 bytes "
        "(0 stands for the whole buffer), not '2147483648'",
    ),
    "zero threshold": (
        changed("WRED_PROFILE", "HPCC", green_min_threshold="0"),
        "WRED_PROFILE|HPCC: green_min_threshold must be a whole number from 1 to 2147483647 bytes "
        "(0 stands for the whole buffer), not '0'",
    ),
    "probability": (
        changed("WRED_PROFILE", "HPCC", green_drop_probability="101"),
        "WRED_PROFILE|HPCC: green_drop_probability must be a whole number from 0 to 100 percent, "
        "not '101'",
    ),
    "colour without thresholds": (
        changed("WRED_PROFILE", "HPCC", red_max_threshold=None),
        "WRED_PROFILE|HPCC: has no red_max_threshold: the ASIC would take the whole buffer",
    ),
    "unknown field": (
        changed("WRED_PROFILE", "HPCC", weight="4"),
        "WRED_PROFILE|HPCC: may not have a field weight",
    ),
    "profile name": (
        changed("WRED_PROFILE", "-x", ecn="ecn_none"),
        "WRED_PROFILE|-x: is no name: it must be up to 32 letters, digits, - and _, the first a "
        "letter or digit",
    ),
    "scheduler priority": (
        changed("SCHEDULER", "scheduler.1", priority="3"),
        "SCHEDULER|scheduler.1: may not have a field priority\n  -> the YANG model has it, but "
        "orchagent knows it not and refuses the whole row",
    ),
    "weight": (
        changed("SCHEDULER", "scheduler.1", weight="0"),
        "SCHEDULER|scheduler.1: weight must be a whole number from 1 to 100, not '0'",
    ),
    "pir without cir": (
        changed("SCHEDULER", "scheduler.1", pir="1000"),
        "SCHEDULER|scheduler.1: pir needs a cir above 0, and to be no less than it",
    ),
    "pbs below cbs": (
        changed("SCHEDULER", "scheduler.1", cir="1", pir="1", cbs="9", pbs="8"),
        "SCHEDULER|scheduler.1: pbs needs a pir, and to be no less than cbs",
    ),
    "global has one field": (
        changed("PORT_QOS_MAP", "global", tc_to_queue_map="AZURE"),
        "PORT_QOS_MAP|global: may not have a field tc_to_queue_map\n"
        "  -> its fields are dscp_to_tc_map",
    ),
    "pfc list": (
        changed("PORT_QOS_MAP", "Ethernet0", pfc_enable="3;4"),
        "PORT_QOS_MAP|Ethernet0: pfc_enable must be priorities from 0 to 7 with commas between, "
        "like 3,4, not '3;4'",
    ),
    "map to no queue": (
        changed("TC_TO_QUEUE_MAP", "AZURE", **{"4": "9"}),
        "PORT_QOS_MAP|Ethernet0: tc_to_queue_map AZURE leads to queue 9, which does not exist\n"
        "  -> Ethernet0 has 0 to 7",
    ),
    "dscp": (
        changed("DSCP_TO_TC_MAP", "AZURE", **{"64": "1"}),
        "DSCP_TO_TC_MAP|AZURE: 64: 1: '64' must be a whole number from 0 to 63",
    ),
    "poll floor": (
        changed("FLEX_COUNTER_TABLE", "QUEUE", POLL_INTERVAL="10"),
        "FLEX_COUNTER_TABLE|QUEUE: POLL_INTERVAL must be a whole number from 100 to 30000 ms "
        "(faster polls are not to be had), not '10'",
    ),
    "watermark floor": (
        changed("FLEX_COUNTER_TABLE", "QUEUE_WATERMARK", POLL_INTERVAL="100"),
        "FLEX_COUNTER_TABLE|QUEUE_WATERMARK: POLL_INTERVAL must be a whole number from 1000 to "
        "60000 ms (faster polls are not to be had), not '100'",
    ),
    "buffer profile": (
        changed("BUFFER_PROFILE", "q", static_th="10"),
        "BUFFER_PROFILE|q: needs either dynamic_th or static_th",
    ),
    "queue with no buffer profile": (
        changed("BUFFER_QUEUE", "Ethernet0|0-7", profile="NULL"),
        "BUFFER_QUEUE|Ethernet0|0-7: profile must name a row of BUFFER_PROFILE, not 'NULL'",
    ),
    "watchdog shorter than its poll": (
        changed("PFC_WD", "Ethernet0", detection_time="100"),
        "PFC_WD|Ethernet0: detection_time is 100 ms, shorter than the watchdog's poll of 200 ms",
    ),
    "watchdog without time": (
        changed("PFC_WD", "Ethernet4", action="alert"),
        "PFC_WD|Ethernet4: has no detection_time",
    ),
    "unknown table": ({"WRED": {}}, "WRED: no such table is known"),
}


@pytest.mark.parametrize(("tables", "what"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_said_by_its_place(tables, what):
    found = said(tables)
    assert len(found) == 1
    assert found[0].startswith(what)


def test_all_problems_are_found_not_only_the_first():
    tables = {"QUEUE": {"Ethernet0|9": {"wred_profile": "A", "scheduler": "B"}}}
    found = said(tables, where="rack: leaf1")
    assert len(found) == 3
    assert all(line.startswith("rack: leaf1 QUEUE|Ethernet0|9: ") for line in found)


def test_rows_of_the_switch_may_be_referred_to_and_not_set_twice():
    known = {"WRED_PROFILE": GOOD["WRED_PROFILE"], "QUEUE": {"Ethernet4|3-4": {"scheduler": "s"}}}
    row = {"QUEUE": {"Ethernet4|3": {"wred_profile": "HPCC"}}}
    assert said(row, known=known) == []
    known["QUEUE"]["Ethernet4|3-4"]["wred_profile"] = "HPCC"
    assert len(said(row, known=known)) == 1


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(-5, 200))
def test_a_profile_is_valid_exactly_when_its_numbers_are(low, high, percent):
    tables = changed(
        "WRED_PROFILE",
        "HPCC",
        green_min_threshold=str(low),
        green_max_threshold=str(high),
        green_drop_probability=str(percent),
    )
    valid = 1 <= low <= high <= MOST_BYTES and 0 <= percent <= 100
    assert (said(tables) == []) == valid


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 16))
def test_a_range_of_queues_is_valid_exactly_when_all_exist(first, last, queues):
    key = f"Ethernet0|{first}-{last}"
    tables = {"WRED_PROFILE": GOOD["WRED_PROFILE"], "QUEUE": {key: {"wred_profile": "HPCC"}}}
    assert (said(tables, {"Ethernet0": queues}) == []) == (first < last < queues)


@given(st.text(max_size=8))
def test_any_text_is_answered(text):
    number(text)
    queue_range(text)
    listed(text)
    tables = {table: {text: {text: text}} for table in GOOD}
    assert len(said(tables)) >= len(GOOD)


@pytest.mark.parametrize("text", ["", "+1", " 1", "1 ", "01", "1.0", "1e3", "-0", "١", "9" * 5000])
def test_only_plain_decimal_numbers_are_numbers(text):
    assert number(text) is None
