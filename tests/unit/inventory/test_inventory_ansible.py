"""Ansible inventories: racks read and written, Ansible's merging, every error with its line."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from inventory.ansible import load_rack, write_rack
from inventory.ansible_schema import DEVICE_NAMES, RACK_NAMES
from inventory.ansible_text import is_example, skeleton
from inventory.files import known_testbeds, load_testbed
from inventory.rack import Access, Guardrails, Rack, Safety
from orchestration.core.errors import InputError
from orchestration.core.topology import Testbed, TrafficClass

RACK = """\
all:
  vars:
    closloop_mtu: 1500B
    closloop_buffer: 16MB
    ansible_user: root
  children:
    hosts:
      hosts:
        h1:
          ansible_host: 10.9.0.1
          closloop_links:
            - {interface: eth0, peer: leaf1, peer_interface: swp1, rate: 25Gbps, delay: 1us}
        h2:
          ansible_host: 10.9.0.2
          closloop_links:
            - {interface: eth0, peer: leaf1, peer_interface: swp2, rate: 25Gbps, delay: 1us}
    leaves:
      hosts:
        leaf1:
          ansible_host: 10.9.0.3
          closloop_links:
            - {interface: swp1, peer: h1, peer_interface: eth0, rate: 25Gbps, delay: 1us}
            - {interface: swp2, peer: h2, peer_interface: eth0, rate: 25Gbps, delay: 1us}
"""


def load(tmp_path, text, name="lab.yml"):
    path = tmp_path / name
    path.write_text(text)
    return load_rack(path)


def refused(tmp_path, text):
    """Return each problem as `line what -> remedy`."""
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    prefix = f"{tmp_path / 'lab.yml'}:"
    for problem in caught.value.problems:
        assert problem.where.startswith(prefix), problem
        assert problem.remedy
    return [f"{p.where.removeprefix(prefix)} {p.what} -> {p.remedy}" for p in caught.value.problems]


def rack_of(testbed, name="lab"):
    access = {
        device.name: Access(
            device.name,
            f"10.{200 + number // 250}.0.{number % 250}",
            port=22 + number,
            user="admin",
            key_file="/keys/id",
            become=device.tier == 1,
            platform="sonic" if device.tier == 2 else "linux",
            nic="roce" if device.name == "h1" else "plain",
            shape=device.kind == "switch",
            interfaces=tuple(f"swp{n}" for n in range(len(testbed.ports_of[device.name]))),
            rdma_devices=tuple(
                f"mlx5_{n}"
                for n in range(len(testbed.ports_of[device.name]))
                if device.name == "h1"
            ),
            queues=tuple(range(3, 3 + testbed.queues_per_port)) if device.tier == 2 else (3,),
        )
        for number, device in enumerate(testbed.devices)
    }
    corridor = Guardrails(0.25, 0.01, 0.2, 0.5)
    safety = Safety(12.5, 90.0, 1_500_000, corridor)
    collector = Access("metrics", "metrics.example", user="me", key_file="~/.ssh/id")
    return Rack(name, testbed, access, collector, "/keys/known_hosts", safety, "10.64.0.0/12")


@pytest.mark.slow
@pytest.mark.parametrize("name", known_testbeds())
def test_what_is_written_is_read_back(tmp_path, name):
    rack = rack_of(load_testbed(name))
    write_rack(rack, tmp_path / "rack.yml")
    assert load_rack(tmp_path / "rack.yml") == rack
    assert f"closloop_testbed: {name}" in (tmp_path / "rack.yml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", known_testbeds())
def test_links_alone_make_the_testbed_again(tmp_path, name):
    rack = rack_of(dataclasses.replace(load_testbed(name), name="lab"))
    write_rack(rack, tmp_path / "rack.yml")
    assert load_rack(tmp_path / "rack.yml") == rack
    assert "closloop_testbed" not in (tmp_path / "rack.yml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", known_testbeds())
def test_an_order_of_links_that_is_not_a_generators(tmp_path, name):
    """Ports come as each device lists them, so any order is read as the same fabric."""
    rack = rack_of(dataclasses.replace(load_testbed(name), name="lab"))
    write_rack(rack, tmp_path / "rack.yml")
    lines = (tmp_path / "rack.yml").read_text().splitlines()
    leaf = next(i for i, line in enumerate(lines) if line.strip() == "leaves:")
    first = next(i for i in range(leaf, len(lines)) if "interface:" in lines[i])
    last = next(i for i in range(first, len(lines) + 1) if "interface:" not in [*lines, ""][i])
    lines[first:last] = reversed(lines[first:last])
    (tmp_path / "rack.yml").write_text("\n".join(lines) + "\n")
    again = load_rack(tmp_path / "rack.yml")
    switch = next(device.name for device in again.testbed.devices if device.tier == 1)
    assert again.access[switch].interfaces == rack.access[switch].interfaces[::-1]
    for before, after in ((rack, again), (again, rack)):
        wires = {
            (port.device, after.interface(port), after.testbed.ports[port.peer].device)
            for port in after.testbed.ports
        }
        for port in before.testbed.ports:
            far = before.testbed.ports[port.peer].device
            assert (port.device, before.interface(port), far) in wires


def test_a_testbed_that_links_cannot_tell_is_refused(tmp_path):
    rack = rack_of(dataclasses.replace(load_testbed("graphcc"), name="elsewhere"))
    with pytest.raises(InputError, match="closloop_testbed"):
        write_rack(rack, tmp_path / "rack.yml")


def test_a_testbed_file_beside_the_inventory(tmp_path):
    source = Path(load_testbed.__code__.co_filename).parent / "testbeds" / "rlcc-7.yml"
    (tmp_path / "ours.yml").write_text(source.read_text().replace("rlcc-7", "ours"))
    rack = rack_of(load_testbed(str(tmp_path / "ours.yml")))
    write_rack(rack, tmp_path / "rack.yml", testbed="ours.yml")
    assert load_rack(tmp_path / "rack.yml") == rack


def test_classes(tmp_path):
    text = RACK.replace(
        "    ansible_user",
        "    closloop_classes: [{name: rdma, weight: 70}, {name: tcp, weight: 30}]\n"
        "    ansible_user",
    )
    rack = load(tmp_path, text)
    assert rack.testbed.classes == (TrafficClass("rdma", 70), TrafficClass("tcp", 30))
    text = text.replace("ansible_host: 10.9.0.3", "closloop_platform: sonic")
    assert refused(tmp_path, text) == [
        "20 leaf1 lists 1 in closloop_queues, but a port needs 2 -> "
        "list the switch's queue number of each traffic class, like [3, 4]"
    ]
    text = text.replace("platform: sonic", "platform: sonic\n          closloop_queues: [3, 4]")
    assert load(tmp_path, text).access["leaf1"].queues == (3, 4)


def test_defaults(tmp_path):
    rack = load(tmp_path, RACK)
    assert rack.name == "lab"
    assert rack.safety == Safety()
    assert rack.collector is None
    assert rack.access["h1"] == Access("h1", "10.9.0.1", interfaces=("eth0",))
    assert [p.label for p in rack.testbed.ports_of["leaf1"]] == ["leaf1:eth0", "leaf1:eth1"]
    assert rack.interface(rack.testbed.ports_of["leaf1"][1]) == "swp2"


MERGED = """\
all:
  vars: {closloop_mtu: 1500B, closloop_buffer: 16MB, ansible_user: everyone, ansible_port: "2200"}
  hosts:
    h1: {ansible_host: 10.9.0.1}
    h2:
    leaf1: {ansible_user: leafs_own}
  children:
    lab:
      vars: {ansible_user: lab, ansible_become: yes, ansible_ssh_private_key_file: ~/.ssh/lab}
      children: {hosts: , leaves: }
    hosts:
      vars: {ansible_user: hosts, my_list: [1, 2]}
      hosts:
        h1:
          closloop_links:
            - {interface: eth0, peer: leaf1, peer_interface: a, rate: 1Gbps, delay: 1us}
        h2:
          closloop_links:
            - {interface: eth0, peer: leaf1, peer_interface: b, rate: 1Gbps, delay: 1us}
    zeta: {hosts: {h2: }, vars: {ansible_port: 3}}
    yota: {hosts: {h2: }, vars: {ansible_port: 2, ansible_group_priority: 5}}
leaves:
  hosts:
    leaf1:
      closloop_links:
        - {interface: a, peer: h1, peer_interface: eth0, rate: 1Gbps, delay: 1us}
        - {interface: b, peer: h2, peer_interface: eth0, rate: 1Gbps, delay: 1us}
webservers:
  hosts: {"www[01:50].example.com": }
"""


@pytest.mark.slow
def test_variables_are_merged_as_ansible_does(tmp_path):
    rack = load(tmp_path, MERGED)
    ansible = Path(sys.executable).parent / "ansible-inventory"
    if not ansible.exists():
        pytest.skip("no ansible-inventory: pip install 'closloop[hardware]'")
    shown = subprocess.run(
        [ansible, "-i", tmp_path / "lab.yml", "--list"],
        capture_output=True, check=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    theirs = json.loads(shown.stdout)["_meta"]["hostvars"]
    for name, access in rack.access.items():
        assert access.user == theirs[name]["ansible_user"]
        assert access.port == int(theirs[name]["ansible_port"])
        assert access.become == theirs[name]["ansible_become"]
        assert access.key_file == theirs[name]["ansible_ssh_private_key_file"]
    assert [rack.access[name].user for name in ("h1", "leaf1")] == ["hosts", "leafs_own"]
    assert [rack.access[name].port for name in ("h1", "h2")] == [2200, 2]
    assert rack.access["leaf1"].address == "leaf1"


def test_foreign_variables_may_be_anything(tmp_path):
    text = RACK.replace(
        "    ansible_user: root",
        "    ansible_user: root\n    theirs: !vault |\n      $ANSIBLE_VAULT;1.1\n      6162\n"
        "    defaults: &d {a: 1}\n    more: {<<: *d, b: '{{ lookup(\"x\") }}'}",
    )
    assert load(tmp_path, text) == load(tmp_path, RACK)


def test_safety_and_known_hosts(tmp_path):
    text = RACK.replace(
        "    ansible_user",
        "    closloop_known_hosts: keys/known\n"
        "    closloop_safety: {deadman: 10s, corridor: {max_drop_share: 0.25}}\n    ansible_user",
    )
    rack = load(tmp_path, text)
    assert rack.known_hosts_file == str(tmp_path / "keys" / "known")
    assert rack.safety == Safety(10.0, guardrails=Guardrails(max_drop_share=0.25))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "closloop_mtu", "closloop_mtuu",
            "3 unknown variable 'closloop_mtuu' -> did you mean 'closloop_mtu'? use one of",
        ),
        ("closloop_mtu: 1500B", "x: 1", "2 missing field 'closloop_mtu' -> add it"),
        ("closloop_mtu: 1500B", "closloop_mtu: 1500", "3 1500 is not a size with a unit -> write"),
        ("ansible_user: root", "x: 1", "9 missing field 'ansible_user' -> add it: who logs in"),
        (
            "ansible_user: root", "ansible_password: hunter2",
            "5 ansible_password is a password in a file -> remove it, and change the password",
        ),
        (
            "ansible_user: root", "ansible_become_pass: !vault x",
            "5 ansible_become_pass is a password in a file -> remove it",
        ),
        (
            "ansible_user: root", "ansible_user: '{{ me }}'",
            "5 templates are not evaluated here -> write the value itself",
        ),
        (
            "ansible_user: root", "ansible_ssh_common_args: -o StrictHostKeyChecking=no",
            "5 closloop does not read ansible_ssh_common_args -> write jump hosts",
        ),
        (
            "ansible_host: 10.9.0.1", "ansible_host: -oProxyCommand=x",
            "10 '-oProxyCommand=x' is not an address -> write an IP address or a host name",
        ),
        (
            "ansible_host: 10.9.0.1", "ansible_ssh_private_key_file: keys/id",
            "10 'keys/id' is a relative path -> write a path that begins with",
        ),
        (
            "ansible_host: 10.9.0.2", "ansible_host: 10.9.0.1",
            "14 h2 has the same address as h1, 10.9.0.1 port 22 -> correct one of the two",
        ),
        (
            "ansible_host: 10.9.0.1", "closloop_nic: roce",
            "10 h1: the RDMA device is not named -> add closloop_rdma_device",
        ),
        (
            "ansible_host: 10.9.0.1", "closloop_platform: sonic",
            "10 h1 is not a switch, but runs SONiC -> remove closloop_platform",
        ),
        (
            "ansible_host: 10.9.0.1", "closloop_platform: cumulus",
            "10 'closloop_platform' is 'cumulus' -> use linux, sonic",
        ),
        (
            "ansible_host: 10.9.0.1", "closloop_safety: {}",
            "10 closloop_safety applies to the whole rack -> move it to `vars` of group `all`",
        ),
        (
            "ansible_host: 10.9.0.1", "ansible_connection: local",
            "10 'ansible_connection' is 'local' -> use ssh, smart",
        ),
        ("    leaves:", "    leafs:", "1 no switch in the groups -> did you mean 'leaves'?"),
        (
            "    leaves:\n      hosts:", "    leaves:\n      host:",
            "18 group 'leaves' has an unknown part 'host' -> did you mean 'hosts'? use vars",
        ),
        (
            "interface: swp1, peer: h1", "interface: swp1, peer: h3",
            "22 leaf1: no device 'h3' in the groups -> put the device in its group",
        ),
        (
            "swp2, peer: h2, peer_interface: eth0", "swp2, peer: h2, peer_interface: eth1",
            "16 h2: eth0 is linked to leaf1:swp2, but that port says it is linked to h2:eth1",
        ),
        (
            "swp2, peer: h2, peer_interface: eth0", "swp2, peer: h2, peer_interface: eth1",
            "23 leaf1: swp2 is linked to h2:eth1, which h2 does not list -> list the link at h2",
        ),
        (
            "swp2, peer: h2, peer_interface: eth0, rate: 25Gbps",
            "swp2, peer: h2, peer_interface: eth0, rate: 10Gbps",
            "16 h2: the link at eth0 has a rate of 25Gbps, but 10Gbps at leaf1:swp2 -> write the",
        ),
        (
            "swp2, peer: h2, peer_interface: eth0, rate: 25Gbps, delay: 1us",
            "swp2, peer: h2, peer_interface: eth0, rate: 25Gbps",
            "23 leaf1: the link at swp2 has no delay -> add `delay`, or name the testbed",
        ),
        ("interface: swp2", "interface: swp1", "23 leaf1: a second link at swp1 -> a port has one"),
        (
            "interface: swp1, peer: h1", "interface: 'a; rm -rf /', peer: h1",
            "22 'a; rm -rf /' is not an interface -> write the operating system's name",
        ),
        ("closloop_buffer: 16MB", "closloop_buffer: 1KB", "4 a queue's part of the buffer of 1KB"),
        (
            "    closloop_mtu: 1500B", "    closloop_safety: {deadman: 0s}",
            "3 it is zero -> use more",
        ),
        (
            "    closloop_mtu: 1500B", "    closloop_safety: {corridor: {max_drop_share: 2.0}}",
            "3 2.0 is not a share -> use 0 to 1",
        ),
        ("        h1:\n", "        h1: &x\n", "9 anchor '&x' is not accepted -> remove it"),
        (
            "    closloop_mtu: 1500B", "    closloop_testbed: graphc",
            "3 unknown testbed 'graphc' -> did you mean 'graphcc'? known are",
        ),
        (
            "    closloop_mtu: 1500B", "    closloop_testbed: ./no.yml",
            "3 no testbed file ",
        ),
        (
            "    closloop_mtu: 1500B", "    closloop_testbed: rlcc-7",
            "3 h3 of testbed rlcc-7 is not in the inventory -> add it to group hosts",
        ),
        (
            "    closloop_mtu: 1500B", "    closloop_testbed: rlcc-7",
            "19 testbed rlcc-7 has no device 'leaf1' -> use the testbed's names",
        ),
        (
            "    closloop_mtu: 1500B", "    closloop_testbed: rlcc-7",
            "4 closloop_buffer is given by testbed rlcc-7 -> remove it",
        ),
    ],
)  # fmt: skip
def test_refusals(tmp_path, old, new, problem):
    assert old in RACK
    problems = refused(tmp_path, RACK.replace(old, new))
    assert any(found.startswith(problem) for found in problems), problems


def test_no_password_is_shown(tmp_path):
    text = RACK.replace("ansible_user: root", "ansible_password: hunter2")
    assert "hunter2" not in "\n".join(refused(tmp_path, text))


def test_every_problem_is_told_at_once(tmp_path):
    text = RACK.replace("ansible_host: 10.9.0.1", "ansible_port: 0").replace("25Gbps", "25G")
    assert len(refused(tmp_path, text)) == 5


def test_a_link_of_another_rate_than_the_testbeds(tmp_path):
    write_rack(rack_of(load_testbed("rlcc-7")), tmp_path / "rack.yml")
    text = (tmp_path / "rack.yml").read_text().replace("100Gbps", "40Gbps")
    problems = refused(tmp_path, text)
    assert problems[0].endswith(
        "h1: a rate of 40Gbps, but h1:eth0 of testbed rlcc-7 has 100Gbps -> "
        "correct it, or leave rate out: the testbed has it"
    )
    text = (tmp_path / "rack.yml").read_text().replace(", rate: 100Gbps, delay: 1.25us", "")
    assert load(tmp_path, text).testbed == load_testbed("rlcc-7")


def test_links_in_another_order_than_the_testbeds(tmp_path):
    write_rack(rack_of(load_testbed("rlcc-7")), tmp_path / "rack.yml")
    text = (tmp_path / "rack.yml").read_text()
    one = "peer: h1, peer_interface: swp0"
    two = "peer: h2, peer_interface: swp0"
    swapped = text.replace(one, "@").replace(two, one).replace("@", two)
    swapped = swapped.replace("peer: switch1, peer_interface: swp0", "@")
    swapped = swapped.replace(
        "peer: switch1, peer_interface: swp1", "peer: switch1, peer_interface: swp0"
    )
    swapped = swapped.replace("@", "peer: switch1, peer_interface: swp1")
    problems = refused(tmp_path, swapped)
    assert any("link 1 goes to h2, but switch1:eth0 of testbed rlcc-7 to h1" in p for p in problems)


def test_variables_in_folders_that_only_ansible_reads(tmp_path):
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "leaves.yml").write_text("theirs: 1\nclosloop_shape: true\n")
    with pytest.raises(InputError, match=r"leaves\.yml:2: closloop_shape is in a folder"):
        load(tmp_path, RACK)


def test_a_group_in_itself(tmp_path):
    text = RACK.replace(
        "    leaves:\n", "    leaves:\n      children: {x: {children: {leaves: }}}\n"
    )
    assert any("is inside itself" in problem for problem in refused(tmp_path, text))


@pytest.mark.slow
@pytest.mark.parametrize("name", known_testbeds())
def test_a_skeleton_is_an_inventory_with_placeholders(tmp_path, name):
    rack = load(tmp_path, skeleton(load_testbed(name), name))
    assert rack.testbed == load_testbed(name)
    assert all(is_example(access.address) for access in rack.access.values())
    assert isinstance(rack.testbed, Testbed)
    assert not is_example("10.0.0.1")
    assert not is_example("leaf1.example")


MULTI_RAIL = """
all:
  vars: {ansible_user: root, closloop_mtu: 1500B, closloop_buffer: 1MB}
  children:
    hosts:
      hosts:
        h1:
          closloop_nic: roce
          closloop_rdma_device: mlx5_0
          closloop_links:
            - {interface: eth0, peer: leaf1, peer_interface: swp1, rate: 25Gbps, delay: 1us}
            - {interface: eth1, peer: leaf1, peer_interface: swp2, rate: 25Gbps, delay: 1us, rdma_device: mlx5_1}
    leaves:
      hosts:
        leaf1:
          closloop_links:
            - {interface: swp1, peer: h1, peer_interface: eth0, rate: 25Gbps, delay: 1us}
            - {interface: swp2, peer: h1, peer_interface: eth1, rate: 25Gbps, delay: 1us}
"""  # noqa: E501


def test_each_nic_of_a_host_has_its_rdma_device(tmp_path):
    rack = load(tmp_path, MULTI_RAIL)
    access = rack.access["h1"]
    assert access.rdma_devices == ("mlx5_0", "mlx5_1")
    assert [access.rdma_device(name) for name in ("eth0", "eth1", "eth2")] == [
        "mlx5_0",
        "mlx5_1",
        "",
    ]
    write_rack(rack, tmp_path / "again.yml")
    assert load_rack(tmp_path / "again.yml") == rack
    half = MULTI_RAIL.replace("          closloop_rdma_device: mlx5_0\n", "")
    assert refused(tmp_path, half) == [
        "8 h1: the RDMA device is not named -> add closloop_rdma_device, its name in `rdma link`, "
        "like mlx5_0"
    ]


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("198.18.0.0/33", "does not appear to be an IPv4 or IPv6 network -> write an IPv4 network"),
        ("198.18.0.1/15", "has host bits set -> write an IPv4 network, like 198.18.0.0/15"),
        ("fd00::/8", "fd00::/8 cannot be used in a fabric -> write an IPv4 network"),
        ("0.0.0.0/0", "0.0.0.0/0 cannot be used in a fabric"),
        (
            "169.254.0.0/16",
            "SONiC does not pass addresses of 169.254.0.0/16 on to the ASIC -> write a network",
        ),
        ("198.18.0.0/30", "needs 8 addresses, and 198.18.0.0/30 has 4 -> give it a larger network"),
    ],
)
def test_a_fabrics_prefix_must_be_a_network_that_its_addresses_fit_in(tmp_path, prefix, said):
    text = MULTI_RAIL.replace("vars: {", f"vars: {{closloop_fabric_prefix: '{prefix}', ")
    (problem,) = refused(tmp_path, text)
    assert said in problem


def test_the_inventory_of_the_docs(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "inventory.md").read_text(encoding="utf-8")
    rack = load(tmp_path, page.partition("```yaml\n")[2].partition("```")[0])
    assert rack.access["leaf1"].platform == "sonic"
    assert rack.access["h1"].rdma_device("ens1f0") == "mlx5_0"
    assert rack.fabric_prefix == "198.18.0.0/15"
    assert rack.collector == Access(
        "metrics1", "10.20.0.5", user="admin", key_file="~/.ssh/rack", become=True
    )
    for name in (*DEVICE_NAMES, *RACK_NAMES):
        documented = f"`{name}`" in page
        assert documented or name.startswith("ansible_become_") or name == "ansible_connection"
