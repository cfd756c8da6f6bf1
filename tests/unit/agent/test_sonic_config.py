"""What provisioning sets on a SONiC switch, and how its numbers are named."""

from dataclasses import replace

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.linux.qdiscs import CLASS_TOS
from orchestration.backends.hardware.sonic.config import (
    MAX_BYTES,
    TABLES,
    desired_tables,
    queue_locations,
)
from orchestration.backends.hardware.sonic.switch import SonicSwitch, shares
from orchestration.core.errors import InputError
from orchestration.core.records import MISSING
from orchestration.device.errors import DeviceError


def rack_of(name, queues):
    testbed = load_testbed(name)
    device = testbed.switches[0]
    interfaces = tuple(f"Ethernet{4 * n}" for n in range(len(testbed.ports_of[device])))
    access = Access(device, "10.0.0.1", platform="sonic", interfaces=interfaces, queues=queues)
    return Rack("rack", testbed, {device: access}), device


def test_every_queue_has_a_profile_of_its_own_that_never_marks_yet():
    rack, device = rack_of("graphcc", (3,))
    tables = desired_tables(rack, device)
    assert set(tables) <= set(TABLES)
    ports = len(rack.testbed.ports_of[device])
    assert tables["QUEUE"]["Ethernet4|3"] == {"wred_profile": "CLOSLOOP_Ethernet4_3"}
    assert len(tables["WRED_PROFILE"]) == len(tables["QUEUE"]) == ports
    profile = tables["WRED_PROFILE"]["CLOSLOOP_Ethernet4_3"]
    assert profile == {
        "ecn": "ecn_green",
        "wred_green_enable": "true",
        "green_min_threshold": "16000000",
        "green_max_threshold": "16000000",
        "green_drop_probability": "100",
    }
    assert queue_locations(rack, device)[1] == ("Ethernet4", 3, "CLOSLOOP_Ethernet4_3")


def test_queues_have_a_watchdog_that_only_reports_and_lossless_ones_have_pfc():
    rack, device = rack_of("graphcc", (3,))
    tables = desired_tables(rack, device)
    port = tables["PORT_QOS_MAP"]["Ethernet0"]
    assert (port["pfc_enable"], port["pfcwd_sw_enable"]) == ("3", "3")
    assert tables["PFC_WD"]["Ethernet0"]["action"] == "alert"
    unwatched = desired_tables(rack, device, depth=False)
    assert "PFC_WD" not in unwatched
    assert "pfcwd_sw_enable" not in unwatched["PORT_QOS_MAP"]["Ethernet0"]
    rack, device = rack_of("graphcc", (2,))
    lossy = desired_tables(rack, device)
    port = lossy["PORT_QOS_MAP"]["Ethernet0"]
    assert "pfc_enable" not in port
    assert port["pfcwd_sw_enable"] == "2"
    assert lossy["PFC_WD"]["Ethernet0"]["action"] == "alert"


def test_classes_go_to_their_queues_by_dscp_and_share_by_weight():
    rack, device = rack_of("acc-fig8", (3, 0))
    tables = desired_tables(rack, device)
    to_class = tables["DSCP_TO_TC_MAP"]["CLOSLOOP"]
    to_queue = tables["TC_TO_QUEUE_MAP"]["CLOSLOOP"]
    assert [to_queue[to_class[str(tos >> 2)]] for tos in CLASS_TOS[:2]] == ["3", "0"]
    assert len(to_class) == 64
    assert (to_class["1"], to_class["48"]) == ("3", "6")
    groups = tables["TC_TO_PRIORITY_GROUP_MAP"]["CLOSLOOP"]
    assert (groups["3"], groups["4"], groups["0"], groups["7"]) == ("3", "4", "0", "0")
    assert tables["SCHEDULER"] == {
        "CLOSLOOP_3": {"type": "DWRR", "weight": "7"},
        "CLOSLOOP_0": {"type": "DWRR", "weight": "3"},
    }
    assert tables["QUEUE"]["Ethernet0|0"]["scheduler"] == "CLOSLOOP_0"


def test_counters_are_polled_as_fast_as_sonic_takes():
    rack, device = rack_of("graphcc", (3,))
    polls = desired_tables(rack, device)["FLEX_COUNTER_TABLE"]
    assert {group: row.get("POLL_INTERVAL") for group, row in polls.items()} == {
        "PORT": "100",
        "QUEUE": "100",
        "WRED_ECN_QUEUE": "100",
        "QUEUE_WATERMARK": "1000",
        "PFCWD": None,
    }


@pytest.mark.parametrize("queues", [(3,), (3, 3), (3, 8), (3, 4, 5)])
def test_queue_numbers_must_be_one_a_class(queues):
    rack, device = rack_of("acc-fig8", queues)
    with pytest.raises(InputError, match="give closloop_queues 2 different numbers from 0 to 7"):
        desired_tables(rack, device)


@pytest.mark.parametrize("interface", ["Ethernet0.10", "Ethernet0:1", "x" * 22])
def test_a_port_must_be_one_that_a_profile_can_be_named_by(interface):
    rack, device = rack_of("graphcc", (3,))
    names = (interface, *rack.access[device].interfaces[1:])
    access = replace(rack.access[device], interfaces=names)
    with pytest.raises(
        InputError, match=f"CLOSLOOP_{interface}_7 is not a valid name of a WRED profile"
    ):
        desired_tables(replace(rack, access={device: access}), device)


@pytest.mark.parametrize("buffer_bytes", [1, MAX_BYTES - 1, MAX_BYTES + 1])
def test_a_threshold_is_one_that_orchagent_can_read(buffer_bytes, monkeypatch):
    """It is a signed number of 32 bits, and 0 would stand for the whole buffer."""
    rack, device = rack_of("graphcc", (3,))
    mine = rack.testbed.ports_of[device]
    ports = [replace(port, buffer_bytes=buffer_bytes) for port in mine]
    monkeypatch.setitem(vars(rack.testbed), "ports_of", {device: ports})
    rows = desired_tables(rack, device)["WRED_PROFILE"].values()
    wanted = str(min(buffer_bytes, MAX_BYTES))
    assert {row["green_min_threshold"] for row in rows} == {wanted}
    assert {row["green_max_threshold"] for row in rows} == {wanted}


def test_percent_become_shares():
    assert shares(np.array([1, 20])).tolist() == [0.01, 0.2]


def test_null_is_missing_and_nonsense_names_the_device():
    rack, device = rack_of("graphcc", (3,))
    switch = SonicSwitch(rack, device)
    count = len(queue_locations(rack, device))
    row = [None, 10, 2, None, 0, 5120, 51_200, 20]
    about = {
        "polls_ms": {"QUEUE": 10_000},
        "marks_supported": True,
        "release": "202505",
        "telemetry": {"offered": True, "sessions": []},
    }
    answer = {
        "rows": [row] * count,
        "t_ns": [5] * count,
        "marks_t_ns": [None] * count,
        "depth_t_ns": [None] * count,
        "streamed": [],
        "stream": {},
        "peak_bytes": [None] * count,
        "pauses": {name: [[1] * 8, [None] * 8] for name in rack.access[device].interfaces},
        "restarts": 0,
        "edit_ns": 0,
        "about": about,
    }
    reading = switch.reading(answer)
    assert reading.qlen_bytes[0] == reading.marked_packets[0] == MISSING
    assert reading.pmax[0] == 0.2
    assert switch.pauses[:, 0].tolist() == [8, MISSING]
    assert set(switch.sources()) == {"tx_bytes", "tx_packets", "dropped_packets", "thresholds"}
    said = switch.shortcomings(10**9)
    assert said[0] == (
        "offers no current queue depth: no PFC watchdog reads these queues, and High Frequency "
        "Telemetry, which the ASIC has, streams none of them"
    )
    # missing numbers have no age, so the others' counts
    assert reading.t_ns[0] == 5
    assert said[2].endswith("`closloop provision` sets 100 ms, the shortest that SONiC accepts")
    for broken in ({}, {**answer, "rows": [[1]]}, {**answer, "t_ns": "x"}, [], None):
        with pytest.raises(DeviceError, match=device):
            switch.reading(broken)
