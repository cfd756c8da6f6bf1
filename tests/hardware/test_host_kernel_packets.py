"""This machine's kernel: it marks by RED's straight line where a program does, and it forwards."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestration.backends.emulated.forwarding import measure
from orchestration.core.marking_probability import MarkingProbability

sys.path.insert(0, str(Path(__file__).parent))

from machine_state import machine, nothing_stays


def kernel():
    return tuple(int(word) for word in re.findall(r"\d+", platform.release())[:2])


pytestmark = [pytest.mark.root, pytest.mark.usefixtures("own_machine")]

# Runs in a network namespace of its own. A shaper of 1 kB/s keeps what is sent, so the queue grows
# by a frame a packet; what each one finds there is read before it is sent.
SCRIPT = """
import base64
import json
import socket
import subprocess
import sys

from collectors.bpf.compile import RED_LAW, compiled
from orchestration.agent.linux_switch.marks import MarkedQueues
from orchestration.agent.linux import qdiscs
from orchestration.agent.main import OperationError

for line in (
    "ip link add out type veth peer name far", "ip link set far up",
    "ip link set out up", "ip address add 10.0.0.1/24 dev out",
    "ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev out",
    "tc qdisc add dev out root handle 2: tbf rate 8kbit burst 1600 limit 3000",
    "tc qdisc add dev out parent 2:1 handle 3: bfifo limit 4000000",
):
    subprocess.run(line.split(), check=True)
queues = MarkedQueues()
program = base64.b64encode(compiled(RED_LAW).read_bytes()).decode()
opened = queues.open({"queues": [["out", qdiscs.LEAF_HANDLE]], "program": program})
assert [*opened["rows"][0][3:]] == [0, 0, 4_000_000, 4_000_000, 2**32 - 1], opened
kmin, kmax, share = json.loads(sys.argv[1])
queues.set({"changes": [[0, kmin, kmax, share]]})
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
found = []


def send(count, tos):
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    for _ in range(count):
        before = queues.read({})["rows"][0]
        sender.sendto(bytes(1000), ("10.0.0.2", 9))
        after = queues.read({})["rows"][0]
        found.append([before[0], after[3] - before[3], after[0] - before[0]])


send(600, 2)
not_capable = len(found)
send(5, 0)
assert not any(row[1] for row in found[not_capable:]), found[not_capable:]
for change in ([0, 9000, 3000, 1], [0, 3000, 9000, 0]):
    try:
        queues.set({"changes": [change]})
    except OperationError as error:
        assert "refuses" in str(error)
    else:
        raise AssertionError(change)
# only the root's queue is marked, and it is as it was without the program
queues.close()
print(json.dumps(found[:not_capable]))
"""


def test_what_the_machine_forwards_is_measured_and_nothing_stays():
    before = machine()
    found = measure(0.3)
    assert found.hops_per_s > 1000
    assert found.judged == (kernel() >= (6, 6))
    nothing_stays(before)


@pytest.mark.skipif(kernel() < (6, 6), reason="a program at a port takes Linux 6.6 (tcx)")
def test_the_share_of_marks_is_the_straight_line_at_the_queue_that_a_packet_finds():
    law = MarkingProbability(kmin_bytes=100_000, kmax_bytes=500_000, pmax=0.5)
    numbers = json.dumps([law.kmin_bytes, law.kmax_bytes, 2**31])
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SCRIPT, numbers],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    queue, marked, grew = np.array(json.loads(done.stdout)).T
    # a frame of 1042 bytes a packet, but for the few that the shaper lets go meanwhile
    assert np.median(grew) == 1042
    assert queue[-1] > law.kmax_bytes + 50_000
    # the shaper may have let one packet go between reading and sending
    sure = 2 * 1042
    assert marked[queue < law.kmin_bytes].sum() == 0
    assert marked[queue >= law.kmax_bytes + sure].all()
    ramp = (queue >= law.kmin_bytes) & (queue < law.kmax_bytes)
    expected = law.line(queue[ramp])
    deviation = np.sqrt((expected * (1 - expected)).sum())
    assert abs(marked[ramp].sum() - expected.sum()) < 4 * deviation
    # it rises along the ramp: the upper half has three quarters of the marks
    upper = queue[ramp] >= (law.kmin_bytes + law.kmax_bytes) / 2
    assert marked[ramp][upper].sum() > marked[ramp][~upper].sum()
