"""Load balancing on a Linux switch: its choice of paths, held by this agent.

    paths.try    {program, interfaces}  as paths.begin, and leaves nothing
    paths.begin  {program, interfaces, stream, timeout_ns, route_by, spray} -> {prefix: [port, ...]}
    paths.read   -> [flowlets, reroutes, entries, overflows], as switch.* of
                 orchestration/core/signals.py
    paths.set    {timeout_ns} -> {"timeout_ns": as it is now}
    paths.end    the kernel routes by its hash again

The program is collectors/bpf/path_choice.bpf.c, compiled by the controller. Links hold it at the
egress of `interfaces`, which are in the order of the switch's ports; they close with this process,
even by SIGKILL, and the switch is as it was. Which ports a packet may take is what the kernel's
main table says of its destination. The kernel tells of changes of routes and links (netlink), and
the program follows.
"""

from __future__ import annotations

import mmap
import os
import platform
import socket
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Any

from ..bpf import tcx
from ..bpf.elf import Program
from ..bpf.load import LoadError, create_map, data_map, kernel_release, load
from ..bpf.maps import LPM_TRIE, NO_PREALLOC
from ..linux.fib import LINK_GROUP, ROUTE_GROUP
from ..linux.netlink import interface_index, route_socket
from ..main import Agent, Operation, OperationError
from .path_routes import KEY, MOST_ROUTES, PLACE, ROUTE_BYTES, Copy, look
from .red import NET, of_an_asic

NAME = b"path_choice"
PREFIXES = "prefixes"
# struct paths, before its tables
HEAD = struct.Struct("=QQQIIQQQII")
TABLES_AT = HEAD.size + MOST_ROUTES * ROUTE_BYTES
ROUTE_BY = ("random", "round-robin")
_TIMEOUT, _WORD = 1, 8  # where `timeout_ns` is, in words
_MOST_PREFIXES = 65_536
_NEWER = "use a kernel of 6.6 or newer with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT"
_FOLLOW = "keep routes as they are during a trial"


class Paths:
    """The choice of paths while it is in force."""

    def __init__(self, agent: Agent, net: str = NET) -> None:
        self._agent = agent
        self._net = net
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        self._changes: socket.socket | None = None
        self._ended: OperationError | None = None
        agent.at_end(self._close)

    def attempt(self, request: dict[str, Any]) -> dict[str, list[str]]:
        """Do as `begin`, but without routes, so that every packet is let through; then end."""
        self._refuse_others()
        try:
            self._link(request)
            return look(self._names)[1]
        finally:
            self._close()

    def begin(self, request: dict[str, Any]) -> dict[str, list[str]]:
        """Choose paths from now on; return ports by prefix, where there are several.

        Raises OperationError if the kernel refuses, or has routes that cannot be followed.
        """
        self._refuse_others()
        self._ended = None
        try:
            # before the routes are read, so that no change is missed
            self._subscribe()
            stream, spray = int(request["stream"]), bool(request["spray"])
            by = ROUTE_BY.index(request["route_by"])
            head = HEAD.pack(stream, int(request["timeout_ns"]), 0, by, spray, 0, 0, 0, 0, 0)
            self._link(request, head)
            wanted, ports = look(self._names)
            self._copy.follow(wanted)
            return ports
        except BaseException:
            self._close()
            raise

    def read(self, _: dict[str, Any]) -> list[int]:
        """Return the counters, and how many entries saw a packet within the timeout."""
        memory = self._in_force()
        _, timeout_ns, _, _, spray, flowlets, reroutes, overflows, used, _ = HEAD.unpack_from(
            memory
        )
        entries = 0
        if not spray:
            used = min(used, self._entries)
            last_ns = array("Q", memory[TABLES_AT : TABLES_AT + _WORD * used])
            # the same clock as the program's
            since_ns = max(0, time.monotonic_ns() - timeout_ns)
            entries = sum(map(since_ns.__le__, last_ns))
        return [flowlets, reroutes, entries, overflows]

    def set(self, request: dict[str, Any]) -> dict[str, int]:
        """Set the timeout."""
        with memoryview(self._in_force()) as view, view.cast("Q") as words:
            words[_TIMEOUT] = int(request["timeout_ns"])  # one store: never half a number
            return {"timeout_ns": words[_TIMEOUT]}

    def end(self, _: dict[str, Any]) -> None:
        """Leave paths to the kernel."""
        self._close()

    def _refuse_others(self) -> None:
        if self._memory is not None:
            raise OperationError("paths are chosen already", "end that first")

    def _in_force(self) -> mmap.mmap:
        if self._memory is None:
            raise self._ended or OperationError("no paths are chosen here", "begin that first")
        return self._memory

    def _link(self, request: dict[str, Any], head: bytes = b"") -> None:
        """Load the program with the settings of `head`, and link it to every interface."""
        self._check_device(request["interfaces"])
        program = Program.from_json(request["program"])
        self._names = {interface_index(name): str(name) for name in request["interfaces"]}
        self._entries = (program.data_bytes - TABLES_AT) // (3 * _WORD)
        try:
            data, self._memory = data_map(program.data_bytes, NAME)
            self._memory[: len(head)] = head
            self._fds.append(data)
            prefixes = create_map(
                LPM_TRIE, KEY.size, PLACE.size, _MOST_PREFIXES, NO_PREALLOC, PREFIXES.encode()
            )
            self._fds.append(prefixes)
            self._copy = Copy(self._memory, HEAD.size, prefixes)
            loaded = load(program.linked(data, {PREFIXES: prefixes}), NAME)
            self._fds.append(loaded)
            for ifindex in self._names:
                # before programs that mark or count what leaves by this port
                self._fds.append(tcx.link(ifindex, loaded, first=True))
        except LoadError as error:
            said = "; ".join(error.said[-4:]) or str(error)
            raise OperationError(f"its kernel refuses the choice of paths: {said}", _NEWER) from (
                error
            )

    def _check_device(self, interfaces: Sequence[str]) -> None:
        if os.geteuid():
            raise OperationError("only root may attach BPF programs", "set ansible_become: true")
        if kernel_release() < tcx.OLDEST:
            raise OperationError(
                f"its kernel {platform.release()} is older than 6.6, and cannot choose paths",
                _NEWER,
            )
        for name in interfaces:
            if of_an_asic(os.path.join(self._net, name)):
                raise OperationError(
                    f"{name} is a port of an ASIC, which forwards packets past the kernel",
                    "run it with `load_balancing: ecmp`, or configure the ASIC's own",
                )

    def _subscribe(self) -> None:
        self._changes = route_socket(LINK_GROUP | ROUTE_GROUP)
        self._changes.setblocking(False)
        self._agent.watch(self._changes.fileno(), self._changed)

    def _changed(self) -> None:
        """Follow the kernel's routes after a change of routes or links."""
        if self._changes is None:
            return
        while True:
            try:
                self._changes.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:  # some messages were lost; all routes are read anew anyway
                continue
        try:
            self._copy.follow(look(self._names)[0])
        except (OperationError, OSError) as error:
            # with a route that it cannot follow, all is the kernel's again, and reading says why
            self._close()
            self._ended = OperationError(f"the choice of paths has ended: {error}", _FOLLOW)

    def _close(self) -> None:
        if self._changes is not None:
            self._agent.forget(self._changes.fileno())
            self._changes.close()
            self._changes = None
        # links come last, and go first
        for fd in reversed(self._fds):
            os.close(fd)
        self._fds.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    paths = Paths(agent)
    return {
        "paths.try": paths.attempt,
        "paths.begin": paths.begin,
        "paths.read": paths.read,
        "paths.set": paths.set,
        "paths.end": paths.end,
    }
