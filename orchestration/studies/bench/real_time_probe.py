"""Measures a rack in real time from within, as its controller. Prints one line of JSON.

python -m orchestration.studies.bench.real_time_probe INVENTORY
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from inventory.ansible import load_rack
from inventory.rack import Rack
from orchestration.backends.hardware.backend import make_switch
from orchestration.backends.hardware.switches import Request
from orchestration.device.client import AgentClient

_PINGS, _EVERY_S = 200, 0.01
# Prints the round-trip times of ICMP echoes in ns; a program of the standard library.
_PING = """
import socket, struct, sys, time
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
raw.settimeout(1)
times = []
for number in range({count}):
    data = struct.pack("!BBHHH", 8, 0, 0, 77, number) + bytes(56)
    words = struct.unpack("!32H", data)
    total = sum(words)
    total = (total >> 16) + (total & 0xffff)
    check = ~(total + (total >> 16)) & 0xffff
    begin = time.monotonic_ns()
    raw.sendto(data[:2] + struct.pack("!H", check) + data[4:], ("{address}", 0))
    while struct.unpack("!HH", raw.recv(2048)[24:28]) != (77, number):
        pass
    times.append(time.monotonic_ns() - begin)
    time.sleep({every})
print(times)
"""


# Thresholds at which marks are counted, and how the queue is led over them, frame by frame.
KMIN_BYTES, KMAX_BYTES, PMAX = 30_000, 120_000, 0.2
_FRAME_BYTES, _PAYLOAD_BYTES = 1514, 1472
_LEVELS, _HOLDS, _HOLD_S = 24, 6, 0.25
# Full frames that a switch may mark: as many as the NIC takes, or as each line of input says.
# Nobody listens, which a sender without a connection is not told. It ends with its input.
_FRAMES = """
import select, socket, sys
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
data, to = bytes({payload}), ("{address}", 9)
while not {by_line} and not select.select([sys.stdin], [], [], 0)[0]:
    made.sendto(data, to)
for line in sys.stdin:
    for _ in range(int(line)):
        made.sendto(data, to)
"""


def main() -> None:
    """INVENTORY"""
    rack = load_rack(Path(sys.argv[1]))
    found = {"rtt_ns": round_trips(rack, "h1", "h3"), "marks": marks(rack)}
    print(json.dumps(found), flush=True)


def marks(rack: Rack) -> dict[str, Any]:
    """Lead the queue towards h2 over the thresholds; return what was read before and after holds.

    h1 sends at line rate, so that each departure is followed by an arrival; h3 adds frames. A
    reading is [bytes in the queue, packets sent, packets marked].
    """
    leaf = rack.testbed.edges[0]
    switch = make_switch(rack, leaf)
    agent = AgentClient(rack.access[leaf], rack.known_hosts_file, switch.services)
    queues = [queue for queue in rack.testbed.queues if queue.device == leaf]
    place = next(n for n, q in enumerate(queues) if rack.testbed.peer_device(q).name == "h2")

    def asked(request: Request) -> list[int]:
        reading = switch.reading(agent.call(request[0], **request[1]))
        columns = (reading.qlen_bytes, reading.tx_packets, reading.marked_packets)
        return [int(column[place]) for column in columns]

    asked(switch.open_request())
    law = (np.array([value]) for value in (place, KMIN_BYTES, KMAX_BYTES, PMAX))
    asked(switch.set_request(*law))
    line = _frames(rack, "h1", by_line=False)
    more = _frames(rack, "h3", by_line=True)
    assert more.stdin is not None
    holds = []
    try:
        time.sleep(1)
        for level in range(_LEVELS):
            wanted = round(1.15 * KMAX_BYTES * level / (_LEVELS - 1))
            for _ in range(_HOLDS):
                if frames := max(0, wanted - asked(switch.read_request())[0]) // _FRAME_BYTES:
                    more.stdin.write(f"{frames}\n")
                    more.stdin.flush()
                    time.sleep(_HOLD_S)
                before = asked(switch.read_request())
                time.sleep(_HOLD_S)
                holds.append([before, asked(switch.read_request())])
    finally:
        for program in (line, more):
            program.communicate()
        agent.close()
    return {"holds": holds, "line": "red" in rack.access[leaf].lacks}


def _frames(rack: Rack, host: str, *, by_line: bool) -> subprocess.Popen[str]:
    source = _FRAMES.format(address=address_of(rack, "h2"), payload=_PAYLOAD_BYTES, by_line=by_line)
    argv = ["ssh", host, f"python3 -u -c {shlex.quote(source)}"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)


def address_of(rack: Rack, host: str) -> str:
    """Return the address of a host's first NIC."""
    return str(rack.addresses.nics[rack.testbed.ports_of[host][0].index])


def round_trips(rack: Rack, src: str, dst: str) -> list[int]:
    """Ping from one host to another; return the times in ns."""
    source = _PING.format(count=_PINGS, address=address_of(rack, dst), every=_EVERY_S)
    done = subprocess.run(
        ["ssh", src, "python3", "-"], input=source, capture_output=True, text=True, check=True
    )
    return [int(number) for number in re.findall(r"\d+", done.stdout)]


if __name__ == "__main__":
    main()
