"""Builds a fabric of network namespaces, one per device, from the requests of its plan.

It runs in the guest, or in real time in the first process of the fabric's namespaces.
"""

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
from orchestration.datapath.samples import KernelFlowTables

if TYPE_CHECKING:
    from collectors.readers.flows import FlowTables

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_IFINFO = struct.Struct("=BxHiII")
# TCP's buffers, in guests and in each namespace of the machine's own kernel.
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
# Settings of each namespace of the machine's own kernel. A new namespace starts with the machine's
# settings, but here links have no addresses, and nothing but the trial may send.
_NAMESPACE_SYSCTLS = {
    **_BUFFERS,
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}
# The kernel's link watch runs once a second and processes at most a hundred changes each time.
# Waiting in virtual time costs nothing, so there is a second of it for each port.
_CARRIER_TRIES, _CARRIER_TRIES_PORT, _CARRIER_WAIT_S = 100, 10, 0.1


class NetlinkError(OSError):
    """The kernel refused a request; `index` is the request's position among those sent."""

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
    """Return a routing netlink socket of the current namespace, with buffers for large batches."""
    link = netlink.route_socket()
    so_sndbufforce, so_rcvbufforce = 32, 33
    link.setsockopt(socket.SOL_SOCKET, so_sndbufforce, 1 << 22)
    link.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, 1 << 22)
    return link


def send_requests(link: socket.socket, requests: Sequence[bytes]) -> None:
    """Send requests with few system calls; raise NetlinkError for the first refused one.

    Only the last request of a batch asks for an acknowledgement; the kernel reports errors anyway.
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
    packed, start, number = bytearray(), 0, 0
    for number, request in enumerate(batch, 1):
        start = len(packed)
        packed += request
        struct.pack_into("=I", packed, start + 8, number)
        packed += b"\0" * (-len(packed) % 4)
    (flags,) = struct.unpack_from("=H", packed, start + 6)
    struct.pack_into("=H", packed, start + 6, flags | netlink.NLM_F_ACK)
    link.send(packed)
    await_answer(link, number, link.recv(65_536), first)


def await_answer(link: socket.socket, last: int, answer: bytes, first: int = 0) -> None:
    """Receive until request number `last` has been answered.

    `answer` is what was received already. Requests of a batch are numbered from 1; `first` is the
    position of the batch's first request among all requests. Raises NetlinkError for the first
    refused one.
    """
    first_error: NetlinkError | None = None
    while True:
        for kind, flags, number, payload in messages(answer):
            if kind != NLMSG_ERROR:
                continue
            error, message = netlink.refusal(flags, payload)
            if error and first_error is None:
                printable = "".join(c for c in message if c.isprintable())
                first_error = NetlinkError(error, first + number - 1, printable)
            if number == last:
                if first_error is not None:
                    raise first_error
                return
        answer = link.recv(65_536)


def links_operational(link: socket.socket) -> bool:
    """Return whether every veth of the socket's namespace is operational (IF_OPER_UP).

    Interfaces below `FIRST_IFINDEX` are not looked at: the loopback, and devices that a kernel puts
    into every namespace.
    """
    ifla_operstate, if_oper_up = 16, b"\6"
    flags = netlink.NLM_F_REQUEST | netlink.NLM_F_DUMP
    link.send(netlink.message(netlink.RTM_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0), flags))
    all_up = True
    while True:
        for kind, _, _, payload in messages(link.recv(65_536)):
            if kind in (NLMSG_DONE, NLMSG_ERROR):
                return all_up and kind == NLMSG_DONE
            _, _, index, _, _ = _IFINFO.unpack_from(payload)
            state = netlink.attributes(payload, _IFINFO.size).get(ifla_operstate, if_oper_up)
            all_up = all_up and (index < FIRST_IFINDEX or state == if_oper_up)


def offloads_off(interfaces: Iterable[str]) -> list[str]:
    """Turn segmentation offloads off on interfaces of this namespace.

    Returns the offloads that are still on, as `INTERFACE OFFLOAD`.
    """
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
    """The namespaces of a job's devices, each with a netlink socket, in the plan's order.

    `number` has the index of each device's namespace by the device's name. `absent` has, by device,
    the sysctls that the machine's own kernel does not have. `offloads_on` are the offloads that
    could not be turned off.
    """

    def __init__(self, job: Job) -> None:
        real = job.trial.clock == REAL
        if not real:
            for name, value in _GLOBAL_SYSCTLS.items():
                write_sysctl(name, value)
        self.absent: dict[str, list[str]] = {}
        self.number = {plan.name: number for number, plan in enumerate(job.plan.namespaces)}
        self.sockets: list[socket.socket] = []
        self.offloads_on: list[str] = []
        for number, plan in enumerate(job.plan.namespaces):
            new_namespace(FIRST_NAMESPACE_FD + number)
            if real:
                if absent := write_present({**_NAMESPACE_SYSCTLS, **plan.sysctls}):
                    self.absent[plan.name] = absent
            else:
                for name, value in plan.sysctls.items():
                    write_sysctl(name, value)
            self.sockets.append(route_socket())
        send_requests(self.sockets[0], job.plan.links)
        for link, plan in zip(self.sockets, job.plan.namespaces, strict=True):
            send_requests(link, plan.links_up)
        ports = sum(len(plan.interfaces) for plan in job.plan.namespaces)
        self._wait_for_carriers(_CARRIER_TRIES + (0 if real else _CARRIER_TRIES_PORT * ports))
        for number, plan in enumerate(job.plan.namespaces):
            self.enter(number)
            still_on = offloads_off(plan.interfaces)
            self.offloads_on += [f"{plan.name} {offload}" for offload in still_on]
            send_requests(self.sockets[number], plan.requests)

    def _wait_for_carriers(self, tries: int) -> None:
        """Sleep until the kernel has noticed that all links are up; in a guest, in virtual time."""
        for link in self.sockets:
            while not links_operational(link):
                tries -= 1
                if not tries:
                    raise RuntimeError("a link of the fabric does not come up")
                time.sleep(_CARRIER_WAIT_S)

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the stamp on sysctls that the machine's kernel does not have."""
        from orchestration.backends.common.linux import absent_setting_findings

        return absent_setting_findings(self.absent)

    def enter(self, number: int) -> None:
        """Move this process into the namespace with this number."""
        enter_namespace(FIRST_NAMESPACE_FD + number)


def attach_flow_tables(
    job: Job, fabric: Fabric, observes: Collection[str]
) -> FlowTables | KernelFlowTables | None:
    """Return the flow tables of all switches, which count the flows of each queue.

    Returns None unless the job asks for them or the tuner `observes` their signals. closloop's data
    path keeps the tables itself; on Linux' fabric a BPF program does, one for all ports of a
    switch. Raises LoadError if the kernel refuses the program, NotReadyError if it could not be
    compiled.
    """
    if not (job.keep_flow_table or wants_flow_table(observes)):
        return None
    queues = [
        (ifindex, queue.klass)
        for (_, ifindex), queue in zip(job.plan.queue_locations, job.testbed.queues, strict=True)
    ]
    hosts = {
        socket.inet_aton(address): number
        for number, name in enumerate(job.testbed.hosts)
        for address in job.plan.host_addresses[name]
    }
    readings_per_slot = job.trial.samples_per_action
    if job.trial.fabric.kind != "linux" and not job.flow_object:
        return KernelFlowTables(queues, hosts, readings_per_slot)
    from collectors.readers.flows import FlowTables

    return FlowTables(_attach_programs(job, fabric), queues, hosts, readings_per_slot)


def _attach_programs(job: Job, fabric: Fabric) -> list[memoryview]:
    """Load the flow table's program once per switch, and attach it to the switch's ports.

    Returns the memory of each loaded program, which has the switch's table.
    """
    from orchestration.agent.bpf.elf import read_program
    from orchestration.agent.bpf.load import LoadedProgram

    if not job.flow_object:
        raise NotReadyError(
            f"tuner {job.trial.tuner.name!r} observes flows, and the flow table was not compiled",
            "closloop doctor shows what is missing",
        )
    program = read_program(Path(job.flow_object).read_bytes())
    ports: dict[int, list[int]] = {}
    for namespace, ifindex in dict.fromkeys(job.plan.queue_locations):
        ports.setdefault(namespace, []).append(ifindex)
    memories = []
    for namespace, ifindexes in ports.items():
        loaded = LoadedProgram(program, "flow_table")
        memories.append(memoryview(loaded.memory)[: program.data_bytes])
        fabric.enter(namespace)
        for ifindex in ifindexes:
            loaded.watch_departures(ifindex)
    return memories
