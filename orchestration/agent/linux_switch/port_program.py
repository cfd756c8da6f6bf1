"""A BPF program at the egress of a Linux switch's ports, attached while this agent runs.

It is attached by BPF links, which the kernel closes when this process ends, even by SIGKILL. The
switch is then as it was before.
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

_NEWER_KERNEL = "use a kernel of 6.6 or newer with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT"


class PortProgram:
    """Loads a program, links it to ports, and removes it; `label` is its name in the kernel.

    Errors name it by its `description`, say of an older kernel what it cannot do `without_it`, and
    give `asic_remedy` as the remedy for ports of an ASIC.
    """

    label: bytes
    description: str
    without_it: str
    asic_remedy: str

    def __init__(self, agent: Agent, net: str = NET) -> None:
        self._agent, self._net = agent, net
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        agent.at_end(self._close)

    def end(self, _: dict[str, Any]) -> None:
        """Detach and remove the program."""
        self._close()

    def _attach(
        self,
        request: dict[str, Any],
        prepare: Callable[[mmap.mmap, Program], dict[str, int]],
        *,
        first: bool = False,
    ) -> list[int]:
        """Link the request's program to its interfaces; return their indices.

        `prepare` takes the program's memory and the program; it fills the memory, and returns the
        descriptors of the program's other maps by name. With `first`, the program runs before
        others at the ports. Raises OperationError if the kernel refuses.
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
            reason = "; ".join(error.log_lines[-4:]) or str(error)
            what = f"its kernel refuses {self.description}: {reason}"
            raise OperationError(what, _NEWER_KERNEL) from error
        return indices

    def _check_device(self, interfaces: list[str]) -> None:
        if os.geteuid():
            raise OperationError("only root may attach BPF programs", "set ansible_become: true")
        if kernel_release() < tcx.OLDEST:
            raise OperationError(
                f"its kernel {platform.release()} is older than 6.6, and {self.without_it}",
                _NEWER_KERNEL,
            )
        for name in interfaces:
            if is_asic_port(os.path.join(self._net, name)):
                raise OperationError(
                    f"{name} is a port of an ASIC, which forwards packets without the kernel",
                    self.asic_remedy,
                )

    def _close(self) -> None:
        # links were created last, and are closed first
        for fd in reversed(self._fds):
            os.close(fd)
        self._fds.clear()
        # the memory is unmapped with the last view of it
        self._memory = None
