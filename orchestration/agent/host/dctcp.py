"""DCTCP on a host whose kernel has none: a BPF program, registered by this agent.

    control.try    {programs, name}  registers it under the name, and unregisters it again
    control.begin  {programs, name}  registers it until this process ends, even by SIGKILL
    control.read   -> totals of its connections by name; null if another agent registered it

The program is collectors/bpf/dctcp.bpf.c, compiled by the controller. Its name belongs to one
trial, and all network namespaces of the kernel see it. If the name is taken, another device of the
same trial runs on the same kernel (a rack of namespaces) and has registered it.
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

_NEWER_KERNEL = (
    "use a kernel with DCTCP (modprobe tcp_dctcp), or one of 6.4 or newer with BPF's JIT and "
    "CONFIG_DEBUG_INFO_BTF; or host: {congestion_control: reno}"
)


class DctcpControl:
    """Registers DCTCP's program and reads its totals."""

    def __init__(self, agent: Agent) -> None:
        self._control: Control | None = None
        agent.at_end(self._close)

    def try_once(self, request: dict[str, Any]) -> None:
        """Register the control and unregister it. Raises OperationError if the kernel refuses."""
        self.begin(request)
        self._close()

    def begin(self, request: dict[str, Any]) -> None:
        """Register the control. Raises OperationError if the kernel refuses."""
        self._close()
        if os.geteuid():
            raise OperationError("only root may register BPF programs", "set ansible_become: true")
        if kernel_release() < OLDEST:
            raise OperationError(
                f"its kernel {platform.release()} is older than 6.4, and cannot remove a "
                "congestion control when its process ends",
                _NEWER_KERNEL,
            )
        programs = {
            str(member): Program.from_json(data) for member, data in request["programs"].items()
        }
        try:
            self._control = Control(programs, str(request["name"]))
        except LoadError as error:
            if error.errno == errno.EEXIST:
                return
            reason = "; ".join(error.log_lines[-4:]) or str(error)
            what = f"its kernel refuses DCTCP's program: {reason}"
            raise OperationError(what, _NEWER_KERNEL) from error
        except (LayoutError, OSError) as error:
            what = f"its kernel does not accept DCTCP's program: {error}"
            raise OperationError(what, _NEWER_KERNEL) from error

    def read(self, _: dict[str, Any]) -> dict[str, Any] | None:
        """Return the totals of the control's connections, None if it is not registered here."""
        if self._control is None:
            return None
        totals = self._control.totals()
        return {**totals._asdict(), "mean_alpha": round(totals.mean_alpha, 6)}

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


def operations(agent: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    controls = DctcpControl(agent)
    return {
        "control.try": controls.try_once,
        "control.begin": controls.begin,
        "control.read": controls.read,
    }
