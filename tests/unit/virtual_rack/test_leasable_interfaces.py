"""Which of the machine's interfaces a rack may lease; the rest is refused with a remedy."""

from dataclasses import replace

import pytest

from inventory.files import load_testbed
from orchestration.core.errors import InputError, NotReadyError
from orchestration.virtual_rack import interface_leases
from orchestration.virtual_rack.cabling import links, ports_up
from orchestration.virtual_rack.interfaces import MachineNetwork, require_free
from orchestration.virtual_rack.layout import Layout, make_layout

SEVEN = load_testbed("rlcc-7")
CARD = {
    "ifname": "enp3s0",
    "link_type": "ether",
    "flags": ["BROADCAST", "MULTICAST", "UP"],
    "max_mtu": 9000,
}
FREE = MachineNetwork(
    links=({"ifname": "lo", "link_type": "loopback"}, CARD),
    addresses=(
        {
            "ifname": "enp3s0",
            "addr_info": [{"scope": "link", "local": "fe80::1", "prefixlen": 64}],
        },
    ),
    routes=(
        {"dst": "fe80::/64", "dev": "enp3s0", "protocol": "kernel"},
        {"dst": "default", "dev": "eth0", "protocol": "boot"},
    ),
    qdiscs=({"dev": "enp3s0", "kind": "mq", "handle": "0:"},),
    sessions={"eth0": "192.0.2.9"},
    wireless=frozenset(),
)


def with_card(**more):
    return replace(FREE, links=(*FREE.links[:1], {**CARD, **more}))


def with_link(**link):
    return replace(FREE, links=(*FREE.links, link))


def test_a_card_that_nobody_uses_is_free():
    require_free("enp3s0", 9000, FREE)


ADDRESS = {"scope": "global", "local": "192.0.2.7", "prefixlen": 24}
USED = {
    "has no interface": replace(FREE, links=()),
    "own uplink": replace(FREE, routes=({"dst": "default", "dev": "enp3s0"},)),
    "own uplink: its default": replace(
        FREE, routes=({"dst": "default", "nexthops": [{"dev": "eth0"}, {"dev": "enp3s0"}]},)
    ),
    "your SSH session, from 192.0.2.9": replace(FREE, sessions={"enp3s0": "192.0.2.9"}),
    "belongs to bond0": with_card(master="bond0"),
    "vlan7 is on it": with_link(
        ifname="vlan7", link="enp3s0", linkinfo={"info_kind": "vlan"}, link_type="ether"
    ),
    "has the address 192.0.2.7/24": replace(
        FREE, addresses=({"ifname": "enp3s0", "addr_info": [ADDRESS]},)
    ),
    "the route to 10.0.0.0/8": replace(
        FREE, routes=({"dst": "10.0.0.0/8", "dev": "enp3s0", "protocol": "static"},)
    ),
    "queueing discipline, fq": replace(
        FREE, qdiscs=({"dev": "enp3s0", "kind": "fq", "handle": "1:"},)
    ),
    "XDP": with_card(xdp={"mode": 1}),
    "it is bridge": with_card(linkinfo={"info_kind": "bridge"}),
    "it is wireless": replace(FREE, wireless=frozenset({"enp3s0"})),
    "MTU of at most 1500": with_card(max_mtu=1500),
}


@pytest.mark.parametrize("message", USED)
def test_one_in_use_is_refused_with_a_remedy(message):
    with pytest.raises(NotReadyError, match=message) as refused:
        require_free("enp3s0", 9000, USED[message])
    assert refused.value.exit_code == 3
    assert refused.value.remedy


def test_a_veth_s_other_end_is_nobody_on_it():
    require_free(
        "enp3s0", 1500, with_link(ifname="far", link="enp3s0", linkinfo={"info_kind": "veth"})
    )


PORT, OTHER = SEVEN.ports[0], SEVEN.ports[SEVEN.ports[0].peer]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enp3s0",), "not PORT=INTERFACE"),
        ((f"{PORT.label}=",), "not PORT=INTERFACE"),
        (("leaf99:eth0=a",), "no port 'leaf99:eth0'"),
        ((f"{PORT.label}=a", f"{PORT.label}=b"), f"{PORT.label} is given twice"),
        ((f"{PORT.label}=a", f"{OTHER.label}=a"), "a is given twice"),
    ],
)
def test_words_that_name_no_port_and_interface_are_bad_input(words, message):
    with pytest.raises(InputError, match=message):
        interface_leases.parse_port_interfaces(SEVEN, words)


def leased_layout(*words):
    layout = make_layout(SEVEN, (), ())
    return replace(
        layout, clock="real", leased=interface_leases.parse_port_interfaces(SEVEN, words)
    )


def test_a_cable_between_two_cards_is_not_made_and_one_to_a_card_has_no_carrier():
    pids = dict.fromkeys((device.name for device in SEVEN.devices), 7)
    whole = len([line for line in links(leased_layout(), pids) if "type veth peer" in line])
    both = leased_layout(f"{PORT.label}=a", f"{OTHER.label}=b")
    cables = [line for line in links(both, pids) if "type veth peer" in line]
    assert len(cables) == whole - 1
    assert not both.cable_leaves_rack(PORT)
    assert not both.cable_leaves_rack(OTHER)
    one = leased_layout(f"{PORT.label}=a")
    cut = [line for line in links(one, pids) if line.startswith("link add name cut")]
    assert len(cut) == 1
    assert f"peer name {OTHER.name} " in cut[0]
    assert not any(line.startswith("link set cut") for line in links(one, pids))
    assert one.cable_leaves_rack(PORT)
    assert one.cable_leaves_rack(OTHER)
    assert f"link set {PORT.name} mtu {SEVEN.mtu_bytes} up" in [*ports_up(one, PORT.device)]


def test_a_layout_keeps_its_leases():
    layout = leased_layout(f"{PORT.label}=a")
    assert Layout.from_json(layout.to_json()).leased == layout.leased
    assert [(port.label, name) for port, name in layout.leased_ports] == [(PORT.label, "a")]
