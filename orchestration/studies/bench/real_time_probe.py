"""Measures a rack in real time from within, as its controller. Prints one line of JSON.

python -m orchestration.studies.bench.real_time_probe INVENTORY
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from inventory.ansible import load_rack
from inventory.rack import Rack

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


def main() -> None:
    """INVENTORY"""
    rack = load_rack(Path(sys.argv[1]))
    print(json.dumps({"rtt_ns": round_trips(rack, "h1", "h3")}), flush=True)


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
