"""Two hosts and the wire between them, packet by packet, and a flow of DCTCP's program.

    python -m tests.hardware.dctcp_lab WISH

The hosts are namespaces of this kernel with a TUN interface each
(Documentation/networking/tuntap.rst). This process is what is between them: one port of a switch,
which passes on a packet when the one before it has been answered. So nothing goes by a clock: how
busy the machine is changes how long it takes, and not what is seen.

WISH is JSON: `control` (a name that the kernel has, or "program"), `packets` to pass on,
`limit_bytes` of the port's queue, and `marks`: {"share": of packets} or {"at": queue in bytes}.
It prints what was seen, as JSON. All that it makes ends with its process.
"""

import ctypes
import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
from collections import deque
from pathlib import Path

from collectors.bpf.compile import DCTCP, compiled
from orchestration.agent.bpf.congestion import Control, read_control
from orchestration.backends.common.linux import new_program_name

PORT, BLOCK, BUFFER = 7000, 1 << 16, 1 << 22
CLONE_NEWNET = 0x40000000
TUN, TUNSETIFF, IFF_TUN_NO_PI = "/dev/net/tun", 0x400454CA, 0x1001
MTU = 1500
ECN_MASK, ECN_CE = 3, 3
# Of struct tcp_info: 8 bytes, then 24 numbers of 32 bits, among which are these.
TCP_INFO_BYTES, SSTHRESH, CWND = 104, 26 - 8, 27 - 8
# What the kernel would do because time has passed: repeat what is not yet answered, and begin anew.
UNTIMED = {"tcp_early_retrans": "0", "tcp_slow_start_after_idle": "0"}
# So large that neither end's buffer is ever what a flow waits for.
BUFFERS = {"tcp_wmem": f"4096 {BUFFER} {BUFFER}", "tcp_rmem": f"4096 {BUFFER} {BUFFER}"}
RTO_MIN = "10s"
HANGS_S = 60
libc = ctypes.CDLL(None, use_errno=True)


class Host:
    """A network namespace with an interface whose packets this process reads and writes."""

    def __init__(self, own, other, control):
        assert libc.unshare(CLONE_NEWNET) == 0
        self.own, self.other = own, other
        self.tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.tun, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN_NO_PI))
        for line in (
            f"ip link set eth0 mtu {MTU} gso_max_segs 1 up",
            f"ip address add {own} dev eth0",
            f"ip route add {other} dev eth0 rto_min {RTO_MIN}",
        ):
            subprocess.run(line.split(), check=True)
        settings = {"tcp_ecn": "1", "tcp_congestion_control": control, **UNTIMED, **BUFFERS}
        for name, value in settings.items():
            Path("/proc/sys/net/ipv4", name).write_text(value)
        self.socket = socket.socket()
        self.socket.setblocking(False)
        # reset at the end: an orphan that still has data would keep namespace and program for long
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("2i", 1, 0))

    def packets(self):
        """Return the packets that the host has sent since."""
        found = []
        while True:
            try:
                packet = os.read(self.tun, MTU)
            except BlockingIOError:
                return found
            if packet[0] >> 4 == 4:  # no neighbour discovery of IPv6
                found.append(packet)

    def window(self):
        """Return the window and its threshold, in packets."""
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        numbers = struct.unpack_from("=24I", info, 8)
        return numbers[CWND - 1], numbers[SSTHRESH - 1]


class Port:
    """The switch's port: a queue that marks what comes, by its length or by chance."""

    def __init__(self, wish):
        self._limit, self._at = wish["limit_bytes"], wish["marks"].get("at")
        self._share, self._dice = wish["marks"].get("share"), random.Random(1)
        self._waiting, self.bytes = deque(), 0
        self.packets = self.marked = self.drops = 0

    def take(self, packet):
        if self.bytes + len(packet) > self._limit:
            self.drops += 1
            return
        if packet[1] & ECN_MASK:  # can be marked
            self.packets += 1
            if self._dice.random() < self._share if self._share else self.bytes > self._at:
                packet = marked(packet)
                self.marked += 1
        self.bytes += len(packet)
        self._waiting.append(packet)

    def give(self):
        if not self._waiting:
            return None
        packet = self._waiting.popleft()
        self.bytes -= len(packet)
        return packet


def marked(packet):
    """Return an IPv4 packet with CE, and with the sum of its header (RFC 1624)."""
    word, checksum = struct.unpack_from("!H8xH", packet)
    total = (~checksum & 0xFFFF) + (~word & 0xFFFF) + (word | ECN_CE)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    head = struct.pack("!H", word | ECN_CE) + packet[2:10] + struct.pack("!H", ~total & 0xFFFF)
    return head + packet[12:]


def run(wish, sender, receiver):
    """Pass packets on, and note each cut: the window before it, and the threshold after."""
    port, queue, cuts, idle, passed = Port(wish), [], [], 0, 0
    taken, data = None, bytes(BLOCK)
    while passed < wish["packets"]:
        for packet in sender.packets():
            port.take(packet)
        queue.append(port.bytes)
        packet = port.give()
        if packet is not None:
            os.write(receiver.tun, packet)
            passed += 1
        answers = receiver.packets()
        for answer in answers:
            before = sender.window()
            os.write(sender.tun, answer)
            after = sender.window()
            if after[1] != before[1]:
                cuts.append((passed, before[0], after[1]))
        try:
            if taken is None:
                taken, _ = receiver.socket.accept()
                taken.setblocking(False)
            while len(taken.recv(BLOCK)) == BLOCK:
                pass
        except BlockingIOError:
            pass
        try:
            while sender.socket.send(data):
                pass
        except (BlockingIOError, BrokenPipeError):  # it is full, or not yet connected
            pass
        if packet is None and not answers:
            # what a receiver acknowledges late, with more packets, comes by the kernel's timer
            idle += 1
            assert select.select([sender.tun, receiver.tun], [], [], HANGS_S)[0], "nothing comes"
    begin = len(queue) // 3
    return {
        "queue": queue[begin:],
        "drops": port.drops,
        "idle": idle,
        "cuts": [cut[1:] for cut in cuts],
        "seen": (port.packets, port.marked),
    }


def main():
    wish = json.loads(sys.argv[1])
    control, name = None, wish["control"]
    if name == "program":
        name = new_program_name()
        control = Control(read_control(compiled(DCTCP).read_bytes()), name)
    receiver = Host("10.9.0.2", "10.9.0.1", name)
    receiver.socket.bind(("", PORT))
    receiver.socket.listen()
    sender = Host("10.9.0.1", "10.9.0.2", name)
    sender.socket.connect_ex((receiver.own, PORT))
    seen = run(wish, sender, receiver)
    if control is not None:
        totals = control.totals()
        seen["totals"] = {**totals._asdict(), "mean_alpha": totals.mean_alpha}
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
