"""Stands for containerlab: nodes as containers of this machine, wired by a topology file.

    python clab_nodes.py FILE.clab.yml COMMAND...

Needs root's rights, a runtime and the image of a virtual rack's devices, in place of the one that
the lab's Containerfile builds. What it does is what containerlab's docs say of the fields that it
reads (kind linux): a container a node with the node's name as host name, its files bound, the
group's `cmd` as first process, and eth0 with its address at the management network's bridge; then a
veth a link with its MTU and the interfaces' names, up. Then COMMAND runs where the nodes are
reached, and its exit code is returned. All is gone with it.
"""

import os
import shlex
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

from ruamel.yaml import YAML

from orchestration.backends.emulated.host_kernel import own_namespaces_argv
from orchestration.backends.emulated.system import (
    enter_namespaces,
    mount,
    run_batch,
    unshare_mounts,
)
from orchestration.virtual_rack import containers, control_groups
from orchestration.virtual_rack.image import require_image
from orchestration.virtual_rack.isolation import FileTree, mount_tree

BRIDGE = "clab"


def main(file, command):
    """Do all of it in namespaces of its own, which the kernel ends; control groups are outside."""
    # built here, where mirrors are reached
    tree = require_image()
    group, words = control_groups.own_group(), [__file__, "inside", str(file), str(tree), *command]
    known = {
        containers.GROUP_VARIABLE: group,
        containers.RUNTIME_VARIABLE: containers.require_runtime(),
    }
    try:
        argv = [*own_namespaces_argv(Path(sys.executable)), *words]
        return subprocess.run(argv, env={**os.environ, **known}, check=False).returncode
    finally:
        control_groups.remove(group)


def inside(file, tree, command):
    containers.mount_with_control_groups()
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    lab = YAML(typ="safe", pure=True).load(file.read_text())
    subnet = ip_network(lab["mgmt"]["ipv4-subnet"])
    run_batch(
        "ip",
        [
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            f"address add {subnet[1]}/{subnet.prefixlen} dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ],
    )
    nodes = lab["topology"]["nodes"]
    pids = {}
    for number, name in enumerate(nodes):
        pids[name] = start(lab, name, file.parent, tree)
        peer = f"name eth0 netns {pids[name]}"
        run_batch(
            "ip",
            [
                f"link add m{number} type veth peer {peer}",
                f"link set m{number} master {BRIDGE} up",
            ],
        )
        address = f"{nodes[name]['mgmt-ipv4']}/{subnet.prefixlen}"
        within(pids[name], [f"address add {address} dev eth0", "link set eth0 up"])
    for link in lab["topology"]["links"]:
        ends = link["endpoints"]
        a, b = (
            f"name {end['interface']} mtu {link['mtu']} netns {pids[end['node']]}" for end in ends
        )
        run_batch("ip", [f"link add {a} type veth peer {b}"])
        for end in ends:
            within(pids[end["node"]], [f"link set {end['interface']} up"])
    return subprocess.run(command, check=False).returncode


def start(lab, name, folder, tree):
    """Start a node's container with its files; return its first process."""
    topology = lab["topology"]
    group = topology["groups"][topology["nodes"][name]["group"]]
    bound = [words.split(":")[:2] for words in topology["defaults"]["binds"]]
    files = [(there, folder / here.replace("__clabNodeName__", name)) for here, there in bound]
    told, tell = os.pipe()
    if os.fork() == 0:
        os.close(told)
        unshare_mounts()
        made = mount_tree(tree, {"/etc/hostname": (f"{name}\n", 0o644)})
        place = FileTree(made.path, made.upper, made.root, (*made.binds, *files))
        pid = containers.run_container(place, name, shlex.split(group["cmd"]))
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.close(tell)
    pid = os.read(told, 20)
    assert pid, f"{name} does not start"
    return int(pid)


def within(pid, lines):
    """Run lines of `ip` in a container's network namespace."""
    child = os.fork()
    if child == 0:
        enter_namespaces(pid, ["net"])
        run_batch("ip", lines)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, lines


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        sys.exit(inside(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
