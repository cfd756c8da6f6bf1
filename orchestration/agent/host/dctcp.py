"""DCTCP on a host whose kernel has none: a BPF program, registered by this agent.

    control.try    {programs, name}  registers it under the name, and takes it away again
    control.begin  {programs, name}  registers it until this process ends, even by SIGKILL
    control.read   -> what its connections did so far, by name; null if another agent registered it

The program is collectors/bpf/dctcp.bpf.c, compiled by the controller, and all of the kernel sees
its name. So it is a trial's own: where it is taken, another device of the same trial has the same
kernel (a rack of namespaces) and was first.
"""

from __future__ import annotations

import errno
import os
import platform
from typing import Any

from ..bpf.btf import LayoutError
from ..bpf.congestion import OLDEST, Control
from ..bpf.elf import Program
from ..bpf.load import LoadError, kernel_release
from ..main import Agent, Operation, OperationError

_NEWER = (
    "use a kernel with DCTCP (modprobe tcp_dctcp), or one of 6.4 or newer with BPF's JIT and "
    "CONFIG_DEBUG_INFO_BTF; or host: {congestion_control: reno}"
)


class Controls:
    """The program while it is registered."""

    def __init__(self, agent: Agent) -> None:
        self._held: Control | None = None
        agent.at_end(self._close)

    def attempt(self, request: dict[str, Any]) -> None:
        """Register it and take it away. Raises OperationError if the kernel refuses."""
        self.begin(request)
        self._close()

    def begin(self, request: dict[str, Any]) -> None:
        """Register it. Raises OperationError if the kernel refuses."""
        self._close()
        if os.geteuid():
            raise OperationError("only root may register BPF programs", "set ansible_become: true")
        if kernel_release() < OLDEST:
            raise OperationError(
                f"its kernel {platform.release()} is older than 6.4, and takes no congestion "
                "control that goes with its process",
                _NEWER,
            )
        programs = {
            str(member): Program.from_json(data) for member, data in request["programs"].items()
        }
        try:
            self._held = Control(programs, str(request["name"]))
        except LoadError as error:
            if error.errno == errno.EEXIST:
                return
            said = "; ".join(error.said[-4:]) or str(error)
            raise OperationError(f"its kernel refuses DCTCP's program: {said}", _NEWER) from error
        except (LayoutError, OSError) as error:
            raise OperationError(f"its kernel takes no DCTCP: {error}", _NEWER) from error

    def read(self, _: dict[str, Any]) -> dict[str, Any] | None:
        """Return what connections did."""
        if self._held is None:
            return None
        totals = self._held.totals()
        return {**totals._asdict(), "mean_alpha": round(totals.mean_alpha, 6)}

    def _close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    controls = Controls(agent)
    return {
        "control.try": controls.attempt,
        "control.begin": controls.begin,
        "control.read": controls.read,
    }
