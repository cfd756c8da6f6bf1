"""Two hosts and a switch between them, in namespaces of this kernel, and a flow of DCTCP's program.

    unshare --net --mount --pid --fork --kill-child python -m tests.hardware.dctcp_lab WISH

WISH is JSON: `control` (a name that the kernel has, or "program"), `mbps` of the switch's port,
`limit_bytes` of its queue, `seconds`, and `marks`: {"share": of packets} or {"at": queue in bytes}.
It prints what was seen, as JSON. All that it makes ends with its namespaces.
"""

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from collectors.bpf.compile import DCTCP, RED_LAW, compiled
from collectors.bpf.congestion import Control, read_control
from collectors.bpf.elf import read_program
from collectors.bpf.load import GPL, LoadedProgram
from collectors.readers.mark_agent import Marker, offsets
from orchestration.backends.emulated.namespaces import offloads_off
from orchestration.device.ethtool import ethtool
from orchestration.device.netlink import RouteSocket
from orchestration.device.qdiscs import qdiscs

NAME = "bpf_dctcp_lab"
PORT, BLOCK = 7000, 1 << 16
CLONE_NEWNET, SET_GRO = 0x40000000, 0x2C
# Of struct tcp_info: 8 bytes, then 24 numbers of 32 bits, among which are these.
TCP_INFO_BYTES, SSTHRESH, CWND = 104, 26 - 8, 27 - 8
libc = ctypes.CDLL(None, use_errno=True)


def run(*lines):
    for line in lines:
        subprocess.run(line.split(), check=True)


def inside(namespace):
    """Move this thread into a namespace, by its name."""
    with open(f"/run/netns/{namespace}") as opened:
        assert libc.setns(opened.fileno(), CLONE_NEWNET) == 0


def build(wish):
    run("mount -t tmpfs tmpfs /run", "mkdir -p /run/netns", "ip link set lo up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for number, host in enumerate(("h1", "h2"), start=1):
        port, net = f"s{number}", f"10.9.{number}"
        run(
            f"ip netns add {host}",
            f"ip link add {port} type veth peer name eth0 netns {host}",
            f"ip address add {net}.1/24 dev {port}",
            f"ip link set {port} up",
            f"ip -n {host} address add {net}.2/24 dev eth0",
            f"ip -n {host} link set eth0 up",
            f"ip -n {host} route add default via {net}.1",
        )
    assert offloads_off(["s1", "s2"]) == []
    run(
        f"tc qdisc add dev s2 root handle 2: tbf rate {wish['mbps']}mbit burst 2000 limit 20000",
        f"tc qdisc add dev s2 parent 2:1 handle 3: bfifo limit {wish['limit_bytes']}",
    )


def settings(host, control):
    inside(host)
    assert offloads_off(["eth0"]) == []
    # packets arrive in a kernel thread: some kernels run no program in their first process's time,
    # which softirqs may take. veth has such threads where GRO is on; it finds nothing to merge here
    ethtool("eth0", struct.pack("=II", SET_GRO, 1))
    threads = ["sh", "-c", "echo 1 > /sys/class/net/eth0/threaded"]
    subprocess.run(["ip", "netns", "exec", host, *threads], check=True)
    Path("/proc/sys/net/ipv4/tcp_ecn").write_text("1")
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text(control)


def receive(ready):
    inside("h2")
    with socket.create_server(("", PORT)) as server:
        ready.set()
        taken, _ = server.accept()
        while taken.recv(BLOCK):
            pass


def send(until_s, seen):
    """Send as fast as it goes, and note each cut: the window before it, and the threshold after."""
    inside("h1")
    sender = socket.create_connection(("10.9.2.2", PORT))
    sender.setblocking(False)
    data, last = bytes(BLOCK), (0, 0)
    while time.monotonic() < until_s:
        try:
            sender.send(data)
        except BlockingIOError:
            time.sleep(20e-6)
        info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        numbers = struct.unpack_from("=24I", info, 8)
        now = numbers[CWND - 1], numbers[SSTHRESH - 1]
        if now[1] != last[1] and last[0]:
            seen.append((last[0], now[1]))
        last = now
    sender.close()


def main():
    wish = json.loads(sys.argv[1])
    build(wish)
    ifindex = socket.if_nametoindex("s2")
    control, name = None, wish["control"]
    if name == "program":
        control = Control(read_control(compiled(DCTCP).read_bytes()), NAME)
        name = NAME
    if "share" in wish["marks"]:
        source = Path(__file__).with_name("share_marks.bpf.c")
        flag = f"-DSHARE_PERMILLE={round(wish['marks']['share'] * 1000)}"
        marks = LoadedProgram(read_program(compiled(source, (flag,)).read_bytes()), "share_marks")
        marks.link_departures(ifindex)
    else:
        marks = LoadedProgram(read_program(compiled(RED_LAW).read_bytes()), "red_law", GPL)
        at = wish["marks"]["at"]
        Marker(marks, ifindex, offsets(), wish["limit_bytes"]).set(at, at, 2**32 - 1)
    for host in ("h1", "h2"):
        changer = threading.Thread(target=settings, args=(host, name))
        changer.start()
        changer.join()
    ready, cuts = threading.Event(), []
    begin_s = time.monotonic()
    end_s = begin_s + wish["seconds"]
    receiver = threading.Thread(target=receive, args=(ready,), daemon=True)
    receiver.start()
    ready.wait()
    sender = threading.Thread(target=send, args=(end_s, cuts), daemon=True)
    sender.start()
    queue, sent = [], []
    with RouteSocket() as netlink:
        while time.monotonic() < end_s:
            (found,) = (
                one for one in qdiscs(netlink) if (one.ifindex, one.kind) == (ifindex, "bfifo")
            )
            if time.monotonic() > begin_s + wish["seconds"] / 3:
                queue.append(found.backlog)
                sent.append((time.monotonic(), found.bytes_, found.packets, found.drops))
            time.sleep(1e-3)
    sender.join()
    first, last = sent[0], sent[-1]
    seen = {
        "queue": queue,
        "goodput": (last[1] - first[1])
        * 8
        * 1448
        / 1514
        / (last[0] - first[0])
        / 1e6
        / wish["mbps"],
        "drops": last[3] - first[3],
        "cuts": cuts,
    }
    if control is not None:
        totals = control.totals()
        seen["totals"] = {**totals._asdict(), "mean_alpha": totals.mean_alpha}
    if "share" in wish["marks"]:
        seen["seen"] = struct.unpack_from("=2Q", marks.memory)
    print(json.dumps(seen))


if __name__ == "__main__":
    sys.stdout.flush()
    main()
    os._exit(0)
