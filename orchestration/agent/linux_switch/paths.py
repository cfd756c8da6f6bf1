"""Load balancing on a Linux switch: a BPF program chooses each packet's path.

    paths.try    {program, interfaces}  as paths.begin, and ends at once
    paths.begin  {program, interfaces, stream, timeout_ns, route_by, spray} -> {prefix: [port, ...]}
    paths.read   -> [flowlets, reroutes, entries, overflows], as switch.* of
                 orchestration/core/signals.py
    paths.set    {timeout_ns} -> {"timeout_ns": as it is now}
    paths.end    the kernel routes by its hash again

The program is collectors/bpf/path_choice.bpf.c, compiled by the controller. BPF links attach it to
the egress of `interfaces`, which are in the order of the switch's ports. The links close with this
process, even by SIGKILL, and the switch is then as it was. A packet may take the ports that the
kernel's main table has for its destination. The kernel reports changes of routes and links
(netlink), and this agent updates the program's routes.
"""

from __future__ import annotations

import mmap
import socket
import struct
import time
from array import array
from functools import partial
from typing import Any

from ..bpf.elf import Program
from ..bpf.load import LPM_TRIE, NO_PREALLOC, create_map
from ..linux.fib import LINK_GROUP, ROUTE_GROUP
from ..linux.netlink import route_socket
from ..main import Agent, Operation, OperationError
from .path_routes import KEY, MAX_ROUTES, ROUTE_BYTES, ROUTE_INDEX, ProgramRoutes, read_choices
from .port_program import PortProgram
from .red import NET

PREFIXES = "prefixes"
# struct paths, before its tables
HEAD = struct.Struct("=QQQIIQQQII")
TABLES_AT = HEAD.size + MAX_ROUTES * ROUTE_BYTES
ROUTE_BY = ("random", "round-robin")
_TIMEOUT, _WORD = 1, 8  # `timeout_ns` is this word of 8 bytes
_MAX_PREFIXES = 65_536
_REMEDY = "keep routes as they are during a trial"


class Paths(PortProgram):
    """The choice of paths of a switch, from `begin` to `end`."""

    label = b"path_choice"
    description, without_it = "the choice of paths", "cannot choose paths"
    asic_remedy = "run it with `load_balancing: ecmp`, or configure the ASIC's own"

    def __init__(self, agent: Agent, net: str = NET) -> None:
        self._change_socket: socket.socket | None = None
        self._end_reason: OperationError | None = None
        super().__init__(agent, net)

    def try_once(self, request: dict[str, Any]) -> dict[str, list[str]]:
        """Begin without routes, so that no packet's path changes, and end at once.

        Returns what `begin` would, and raises the same errors.
        """
        self._refuse_second()
        try:
            self._link(request)
            return read_choices(self._names)[1]
        finally:
            self._close()

    def begin(self, request: dict[str, Any]) -> dict[str, list[str]]:
        """Choose paths from now on; return the ports of each prefix that has several.

        Raises OperationError if the kernel refuses, or has routes whose next hops cannot be chosen.
        """
        self._refuse_second()
        self._end_reason = None
        try:
            # before the routes are read, so that no change is missed
            self._subscribe()
            stream, spray = int(request["stream"]), bool(request["spray"])
            by = ROUTE_BY.index(request["route_by"])
            head = HEAD.pack(stream, int(request["timeout_ns"]), 0, by, spray, 0, 0, 0, 0, 0)
            self._link(request, head)
            choices, ports = read_choices(self._names)
            self._routes.follow(choices)
            return ports
        except BaseException:
            self._close()
            raise

    def read(self, _: dict[str, Any]) -> list[int]:
        """Return the counters; `entries` are those that saw a packet within the timeout."""
        memory = self._active_memory()
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
        """Set the flowlet timeout, and return it."""
        with memoryview(self._active_memory()) as view, view.cast("Q") as words:
            words[_TIMEOUT] = int(
                request["timeout_ns"]
            )  # one store, so the program never reads half a number
            return {"timeout_ns": words[_TIMEOUT]}

    def _refuse_second(self) -> None:
        if self._memory is not None:
            raise OperationError("paths are chosen already", "end that first")

    def _active_memory(self) -> mmap.mmap:
        if self._memory is None:
            raise self._end_reason or OperationError("no paths are chosen here", "begin that first")
        return self._memory

    def _link(self, request: dict[str, Any], head: bytes = b"") -> None:
        """Load the program with the settings of `head`, and link it to every interface."""
        # before programs that mark or count what leaves a port
        indices = self._attach(request, partial(self._prepare, head), first=True)
        self._names = dict(zip(indices, map(str, request["interfaces"])))

    def _prepare(self, head: bytes, memory: mmap.mmap, program: Program) -> dict[str, int]:
        memory[: len(head)] = head
        self._entries = (program.data_bytes - TABLES_AT) // (3 * _WORD)
        prefixes = create_map(
            LPM_TRIE, KEY.size, ROUTE_INDEX.size, _MAX_PREFIXES, NO_PREALLOC, PREFIXES.encode()
        )
        self._fds.append(prefixes)
        self._routes = ProgramRoutes(memory, HEAD.size, prefixes)
        return {PREFIXES: prefixes}

    def _subscribe(self) -> None:
        self._change_socket = route_socket(LINK_GROUP | ROUTE_GROUP)
        self._change_socket.setblocking(False)
        self._agent.watch(self._change_socket.fileno(), self._follow_changes)

    def _follow_changes(self) -> None:
        if self._change_socket is None:
            return
        while True:
            try:
                self._change_socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:  # some messages were lost; all routes are read again anyway
                continue
        try:
            self._routes.follow(read_choices(self._names)[0])
        except (OperationError, OSError) as error:
            # a route whose next hops cannot be chosen: the kernel routes again, and `read` says why
            self._close()
            self._end_reason = OperationError(f"the choice of paths has ended: {error}", _REMEDY)

    def _close(self) -> None:
        if self._change_socket is not None:
            self._agent.forget(self._change_socket.fileno())
            self._change_socket.close()
            self._change_socket = None
        memory = self._memory
        super()._close()
        if memory is not None:
            memory.close()


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    paths = Paths(agent)
    return {
        "paths.try": paths.try_once,
        "paths.begin": paths.begin,
        "paths.read": paths.read,
        "paths.set": paths.set,
        "paths.end": paths.end,
    }
