"""Files as the HPCC ns-3 simulator's own printf and ifstream code writes and reads them."""

import json
import re

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.summary import summarise
from orchestration.core.errors import InputError
from orchestration.exchange.hpcc_import import HpccFiles, import_hpcc
from orchestration.exchange.imported import write_imported
from orchestration.exchange.mapping import tiers
from orchestration.results.reader import read_trial

# The shipped samples have notes behind the rows.
TOPOLOGY = """\
6 2 5
4 5
0 4 25Gbps 1000ns 0.000000
1 4 25Gbps 0.001ms 0.000000
2 5 25Gbps 1000ns 0.000000
3 5 25Gbps 1000ns 0.000000
4 5 100Gbps 1000ns 0.000000

First line: total node #, switch node #, link #
Second line: switch node IDs...
src0 dst0 rate delay error_rate
"""
FLOWS = """\
4
0 3 3 100 48213 2.000000000
1 3 3 100 1200 2.000013457
2 0 3 200 64000 2.000200000
2 0 3 200 64000 2.000200000
First line: flow #
src dst pg dst_port packet# start_time
"""
CONFIG = """\
ENABLE_QCN 1
PACKET_PAYLOAD_SIZE 1000

TOPOLOGY_FILE mix/topology.txt
SIMULATOR_STOP_TIME 4.00
CC_MODE 8
RATE_AI 50Mb/s
LINK_DOWN 1500 4 5
KMAX_MAP 2 25000000000 400 100000000000 1600
KMIN_MAP 2 25000000000 100 100000000000 400
PMAX_MAP 2 25000000000 0.2 100000000000 1
BUFFER_SIZE 32
"""
QLEN = """\
time: 2000000000
4 1 1
5 3 1
time: 2100000000
4 1 999871 96 34
5 3 1000001
"""


def address(node):
    return 0x0B000001 + ((node // 256) << 16) + ((node % 256) << 8)


def fct_line(src, dst, sport, dport, size, start, fct, alone):
    ends = f"{address(src):08x} {address(dst):08x}"
    return f"{ends} {sport} {dport} {size} {start} {fct} {alone}\n"


FCT = (
    fct_line(1, 3, 10000, 100, 1200, 2_000_013_457, 9_000, 8_800)
    + fct_line(0, 3, 10000, 100, 48213, 2_000_000_000, 31_877, 19_021)
    + fct_line(2, 0, 10001, 200, 64000, 2_000_200_000, 50_412, 25_633)
)


@pytest.fixture
def files(tmp_path):
    def write(**texts):
        found = {"topology": TOPOLOGY, "flow": FLOWS, "fct": FCT, **texts}
        paths = {}
        for role, text in found.items():
            if text is not None:
                paths[role] = tmp_path / f"{role}.txt"
                data = text if isinstance(text, bytes) else text.encode()
                paths[role].write_bytes(data)
        return HpccFiles(**paths)

    return write


@pytest.fixture
def imported(files, tmp_path):
    def run(label="theirs", **texts):
        written = write_imported(import_hpcc(files(**texts)), tmp_path / "runs", label=label)
        return read_trial(written.folder)

    return run


def test_a_run_is_taken_over_with_its_fabric(imported):
    result = imported(config=CONFIG)
    testbed = result.testbed
    assert testbed.hosts == ("host0", "host1", "host2", "host3")
    assert testbed.switches == ("switch4", "switch5")
    # two leaves on one link: links join tiers, so the second is above
    assert [testbed.device[name].tier for name in testbed.switches] == [1, 2]
    assert {port.delay_ns for port in testbed.ports} == {1000}
    assert testbed.ports_of["switch4"][2].rate_bps == 100_000_000_000
    assert testbed.mss_bytes == 1000
    assert testbed.queues[0].buffer_bytes == 32 << 20
    assert result.facts["congestion_control"] == "dctcp"
    (fault,) = result.spec.faults
    assert (fault.links, fault.down_ns, fault.up_ns) == (("switch4-switch5",), 1_500_000, None)
    assert result.spec.backend == "imported"


@pytest.mark.parametrize("name", ["graphcc", "drlet-k4"])
def test_tiers_of_a_clos_fabric_are_found_by_distance(name):
    testbed = load_testbed(name)
    number = {device.name: place for place, device in enumerate(testbed.devices)}
    links = [
        tuple(number[testbed.ports[end].device] for end in (link.a, link.b))
        for link in testbed.links
    ]
    hosts = [number[host] for host in testbed.hosts]
    assert tiers(len(number), hosts, links) == [device.tier for device in testbed.devices]


def test_ends_are_paired_with_flows_whatever_their_order(imported):
    result = imported()
    schedule, flows = result.table("schedule"), result.table("flows")
    assert schedule["start_ns"].tolist() == [0, 13_457, 200_000, 200_000]
    assert schedule["src"].tolist() == ["host0", "host1", "host2", "host2"]
    assert schedule["class"].tolist() == ["pg3-port100"] * 2 + ["pg3-port200"] * 2
    # of the two alike, the source port tells that the second ended
    assert flows["fct_ns"].tolist() == [31_877, 9_000, -1, 50_412]
    assert flows["status"].tolist() == ["done", "done", "unfinished", "done"]
    assert flows["ideal_ns"][[0, 1, 3]].tolist() == [19_021, 8_800, 25_633]


def test_flows_alike_with_foreign_source_ports_go_by_their_order(imported):
    other = FCT.replace(" 10001 200", " 4791 200")
    assert imported(fct=other).table("flows")["fct_ns"].tolist() == [31_877, 9_000, 50_412, -1]


def test_flows_alike_go_by_their_source_ports(imported):
    both = FCT + fct_line(2, 0, 10000, 200, 64000, 2_000_200_000, 70_000, 25_633)
    assert imported(fct=both).table("flows")["fct_ns"].tolist() == [31_877, 9_000, 70_000, 50_412]


def test_the_stamp_says_what_it_is_and_what_is_not_there(imported):
    stamp = imported().stamp
    assert not stamp.valid
    assert stamp.checked == ("flows", "ideal times")
    text = next(reason.text for reason in stamp.reasons if reason.code == "imported")
    assert all(word in text for word in ("HPCC", "flow.txt", "fct.txt", "samples of ports"))
    assert [r.text for r in stamp.reasons if r.code == "flows-unfinished"] == [
        "1 of 4 flows had not ended"
    ]


def test_a_flow_faster_than_alone_is_told(imported):
    quick = FCT.replace("31877", "9000")
    assert "faster-than-ideal" in {reason.code for reason in imported(fct=quick).stamp.reasons}


def test_the_forks_columns_are_known(imported):
    wanted = imported().table("flows")["fct_ns"].tolist()
    numbered = "".join(f"{n + 17} {line}\n" for n, line in enumerate(FCT.splitlines()))
    assert imported("unison", fct=numbered).table("flows")["fct_ns"].tolist() == wanted
    plain = re.sub(r"\b0b00(..)01\b", lambda match: str(int(match[1], 16)), FCT)
    assert "0b" not in plain
    unported = re.sub(r"(?m)^(\d+ \d+ 3) \d+ (\d+ \d\.)", r"\1 \2", FLOWS)
    result = imported("conweave", fct=plain, flow=unported)
    assert result.table("flows")["fct_ns"].tolist() == wanted


def test_a_start_truncated_by_the_simulators_clock_is_found(imported):
    early = FCT.replace("2000013457", "2000013456")
    result = imported(fct=early)
    assert result.table("flows")["fct_ns"][1] == 9_000
    assert "start-rounded" in {reason.code for reason in result.stamp.reasons}


def test_ends_alone_are_a_run_that_knows_no_unfinished_flows(imported):
    result = imported(flow=None)
    assert len(result.table("flows")["flow_id"]) == 3
    assert result.stamp.valid
    assert result.stamp.checked == ("ideal times",)


def test_flows_alone_are_a_schedule_without_results(imported):
    result = imported(fct=None)
    assert len(result.table("schedule")["bytes"]) == 4
    assert "no-results" in {reason.code for reason in result.stamp.reasons}


def test_thresholds_pauses_and_queue_lengths_come_along(imported, tmp_path):
    # 2 and 3 are the UNISON fork's
    pfc = "2000113400 0 0 1 1\n2000113300 4 1 1 2\n2000115310 0 0 1 0\n2000115300 4 1 1 3\n"
    result = imported(
        config=CONFIG,
        pfc=pfc,
        queues=QLEN,
        fct=FCT + fct_line(2, 0, 10000, 200, 64000, 2_000_200_000, 70_000, 25_633),
    )
    actions, events = result.table("actions"), result.table("events")
    assert len(actions["t_ns"]) == 6
    assert set(zip(actions["kmin_bytes"], actions["kmax_bytes"], actions["pmax"], strict=True)) == {
        (100_000, 400_000, 0.2),
        (400_000, 1_600_000, 1.0),
    }
    assert events["t_ns"].tolist() == [113_300, 113_400, 115_300, 115_310]
    assert events["kind"].tolist() == [
        "pfc-pause-sent",
        "pfc-pause",
        "pfc-resume-sent",
        "pfc-resume",
    ]
    assert events["detail"].tolist()[:2] == ["switch4:eth0", "host0:eth0"]
    counts = result.facts["queue_histogram"]["queues"]["switch4:eth0"]["counts"]
    assert counts == [999_871, 96, 34]
    (arm,) = summarise(tmp_path / "runs").conditions[0].arms
    mean = (96 * 1000 + 34 * 2000) / 2_000_002
    assert arm.estimates["queue_mean_bytes"].mean == pytest.approx(mean)
    assert arm.estimates["queue_max_bytes"].mean == 2000
    assert np.isnan(arm.estimates["dropped_packets"].mean)


def test_names_are_refused_beside_another_topology(files, tmp_path):
    names = {
        "testbed": "t",
        "nodes": [{"name": "a", "tier": 0}],
        "classes": [],
        "trial": "",
        "seed": 0,
        "repeat": 0,
    }
    with pytest.raises(InputError, match="1 names are not those of the 6 nodes"):
        import_hpcc(files(names=json.dumps(names)))


BAD = {
    "flow-cut": ({"flow": "9\n" + FLOWS.split("\n", 1)[1].split("First")[0]}, "4 of the 9 lines"),
    "flow-notes": (
        {"flow": "5\n" + FLOWS.split("\n", 1)[1]},
        "flow.txt:6: .* columns, a flow has 6",
    ),
    "flow-no-count": ({"flow": "0 3 3 100 48213 2.0\n"}, "flow.txt:1: does not begin"),
    "flow-order": (
        {"flow": FLOWS.replace("2.000013457", "1.999999999")},
        "flow.txt:3: starts before",
    ),
    "flow-negative": (
        {"flow": FLOWS.replace("2.000013457", "-2.000013457")},
        "flow.txt:3: the start is",
    ),
    "flow-decimals": (
        {"flow": FLOWS.replace("2.000013457", "2.0000134571")},
        "flow.txt:3: .*nine decimals",
    ),
    "flow-empty-size": ({"flow": FLOWS.replace(" 1200 ", " 0 ")}, "flow.txt:3: the size is 0"),
    "flow-switch": ({"flow": FLOWS.replace("1 3 3", "1 4 3")}, "flow.txt:3: node 4 is a switch"),
    "flow-unknown": (
        {"flow": FLOWS.replace("1 3 3", "1 9 3")},
        "flow.txt:3: node 9 does not exist",
    ),
    "flow-itself": ({"flow": FLOWS.replace("1 3 3", "1 1 3")}, "flow.txt:3: .* to itself"),
    "flow-base": (
        {"flow": FLOWS.replace("2.00", "1.00"), "fct": None},
        "before the base time of 2s",
    ),
    "flow-gone": ({"flow": b""}, "flow.txt:1: is empty"),
    "flow-binary": ({"flow": b"\x1f\x8b\x08\x00\x00"}, "flow.txt.* is binary"),
    "topology-counts": (
        {"topology": TOPOLOGY.replace("6 2 5", "6 3 5")},
        "topology.txt:2: .* 3 switch",
    ),
    "topology-cut": ({"topology": TOPOLOGY.split("3 5 25")[0]}, "3 of the 5 lines"),
    "topology-rate": (
        {"topology": TOPOLOGY.replace("100Gbps", "100GBps")},
        "topology.txt:7: '100GBps'",
    ),
    "topology-delay": (
        {"topology": TOPOLOGY.replace("0.001ms", "1.5ns")},
        "topology.txt:4: .*whole number",
    ),
    "topology-unit": (
        {"topology": TOPOLOGY.replace("0.001ms", "1000")},
        "topology.txt:4: .*no unit",
    ),
    "topology-node": (
        {"topology": TOPOLOGY.replace("3 5 25", "7 5 25")},
        "topology.txt:6: links 7",
    ),
    "fct-cut": ({"fct": FCT[:-9]}, "fct.txt:3: the last line has no line break"),
    "fct-short": ({"fct": FCT[:-25] + "\n"}, "fct.txt:3: .* columns, a completed flow has 8"),
    "fct-mixed": ({"fct": FCT + "17 " + FCT.splitlines()[0] + "\n"}, "fct.txt:4: .* has 8"),
    "fct-twice": ({"fct": FCT + FCT.splitlines()[0] + "\n"}, "fct.txt:4: .*no further one"),
    "fct-others": ({"fct": FCT.replace("48213", "48214")}, "fct.txt:2: .* has no flow"),
    "fct-negative": (
        {"fct": FCT.replace(" 31877 ", " -5 ")},
        "fct.txt:2: the completion time is -5",
    ),
    "fct-unknown": (
        {"fct": FCT.replace("0b000101", "0b001101")},
        "fct.txt:1: node 17 does not exist",
    ),
    "fct-address": (
        {"fct": FCT.replace("0b000101", "0a000101")},
        "fct.txt:1: '0a000101' is neither",
    ),
    "fct-rubbish": ({"fct": b"\x89PNG\r\n\x1a\n\x00\x00"}, "fct.txt: is binary"),
    "fct-huge": ({"fct": FCT.replace("31877", "9" * 30)}, "fct.txt:2: the completion time"),
    "config-key": ({"config": "2 3\n"}, "config.txt:1: '2' is not a key"),
    "config-maps": (
        {"config": CONFIG.replace("100 100000000000 400", "100")},
        "config.txt:10: KMIN_MAP",
    ),
    "config-order": (
        {"config": CONFIG.replace("KMIN_MAP 2 25000000000 100", "KMIN_MAP 2 25000000000 500")},
        "not kmin <= kmax",
    ),
    "config-link": ({"config": CONFIG.replace("1500 4 5", "1500 0 5")}, "LINK_DOWN names a link"),
    "pfc-kind": ({"pfc": "2000113400 0 0 1 7\n"}, "pfc.txt:1: .*7 is not a kind of pause"),
    "pfc-port": ({"pfc": "2000113400 0 0 2 1\n"}, "pfc.txt:1: node 0 has no port 2"),
    "qlen-back": ({"queues": QLEN + "time: 2050000000\n4 1 5\n"}, "queues.txt:7: .* is not after"),
    "qlen-less": (
        {"queues": QLEN.replace("4 1 1\n", "4 1 10000000\n")},
        "fewer samples of switch 4",
    ),
    "qlen-cut": (
        {"queues": QLEN.replace("1 999871 96 34\n5 3 1000001\n", "1 9998")},
        "queues.txt:5: ",
    ),
    "qlen-no-time": ({"queues": "4 1 1\n"}, "queues.txt:1: comes before"),
    "qlen-host": ({"queues": "time: 2000000000\n0 1 1\n"}, "queues.txt:2: .*is not a queue"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_their_line_and_leave_nothing(imported, tmp_path, name):
    texts, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        imported(**texts)
    assert all(problem.remedy for problem in caught.value.problems)
    assert not (tmp_path / "runs").exists()


def test_an_import_is_never_written_over(imported):
    imported()
    with pytest.raises(InputError, match="the same flows are there already"):
        imported()
    imported("another label")
