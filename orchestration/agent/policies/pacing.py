"""A learned policy that paces this host's TCP connections: a BPF program at the root control group.

The program is orchestration/policies/pacing/pacing.bpf.c, compiled by the controller. A version of
a policy has

    {"kind": "pacing", "name", "model", "code": base64, "references", "maps", "data_bytes",
     "config": base64, "interfaces"}

The program's name in the kernel contains the model's hash, and the program stays when the agent
ends. A new program replaces the previous one in one step, and treats the connections that the
previous one paced as new flows. When a program is removed without a new one, its connections get
back the SO_MAX_PACING_RATE that they had before, through copies of their processes' descriptors
(pidfd_getfd, Linux 5.6).
"""

from __future__ import annotations

import base64
import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ..bpf import cgroup
from ..bpf.elf import Program
from ..bpf.load import (
    LRU_HASH,
    SOCK_OPS,
    LoadError,
    create_map,
    data_map,
    insert_entry,
    kernel_release,
    load,
    lookup,
    map_entries,
)
from ..linux.ethtool import offloads_on
from ..linux.vrf import cgroup2
from ..main import OperationError

PREFIX = "cl_"
DATA, FLOWS = b"cl_pacing", b"flows"
OLDEST = (5, 6)
_MAX_FLOWS = 65_536
# struct pacing and struct flow of pacing.bpf.c.
COUNTS_AT, COUNTS = 120, ("flows", "decisions", "untimed", "smoothed", "refused", "lost")
_ONE_BY_ONE_AT = 112
FLOW_BYTES, _STATE_BYTES = 304, 264
_FLOW = struct.Struct("=QIIIIII")
_COOKIE_BYTES = 8
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_SO_COOKIE, _SO_MAX_PACING_RATE = 57, 47
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
_NO_CGROUP_BPF = "this kernel has no control groups' BPF programs for TCP"
_NEWER_KERNEL = "use a kernel of 5.6 or newer with CONFIG_CGROUP_BPF, as Debian and Ubuntu have it"
_libc = ctypes.CDLL(None, use_errno=True)


def name_of(model: str) -> str:
    """Return the name by which the kernel knows a model's program: 15 characters."""
    return f"{PREFIX}{model}"[:15]


def refusals(version: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (what is wrong, remedy) if this host cannot run a version; nothing is changed."""
    if os.geteuid():
        return [("only root may attach BPF programs", "set ansible_become: true")]
    if kernel_release() < OLDEST:
        return [(f"its kernel {platform.release()} is older than 5.6", _NEWER_KERNEL)]
    path = cgroup2()
    if not path:
        remedy = "mount -t cgroup2 none /sys/fs/cgroup/unified, or boot with systemd's unified ones"
        return [("control groups of version 2 are not mounted", remedy)]
    try:
        for fd, _ in cgroup.attached(path):
            os.close(fd)
        with _loaded(version):
            pass
    except LoadError as error:
        return [_explain(error)]
    return []


def put(version: Mapping[str, Any] | None) -> dict[str, Any]:
    """Put a version in force, or none; return `status`, and how many connections were released.

    Raises OperationError if the kernel refuses; the previous program then stays in force.
    """
    path = cgroup2()
    previous = _policy_programs(path) if path else []
    result: dict[str, int] = {}
    try:
        if version is None:
            for program, _ in previous:
                cgroup.detach(path, program)
                result = _release_flows(program)
        else:
            with _loaded(version) as (program, flows):
                _hand_over(previous, flows)
                cgroup.attach(path, program, previous[0][0] if previous else None)
                _hand_over(previous, flows)
                for other, _ in previous[1:]:
                    cgroup.detach(path, other)
    except LoadError as error:
        what, remedy = _explain(error)
        raise OperationError(what, remedy) from error
    finally:
        for program, _ in previous:
            os.close(program)
    return {**status(), **result}


def status() -> dict[str, Any]:
    """Return the model's hash that the kernel reports, "" for none, its counters and its flows."""
    path = cgroup2()
    programs = _policy_programs(path) if path else []
    if not programs:
        return {"model": ""}
    try:
        program, name = programs[0]
        with _maps_of(program) as maps:
            data = lookup(maps[DATA.decode()], bytes(4), COUNTS_AT + 8 * len(COUNTS))
            flows = [_described(value) for _, value in _flows(maps)]
    finally:
        _close(fd for fd, _ in programs)
    counts = dict(zip(COUNTS, struct.unpack_from(f"={len(COUNTS)}Q", data, COUNTS_AT)))
    untimed = sum(not flow["timed"] for flow in flows)
    return {"model": name[len(PREFIX) :], "counts": counts, "untimed_now": untimed, "open": flows}


@contextmanager
def _loaded(version: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Load a version's program; yield its descriptor and that of its flows. Raises LoadError."""
    config = base64.b64decode(version["config"])
    fds: list[int] = []
    try:
        data, memory = data_map(int(version["data_bytes"]), DATA)
        fds.append(data)
        with memory:
            memory[: len(config)] = config
            memory[_ONE_BY_ONE_AT] = not _segments(version["interfaces"])
        flows = _flow_map()
        fds.append(flows)
        code = Program.from_json(version).linked(data, {FLOWS.decode(): flows})
        fds.append(load(code, name_of(version["model"]).encode(), SOCK_OPS))
        yield fds[-1], flows
    finally:
        _close(fds)


def _segments(interfaces: Iterable[str]) -> bool:
    """Return whether any interface takes several packets at a time (TSO, GSO)."""
    return any({"gso", "tso"} & set(offloads_on(name)) for name in interfaces)


def _flow_map() -> int:
    return create_map(LRU_HASH, _COOKIE_BYTES, FLOW_BYTES, _MAX_FLOWS, 0, FLOWS)


def _policy_programs(path: str) -> list[tuple[int, str]]:
    """Return the policies' programs at the control group: descriptors and names."""
    programs = []
    for fd, name in cgroup.attached(path):
        if name.startswith(PREFIX):
            programs.append((fd, name))
        else:
            os.close(fd)
    return programs


@contextmanager
def _maps_of(program: int) -> Iterator[dict[str, int]]:
    maps = cgroup.maps_of(program)
    try:
        yield maps
    finally:
        _close(maps.values())


def _flows(maps: Mapping[str, int]) -> Iterator[tuple[int, bytes]]:
    for key, value in map_entries(maps[FLOWS.decode()], _COOKIE_BYTES, FLOW_BYTES):
        yield struct.unpack("=Q", key)[0], value


def _described(value: bytes) -> dict[str, Any]:
    """Return a flow's state for people: its peer, its rate in bytes/s, its round-trip time."""
    _, _, rate, timed, address, port, local = _FLOW.unpack_from(value, _STATE_BYTES)
    peer = socket.inet_ntoa(struct.pack("=I", address))
    (rtt_ns,) = struct.unpack_from("=Q", value, 24)
    return {
        "peer": f"{peer}:{socket.ntohl(port)}",
        "port": local,
        "rate_bytes_per_s": rate,
        "timed": timed,
        "rtt_ns": rtt_ns,
    }


def _hand_over(previous: list[tuple[int, str]], flows: int) -> None:
    """Copy the flows of previous programs to a new one's map: as new flows, with their identity."""
    for program, _ in previous:
        with _maps_of(program) as maps:
            for cookie, value in _flows(maps):
                # with an empty state: the program starts the flow at line rate at its next event
                new_flow = bytes(_STATE_BYTES) + value[_STATE_BYTES:]
                insert_entry(flows, struct.pack("=Q", cookie), new_flow)


def _release_flows(program: int) -> dict[str, int]:
    """Restore the pacing rates of a program's connections; return how many, and how many ended."""
    with _maps_of(program) as maps:
        previous = {
            cookie: _FLOW.unpack_from(value, _STATE_BYTES)[1] for cookie, value in _flows(maps)
        }
    released = 0
    for copy in _sockets() if previous else ():
        cookie = struct.unpack("=Q", copy.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))[0]
        if cookie in previous:
            rate = struct.pack("=I", previous.pop(cookie))
            copy.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
            released += 1
    return {"released": released, "gone": len(previous)}


def _sockets() -> Iterator[socket.socket]:
    """Yield copies of the TCP sockets that this host's processes have open, one at a time."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            numbers = [int(n) for n in os.listdir(f"/proc/{pid}/fd") if _is_socket(pid, n)]
            if not numbers:
                continue
            process = _call(_PIDFD_OPEN, int(pid), 0)
            try:
                for number in numbers:
                    with (
                        suppress(OSError),
                        socket.socket(fileno=_call(_PIDFD_GETFD, process, number, 0)) as copy,
                    ):
                        if copy.type == socket.SOCK_STREAM and copy.family in _FAMILIES:
                            yield copy
            finally:
                os.close(process)


def _is_socket(pid: str, number: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    except OSError:
        return False


def _call(number: int, *arguments: int) -> int:
    result_code = int(_libc.syscall(number, *arguments))
    if result_code < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result_code


def _close(fds: Any) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def _explain(error: LoadError) -> tuple[str, str]:
    if error.errno == errno.EPERM and not error.log_lines:
        return (
            f"the kernel does not let root use BPF here ({error}), or another program has "
            "exclusive use of its control groups",
            "see kernel lockdown (cat /sys/kernel/security/lockdown) and `bpftool cgroup tree`",
        )
    if error.errno == errno.ENOSYS or (error.errno == errno.EINVAL and not error.log_lines):
        return f"{_NO_CGROUP_BPF} ({error})", _NEWER_KERNEL
    reason = "; ".join(error.log_lines[-6:]) or str(error)
    return (
        f"its kernel refuses the program: {reason}",
        "use a newer kernel, or fewer or shallower trees",
    )
