"""Stands for containerlab: nodes as namespaces of this machine, wired by a topology file.

    python clab_nodes.py FILE.clab.yml COMMAND...

Needs root's rights. What it does is what containerlab's docs say of the fields that it reads (kind
linux): a container a node with the node's name as host name, its files bound, eth0 with its address
in the management network, a veth a link with its MTU and the interfaces' names, up, and the group's
`cmd` as first process. Then COMMAND runs where the nodes are reached, and its exit code is
returned. All is gone with it. The nodes' image is this machine's own file tree, and the management
network is a veth a node in place of a bridge, which the virtual-time kernel has not.
"""

import os
import shlex
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

from ruamel.yaml import YAML

from orchestration.backends.emulated.system import (
    MS_PRIVATE,
    MS_REC,
    bind,
    enter_root,
    mount,
    mount_kernel_files,
    run_batch,
    unshare,
)

PLACE = Path("/run/node")
OWN = ("run", "root", "tmp")


def main(file, command):
    unshare()
    first = os.fork()
    if first:
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    lab = YAML(typ="safe", pure=True).load(file.read_text())
    nodes = lab["topology"]["nodes"]
    pids, starts = {}, []
    for name in nodes:
        pids[name], start = begin(lab, name, file.parent)
        starts.append(start)
    run_batch("ip", wires(lab, pids))
    for start in starts:
        os.write(start, b"!")
    sys.stdout.flush()
    os._exit(subprocess.run(command, check=False).returncode)


def begin(lab, name, folder):
    """Fork a node; return the number of its first process, and where to write when it has links."""
    told, tell = os.pipe()
    waiting, start = os.pipe()
    if os.fork() == 0:
        unshare()
        pid = os.fork()
        if pid:
            os.write(tell, str(pid).encode())
            os._exit(0)
        live(lab, name, folder, waiting)
    return int(os.read(told, 20)), start


def live(lab, name, folder, waiting):
    topology = lab["topology"]
    group = topology["groups"][topology["nodes"][name]["group"]]
    files = [bound.split(":") for bound in topology["defaults"]["binds"]]
    enter_image(
        [(folder / here.replace("__clabNodeName__", name), there) for here, there, _ in files]
    )
    Path("/proc/sys/kernel/hostname").write_text(name)
    os.read(waiting, 1)
    names = ["lo", "eth0", *interfaces(lab, name)]
    address = topology["nodes"][name]["mgmt-ipv4"]
    lines = [f"address add {address}/32 dev eth0", *(f"link set {name} up" for name in names)]
    run_batch("ip", [*lines, f"route add {bridge_address(lab)}/32 dev eth0 src {address}"])
    log = os.open("/run/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    argv = shlex.split(group["cmd"])
    os.execvpe(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


def enter_image(files):
    """Make an overlay of the machine's file tree this process's root, with files bound."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    PLACE.mkdir(exist_ok=True)
    mount("tmpfs", str(PLACE), "tmpfs")
    upper, work, root = (PLACE / name for name in ("upper", "work", "root"))
    for made in (upper, work, root):
        made.mkdir()
    bound = [(path.read_bytes(), there) for path, there in files]
    for data, there in bound:
        (upper / there.lstrip("/")).parent.mkdir(exist_ok=True)
        (upper / there.lstrip("/")).write_bytes(data)
    mount("overlay", str(root), "overlay", options=f"lowerdir=/,upperdir={upper},workdir={work}")
    mount_kernel_files(str(root))
    bind("/dev", f"{root}/dev")
    mount("devpts", f"{root}/dev/pts", "devpts", options="mode=620,ptmxmode=666")
    for name in OWN:
        mount("tmpfs", f"{root}/{name}", "tmpfs", options="mode=755")
    enter_root(str(root))


def bridge_address(lab):
    return ip_network(lab["mgmt"]["ipv4-subnet"])[1]


def interfaces(lab, name):
    ends = (end for link in lab["topology"]["links"] for end in link["endpoints"])
    return [end["interface"] for end in ends if end["node"] == name]


def wires(lab, pids):
    """Yield the lines that lay the management network and the links."""
    bridge = bridge_address(lab)
    yield "link set lo up"
    yield f"address add {bridge}/32 dev lo"
    for number, (name, pid) in enumerate(pids.items()):
        address = lab["topology"]["nodes"][name]["mgmt-ipv4"]
        yield f"link add name m{number} type veth peer name eth0 netns {pid}"
        yield f"link set m{number} up"
        yield f"route add {address}/32 dev m{number} src {bridge}"
    for link in lab["topology"]["links"]:
        a, b = (
            f"name {end['interface']} mtu {link['mtu']} netns {pids[end['node']]}"
            for end in link["endpoints"]
        )
        yield f"link add {a} type veth peer {b}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
