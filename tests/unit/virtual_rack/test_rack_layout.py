"""What a virtual rack consists of: pure."""

import itertools
import json
import subprocess

import pytest

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.agent.linux import qdiscs
from orchestration.core.errors import InputError
from orchestration.virtual_rack import cabling, isolation
from orchestration.virtual_rack.isolation import password_hash
from orchestration.virtual_rack.layout import Layout, highest_switch, make_layout

GRAPHCC = load_testbed("graphcc")


@pytest.fixture
def layout():
    return make_layout(GRAPHCC, ("spine1",), ("h1", "h2"), ("h1",))


def test_a_layout_survives_json(layout):
    again = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert (again.sonic, again.roce, again.address) == (layout.sonic, layout.roce, layout.address)
    assert again.pcc_device("h1") == "rxe-h1"
    assert again.testbed.ports == GRAPHCC.ports
    with pytest.raises(ValueError, match="rack has format 1"):
        Layout.from_json({**layout.to_json(), "format": 1})


@pytest.mark.parametrize(
    ("sonic", "roce", "message"),
    [
        (("spine9",), (), "--sonic: testbed graphcc has no switch 'spine9'"),
        (("h1",), (), "--sonic: testbed graphcc has no switch 'h1'"),
        ((), ("leaf1",), "--roce: testbed graphcc has no host 'leaf1'"),
    ],
)
def test_names_that_the_testbed_has_not(sonic, roce, message):
    with pytest.raises(InputError, match=message):
        make_layout(GRAPHCC, sonic, roce)


def test_all_hosts_have_roce_nics():
    assert make_layout(GRAPHCC, (), ("all",)).roce == GRAPHCC.hosts


def test_the_highest_switch():
    assert highest_switch(GRAPHCC) == "spine1"


def test_devices_have_addresses_outside_the_fabric(layout):
    assert len(set(layout.address.values())) == len(GRAPHCC.devices)
    assert layout.address["h1"] == "10.255.0.2"
    many = Layout(load_testbed("pet"))
    assert len(set(many.address.values())) == len(many.testbed.devices)


def test_a_sonic_switch_is_named_and_shaped_as_one(layout, tmp_path):
    rack = layout.rack(tmp_path / "key", tmp_path / "known")
    spine, leaf = rack.access["spine1"], rack.access["leaf1"]
    assert spine.interfaces == ("Ethernet0", "Ethernet4", "Ethernet8", "Ethernet12")
    assert (spine.user, spine.become, spine.shape, spine.queues) == ("admin", True, False, (3,))
    assert leaf.interfaces[:2] == ("eth0", "eth1")
    assert (leaf.user, leaf.become, leaf.shape) == ("root", False, True)
    assert (rack.access["h1"].rdma_devices, rack.access["h3"].rdma_devices) == (("rxe-h1",), ())


def test_delays_on_arrival_add_up_to_the_testbeds(layout):
    """There and back, whatever the path: what PathTable says of it."""
    testbed = GRAPHCC
    table = PathTable(testbed)
    by_name = {
        (port.device, testbed.ports[port.peer].device): testbed.ports[port.peer]
        for port in testbed.ports
    }
    for path in (
        ("h1", "leaf1", "h2"),
        ("h1", "leaf1", "spine1", "leaf2", "h7"),
        ("h1", "leaf1", "spine2", "leaf4", "h24"),
    ):
        for hops in (path, path[::-1]):
            there = sum(
                layout.delay_on_arrival_ns(by_name[hop]) for hop in itertools.pairwise(hops)
            )
            assert there == table.path(hops[0], hops[-1]).one_way_ns


def test_one_delay_line_for_each_distinct_delay(layout):
    assert cabling.delay_lines(layout, "h1") == {"ifb0": (2000, ("eth0",))}
    assert cabling.delay_lines(layout, "leaf1") == {}
    assert cabling.delay_lines(layout, "spine1") == {
        "ifb0": (2000, ("Ethernet0", "Ethernet4", "Ethernet8", "Ethernet12"))
    }


def test_cables_join_the_ports_under_their_names(layout):
    pids = {name: 1000 + n for n, name in enumerate(layout.address)}
    lines = list(cabling.links(layout, pids))
    assert lines[0] == (
        f"link add name eth0 address 02:00:00:00:00:00 mtu 1500 netns {pids['h1']} type veth "
        f"peer name eth0 address 02:00:00:00:00:01 mtu 1500 netns {pids['leaf1']}"
    )
    assert sum("peer name eth0 netns" in line for line in lines) == 1  # SONiC's management port
    assert sum("peer name mgmt netns" in line for line in lines) == len(layout.address) - 1


def test_the_asic_routes_and_queues_as_other_backends(layout):
    routes = list(cabling.routes(layout, "spine1"))
    assert routes[0] == "address replace 198.18.0.5/32 dev lo"
    assert routes[1] == "route replace 198.18.1.0/24 nexthop via 198.18.0.1 dev Ethernet0 onlink"
    leaf = list(cabling.routes(layout, "leaf1"))
    assert "route replace 198.18.1.1/32 dev eth0" in leaf
    assert (
        "route replace 198.18.2.0/24 nexthop via 198.18.0.5 dev eth6 onlink "
        "nexthop via 198.18.0.6 dev eth7 onlink"
    ) in leaf
    port = GRAPHCC.ports_of["spine1"][0]
    shaper, red = cabling.queues(layout, port, 7)
    assert shaper == qdiscs.tbf(7, qdiscs.TBF_HANDLE, qdiscs.TC_H_ROOT, 10**11, 1614, 24)
    limit = port.buffer_bytes
    above = qdiscs.TBF_HANDLE + 1
    assert red == qdiscs.red(7, qdiscs.LEAF_HANDLE, above, limit, limit, qdiscs.ALWAYS, limit)


MACHINE_USERS = """root:x:0:0:root:/root:/bin/zsh
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
operator:x:11:0:operator:/root:/sbin/nologin
ada:x:1000:1000:Ada:/home/ada:/bin/bash
sshd:x:101:65534::/run/sshd:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
+::::::
"""


def test_users_of_a_device():
    text = isolation.passwd_file(MACHINE_USERS)
    users = {line.split(":")[0]: line.split(":") for line in text.splitlines()}
    assert list(users) == ["root", "daemon", "sshd", "nobody", "admin", "operator"]
    assert users["root"][5] == "/home/root"
    assert users["admin"][2] == "1000"
    shadow = isolation.shadow_file("secret", text)
    assert "root:*:" in shadow
    assert "admin:secret:" in shadow
    assert "operator:secret:" in shadow


def test_groups_of_a_device():
    machine = "root:x:0:\nsudo:x:27:ada\nredis:x:900:\nada:x:1000:\nnogroup:x:65534:\n"
    lines = isolation.group_file(machine).splitlines()
    groups = {line.split(":")[0]: line.split(":")[2:] for line in lines}
    assert groups["sudo"] == ["27", "admin"]
    assert groups["redis"] == ["900", "admin"]
    assert groups["docker"] == ["901", "admin"]
    assert "ada" not in groups
    numbers = [number for number, _ in groups.values()]
    assert len(set(numbers)) == len(numbers)


def test_passwords_are_hashed():
    made = password_hash("secret")
    assert made == "*" or made.startswith("$5$")
    assert made == password_hash("secret")
    assert "secret" not in made


def test_sudoers_is_valid(tmp_path):
    file = tmp_path / "sudoers"
    file.write_text(isolation.SUDOERS)
    try:
        checked = subprocess.run(["/usr/sbin/visudo", "-cf", file], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no visudo")
    assert checked.returncode == 0, checked.stdout
