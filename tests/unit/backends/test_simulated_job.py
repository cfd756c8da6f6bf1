import dataclasses

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.backends.common.linux import switch_sysctls
from orchestration.backends.simulated.job import (
    build_arrays,
    check_supported,
    cut_ports,
    hash_seed,
    route_rows,
)
from orchestration.core.errors import InputError, NotReadyError, TrialError
from orchestration.core.topology import Device, LinkSpec, Testbed
from orchestration.core.trial import HostSpec, TrialSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule

MS = 1_000_000
GRAPHCC = load_testbed("graphcc")
TRIAL = TrialSpec(
    "c", "graphcc", "simulated", TunerSpec("secn1"),
    (IncastSpec(4, 1000, MS, 0, MS, receiver="h1"),), 1, 1, MS, MS,
)  # fmt: skip


def hops(testbed, down=()):
    """Read the rows back: (switch, target's number) -> ports."""
    rows, at, found = route_rows(testbed, down).tolist(), 0, {}
    while at < len(rows):
        switch, target, count = rows[at : at + 3]
        found[testbed.devices[switch].name, target] = rows[at + 3 : at + 3 + count]
        at += 3 + count
    return found


def test_a_leaf_has_a_path_over_each_spine_and_none_to_itself():
    found = hops(GRAPHCC)
    over = [GRAPHCC.peer_device(GRAPHCC.ports[port]).name for port in found["leaf1", 1]]
    assert over == ["spine1", "spine2"]
    assert found["leaf1", 0] == []
    assert len(found["spine1", 0]) == 1


def test_routes_avoid_a_link_that_is_down():
    (link,) = GRAPHCC.links_by_name["leaf1-spine1"]
    found = hops(GRAPHCC, [link])
    over = [GRAPHCC.peer_device(GRAPHCC.ports[port]).name for port in found["leaf1", 1]]
    assert over == ["spine2"]
    ends = {GRAPHCC.ports[port].device for port in cut_ports(GRAPHCC, [link])}
    assert ends == {"leaf1", "spine1"}


def test_switches_hash_with_the_seeds_of_their_emulated_twins():
    seeds = [hash_seed(7, place) for place in range(6)]
    assert len(set(seeds)) == 6
    name = "net/ipv4/fib_multipath_hash_seed"
    assert [str(seed) for seed in seeds] == [switch_sysctls(7, n)[name] for n in range(6)]
    assert hash_seed(8, 0) != seeds[0]


def test_every_flow_has_a_connection_of_its_own():
    schedule = make_schedule(TRIAL, GRAPHCC)
    *_, near, near_port, far, far_port, control = build_arrays(
        TRIAL, GRAPHCC, schedule, observes_flows=False
    )
    ends = list(zip(near.tolist(), near_port.tolist(), strict=True))
    assert len(set(ends)) == len(schedule) == 4
    assert len(set(far.tolist())) == 1
    assert set(far_port.tolist()) == {5000}
    assert set(control.tolist()) == {0}


def test_the_smallest_turn_of_a_class_is_a_frame():
    fig8 = load_testbed("acc-fig8")
    trial = dataclasses.replace(TRIAL, testbed="acc-fig8", traffic=())
    arrays = build_arrays(trial, fig8, make_schedule(trial, fig8), observes_flows=False)
    assert [3570, 1530] in [array.tolist() for array in arrays]


def test_a_congestion_control_that_ns3_lacks_is_refused():
    trial = dataclasses.replace(TRIAL, host=HostSpec("bbr"))
    with pytest.raises(TrialError, match="no 'bbr'") as caught:
        build_arrays(trial, GRAPHCC, make_schedule(trial, GRAPHCC), observes_flows=False)
    assert "emulated" in caught.value.remedy
    klass = dataclasses.replace(load_testbed("acc-fig8").classes[1], congestion_control="bbr")
    with pytest.raises(NotReadyError, match="traffic class 'tcp'"):
        check_supported(dataclasses.replace(GRAPHCC, classes=(klass,)))


def test_more_flows_than_ports_are_refused():
    spec = PoissonSpec("WebSearch", 0.6, 0, MS)
    trial = dataclasses.replace(TRIAL, traffic=(spec,))
    one = make_schedule(trial, GRAPHCC)
    many = {name: np.zeros(60_000, dtype=np.int64) for name in ("start_ns", "src", "klass")}
    ones = {name: np.ones(60_000, dtype=np.int64) for name in ("dst", "size_bytes")}
    schedule = dataclasses.replace(one, **many, **ones)
    with pytest.raises(TrialError, match="more than 59001 flows"):
        build_arrays(trial, GRAPHCC, schedule, observes_flows=False)


def test_a_fabric_beyond_the_addresses_is_refused():
    pairs = [(Device(f"h{n}", "host", 0), Device(f"leaf{n}", "switch", 1)) for n in range(251)]
    devices = [device for pair in pairs for device in pair]
    cables = [LinkSpec(host.name, leaf.name, 10**9, 1000) for host, leaf in pairs]
    big = Testbed.build("big", devices, cables, mtu_bytes=1500, buffer_bytes=10**6)
    with pytest.raises(InputError, match="251 switches have hosts"):
        check_supported(big)
