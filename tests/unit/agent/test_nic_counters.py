"""A RoCE NIC's counters, which wrap, its optional ones, and the GIDs of its addresses."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from inventory.rack import Access
from orchestration.agent.host import rdma as agent
from orchestration.agent.main import OperationError
from orchestration.backends.hardware.monitors import NicMonitor, growth
from orchestration.device.errors import DeviceError

RECORDED = Path(__file__).parents[2] / "hardware" / "recorded"
HW_COUNTERS = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "out_of_sequence")


class Machine:
    """A device's /sys as folders: an interface, perhaps with a NIC's files."""

    def __init__(self, root):
        self.places = agent.SysfsFolders(*(str(root / name) for name in ("net", "infiniband")))
        self.net = root / "net" / "nic0"
        self.net.mkdir(parents=True)
        self.infiniband = root / "infiniband"

    def ask(self, operation, **arguments):
        return operation({"interface": "nic0", "rdma_device": "mlx5_0", **arguments}, self.places)

    def gid(self, place, index, gid, kind):
        """Write an entry of a GID table, laid out as the kernel lays it out."""
        folder = self.infiniband / place
        for name, text in (("gids", gid), ("gid_attrs/types", kind)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            if text is not None:
                (folder / name / str(index)).write_text(text + "\n")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"


def mapped(address):
    high, low = bytes(map(int, address.split("."))).hex(":", 2).split(":")
    return f"0000:0000:0000:0000:0000:ffff:{high}:{low}"


def test_gids_of_roce_v2_are_found_by_address_among_others(machine):
    table = [
        (LINK_LOCAL, "IB/RoCE v1"), (LINK_LOCAL, "RoCE v2"),
        (mapped("10.0.0.7"), "IB/RoCE v1"), (mapped("10.0.0.7"), "RoCE v2"),
        (mapped("198.18.1.1"), "IB/RoCE v1"), (mapped("198.18.1.1"), "RoCE v2"),
        (EMPTY, None),
    ]  # fmt: skip
    for index, (gid, kind) in enumerate(table):
        machine.gid("mlx5_0/ports/1", index, gid, kind)
    machine.gid("mlx5_1/ports/2", 11, mapped("198.18.1.2"), "RoCE v2")
    assert machine.ask(agent.gids) == [
        ["mlx5_0", 1, 3, "10.0.0.7"],
        ["mlx5_0", 1, 5, "198.18.1.1"],
        ["mlx5_1", 2, 11, "198.18.1.2"],
    ]


def test_a_host_without_rdma_has_no_gids(machine):
    assert machine.ask(agent.gids) == []


# What `rdma -j statistic` does with optional counters (iproute2's rdma/stat.c): setting a list
# switches off all others.
RDMA = """#!{python}
import json, pathlib, sys
state = pathlib.Path({state!r})
on = json.loads(state.read_text())
words = sys.argv[1:]
if words[:4] == ["-j", "statistic", "mode", "supported"]:
    names = ["cc_rx_ce_pkts", "cc_rx_cnp_pkts", "cc_tx_cnp_pkts", "rdma_tx_packets"]
    print(json.dumps([{{"ifname": "mlx5_0", "port": 1, "supported optional-counters": names}}]))
elif words[:3] == ["-j", "statistic", "mode"]:
    print(json.dumps([{{"ifname": "mlx5_0", "port": 1, "optional-counters": on}}] if on else []))
elif words[2:] [:3] == ["set", "link", "mlx5_0/1"] and words[5] == "optional-counters":
    state.write_text(json.dumps(words[6].split(",")))
elif words[2:] == ["unset", "link", "mlx5_0/1", "optional-counters"]:
    state.write_text("[]")
else:
    sys.exit("unknown: " + " ".join(words))
"""


class Ending:
    """An agent that ends when told to."""

    def at_end(self, do):
        self.end = do


@pytest.mark.parametrize("before", [[], ["rdma_tx_packets"], ["cc_rx_ce_pkts"]])
def test_optional_counters_of_congestion_are_on_until_the_agent_ends(tmp_path, monkeypatch, before):
    state, program = tmp_path / "on", tmp_path / "rdma"
    state.write_text(json.dumps(before))
    program.write_text(RDMA.format(python=sys.executable, state=str(state)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ending = Ending()
    switch_on = agent.OptionalCounters(ending).switch_on
    request = {"rdma_device": "mlx5_0", "port": 1}
    wanted = ["cc_rx_ce_pkts", "cc_rx_cnp_pkts", "cc_tx_cnp_pkts"]
    assert switch_on(request) == [name for name in wanted if name not in before]
    assert json.loads(state.read_text()) == [*before, *(n for n in wanted if n not in before)]
    assert switch_on(request) == []
    ending.end()
    assert json.loads(state.read_text()) == before


def test_a_nic_without_optional_counters_is_left_alone(monkeypatch, tmp_path):
    program = tmp_path / "rdma"
    program.write_text("#!/bin/sh\necho Unknown argument mode.; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert agent.OptionalCounters(Ending()).switch_on({"rdma_device": "rxe0"}) == []


def test_counters_of_a_nic(machine, tmp_path):
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True)
    for number, name in enumerate(HW_COUNTERS):
        (port / "hw_counters" / name).write_text(f"{number}\n")
    (port / "hw_counters" / "lifespan").write_text("10\n")
    found = machine.ask(agent.counters, sources=["hw", "ethtool"])
    assert found["hw"] == {"values": {name: number for number, name in enumerate(HW_COUNTERS)}}
    assert "the statistics of nic0 cannot be read" in found["ethtool"]["problem"]


def test_the_driver_of_an_rdma_device(machine, tmp_path):
    """A NIC's device names its driver; Soft-RoCE's has none, and names its interface."""
    device = tmp_path / "infiniband" / "mlx5_0" / "device"
    (tmp_path / "drivers" / "mlx5_core").mkdir(parents=True)
    device.mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "drivers" / "mlx5_core")
    assert machine.ask(agent.driver_name) == "mlx5_core"
    assert machine.ask(agent.driver_name, rdma_device="rxe0") == ""
    (tmp_path / "infiniband" / "rxe0").mkdir()
    (tmp_path / "infiniband" / "rxe0" / "parent").write_text("nic0\n")
    assert machine.ask(agent.driver_name, rdma_device="rxe0") == "rdma_rxe"


def test_recorded_statistics():
    """Recorded from Soft-RoCE, Linux 6.18, iproute2 6.1: the same counters by both ways."""
    values = agent.statistics_of_link((RECORDED / "nic-rdma-statistic.json").read_text())
    lines = (RECORDED / "nic-hw-counters.txt").read_text().split()
    counters = dict(zip(lines[::2], map(int, lines[1::2]), strict=True))
    assert counters.pop("lifespan") == 10
    assert values == counters
    assert agent.statistics_of_link("[]") == {}
    with pytest.raises(OperationError):
        agent.statistics_of_link("Wrong device name\n")


@pytest.mark.parametrize(
    ("source", "name", "before", "after", "grown"),
    [
        ("hw", "np_cnp_sent", 2**32 - 5, 10, 15),  # wrapped
        ("hw", "np_cnp_sent", 10, 2**31, 2**31 - 10),
        ("hw", "np_cnp_sent", 100, 7, 7),  # reset
        ("rdma", "rdma_tx_bytes", 2**32 - 1, 2**33, 2**32 + 1),  # wide
        ("rdma", "np_cnp_sent", 2**40, 5, 5),  # was wide, and is reset
        ("ethtool", "rx_prio3_pause", 2**64 - 1, 4, 5),
    ],
)
def test_counters_that_wrap_or_were_reset_go_on(source, name, before, after, grown):
    assert growth(source, name, before, after) == grown


class Answering:
    """An agent that answers each request with the next of its answers."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def post(self, op, **arguments):
        assert (arguments["interface"], arguments["rdma_device"]) == ("nic0", "mlx5_0")
        return op

    def result(self, op, timeout_s=0.0):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def watch(*answers):
    access = Access("h1", "10.9.0.1", nic="roce", interfaces=("nic0",), rdma_devices=("mlx5_0",))
    rack = SimpleNamespace(access={"h1": access})
    return NicMonitor(rack, SimpleNamespace(agents={"h1": Answering(*answers)}))


def test_what_counters_did_between_two_readings_is_told_by_source():
    nics = watch(
        ["cc_rx_ce_pkts"],
        {"hw": {"values": {"np_cnp_sent": 2**32 - 1, "still": 3}}, "rdma": {"problem": "none"}},
        {"hw": {"values": {"np_cnp_sent": 4, "still": 3, "new": 9}}, "rdma": {"problem": "none"}},
    )
    nics.start()
    nics.finish()
    assert nics.facts() == {"h1:nic0": {"hw": {"np_cnp_sent": 5}}}
    assert nics.growth_of("np_cnp_sent") == {"h1:nic0": 5}
    assert nics.growth_of("new") == {}
    assert nics.problems == []


@pytest.mark.parametrize(
    ("before", "after", "facts"),
    [
        pytest.param(
            {"local_ack_timeout_err": 2, "packet_seq_err": 1},
            {"local_ack_timeout_err": 5, "packet_seq_err": 1},
            {"nic_timeouts": 3, "naks": 0},
            id="mlx5",
        ),
        pytest.param(
            {"to_retransmits": 0, "seq_err_naks_rcvd": 4},
            {"to_retransmits": 0, "seq_err_naks_rcvd": 9},
            {"nic_timeouts": 0, "naks": 5},
            id="bnxt_re",
        ),
        pytest.param(
            {"rcvd_seq_err": 4}, {"rcvd_seq_err": 9}, {"nic_timeouts": None, "naks": 5}, id="rxe"
        ),
    ],
)
def test_timeouts_and_naks_have_other_names_by_driver_and_are_never_0_unread(before, after, facts):
    nics = watch([], {"hw": {"values": before}}, {"hw": {"values": after}})
    nics.start()
    nics.finish()
    assert nics.recovery_facts() == facts
    unread = watch([], DeviceError("h1", "is busy"), {"hw": {"values": after}})
    unread.start()
    unread.finish()
    assert unread.recovery_facts() == {"nic_timeouts": None, "naks": None}


@pytest.mark.parametrize(
    "answer", [{"hw": {"values": {"a": "1"}}}, {"hw": {}}, {"else": {"values": {}}}, 3, None]
)
def test_what_cannot_be_read_is_a_problem_that_names_the_host(answer):
    nics = watch([], DeviceError("h1", "is busy"), answer)
    nics.start()
    nics.finish()
    assert nics.facts() == {}
    first, second = nics.problems
    assert first == "h1: is busy"
    assert second.startswith("h1: its NIC's counters cannot be read")
