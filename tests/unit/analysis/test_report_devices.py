"""Metrics and pictures of NICs and shared buffers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.device_metrics import measure_devices
from orchestration.analysis.report.buffers import buffer_figures
from orchestration.analysis.report.nics import nics_over_time, rate_figure
from orchestration.analysis.report.selection import ShownRepeat
from orchestration.core.records import MISSING, Samples
from orchestration.core.signals import names, targets
from orchestration.render.figure_style import colours_of
from tests.testbeds import leaf_spine

TESTBED = leaf_spine("small", 2, 1, 2, "25Gbps", "25Gbps")
MS, GBPS = 1_000_000, 10**9


@pytest.fixture
def testbed(tmp_path):
    def load(more="switch: {buffer: 1MB, pfc: [3]}"):
        path = tmp_path / "testbed.yml"
        path.write_text(TESTBED + more)
        return load_testbed(str(path))

    return load


def samples(testbed, scope, t_ns, **columns):
    """Samples of which some columns are given: lists of rows, or a row for every sample."""
    shape = (len(t_ns), len(targets(testbed, scope)))
    values = {name: np.full(shape, MISSING) for name in names(scope)}
    values |= {name: np.broadcast_to(np.array(rows), shape) for name, rows in columns.items()}
    return Samples(np.array(t_ns), values)


def result(testbed, *, warm_up_ns=0, facts=(), **scopes):
    """A trial of 3 ms whose flows arrive for 2 ms."""
    empty = {scope: samples(testbed, scope, []) for scope in ("host", "priority", "switch")}
    found = {**empty, **scopes}
    return SimpleNamespace(
        testbed=testbed,
        spec=SimpleNamespace(warm_up_ns=warm_up_ns, measured_ns=(warm_up_ns, 2 * MS)),
        facts=dict(facts),
        samples=found.__getitem__,
    )


def shown(**results):
    trials = tuple(SimpleNamespace(arm=name) for name in results)
    return ShownRepeat(repeat=1, trials=trials, results=tuple(results.values()))


def nics(testbed, cnps=((0, 0, 0, 0), (5, 0, 1, 0), (9, 0, 1, 0), (10, 0, 1, 0))):
    t_ns = [0, MS, 2 * MS, 3 * MS]
    return samples(
        testbed,
        "host",
        t_ns,
        cnps=cnps,
        # h2 has two flows at line rate, h3 none after 1 ms, h4 none at all
        rate_bps=[[25 * GBPS] * 3 + [0], [5 * GBPS, 50 * GBPS, 20 * GBPS, 0],
                  [10 * GBPS, 50 * GBPS, 0, 0], [0, 0, 0, 0]],
        rtt_ns=[[0, 0, 0, 0], [9_000, 8_000, 7_000, 0], [20_000, 8_000, 7_000, 0],
                [20_000, 8_000, 7_000, 0]],
    )  # fmt: skip


def test_metrics_of_nics_are_of_hosts_with_flows_while_flows_arrive(testbed):
    found = measure_devices(result(fabric := testbed(), host=nics(fabric)))
    # counters are of the whole trial
    assert found["cnps"] == 11
    assert found["rate_mean_bps"] == pytest.approx((3 * 25 + 5 + 25 + 20 + 10 + 25) * GBPS / 8)
    # at 2 ms the 7 us of h3 are those of a flow that has ended
    read = [9_000, 8_000, 7_000, 20_000, 8_000]
    assert found["rtt_p99_ns"] == pytest.approx(np.quantile(read, 0.99))


@pytest.mark.parametrize(
    ("sampled", "fact", "warm_up_ns", "timeouts"),
    [
        pytest.param((0, 2, 5), {}, 0, 5, id="TCP"),
        pytest.param((0, 2, 5), {}, MS, 3, id="TCP after a warm-up"),
        pytest.param((0, 2, 5), {"timeouts": 5}, MS, 3, id="NICs after a warm-up"),
        pytest.param((0, 0, 0), {"timeouts": 5}, 0, 5, id="NICs in earlier versions"),
        pytest.param((0, 0, 0), {"timeouts": 5}, MS, math.nan, id="and after a warm-up"),
        pytest.param((0, 2, 5), {"nic_timeouts": 7}, 0, 12, id="TCP and NICs of a rack"),
        pytest.param((0, 0, 0), {"nic_timeouts": math.nan}, 0, math.nan, id="that do not count"),
        pytest.param((MISSING,) * 3, {}, 0, math.nan, id="nobody counted"),
    ],
)
def test_timeouts_are_those_of_tcp_and_of_nics(testbed, sampled, fact, warm_up_ns, timeouts):
    fabric = testbed()
    rows = [[count] * 4 for count in sampled]
    hosts = samples(fabric, "host", [0, MS, 2 * MS], timeouts=rows)
    fact = {name: 4 * count if count == count else None for name, count in fact.items()}
    found = measure_devices(result(fabric, host=hosts, warm_up_ns=warm_up_ns, facts=fact))
    assert found["timeouts"] == pytest.approx(4 * timeouts, nan_ok=True)
    assert math.isnan(found["nacks"])


def test_what_a_trial_does_not_have_is_no_number_and_no_picture(testbed):
    bare = testbed("buffer: 1MB")
    tcp = result(bare, host=samples(bare, "host", [0, MS, 2 * MS]))
    assert all(math.isnan(value) for value in measure_devices(tcp).values())
    both = shown(a=tcp, b=tcp)
    assert rate_figure(both, 100, colours_of(["a", "b"])) is None
    assert nics_over_time(both, 100, colours_of(["a", "b"])) is None
    assert not buffer_figures(both, 100, 100, colours_of(["a", "b"]))


def test_flows_that_end_before_the_second_reading_give_no_picture_of_rates(testbed):
    fabric = testbed()
    rates = [[25 * GBPS] * 4, [0] * 4, [0] * 4]
    brief = samples(fabric, "host", [0, MS, 2 * MS], rate_bps=rates)
    assert rate_figure(shown(a=result(fabric, host=brief)), 100, colours_of(["a"])) is None


def test_the_hosts_that_were_told_to_slow_down_are_shown_with_their_rates(testbed):
    fabric = testbed()
    other = nics(fabric, cnps=np.zeros((4, 4), dtype=int))
    both = shown(a=result(fabric, host=nics(fabric)), b=result(fabric, host=other))
    picture = rate_figure(both, 100, colours_of(["a", "b"]))
    assert picture.data["h2_bps"][:2] == [25 * GBPS, 25 * GBPS]
    assert math.isnan(picture.data["h3_bps"][1])
    assert picture.title == "h1 received the most CNPs: 9, with a"
    assert "With a, 2 of 4 hosts got 10 CNPs; the lowest rate was h1's, 5Gbps of 25Gbps" in (
        picture.caption
    )
    panel = picture.figure.data[0]
    # the last sample before the end of arrivals counts
    assert panel["y"] == ["h1 · 9", "h2 · 0", "h3 · 1", "h4 · 0"]
    assert panel["z"][0] == [20, 40]
    assert picture.data["h1_bps"] == [5 * GBPS, 10 * GBPS] * 2


def test_without_cnps_the_hosts_are_those_with_the_lowest_rates(testbed):
    fabric = testbed()
    quiet = nics(fabric, cnps=np.full((4, 4), MISSING))
    alone = shown(a=result(fabric, host=quiet))
    picture = rate_figure(alone, 100, colours_of(["a"]))
    assert picture.title == "h1 had the lowest rate: 5Gbps around 500us, with a"
    assert "CNPs" not in picture.caption
    lines = nics_over_time(alone, 100, colours_of(["a"]))
    assert list(lines.data) == ["arm", "from_ns", "rate_mean_bps", "rtt_median_ns"]


def test_hosts_over_time_are_counted_by_the_ms(testbed):
    fabric = testbed()
    alone = shown(a=result(fabric, host=nics(fabric)))
    picture = nics_over_time(alone, 100, colours_of(["a"]))
    assert picture.data["cnps_per_ms"] == pytest.approx([6, 4], rel=1e-5)
    assert picture.data["rate_mean_bps"] == pytest.approx([50 * GBPS / 3, 17.5 * GBPS])
    assert picture.data["rtt_median_ns"] == [8_000, 14_000]
    assert picture.title == "CNPs per ms: 5 with a"
    assert len(picture.figure.data) == 3


def held(fabric):
    """leaf1 holds half of its buffer at 1 ms; a port of it a third of its headroom."""
    port = next(queue.port for queue in fabric.lossless_queues if queue.device == "leaf1")
    has = fabric.switch.port_headroom_bytes(port.rate_bps, port.delay_ns, fabric.frame_bytes)
    t_ns = [MS, 2 * MS, 3 * MS]
    headroom = np.zeros((3, len(fabric.lossless_queues)), dtype=int)
    headroom[0, 0] = has // 3
    switch = samples(
        fabric,
        "switch",
        t_ns,
        buffer_bytes=[[500_000, 0, 1_000], [400_000, 0, 0], [900_000, 0, 0]],
        headroom_bytes=[[has // 3, 0, 0], [0, 0, 0], [0, 0, 0]],
    )
    pauses = {name: np.zeros_like(headroom) for name in names("priority")}
    pauses |= {"headroom_bytes": headroom, "pauses_sent": headroom // max(1, has // 3) * 7}
    return result(fabric, switch=switch, priority=Samples(np.array(t_ns), pauses))


def test_buffers_are_shown_against_their_size(testbed):
    fabric = testbed()
    assert fabric.switches[0] == "leaf1"
    both = shown(a=held(fabric), b=held(fabric))
    metrics = measure_devices(both.results[0])
    assert metrics["buffer_max_bytes"] == 500_000
    assert metrics["pauses_sent"] == 7
    picture, cells = buffer_figures(both, 1_000, 100, colours_of(["a", "b"]))
    assert picture.title == "leaf1's buffer of 1MB holds up to 500KB with a, 500KB with b"
    assert "Largest share in use: 50.0% with a" in picture.caption
    assert "leaf1:eth0 used most of its headroom" in picture.caption
    assert "(33%)" in picture.caption
    levels = {shape["y0"] for shape in picture.figure.layout["shapes"]}
    reserved = fabric.switch.reserved_bytes(
        [(port.rate_bps, port.delay_ns) for port in fabric.ports_of["leaf1"]], fabric.frame_bytes
    )
    assert levels == {1_000_000, 1_000_000 - reserved}
    assert (
        cells.title
        == "The fullest: leaf1, 50.0% around 1ms, with a; leaf1, 50.0% around 1ms, with b"
    )
    assert cells.figure.data[0]["z"][0] == [50, 40]


def test_a_buffer_that_is_nearly_empty_fills_its_picture_and_says_so(testbed):
    fabric = testbed("switch: {buffer: 64MB, alpha: 1}")
    few = samples(fabric, "switch", [MS, 2 * MS], buffer_bytes=[[9_000, 0, 0], [0, 0, 0]])
    alone = shown(a=result(fabric, switch=few))
    picture, _ = buffer_figures(alone, 1_000, 100, colours_of(["a"]))
    assert "The buffer's size is beyond the scale." in picture.caption
    assert "headroom" not in picture.caption
    assert picture.figure.layout["yaxis"]["range"][1] < 20_000
