"""The picture of who stops whom."""

from types import SimpleNamespace

import numpy as np

from inventory.files import load_testbed
from orchestration.analysis.report.fabric import pause_figure
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.render.figure_style import colours_of
from tests.testbeds import leaf_spine

TESTBED = leaf_spine(
    "small", 2, 1, 2, "25Gbps", "25Gbps", uplinks_per_spine="2", switch="{buffer: 1MB, pfc: [3]}"
)


def shown(tmp_path, **rows):
    """Trials by tuner, each with rows (t_ns, device, port, pausing_ns) of its table `pauses`."""
    path = tmp_path / "testbed.yml"
    path.write_text(TESTBED)
    testbed = load_testbed(str(path))
    names = ("t_ns", "device", "port", "pausing_ns")

    def table(of):
        columns = {name: np.array([row[i] for row in of]) for i, name in enumerate(names)}
        return lambda name: columns if name == "pauses" else None

    return ShownRepeat(
        repeat=1,
        trials=tuple(SimpleNamespace(arm=name) for name in rows),
        results=tuple(SimpleNamespace(testbed=testbed, table=table(of)) for of in rows.values()),
    )


def test_the_last_times_of_all_cables_between_two_devices_are_added(tmp_path):
    picture = pause_figure(
        shown(
            tmp_path,
            a=[
                (1, "leaf1", "eth0", 500),
                (2, "leaf1", "eth0", 900),
                (2, "leaf1", "eth1", 0),
                (2, "spine1", "eth0", 3_000),
                (2, "spine1", "eth1", 4_000),
                (2, "spine1", "eth2", 2_000),
            ],
            b=[(2, "leaf2", "eth1", 1_000)],
        ),
        colours_of(["a", "b"]),
    )
    rows = zip(*(picture.data[name] for name in ("arm", "stops", "stopped")), strict=True)
    assert list(rows) == [
        ("a", "leaf1", "h1"),
        ("a", "spine1", "leaf1"),
        ("a", "spine1", "leaf2"),
        ("b", "leaf2", "h4"),
    ]
    assert picture.title == "spine1 paused leaf1 the longest: 7us, with a"
    assert "With a, 3 devices were paused by 2, for 9.9us in all; with b, 1" in picture.caption
    panel, other = picture.figure.data
    assert panel["y"] == ["leaf1", "leaf2", "spine1"]
    assert panel["x"] == ["h1", "h4", "leaf1", "leaf2"]
    assert panel["z"][2] == [None, None, 0.007, 0.002]
    assert other["z"][1] == [None, 0.001, None, None]
    assert picture.data["paused_ns"] == [900, 7_000, 2_000, 1_000]


def test_there_is_no_picture_if_nobody_was_stopped(tmp_path):
    for rows in ([(1, "leaf1", "eth0", 0)], []):
        assert pause_figure(shown(tmp_path, a=rows), colours_of(["a"])) is None
