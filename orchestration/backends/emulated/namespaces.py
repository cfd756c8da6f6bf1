"""Makes a fabric of network namespaces, in the guest: namespaces, their sockets, their links."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.agent.linux import ethtool, netlink
from orchestration.agent.linux.kernel import write_present
from orchestration.agent.linux.netlink import NLMSG_DONE, NLMSG_ERROR, messages
from orchestration.backends.emulated.job import FIRST_IFINDEX, FIRST_NAMESPACE_FD, Job
from orchestration.backends.emulated.system import unshare_network
from orchestration.core.errors import NotReadyError
from orchestration.core.signals import wants_flow_table
from orchestration.core.trial import REAL
from orchestration.datapath.samples import OwnFlowTables

if TYPE_CHECKING:
    from collectors.readers.flows import FlowTables

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_IFINFO = struct.Struct("=BxHiII")
# TCP's buffers, in guests and of each namespace of the machine.
_BUFFERS = {
    "net/core/somaxconn": "65535",
    "net/ipv4/tcp_rmem": "4096 16777216 134217728",
    "net/ipv4/tcp_wmem": "4096 8388608 134217728",
}
# Settings of the whole guest, written before the namespaces copy them.
_GLOBAL_SYSCTLS = {
    **_BUFFERS,
    "fs/nr_open": "2000000",
    "net/core/netdev_max_backlog": "10000000",
    "net/core/rmem_max": "268435456",
    "net/core/wmem_max": "268435456",
    "net/ipv4/tcp_allowed_congestion_control": "reno cubic dctcp bbr",
    "net/ipv4/tcp_congestion_control": "dctcp",
    "net/ipv4/tcp_mem": "1000000 2000000 4000000",
}
# Settings of each namespace of the machine's own kernel, which begins with the machine's: links are
# unnumbered, and nothing but the trial sends.
_OF_NAMESPACE = {
    **_BUFFERS,
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}
# The kernel's link watch runs once a second, and may take no more than a hundred changes each time.
# Virtual time is no loss, so each port is given a second of it.
_CARRIER_TRIES, _CARRIER_TRIES_PORT, _CARRIER_WAIT_S = 100, 10, 0.1


class NetlinkError(OSError):
    """The kernel refused a request; `index` is its place in the batch."""

    def __init__(self, number: int, index: int, reason: str) -> None:
        super().__init__(number, f"request {index}: {os.strerror(number)} {reason}")
        self.index = index


def new_namespace(fd: int) -> None:
    """Move this process into a new network namespace and keep it open at descriptor `fd`."""
    unshare_network()
    opened = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.dup2(opened, fd, inheritable=True)
    os.close(opened)


def enter_namespace(fd: int) -> None:
    """Move this process into the namespace open at `fd`."""
    if _libc.setns(fd, _CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), f"setns to descriptor {fd}")


def route_socket() -> socket.socket:
    """Return a routing netlink socket of the current namespace, with room for large batches."""
    made = netlink.route_socket()
    so_sndbufforce, so_rcvbufforce = 32, 33
    made.setsockopt(socket.SOL_SOCKET, so_sndbufforce, 1 << 22)
    made.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, 1 << 22)
    return made


def send_requests(link: socket.socket, requests: Sequence[bytes]) -> None:
    """Send requests in few system calls; raise NetlinkError for the first one refused.

    Only the last request of a batch asks for an acknowledgement; errors come without asking.
    """
    batch: list[bytes] = []
    first, size = 0, 0
    for index, request in enumerate(requests):
        batch.append(request)
        size += len(request)
        if size > 200_000 or index == len(requests) - 1:
            _send_batch(link, batch, first)
            batch, first, size = [], index + 1, 0


def _send_batch(link: socket.socket, batch: Iterable[bytes], first: int) -> None:
    packed, at, number = bytearray(), 0, 0
    for number, request in enumerate(batch, 1):
        at = len(packed)
        packed += request
        struct.pack_into("=I", packed, at + 8, number)
        packed += b"\0" * (-len(packed) % 4)
    (flags,) = struct.unpack_from("=H", packed, at + 6)
    struct.pack_into("=H", packed, at + 6, flags | netlink.NLM_F_ACK)
    link.send(packed)
    await_answer(link, number, link.recv(65_536), first)


def await_answer(link: socket.socket, last: int, answer: bytes, first: int = 0) -> None:
    """Receive until request number `last` has been answered; `answer` is what was received already.

    Requests of a batch are numbered from 1. Raises NetlinkError for the first one refused; `first`
    is the position of the batch among all requests.
    """
    refused: NetlinkError | None = None
    while True:
        for kind, flags, number, payload in messages(answer):
            if kind != NLMSG_ERROR:
                continue
            error, said = netlink.refusal(flags, payload)
            if error and refused is None:
                printable = "".join(c for c in said if c.isprintable())
                refused = NetlinkError(error, first + number - 1, printable)
            if number == last:
                if refused is not None:
                    raise refused
                return
        answer = link.recv(65_536)


def links_operational(link: socket.socket) -> bool:
    """Return whether every veth of the socket's namespace is operational (IF_OPER_UP).

    Below `FIRST_IFINDEX` are the loopback and devices that a kernel puts into every namespace.
    """
    ifla_operstate, if_oper_up = 16, b"\6"
    flags = netlink.NLM_F_REQUEST | netlink.NLM_F_DUMP
    link.send(netlink.message(netlink.RTM_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0), flags))
    good = True
    while True:
        for kind, _, _, payload in messages(link.recv(65_536)):
            if kind in (NLMSG_DONE, NLMSG_ERROR):
                return good and kind == NLMSG_DONE
            _, _, index, _, _ = _IFINFO.unpack_from(payload)
            state = netlink.attributes(payload, _IFINFO.size).get(ifla_operstate, if_oper_up)
            good = good and (index < FIRST_IFINDEX or state == if_oper_up)


def offloads_off(interfaces: Iterable[str]) -> list[str]:
    """Turn segmentation offloads off on interfaces of this namespace; return those still on."""
    still_on = []
    for interface in interfaces:
        for name in ethtool.OFFLOADS:
            ethtool.turn_off(interface, name)
        still_on += [f"{interface} {name}" for name in ethtool.offloads_on(interface)]
    return still_on


def write_sysctl(name: str, value: str) -> None:
    """Write one sysctl of this namespace."""
    with open(f"/proc/sys/{name}", "w") as file:
        file.write(value)


class Fabric:
    """The namespaces with their sockets. Building them takes no virtual time.

    `absent` has the settings, by device, that the machine's own kernel does not have.
    """

    def __init__(self, job: Job) -> None:
        real = job.trial.clock == REAL
        if not real:
            for name, value in _GLOBAL_SYSCTLS.items():
                write_sysctl(name, value)
        self.absent: dict[str, list[str]] = {}
        self.number = {item.name: place for place, item in enumerate(job.plan.namespaces)}
        self.sockets: list[socket.socket] = []
        self.offloads_on: list[str] = []
        for place, item in enumerate(job.plan.namespaces):
            new_namespace(FIRST_NAMESPACE_FD + place)
            if real:
                if absent := write_present({**_OF_NAMESPACE, **item.sysctls}):
                    self.absent[item.name] = absent
            else:
                for name, value in item.sysctls.items():
                    write_sysctl(name, value)
            self.sockets.append(route_socket())
        send_requests(self.sockets[0], job.plan.links)
        for place, item in enumerate(job.plan.namespaces):
            send_requests(self.sockets[place], item.links_up)
        ports = sum(len(item.interfaces) for item in job.plan.namespaces)
        self._wait_for_carriers(_CARRIER_TRIES + (0 if real else _CARRIER_TRIES_PORT * ports))
        for place, item in enumerate(job.plan.namespaces):
            self.enter(place)
            on = offloads_off(item.interfaces)
            self.offloads_on += [f"{item.name} {what}" for what in on]
            send_requests(self.sockets[place], item.requests)

    def _wait_for_carriers(self, tries: int) -> None:
        """Let virtual time pass until the kernel has noticed that every link is up."""
        for link in self.sockets:
            while not links_operational(link):
                tries -= 1
                if not tries:
                    raise RuntimeError("a link of the fabric does not come up")
                time.sleep(_CARRIER_WAIT_S)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the stamp on settings that the machine's kernel does not have."""
        from orchestration.backends.common.linux import absent_setting_findings

        return absent_setting_findings(self.absent)

    def enter(self, place: int) -> None:
        """Move this process into a device's namespace."""
        enter_namespace(FIRST_NAMESPACE_FD + place)


def attach_flow_tables(
    job: Job, fabric: Fabric, observes: Collection[str]
) -> FlowTables | OwnFlowTables | None:
    """Return the flow tables of all switches, one each, with the flows of all ports with queues.

    Returns None unless the job asks for them or the tuner `observes` their signals. The data path
    of our own keeps them itself; on Linux' fabric a program does, which a switch's ports share.
    Raises LoadError if the kernel refuses, NotReadyError if the program could not be compiled.
    """
    if not (job.keep_flow_table or wants_flow_table(observes)):
        return None
    places = [
        (ifindex, queue.klass)
        for (_, ifindex), queue in zip(job.plan.queue_places, job.testbed.queues, strict=True)
    ]
    hosts = {
        socket.inet_aton(address): number
        for number, name in enumerate(job.testbed.hosts)
        for address in job.plan.host_addresses[name]
    }
    readings_per_slot = job.trial.samples_per_action
    if job.trial.fabric.kind != "linux" and not job.flow_object:
        return OwnFlowTables(places, hosts, readings_per_slot)
    from collectors.readers.flows import FlowTables

    return FlowTables(_watched(job, fabric), places, hosts, readings_per_slot)


def _watched(job: Job, fabric: Fabric) -> list[memoryview]:
    """Attach the program to all ports; return its memories."""
    from orchestration.agent.bpf.elf import read_program
    from orchestration.agent.bpf.load import LoadedProgram

    if not job.flow_object:
        raise NotReadyError(
            f"tuner {job.trial.tuner.name!r} observes flows, and the flow table was not compiled",
            "closloop doctor says what is missing",
        )
    program = read_program(Path(job.flow_object).read_bytes())
    ports: dict[int, list[int]] = {}
    for place, ifindex in dict.fromkeys(job.plan.queue_places):
        ports.setdefault(place, []).append(ifindex)
    memories = []
    for place, ifindexes in ports.items():
        loaded = LoadedProgram(program, "flow_table")
        memories.append(memoryview(loaded.memory)[: program.data_bytes])
        fabric.enter(place)
        for ifindex in ifindexes:
            loaded.watch_departures(ifindex)
    return memories
