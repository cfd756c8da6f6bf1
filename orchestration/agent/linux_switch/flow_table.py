"""The flow table of a Linux switch, kept by this agent.

    table.try    {program, interfaces}  as table.begin, and leaves nothing
    table.begin  {program, interfaces} -> the index of each interface
    table.read   {ends_slot, on_schedule} -> {rows, used, removed, by_threshold, taken_over,
                 not_counted}
    table.end    forgets all flows

The program is collectors/bpf/flow_table.bpf.c, compiled by the controller. Links hold it at the
egress of `interfaces`, which share the table; they close with this process, even by SIGKILL.
`rows` are the entries of flows seen within the window, in base64. Standard library only.
"""

from __future__ import annotations

import base64
import mmap
import os
import platform
from typing import Any

from ..bpf import tcx
from ..bpf.elf import Program
from ..bpf.load import LoadError, data_map, kernel_release, load
from ..linux.netlink import interface_index
from ..main import Agent, Operation, OperationError
from .flow_layout import Entries
from .red import NET, of_an_asic

NAME = b"flow_table"
_NEWER = "use a kernel of 6.6 or newer with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT"


class FlowTable:
    """The table while it is kept."""

    def __init__(self, agent: Agent, net: str = NET) -> None:
        self._net = net
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        self._entries: Entries | None = None
        agent.at_end(self._close)

    def attempt(self, request: dict[str, Any]) -> None:
        """Begin and end. Raises OperationError if the kernel refuses."""
        self.begin(request)
        self._close()

    def begin(self, request: dict[str, Any]) -> list[int]:
        """Keep the table from now on. Raises OperationError if the kernel refuses."""
        self._close()
        self._check_device(request["interfaces"])
        program = Program.from_json(request["program"])
        indices = [interface_index(str(name)) for name in request["interfaces"]]
        try:
            data, self._memory = data_map(program.data_bytes, NAME)
            self._fds.append(data)
            self._entries = Entries(memoryview(self._memory)[: program.data_bytes])
            loaded = load(program.linked(data), NAME)
            self._fds.append(loaded)
            for ifindex in indices:
                self._fds.append(tcx.link(ifindex, loaded))
        except LoadError as error:
            self._close()
            said = "; ".join(error.said[-4:]) or str(error)
            raise OperationError(f"its kernel refuses the flow table: {said}", _NEWER) from error
        return indices

    def read(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the flows of the window."""
        if self._entries is None:
            raise OperationError("no flow table is kept here", "begin that first")
        said = self._entries.read(
            ends_slot=bool(request["ends_slot"]), on_schedule=bool(request["on_schedule"])
        )
        return {**said, "rows": base64.b64encode(said["rows"]).decode()}

    def end(self, _: dict[str, Any]) -> None:
        """Keep no table any more."""
        self._close()

    def _check_device(self, interfaces: list[str]) -> None:
        if os.geteuid():
            raise OperationError("only root may attach BPF programs", "set ansible_become: true")
        if kernel_release() < tcx.OLDEST:
            raise OperationError(
                f"its kernel {platform.release()} is older than 6.6, and keeps no flow table",
                _NEWER,
            )
        for name in interfaces:
            if of_an_asic(os.path.join(self._net, name)):
                raise OperationError(
                    f"{name} is a port of an ASIC, which forwards packets past the kernel",
                    "run a tuner that observes no flows",
                )

    def _close(self) -> None:
        # links come last, and go first
        for fd in reversed(self._fds):
            os.close(fd)
        self._fds.clear()
        # its memory goes with the last view of it
        self._entries = self._memory = None


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    table = FlowTable(agent)
    return {
        "table.try": table.attempt,
        "table.begin": table.begin,
        "table.read": table.read,
        "table.end": table.end,
    }
