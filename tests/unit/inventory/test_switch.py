"""Shared buffers in testbed files: headroom, what is read, and what is refused."""

import json

import pytest

from inventory import testbed_json
from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError
from orchestration.core.parts import headroom_bytes, response_bytes
from orchestration.core.signals import targets
from orchestration.replay.campaign_file import write_testbed

BASE = """
kind: leaf-spine
name: small
mtu: 1500B
leaves: 2
spines: 2
hosts_per_leaf: 2
host_link: {rate: 25Gbps, delay: 1us}
uplink: {rate: 100Gbps, delay: 2us}
"""
CLASSES = """
classes:
  - {name: rdma, weight: 70}
  - {name: tcp, weight: 30}
"""


def load(folder, more):
    path = folder / "testbed.yml"
    path.write_text(BASE + more)
    return load_testbed(str(path))


def refusal(folder, more):
    with pytest.raises(InputError) as caught:
        load(folder, more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("rate_bps", "delay_ns", "worked_by_hand"),
    [
        # 3 packets of 1538, a pause frame of 64, both ways on the cable, 80 quanta of 64 bytes
        (25 * 10**9, 1_000, 3 * 1538 + 64 + 6_250 + 80 * 64),
        (100 * 10**9, 5, 3 * 1538 + 64 + 125 + 394 * 64),
        # 300 m of fibre at 400 Gbit/s
        (400 * 10**9, 1_500, 3 * 1538 + 64 + 150_000 + 905 * 64),
    ],
)
def test_headroom_is_the_sum_of_the_standard(rate_bps, delay_ns, worked_by_hand):
    assert headroom_bytes(rate_bps, delay_ns, 1538) == worked_by_hand


def test_a_rate_between_two_of_the_table_takes_the_higher_ones_response():
    assert response_bytes(56 * 10**9) == response_bytes(100 * 10**9) == 394 * 64
    assert response_bytes(800 * 10**9) == 905 * 64


def test_a_switch_is_read_with_its_defaults_and_survives_json(tmp_path):
    testbed = load(tmp_path, CLASSES + "switch: {buffer: 12MB, alpha: 1/8, pfc: [rdma]}")
    switch = testbed.switch
    assert (switch.buffer_bytes, switch.alpha) == (12_000_000, (0.125, 0.125))
    assert (switch.lossless, switch.priorities) == ((0,), (0, 1))
    assert (switch.headroom_bytes, switch.xon_offset_bytes, switch.quanta) == (0, 3_076, 65_535)
    assert (switch.detect_ns, switch.restore_ns, switch.action) == (10**8, 10**8, "alert")
    # each queue may take what the switch has, and is bounded by the threshold only
    assert {queue.buffer_bytes for queue in testbed.queues} == {12_000_000}
    assert targets(testbed, "priority") == tuple(
        queue.label for queue in testbed.queues if queue.class_name == "rdma"
    )
    again = testbed_json.testbed_from_json(
        json.loads(json.dumps(testbed_json.testbed_to_json(testbed)))
    )
    assert again.switch == switch


def test_a_switch_says_all_of_it(tmp_path):
    switch = load(
        tmp_path,
        CLASSES + "switch: {buffer: 12MB, alpha: {rdma: 1/4, tcp: 2}, pfc: [1], headroom: 40KB, "
        "xoff: 30KB, xon_offset: 1KB, quanta: 1000, "
        "watchdog: {detect: 2ms, restore: 3ms, action: drop}}",
    ).switch
    assert switch.alpha == (0.25, 2.0)
    assert switch.lossless == (1,)
    assert (switch.headroom_bytes, switch.xoff_bytes) == (40_000, 30_000)
    assert (switch.xon_offset_bytes, switch.quanta) == (1_000, 1_000)
    assert (switch.detect_ns, switch.restore_ns, switch.action) == (2 * 10**6, 3 * 10**6, "drop")


@pytest.mark.parametrize(
    "more",
    [
        "switch: {buffer: 12MB, alpha: 1/8, pfc: [3]}",
        CLASSES + "switch: {buffer: 12MB, alpha: {rdma: 1/4}, pfc: [rdma], headroom: 40KB, "
        "xoff: 30KB, xon_offset: 0B, quanta: 1000, watchdog: {detect: 2ms, action: forward}}",
        "switch: {buffer: 12345B}",
    ],
)
def test_a_replay_writes_a_file_that_is_read_the_same(tmp_path, more):
    testbed = load(tmp_path, more)
    write_testbed(tmp_path / "again.yml", testbed)
    assert load_testbed(str(tmp_path / "again.yml")).switch == testbed.switch


def test_without_classes_a_number_is_the_priority_of_all_packets(tmp_path):
    switch = load(tmp_path, "switch: {buffer: 12MB, pfc: [3], headroom: auto}").switch
    assert (switch.lossless, switch.priorities) == ((0,), (3,))
    assert load(tmp_path, "switch: {buffer: 12MB}").switch.lossless == ()
    assert load(tmp_path, "buffer: 12MB").switch is None


# leaf: 2 * 16_048 for hosts' cables, 2 * 79_894 up
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("switch: {buffer: 190KB, pfc: [3]}", "PFC needs 191.88KB of headroom there, for 4 ports"),
        ("switch: {buffer: 12MB, pfc: [3], headroom: 0B}", "PFC without headroom"),
        ("switch: {buffer: 2KB}", "holds less than two packets"),
        ("switch: {buffer: 12MB, pfc: [8]}", "there is no priority 8"),
        ("switch: {buffer: 12MB, pfc: [3, 4]}", "without traffic classes all packets have one"),
        ("switch: {buffer: 12MB, pfc: [rdma]}", "there is no class 'rdma'"),
        (CLASSES + "switch: {buffer: 12MB, pfc: [rmda]}", "did you mean 'rdma'?"),
        (CLASSES + "switch: {buffer: 12MB, pfc: [3]}", "the testbed's classes are rdma (0), tcp"),
        (CLASSES + "switch: {buffer: 12MB, pfc: [0, 0]}", "a class is listed twice"),
        (CLASSES + "switch: {buffer: 12MB, alpha: {udp: 1}}", "there is no class 'udp'"),
        ("switch: {buffer: 12MB, alpha: 16}", "an alpha of 16 is out of range: use 1/128 to 8"),
        ("switch: {buffer: 12MB, alpha: 1/256}", "use 1/128 to 8"),
        ("switch: {buffer: 12MB, alpha: eighth}", "is not an alpha"),
        ("switch: {buffer: 12XB}", "12XB"),
        ("switch: {alpha: 1}", "missing field 'buffer'"),
        ("switch: {buffer: 12MB}\nbuffer: 16MB", "leave out one of the two"),
        ("switch: {buffer: 12MB, quanta: 70000}", "'quanta' is 70000"),
        (
            "switch: {buffer: 12MB, pfc: [3], watchdog: {detect: 1ms}}",
            "use more than 1.3422ms, which 65535 quanta last at 25 Gbit/s",
        ),
        ("switch: {buffer: 12MB, watchdog: {action: restart}}", "use alert, drop, forward"),
        ("", "missing field 'buffer'"),
    ],
)
def test_a_wrong_switch_is_refused_with_one_message(tmp_path, more, said):
    message = refusal(tmp_path, more)
    assert said in message.replace("\n  -> ", ": ")
    assert message.count("testbed.yml:") == 1


CAMPAIGN = """
campaign: pfc
testbed: ./testbed.yml
tuners: [secn1]
traffic: [{kind: poisson, workload: WebSearch, load: 0.5}]
duration: 1ms
"""
ROCE = "host: {congestion_control: dcqcn}\nfabric: closloop\n"


@pytest.mark.parametrize(
    ("switch", "more", "said"),
    [
        ("{buffer: 12MB, pfc: [3]}", ROCE, ""),
        ("{buffer: 12MB}", "fabric: closloop\n", ""),
        (
            "{buffer: 12MB, pfc: [3]}",
            "fabric: linux\n",
            "has no PFC, which testbed small has",
        ),
        ("{buffer: 12MB}", "backend: fluid\n", "has no shared buffers, which"),
        (
            "{buffer: 12MB, pfc: [3]}",
            "fabric: closloop\n",
            "hosts whose congestion control is dctcp have no NIC that obeys pauses",
        ),
        ("{buffer: 12MB, pfc: [3]}", f"backend: simulated\n{ROCE}", ""),
        (
            "{buffer: 12MB}",
            "backend: simulated\n",
            "has no shared buffers, which",
        ),
    ],
)
def test_plan_refuses_a_switch_where_there_is_none(tmp_path, monkeypatch, switch, more, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "testbed.yml").write_text(f"{BASE}switch: {switch}\n")
    (tmp_path / "campaign.yml").write_text(CAMPAIGN + more)
    if not said:
        assert load_campaign("campaign.yml").trials
        return
    with pytest.raises(InputError) as caught:
        load_campaign("campaign.yml")
    assert said in str(caught.value)
    assert len(caught.value.problems) <= 1 + ("fabric: linux" in more)
