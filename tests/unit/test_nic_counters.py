"""A RoCE NIC's counters, which wrap, its optional ones, and the GIDs of its addresses."""

import json
import sys
from pathlib import Path

import pytest

from collectors.readers import rdma as agent
from inventory.rack import Access
from orchestration.backends.hardware.nic import CounterSeries, Nic, parse_rdma_statistic

RECORDED = Path(__file__).parents[1] / "hardware" / "recorded"
HW_COUNTERS = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "out_of_sequence")


class Machine:
    """A device's /sys as folders: an interface, perhaps with a NIC's files."""

    def __init__(self, root):
        self.places = agent.Places(*(str(root / name) for name in ("net", "infiniband")))
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


class Loop:
    """An agent without a network between."""

    def __init__(self, machine):
        self.machine = machine

    def call(self, op, timeout_s=0.0, **arguments):
        return self.machine.ask(getattr(agent, op.removeprefix("nic.")), **arguments)


def nic_of(machine):
    access = Access("h1", "10.9.0.1", nic="roce", interfaces=("nic0",), rdma_devices=("mlx5_0",))
    return Nic(Loop(machine), access, "nic0")


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


def test_counters_of_a_port(machine, tmp_path):
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True)
    (port / "counters").mkdir()
    for number, name in enumerate(HW_COUNTERS):
        (port / "hw_counters" / name).write_text(f"{number}\n")
    (port / "hw_counters" / "lifespan").write_text("10\n")
    (port / "counters" / "port_xmit_data").write_text("12\n")
    hw, volume, missing = nic_of(machine).counters(["hw", "port", "ethtool"])
    assert hw.values == {name: number for number, name in enumerate(HW_COUNTERS)}
    assert volume.values == {"port_xmit_data": 12}
    assert 0 < hw.t_ns <= volume.t_ns <= missing.t_ns
    assert missing.values == {}
    assert "the statistics of nic0 cannot be read" in missing.problem


def test_recorded_statistics():
    """Recorded from Soft-RoCE, Linux 6.18, iproute2 6.1: the same counters by both ways."""
    values = parse_rdma_statistic((RECORDED / "nic-rdma-statistic.json").read_text())
    lines = (RECORDED / "nic-hw-counters.txt").read_text().split()
    counters = dict(zip(lines[::2], map(int, lines[1::2]), strict=True))
    assert counters.pop("lifespan") == 10
    assert values == counters
    assert parse_rdma_statistic("[]") == {}
    with pytest.raises(ValueError):
        parse_rdma_statistic("Wrong device name\n")


def test_counters_that_wrap_go_on():
    series = CounterSeries("hw")
    assert series.add({"np_cnp_sent": 2**32 - 5}) == {"np_cnp_sent": 0}
    assert series.add({"np_cnp_sent": 10}) == {"np_cnp_sent": 15}
    assert series.add({"np_cnp_sent": 2**31}) == {"np_cnp_sent": 2**31 + 5}


def test_counters_that_were_reset_count_on():
    series = CounterSeries("hw")
    series.add({"np_cnp_sent": 100})
    counts = series.add({"np_cnp_sent": 7, "rp_cnp_handled": 3})
    assert counts == {"np_cnp_sent": 7, "rp_cnp_handled": 0}


def test_wide_counters_do_not_wrap_at_32_bits():
    series = CounterSeries("rdma")
    series.add({"rdma_tx_bytes": 2**32 - 1, "np_cnp_sent": 2**40})
    counts = series.add({"rdma_tx_bytes": 2**33, "np_cnp_sent": 5})
    assert counts == {"rdma_tx_bytes": 2**32 + 1, "np_cnp_sent": 5}
