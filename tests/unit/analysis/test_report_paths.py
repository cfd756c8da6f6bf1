"""Packets by path: the imbalance of uplinks, and its picture."""

from types import SimpleNamespace

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.device_metrics import measure_paths, packets_by_uplink
from orchestration.analysis.report.fabric import uplink_figure
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.core.records import MISSING, Samples
from orchestration.render.figure_style import colours_of
from tests.testbeds import leaf_spine

TESTBED = leaf_spine("small", 2, 2, 1, "25Gbps", "25Gbps", buffer="1MB")
# leaf1: h1, spine1, spine2; leaf2: h2, spine1, spine2; then the spines' two ports each
SENT = [7, 30, 10, 9, 20, 20, 5, 5, 5, 5]


@pytest.fixture
def testbed(tmp_path):
    (tmp_path / "small.yml").write_text(TESTBED)
    return load_testbed(str(tmp_path / "small.yml"))


def result_of(testbed, sent, reroutes=3):
    def samples(scope):
        names = {"switch": ["reroutes"], "host": ["received_packets", "out_of_order_packets"]}
        values = {"reroutes": [reroutes, 1, 0, 0], "received_packets": [90, 10]}
        values["out_of_order_packets"] = [5, 0]
        return Samples(np.array([1]), {name: np.array([values[name]]) for name in names[scope]})

    ports = Samples(np.array([0, 1]), {"tx_packets": np.array([[0] * 10, sent])})
    return SimpleNamespace(
        spec=SimpleNamespace(warm_up_ns=0),
        testbed=testbed,
        ports=ports,
        samples=samples,
        table=lambda name: {"start_ns": np.array([0, 1])},
    )


def test_metrics_by_hand(testbed):
    result = result_of(testbed, SENT)
    by_switch = packets_by_uplink(testbed, result.ports)
    assert {name: row.tolist() for name, row in by_switch.items()} == {
        "leaf1": [30, 10],
        "leaf2": [20, 20],
    }
    found = measure_paths(result)
    # leaf1 sends 1.5 times the mean by one port, leaf2 1.0, and both as much
    assert found["uplink_imbalance"] == 1.25
    assert found["out_of_order_share"] == 0.05
    assert found["reroutes_per_flow"] == 2
    silent = measure_paths(result_of(testbed, [0] * 10, MISSING))
    assert np.isnan(silent["uplink_imbalance"])


def test_the_picture_names_the_most_uneven_switch(testbed):
    shown = ShownRepeat(
        repeat=1,
        trials=(SimpleNamespace(arm="a"), SimpleNamespace(arm="b")),
        results=(result_of(testbed, SENT), result_of(testbed, [0] * 10)),
    )
    picture = uplink_figure(shown, colours_of(["a", "b"]))
    assert picture.title == (
        "The most uneven switch is leaf1: 75% by one port, where an even share is 50%, with a"
    )
    assert [list(row) for row in picture.figure.data[0]["z"]] == [[75, 25], [50, 50]]
    assert picture.data["packets"] == [30, 10, 20, 20, 0, 0, 0, 0]
