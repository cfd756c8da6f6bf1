"""A testbed as netlink requests: what they say, decoded by another library's decoder."""

import struct

import numpy as np
import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from inventory.addressing import emulated_addresses
from inventory.files import load_testbed
from inventory.routing import PathTable, next_hops
from orchestration.agent.linux import qdiscs
from orchestration.backends.emulated import backend, link_requests
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.backends.emulated.fabric import (
    check_supported,
    delay_before_queue_ns,
    fault_steps,
    plan_fabric,
    plan_routes,
)
from orchestration.backends.emulated.job import Job, ifindex, read_job, write_job
from orchestration.core.errors import InputError
from orchestration.core.records import Schedule
from orchestration.core.topology import Device, LinkSpec, Testbed
from orchestration.core.trial import FaultSpec, HostSpec, TrialSpec, TunerSpec

TESTBEDS = ("graphcc", "acc", "drlet-k4", "rlcc-7", "rlcc-64")
MS = 1_000_000


def decode(cls, request):
    message = cls(request)
    message.decode()
    return message


def kind_of(request):
    return struct.unpack_from("=H", request, 4)[0]


def trial(testbed, **changes):
    values = {
        "campaign": "c",
        "testbed": testbed.name,
        "backend": "emulated",
        "tuner": TunerSpec("secn1"),
        "traffic": (),
        "seed": 7,
        "repeat": 1,
        "duration_ns": 10 * MS,
        "drain_ns": MS,
    }
    return TrialSpec(**{**values, **changes})


@pytest.mark.parametrize("name", TESTBEDS)
def test_the_delays_on_every_path_add_up_to_its_propagation_delay(name):
    testbed = load_testbed(name)
    hops, paths = next_hops(testbed), PathTable(testbed)
    for src in testbed.hosts[:3]:
        for dst in testbed.hosts:
            if src == dst:
                continue
            spent = []
            for out in testbed.ports_of[src]:
                for into in testbed.ports_of[dst]:
                    target = testbed.ports[into.peer].device
                    here, total = testbed.ports[out.peer].device, 0
                    while here != target:
                        port = hops[here][target][-1]
                        total += delay_before_queue_ns(testbed, port)
                        here = testbed.ports[port.peer].device
                    spent.append(total + delay_before_queue_ns(testbed, testbed.ports[into.peer]))
            assert min(spent) == paths.path(src, dst).one_way_ns


@pytest.mark.parametrize("name", TESTBEDS)
def test_addresses_are_unique_and_lie_in_their_leafs_prefix(name):
    testbed = load_testbed(name)
    addresses = emulated_addresses(testbed)
    assert len(set(addresses.values())) == len(addresses)
    prefix_of = {}
    for index, address in addresses.items():
        leaf = testbed.ports[testbed.ports[index].peer].device
        prefix = ".".join(address.split(".")[:2])
        assert prefix_of.setdefault(leaf, prefix) == prefix
    assert len(set(prefix_of.values())) == len(prefix_of)


def test_links_are_veth_pairs_in_their_devices_namespaces():
    testbed = load_testbed("graphcc")
    plan = plan_fabric(testbed, HostSpec(), 1)
    assert len(plan.links) == len(testbed.links)
    message = decode(ifinfmsg, plan.links[0])
    assert message["index"] == ifindex(testbed.ports[testbed.links[0].a])
    info = message.get_attr("IFLA_LINKINFO")
    assert info.get_attr("IFLA_INFO_KIND") == "veth"
    assert message.get_attr("IFLA_MTU") == 1500


def test_a_leaf_reaches_other_leaves_over_all_spines_and_its_hosts_directly():
    testbed = load_testbed("graphcc")
    routes = [decode(rtmsg, request) for request in plan_routes(testbed, ())["leaf1"]]
    widths = {
        (route.get_attr("RTA_DST"), route["dst_len"]): len(route.get_attr("RTA_MULTIPATH") or [1])
        for route in routes
    }
    assert sum(length == 32 for _, length in widths) == 6
    assert {width for (_, length), width in widths.items() if length == 16} == {2}


def test_a_failed_link_leaves_one_way_and_no_way_becomes_a_blackhole():
    testbed = load_testbed("graphcc")
    one = testbed.links_by_name["leaf1-spine1"]
    both = [*one, *testbed.links_by_name["leaf1-spine2"]]
    blackhole = 6

    def others(down):
        routes = [decode(rtmsg, request) for request in plan_routes(testbed, down)["leaf1"]]
        return [route for route in routes if route["dst_len"] == 16]

    assert all(route.get_attr("RTA_OIF") for route in others(one))
    assert all(route["type"] == blackhole for route in others(both))


def test_rates_above_34_gbit_are_sent_in_64_bits():
    request = qdiscs.tbf(5, qdiscs.TBF_HANDLE, qdiscs.TC_H_ROOT, 100_000_000_000, 1614, 24)
    rate64 = struct.pack("=HHQ", 12, 4, 12_500_000_000)
    assert rate64 in request
    small = qdiscs.tbf(5, qdiscs.TBF_HANDLE, qdiscs.TC_H_ROOT, 25_000_000_000, 1614, 24)
    assert struct.pack("=HHQ", 12, 4, 3_125_000_000) not in small
    assert struct.pack("=I", 3_125_000_000) in small


def test_red_marks_on_the_instantaneous_queue_and_a_change_keeps_what_is_queued():
    made = qdiscs.red(5, qdiscs.LEAF_HANDLE, qdiscs.TBF_HANDLE + 1, 5_000, 200_000, 77, 16_000_000)
    changed = qdiscs.red_change(5, qdiscs.LEAF_HANDLE, qdiscs.TBF_HANDLE + 1, 5_000, 200_000, 77)
    # limit, min, max, Wlog
    assert struct.pack("=IIIB", 16_000_000, 5_000, 200_000, 0) in made
    assert struct.pack("=IIIB", 0, 5_000, 200_000, 0) in changed
    nlm_f_create, nlm_f_excl = 0x400, 0x200
    (flags,) = struct.unpack_from("=H", changed, 6)
    assert not flags & (nlm_f_create | nlm_f_excl)


@pytest.mark.parametrize("name", TESTBEDS)
def test_every_request_says_its_own_length(name):
    testbed = load_testbed(name)
    plan = plan_fabric(testbed, HostSpec(), 1)
    requests = [r for item in plan.namespaces for r in (*item.links_up, *item.requests)]
    assert all(struct.unpack_from("=I", request)[0] == len(request) for request in requests)


def test_the_seed_salts_the_hash_of_each_switch():
    testbed = load_testbed("graphcc")

    def salts(seed):
        plan = plan_fabric(testbed, HostSpec(), seed)
        key = "net/ipv4/fib_multipath_hash_seed"
        return [item.sysctls[key] for item in plan.namespaces if key in item.sysctls]

    assert salts(1) == salts(1)
    assert salts(1) != salts(2)
    assert len(set(salts(1))) == len(testbed.switches)


def test_a_fault_cuts_both_ends_then_routes_follow():
    testbed = load_testbed("graphcc")
    fault = FaultSpec(2 * MS, 4 * MS, 500_000, links=("leaf1-spine1",))
    it = trial(testbed, faults=(fault,))
    steps = fault_steps(it, testbed, plan_fabric(testbed, it.host, it.seed))
    assert [(step.t_ns, step.kind) for step in steps] == [
        (2 * MS, "links"),
        (2 * MS + 500_000, "routes"),
        (4 * MS, "links"),
        (4 * MS + 500_000, "routes"),
    ]
    kinds = [[kind_of(r) for _, batch in step.requests for r in batch] for step in steps]
    assert kinds[0] == [qdiscs.RTM_NEWQDISC, qdiscs.RTM_NEWTFILTER] * 2
    assert kinds[2] == [qdiscs.RTM_DELTFILTER] * 2


def test_a_job_comes_back_as_it_was_written(tmp_path):
    testbed = load_testbed("graphcc")
    it = trial(testbed, faults=(FaultSpec(MS, None, 0, share=0.3),))
    plan = plan_fabric(testbed, it.host, it.seed)
    steps = fault_steps(it, testbed, plan)
    numbers = np.array([1, 2], dtype=np.int64)
    schedule = Schedule(numbers, numbers, numbers, numbers, numbers, ("a", "b", "c"))
    write_job(tmp_path, Job(it, testbed, plan, steps, schedule))
    job = read_job(tmp_path)
    assert job.trial == it
    assert job.testbed.ports == testbed.ports
    assert job.plan == plan
    assert job.steps == steps
    assert job.schedule.classes == schedule.classes
    assert np.array_equal(job.schedule.size_bytes, numbers)


def build(devices, links):
    specs = [Device(name, "host" if name[0] == "h" else "switch", tier) for name, tier in devices]
    cables = [LinkSpec(a, b, 10**9, delay) for a, b, delay in links]
    return Testbed.build("t", specs, cables, mtu_bytes=1500, buffer_bytes=100_000)


def test_what_cannot_be_reproduced_exactly_is_refused():
    uneven = build([("h1", 0), ("h2", 0), ("s1", 1)], [("h1", "s1", 10), ("h2", "s1", 20)])
    with pytest.raises(InputError, match="different delays"):
        check_supported(uneven)
    sideways = build([("h1", 0), ("s1", 1), ("s2", 1)], [("h1", "s1", 10), ("s1", "s2", 10)])
    with pytest.raises(InputError, match="tier 1"):
        check_supported(sideways)


def test_what_trials_share_is_encoded_before_workers_are_forked(monkeypatch):
    testbed = load_testbed("graphcc")
    expected = plan_fabric(testbed, HostSpec(), 8)
    for function in vars(link_requests).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    monkeypatch.setattr(backend, "require_kernel", lambda: None)
    monkeypatch.setattr(backend.memory, "memory_dir", lambda size: None)
    EmulatedBackend().check(testbed, 2, [trial(testbed)])

    def refuse(*request):
        raise AssertionError(f"encoded in a worker: {request}")

    monkeypatch.setattr(link_requests, "_encode", refuse)
    assert plan_fabric(testbed, HostSpec(), 8) == expected
