"""Counters by learned places are those of a full reading, also after qdiscs have changed."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.backends.emulated.host_kernel import run_in_namespaces
from orchestration.virtual_rack.folder import python_path

pytestmark = [pytest.mark.root]

COMPARED = """
import socket
import subprocess

from orchestration.agent.linux.netlink import RouteSocket
from orchestration.agent.linux.qdisc_counters import CounterReader
from orchestration.agent.linux.qdiscs import qdiscs


def run(line):
    subprocess.run(line.split(), check=True)


def full():
    found = {(q.ifindex, q.handle): q for q in qdiscs(route)}
    return [
        (found[p].backlog, found[p].bytes_, found[p].packets, found[p].drops) for p in places
    ]


route = RouteSocket()
run("ip link set lo up")
for number in range(40):
    run(f"ip link add a{number} type veth peer name b{number}")
    run(f"ip link set a{number} up")
    run(f"ip link set b{number} up")
    run(f"ip address add 10.0.{number}.1/24 dev a{number}")
    run(f"tc qdisc add dev a{number} root handle 2: tbf rate 1mbit burst 2000 limit 30000")
    run(f"tc qdisc add dev a{number} parent 2:1 handle 3: bfifo limit 4000")
places = [(socket.if_nametoindex(f"a{number}"), 0x30000) for number in range(39, -1, -1)]
reader = CounterReader(places)
assert reader.read() == full()
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
for number in range(40):
    for _ in range(number):
        sender.sendto(bytes(500), (f"10.0.{number}.255", 9))
import time
time.sleep(0.6)  # all has left that was not dropped
said = reader.read()
assert said == full(), (said, full())
packets = [row[2] for row in said]
assert packets[0] > packets[-1], packets
assert said[0][3] > 0 and said[-1][3] == 0, said  # dropped
# other qdiscs before and between them: all places move
run("tc qdisc replace dev b3 root handle 7: bfifo limit 5000")
run("tc qdisc del dev a1 root")
run("tc qdisc add dev a1 root handle 2: tbf rate 1mbit burst 2000 limit 30000")
run("tc qdisc add dev a1 parent 2:1 handle 3: bfifo limit 4000")
assert reader.read() == full()
assert CounterReader(()).read() == []
run("tc qdisc del dev a5 root")
try:
    reader.read()
except KeyError as error:
    assert error.args[0] == (socket.if_nametoindex("a5"), 0x30000)
else:
    raise AssertionError("a queue that is gone was read")
print("same")
"""


MARKED = """
import base64
import subprocess

from collectors.bpf.compile import RED_LAW, compiled
from orchestration.agent.linux_switch.marks import MarkedQueues
from orchestration.agent.linux import qdiscs

leaf = qdiscs.leaf_handle(0)
for number in range(3):
    for line in (
        f"ip link add p{number} type veth peer name q{number}",
        f"ip link set p{number} up",
        f"tc qdisc add dev p{number} root handle 2: tbf rate 1gbit burst 20k limit 1000000",
        f"tc qdisc add dev p{number} parent 2:1 handle {leaf >> 16:x}: bfifo limit 1000000",
    ):
        subprocess.run(line.split(), check=True)
queues = MarkedQueues()
program = base64.b64encode(compiled(RED_LAW).read_bytes()).decode()
queues.open({"queues": [(f"p{number}", leaf) for number in range(3)], "program": program})
for _ in range(5):
    queues.read({})
queues.close()
print("read")
"""


def apart(program):
    """Run a program in namespaces of its own."""
    own = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"]
    return subprocess.run(
        [*own, sys.executable, "-P", "-c", program],
        env={"PYTHONPATH": python_path(), "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_counters_by_places_are_those_of_a_full_reading():
    done = apart(COMPARED)
    assert done.stdout == "same\n", done.stderr


def test_marked_ports_are_read_in_namespaces_of_their_own():
    before = {path.name for path in Path("/sys/class/net").iterdir()}
    done = apart(MARKED)
    assert done.stdout == "read\n", done.stderr
    assert {path.name for path in Path("/sys/class/net").iterdir()} == before
    with pytest.raises(RuntimeError):
        run_in_namespaces(("--net",), "orchestration.backends.emulated.forwarding", "many")
