"""Routes that lay claim to the fabric's addresses, in messages as the kernel lays them out."""

import socket
import struct
from ipaddress import ip_network

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.linux.fib import overlapping_routes
from orchestration.agent.linux.netlink import RTM_NEWROUTE, attribute
from orchestration.core.errors import NotReadyError
from orchestration.provision import run

FABRIC = "198.18.0.0/15"
CLONED = 0x200


def route(to, table=254, flags=0):
    network = ip_network(to)
    body = struct.pack("=8BI", 2, network.prefixlen, 0, 0, min(table, 255), 4, 0, 1, flags)
    if network.prefixlen:
        body += attribute(1, network.network_address.packed)
    return RTM_NEWROUTE, body + attribute(15, struct.pack("=I", table))


class Routes:
    def __init__(self, *routes):
        self.routes = routes

    def dump(self, request):
        assert request[16] == socket.AF_INET
        return list(self.routes)


@pytest.mark.parametrize(
    ("to", "claimed"),
    [
        ("198.18.7.0/24", True),
        ("198.19.255.255/32", True),
        ("198.0.0.0/8", True),  # hidden in part
        ("198.20.0.0/16", False),
        ("10.0.0.0/8", False),
        ("0.0.0.0/0", False),
        ("128.0.0.0/1", False),  # half of a default route, as of a VPN
    ],
)
def test_a_route_that_overlaps_is_a_claim(to, claimed):
    assert overlapping_routes(Routes(route(to)), FABRIC, ()) == [to] * claimed


def test_our_routes_other_tables_and_caches_are_no_claims():
    there = Routes(
        route("198.18.1.0/24"), route("198.18.2.0/24", 4101), route("198.18.3.9/32", flags=CLONED)
    )
    assert overlapping_routes(there, FABRIC, {"198.18.1.0/24"}) == []
    assert overlapping_routes(there, FABRIC, ()) == ["198.18.1.0/24"]


def test_a_machine_that_uses_the_fabrics_network_does_not_provision(monkeypatch):
    testbed = load_testbed("graphcc")
    rack = Rack("lab", testbed, {d.name: Access(d.name, "192.0.2.1") for d in testbed.devices})
    there = Routes(route("198.18.0.0/16"))
    monkeypatch.setattr(
        run, "overlapping_routes", lambda _, prefix, ours: overlapping_routes(there, prefix, ours)
    )
    with pytest.raises(
        NotReadyError, match=r"has a route to 198\.18\.0\.0/16, and .* in 198\.18"
    ) as caught:
        run._refuse_overlap(rack)
    assert "closloop_fabric_prefix" in caught.value.remedy
    # the controller may be one of the fabric's hosts, which has the fabric's own routes
    there.routes = (route("198.18.1.0/24"), route("198.18.1.1/32"), route("198.18.0.1/32"))
    run._refuse_overlap(rack)
