"""The flow table of a Linux switch: the recent flows and their bytes, kept by this agent.

    table.try    {program, interfaces}  as table.begin, and ends at once
    table.begin  {program, interfaces} -> the index of each interface
    table.read   {ends_slot, on_schedule} -> {rows, used, removed, by_threshold, taken_over,
                 not_counted}
    table.end    forgets all flows

The program is collectors/bpf/flow_table.bpf.c, compiled by the controller. BPF links attach it to
the egress of `interfaces`, which share the table; the links close with this process, even by
SIGKILL. `rows` are the entries of flows seen within the window, in base64 (`flow_layout`).
"""

from __future__ import annotations

import base64
import mmap
from typing import Any

from ..bpf.elf import Program
from ..main import Agent, Operation, OperationError
from .flow_layout import FlowEntries
from .port_program import PortProgram


class FlowTable(PortProgram):
    """The flow table of a switch's ports."""

    label = b"flow_table"
    description, without_it = "the flow table", "keeps no flow table"
    asic_remedy = "run a tuner that observes no flows"
    _entries: FlowEntries | None = None

    def try_once(self, request: dict[str, Any]) -> None:
        """Begin, and end at once. Raises OperationError if the kernel refuses."""
        self.begin(request)
        self._close()

    def begin(self, request: dict[str, Any]) -> list[int]:
        """Keep the table from now on; return the ports' indices. Raises OperationError."""
        self._close()
        return self._attach(request, self._prepare)

    def _prepare(self, memory: mmap.mmap, program: Program) -> dict[str, int]:
        self._entries = FlowEntries(memoryview(memory)[: program.data_bytes])
        return {}

    def read(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the flows of the window, and the table's counters."""
        if self._entries is None:
            raise OperationError("no flow table is kept here", "begin that first")
        table = self._entries.read(
            ends_slot=bool(request["ends_slot"]), on_schedule=bool(request["on_schedule"])
        )
        return {**table, "rows": base64.b64encode(table["rows"]).decode()}

    def _close(self) -> None:
        super()._close()
        self._entries = None


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    table = FlowTable(agent)
    return {
        "table.try": table.try_once,
        "table.begin": table.begin,
        "table.read": table.read,
        "table.end": table.end,
    }
