"""A BPF program at the egress of a Linux switch's ports, as long as this agent runs.

Links hold it. They close with this process, even by SIGKILL, and the switch is as it was.
"""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Callable
from typing import Any

from ..bpf import tcx
from ..bpf.elf import Program
from ..bpf.load import LoadError, data_map, kernel_release, load
from ..linux.netlink import interface_index
from ..main import Agent, OperationError
from .red import NET, is_asic_port

_NEWER = "use a kernel of 6.6 or newer with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT"


class PortProgram:
    """Loads a program, links it, and takes it away; `label` is its name in the kernel.

    In refusals it is `called` so, an older kernel `lacks` it, and `on_asics` is what to do then.
    """

    label: bytes
    called: str
    lacks: str
    on_asics: str

    def __init__(self, agent: Agent, net: str = NET) -> None:
        self._agent, self._net = agent, net
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        agent.at_end(self._close)

    def end(self, _: dict[str, Any]) -> None:
        """Take the program away."""
        self._close()

    def _attach(
        self,
        request: dict[str, Any],
        prepare: Callable[[mmap.mmap, Program], dict[str, int]],
        *,
        first: bool = False,
    ) -> list[int]:
        """Link the request's program to its interfaces; return their indices.

        `prepare` fills the program's data and returns its other maps. Raises OperationError.
        """
        self._check_device(request["interfaces"])
        program = Program.from_json(request["program"])
        indices = [interface_index(str(name)) for name in request["interfaces"]]
        try:
            data, self._memory = data_map(program.data_bytes, self.label)
            self._fds.append(data)
            loaded = load(program.linked(data, prepare(self._memory, program)), self.label)
            self._fds.append(loaded)
            for ifindex in indices:
                self._fds.append(tcx.link(ifindex, loaded, first=first))
        except LoadError as error:
            self._close()
            said = "; ".join(error.said[-4:]) or str(error)
            raise OperationError(f"its kernel refuses {self.called}: {said}", _NEWER) from error
        return indices

    def _check_device(self, interfaces: list[str]) -> None:
        if os.geteuid():
            raise OperationError("only root may attach BPF programs", "set ansible_become: true")
        if kernel_release() < tcx.OLDEST:
            raise OperationError(
                f"its kernel {platform.release()} is older than 6.6, and {self.lacks}", _NEWER
            )
        for name in interfaces:
            if is_asic_port(os.path.join(self._net, name)):
                raise OperationError(
                    f"{name} is a port of an ASIC, which forwards packets past the kernel",
                    self.on_asics,
                )

    def _close(self) -> None:
        # links come last, and go first
        for fd in reversed(self._fds):
            os.close(fd)
        self._fds.clear()
        # its memory goes with the last view of it
        self._memory = None
