"""Judging surveys: each cable from both ends, swapped ones, rates, MTU, tools, rights."""

import dataclasses

import pytest

from inventory.cabling import (
    DeviceFacts,
    InterfaceState,
    Neighbour,
    Reach,
    check_rack,
    fabric_addresses,
    is_provisioned,
)
from inventory.rack import Access, Rack
from orchestration.core.topology import Device, LinkSpec, Testbed

RATE = 25 * 10**9
TOOLS = dict.fromkeys(("tc", "ip", "rdma", "ib_write_bw"), "6.1")


def rack_of(**changes):
    devices = [Device("h1", "host", 0), Device("h2", "host", 0), Device("leaf1", "switch", 1)]
    links = [LinkSpec(host, "leaf1", RATE, 1000) for host in ("h1", "h2")]
    testbed = Testbed.build("lab", devices, links, mtu_bytes=1500, buffer_bytes=10**6)
    access = {
        "h1": Access("h1", "10.9.0.1", interfaces=("eth0",)),
        "h2": Access("h2", "10.9.0.2", interfaces=("eth0",)),
        "leaf1": Access("leaf1", "10.9.0.3", interfaces=("swp1", "swp2")),
    }
    for name, change in changes.items():
        access[name] = dataclasses.replace(access[name], **change)
    return Rack("lab", testbed, access)


def mac(device, interface):
    return f"02:00:00:00:{sum(device.encode()) % 256:02x}:{sum(interface.encode()) % 256:02x}"


def hears(interface, device, there, shape="ifname", system=None):
    """What lldpd announces: the port by name, or by MAC address with its name as description."""
    port = there if shape == "ifname" else mac(device, there)
    system = device if system is None else system
    return Neighbour(interface, system, mac(device, "chassis"), shape, port, there)


def surveys(shape="ifname", **neighbours):
    wires = {
        "h1": [hears("eth0", "leaf1", "swp1", shape)],
        "h2": [hears("eth0", "leaf1", "swp2", shape)],
        "leaf1": [hears("swp1", "h1", "eth0", shape), hears("swp2", "h2", "eth0", shape)],
        **neighbours,
    }
    result = {}
    for name, heard in wires.items():
        names = ("swp1", "swp2") if name == "leaf1" else ("eth0",)
        result[name] = DeviceFacts(
            device=name,
            hostname=name,
            interfaces={n: InterfaceState(True, "up", RATE, 1500, mac(name, n)) for n in names},
            macs={n: mac(name, n) for n in names},
            neighbours=None if heard is None else tuple(heard),
            lldp_problem="no lldpctl" if heard is None else "",
            programs=TOOLS,
            is_root=True,
            may_change_qdiscs=True,
        )
    return result


def shown(findings):
    return [f"{f.device} {f.check} {f.severity}: {f.what}" for f in findings]


def with_interface(found, device, name, **changes):
    state = dataclasses.replace(found[device].interfaces[name], **changes)
    interfaces = {**found[device].interfaces, name: state}
    return {**found, device: dataclasses.replace(found[device], interfaces=interfaces)}


@pytest.mark.parametrize("shape", ["ifname", "mac"])
def test_a_rack_as_the_inventory_says(shape):
    assert check_rack(rack_of(), surveys(shape)) == []


def test_names_of_systems_that_are_not_the_inventorys():
    """A device is known by its host name, with a domain or without, or by its MAC addresses."""
    found = surveys()
    found["leaf1"] = dataclasses.replace(
        found["leaf1"],
        hostname="sw-12.lab.example",
        neighbours=(
            hears("swp1", "h1", "eth0", system="h1.lab.example"),
            hears("swp2", "h2", "eth0", "mac", system="something else"),
        ),
    )
    found["h1"] = dataclasses.replace(
        found["h1"], neighbours=(hears("eth0", "leaf1", "swp1", system="SW-12"),)
    )
    found["h2"] = dataclasses.replace(
        found["h2"], neighbours=(hears("eth0", "leaf1", "swp2", system="sw-12.lab.example"),)
    )
    assert check_rack(rack_of(), found) == []


def test_sonic_announces_an_alias_and_describes_the_port():
    found = surveys(h1=[Neighbour("eth0", "leaf1", "", "local", "etp1", "swp1")])
    assert check_rack(rack_of(), found) == []


def test_swapped_cables_are_named_as_such():
    found = surveys(
        leaf1=[hears("swp1", "h2", "eth0"), hears("swp2", "h1", "eth0")],
        h1=[hears("eth0", "leaf1", "swp2", "mac")],
        h2=[hears("eth0", "leaf1", "swp1", "mac")],
    )
    assert shown(check_rack(rack_of(), found)) == [
        "h1 cabling wrong: eth0 is wired to leaf1:swp2, not to leaf1:swp1",
        "h2 cabling wrong: eth0 is wired to leaf1:swp1, not to leaf1:swp2",
        "leaf1 cabling wrong: swp1 and swp2 are swapped: swp1 is wired to h2:eth0, swp2 to h1:eth0",
    ]


def test_what_lldp_does_not_say_is_not_proven():
    found = surveys(h1=None, h2=[])
    findings = check_rack(rack_of(), found)
    assert shown(findings) == [
        "h1 cabling unproven: its cables are not proven: no LLDP (no lldpctl)",
        "h2 cabling unproven: eth0 receives no LLDP: that it is wired to leaf1:swp2 is not proven",
    ]
    assert "lldpd" in findings[0].remedy


def test_a_stranger_at_a_port():
    found = surveys(h1=[Neighbour("eth0", "printer", "00:11:22:33:44:55", "ifname", "eth7")])
    assert shown(check_rack(rack_of(), found)) == [
        "h1 cabling unproven: eth0 hears printer:eth7, which is not in the inventory, instead of "
        "leaf1:swp1"
    ]


def test_two_neighbours_at_a_port():
    """Who was there before is heard until its time to live is over."""
    heard = [
        Neighbour("eth0", "", "00:11:22:33:44:55", "ifname", "x"),
        hears("eth0", "leaf1", "swp1"),
    ]
    assert check_rack(rack_of(), surveys(h1=heard)) == []


def test_devices_with_one_name_are_told_apart_by_their_addresses():
    """SONiC's default host name is `sonic` on every switch."""
    found = {n: dataclasses.replace(s, hostname="sonic") for n, s in surveys("mac").items()}
    for name, survey in found.items():
        heard = tuple(dataclasses.replace(n, system="sonic") for n in survey.neighbours)
        found[name] = dataclasses.replace(survey, neighbours=heard)
    assert check_rack(rack_of(), found) == []


def test_a_device_without_survey_leaves_its_neighbours_to_speak():
    found = surveys()
    del found["h2"]
    assert check_rack(rack_of(), found) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exists": False}, "cabling wrong: has no interface eth0"),
        ({"operstate": "down"}, "cabling wrong: the link at eth0, to leaf1:swp1, is down"),
        ({"speed_bps": 10**10}, "rates wrong: eth0 runs at 10Gbps, not at 25Gbps"),
        ({"speed_bps": 10**11}, "rates wrong: eth0 runs at 100Gbps, not at 25Gbps"),
        (
            {"speed_bps": -1},
            "rates unproven: that eth0 runs at 25Gbps is not proven: it reports no rate",
        ),
        (
            {"driver": "veth", "speed_bps": 10**10},
            "rates unproven: that eth0 runs at 25Gbps is not proven: it reports no rate",
        ),
        ({"mtu_bytes": 9000}, "MTU wrong: eth0 has an MTU of 9000B, not 1500B"),
        ({"mtu_bytes": 1280}, "MTU wrong: eth0 has an MTU of 1280B, not 1500B"),
    ],
)
def test_an_interface(changes, expected):
    findings = check_rack(rack_of(), with_interface(surveys(), "h1", "eth0", **changes))
    assert shown(findings) == [f"h1 {expected}"]
    assert findings[0].remedy


def test_a_switch_may_take_larger_packets():
    assert check_rack(rack_of(), with_interface(surveys(), "leaf1", "swp1", mtu_bytes=9100)) == []


@pytest.mark.parametrize(
    ("speed_bps", "driver", "fine"),
    [(-1, "veth", True), (10**11, "", True), (10**10, "veth", True), (10**10, "mlx5_core", False)],
)
def test_a_shaped_link_needs_only_to_be_fast_enough(speed_bps, driver, fine):
    found = with_interface(surveys(), "leaf1", "swp1", speed_bps=speed_bps, driver=driver)
    findings = check_rack(rack_of(leaf1={"shape": True}), found)
    assert [f.check for f in findings] == ([] if fine else ["rates"])


@pytest.mark.parametrize(
    ("device", "change", "gone", "expected"),
    [
        ("leaf1", {}, "tc", ["leaf1 tools wrong: has no tc"]),
        ("h1", {}, "tc", []),
        ("h1", {}, "ip", ["h1 tools wrong: has no ip"]),
        (
            "h1",
            {"nic": "roce", "rdma_devices": ("mlx5_0",)},
            "ib_write_bw",
            ["h1 tools wrong: has no RDMA device mlx5_0", "h1 tools wrong: has no ib_write_bw"],
        ),
        (
            "leaf1",
            {"platform": "sonic"},
            "tc",
            [
                "leaf1 tools wrong: is not a SONiC switch: it has no /etc/sonic/sonic_version.yml",
                "leaf1 tools wrong: has no redis-cli or sonic-db-cli",
            ],
        ),
    ],
)
def test_tools_by_role(device, change, gone, expected):
    found = surveys()
    programs = {name: version for name, version in TOOLS.items() if name != gone}
    found[device] = dataclasses.replace(found[device], programs=programs)
    assert shown(check_rack(rack_of(**{device: change}), found)) == expected


def test_rights():
    found = surveys()
    found["leaf1"] = dataclasses.replace(found["leaf1"], is_root=False, may_change_qdiscs=False)
    (finding,) = check_rack(rack_of(leaf1={"user": "admin"}), found)
    assert (finding.check, finding.what) == ("rights", "admin may not change its settings there")
    assert "ansible_become" in finding.remedy


def reaching(**reach):
    """Surveys of a rack whose hosts have their fabric addresses but for what is given."""
    found = surveys()
    own = {name: Reach((address,)) for name, (address,) in FABRIC.items()}
    for name, item in {**own, **reach}.items():
        found[name] = dataclasses.replace(found[name], reach=item)
    return found


FABRIC = fabric_addresses(rack_of())
H1, H2 = (addresses[0] for addresses in FABRIC.values())


def test_hosts_that_reach_each_other():
    assert check_rack(rack_of(), reaching()) == []


def test_nothing_is_said_of_the_fabric_before_it_is_provisioned():
    nothing = Reach(unreached=((H1, H2, "no answer"),))
    found = reaching(h1=nothing, h2=nothing)
    assert not is_provisioned(survey.reach for survey in found.values())
    assert check_rack(rack_of(), found) == []


def test_pairs_that_do_not_reach_each_other_are_named():
    found = reaching(h1=Reach((H1,), ((H1, H2, "network is unreachable"),)))
    (finding,) = check_rack(rack_of(), found)
    assert shown([finding]) == [
        f"h1 fabric wrong: from {H1} it does not reach h2 at {H2} (network is unreachable)"
    ]
    assert "closloop provision" in finding.remedy


def test_a_host_without_its_address_is_named_once():
    found = reaching(h1=Reach((H1,), ((H1, H2, "no answer"),)), h2=Reach())
    assert shown(check_rack(rack_of(), found)) == [
        f"h2 fabric wrong: lacks its fabric address {H2}"
    ]


def test_a_host_that_may_not_ping_proves_nothing():
    found = reaching(h1=Reach(problem="pings cannot be sent: Operation not permitted"))
    (finding,) = check_rack(rack_of(), found)
    assert (finding.check, finding.severity) == ("fabric", "unproven")
    assert finding.what.endswith("pings cannot be sent: Operation not permitted")
