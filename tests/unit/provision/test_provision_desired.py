"""The state that each device is to be in, and the inventory that Ansible runs on."""

import dataclasses
import json

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.core.errors import InputError
from orchestration.core.topology import Device, LinkSpec, Testbed, TrafficClass
from orchestration.core.trial import HostSpec
from orchestration.provision.desired import RoceSettings, desired_state, login, playbook_inventory

GBPS = 10**9


def rack_of(testbed, **changes):
    """A rack of the testbed; `changes` are fields of single devices' access."""
    access = {}
    for number, device in enumerate(testbed.devices):
        names = tuple(port.name for port in testbed.ports_of[device.name])
        made = Access(device.name, f"192.0.2.{number + 1}", interfaces=names)
        access[device.name] = dataclasses.replace(made, **changes.get(device.name, {}))
    return Rack("lab", testbed, access, known_hosts_file="/etc/closloop hosts")


def pair(classes=(), nics=1):
    """Two hosts, the second with `nics` of them, on two leaves below one spine."""
    devices = [Device("h1", "host", 0), Device("h2", "host", 0)]
    devices += [Device("leaf1", "switch", 1), Device("leaf2", "switch", 1)]
    devices.append(Device("spine1", "switch", 2))
    links = [LinkSpec("h1", "leaf1", 25 * GBPS, 1000)]
    links += [LinkSpec("h2", "leaf2", 25 * GBPS, 1000)] * nics
    links += [LinkSpec(leaf, "spine1", 100 * GBPS, 1000) for leaf in ("leaf1", "leaf2")]
    return Testbed.build(
        "pair", devices, links, mtu_bytes=1500, buffer_bytes=1_000_000, classes=classes
    )


def network(rack, device, **arguments):
    return desired_state(rack, **arguments)[device]["network"]


def test_a_switch_port_has_red_that_never_marks_and_is_shaped_only_where_asked():
    testbed = load_testbed("graphcc")
    plain = network(rack_of(testbed), "leaf1")["interfaces"]
    shaped = network(rack_of(testbed, leaf1={"shape": True}), "leaf1")["interfaces"]

    assert len(plain) == len(testbed.ports_of["leaf1"]) == 8
    never = 16_000_000
    red = {"kmin_bytes": never, "kmax_bytes": never, "max_p": 2**32 - 1, "limit_bytes": never}
    assert plain[0] == {
        "name": "eth0",
        "mtu": 1500,
        "offloads_off": True,
        "queues": {"reds": [red]},
    }
    shaper = {"rate_bps": 100 * GBPS, "bucket_bytes": 1614, "framing_bytes": 24}
    assert shaped[7]["queues"] == {"reds": [red], "shaper": shaper}


def test_traffic_classes_have_a_red_each_and_their_weights():
    classes = (TrafficClass("tcp", 30, "cubic"), TrafficClass("rdma", 70))
    rack = rack_of(pair(classes))

    queues = network(rack, "leaf1")["interfaces"][0]["queues"]
    assert queues["weights"] == [30, 70]
    assert queues["frame_bytes"] == 1514
    assert [red["limit_bytes"] for red in queues["reds"]] == [300_000, 700_000]
    # what their senders may ask for, besides what is the hosts' default
    assert network(rack, "h1")["congestion_controls"] == ["dctcp", "cubic"]


def test_switches_route_to_leaves_over_all_shortest_paths_and_to_their_own_hosts():
    state = network(rack_of(load_testbed("graphcc")), "leaf1")
    routes = {entry["to"]: entry["via"] for entry in state["routes"]}

    assert routes["198.18.2.0/24"] == [["198.18.0.5", "eth6", 1], ["198.18.0.6", "eth7", 1]]
    assert routes["198.18.1.1/32"] == [["", "eth0", 1]]
    assert "198.18.1.0/24" not in routes
    assert len(routes) == 3 + 6
    assert state["loopback"] == ["198.18.0.1/32"]
    assert state["sysctls"]["net/ipv4/ip_forward"] == "1"


def test_a_host_routes_to_the_fabric_only_and_keeps_its_default_route():
    state = network(rack_of(pair()), "h1", host=HostSpec("dctcp", 1_000_000))

    via = [["198.18.0.1", "eth0", 1]]
    assert state["routes"] == [
        {"to": "198.18.1.0/24", "via": via, "source": "198.18.1.1"},
        {"to": "198.18.2.0/24", "via": via, "source": "198.18.1.1"},
    ]
    assert state["fabric"] == "198.18.0.0/15"
    assert state["rules"] == []
    assert state["interfaces"] == [{"name": "eth0", "mtu": 1500, "addresses": ["198.18.1.1/32"]}]
    assert state["sysctls"]["net/ipv4/tcp_congestion_control"] == "dctcp"


def test_a_shaped_host_has_a_fair_queue_below_its_shaper():
    (interface,) = network(rack_of(pair(), h1={"shape": True}), "h1")["interfaces"]
    assert interface["offloads_off"] is True
    assert interface["queues"]["fair"] is True
    assert interface["queues"]["shaper"]["rate_bps"] == 25 * GBPS


def test_what_has_an_address_of_a_second_nic_leaves_through_that_nic():
    state = network(rack_of(pair(nics=2)), "h2")
    assert [rule["from"] for rule in state["rules"]] == ["198.18.2.1/32", "198.18.2.2/32"]
    tables = {
        entry.get("table"): entry for entry in state["routes"] if entry["to"] == "198.18.1.0/24"
    }
    assert set(tables) == {None, 4101, 4102}
    assert tables[None]["via"] == [["198.18.0.2", "eth0", 1]]
    assert tables[4102]["via"] == [["198.18.0.2", "eth1", 1]]
    assert tables[4102]["source"] == "198.18.2.2"
    assert [rule["table"] for rule in state["rules"]] == [4101, 4102]


def test_a_sonic_switch_has_tables_and_nothing_else_is_set_on_it():
    ports = ("Ethernet0", "Ethernet4")
    rack = rack_of(pair(), leaf1={"platform": "sonic", "interfaces": ports})
    state = desired_state(rack)["leaf1"]
    assert set(state) == {"sonic"}
    assert "CLOSLOOP_Ethernet4_3" in state["sonic"]["tables"]["WRED_PROFILE"]


def test_a_roce_host_has_the_nic_s_settings_besides_its_network():
    rack = rack_of(pair(), h1={"nic": "roce", "rdma_devices": ("mlx5_0",)})
    roce = RoceSettings(dcqcn={"rp_ai_rate": 5})
    assert desired_state(rack, roce=roce)["h1"]["roce"] == {
        "interfaces": ["eth0"],
        "rdma_devices": ["mlx5_0"],
        "trust": "dscp",
        "priorities": {"26": 3},
        "type_of_service": 106,
        "dcqcn": {"rp_ai_rate": 5},
        "memlock": "unlimited",
        "governor": "performance",
    }
    assert "roce" not in desired_state(rack)["h2"]


def test_roce_of_a_traffic_class_has_the_priority_that_the_switch_pauses():
    classes = (TrafficClass("tcp", 30), TrafficClass("rdma", 70))
    ports = ("Ethernet0", "Ethernet4")
    leaf = {"platform": "sonic", "interfaces": ports, "queues": (1, 4)}
    roce = {"nic": "roce", "rdma_devices": ("mlx5_0",)}
    rack = rack_of(pair(classes), h1=roce, leaf1=leaf)
    assert desired_state(rack)["h1"]["roce"]["priorities"] == {"26": 3, "2": 4}


def test_a_management_address_among_the_fabric_s_is_refused():
    with pytest.raises(InputError) as refused:
        desired_state(rack_of(pair(), h1={"address": "198.19.9.9"}))
    assert str(refused.value) == (
        "lab: h1: its address 198.19.9.9 lies in the fabric's prefix 198.18.0.0/15: routes to the "
        "fabric would cut off the controller\n"
        "  -> give the fabric another network: closloop_fabric_prefix in the inventory"
    )


def test_interfaces_must_be_as_many_as_ports():
    with pytest.raises(InputError, match="1 interfaces for 2 ports of the testbed"):
        desired_state(rack_of(pair(), leaf1={"interfaces": ("eth0",)}))


def test_every_device_is_in_its_playbook_s_group():
    changes = {"leaf1": {"platform": "sonic"}, "h1": {"nic": "roce"}}
    rack = dataclasses.replace(rack_of(pair(), **changes), collector=Access("box", "192.0.2.99"))
    desired = {device.name: {} for device in rack.testbed.devices}
    groups = playbook_inventory(rack, desired)["all"]["children"]
    assert {name: list(group["hosts"]) for name, group in groups.items()} == {
        "linux_switches": ["leaf2", "spine1"],
        "sonic_switches": ["leaf1"],
        "roce_hosts": ["h1"],
        "plain_hosts": ["h2"],
        "collector": ["box"],
    }
    assert groups["sonic_switches"]["hosts"]["leaf1"]["closloop_kind"] == "sonic_switch"
    json.dumps(groups)


def test_host_keys_are_verified_and_never_learned():
    access = Access("leaf1", "192.0.2.1", 2222, "admin", "/keys/id", become=True)
    variables = login(access, "/etc/closloop hosts")
    options = variables.pop("ansible_ssh_common_args")
    assert "-o StrictHostKeyChecking=yes -o UpdateHostKeys=no" in options
    assert options.endswith("""/.ssh/known_hosts" "/etc/closloop hosts"'""")
    assert variables == {
        "ansible_host": "192.0.2.1",
        "ansible_port": 2222,
        "ansible_user": "admin",
        "ansible_become": True,
        "ansible_ssh_private_key_file": "/keys/id",
    }
    newer = login(dataclasses.replace(access, python="/usr/bin/python3.9"), "")
    assert newer["ansible_python_interpreter"] == "/usr/bin/python3.9"
