"""A rack in real time: the same devices, in namespaces of the machine's own kernel.

Its first process is the init of a PID namespace and has namespaces of its own for mounts, network,
IPC and host name. When it dies, whatever kills it, the kernel ends all its processes, and with them
go the interfaces, routes and mounts. The machine's own are never touched: the cables lie between
new namespaces, and settings that are not of a namespace are read-only on the devices.

What this kernel lacks is found by trying it (`backends.emulated.machine`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from orchestration.backends.emulated.machine import CONTROLS, missing_parts
from orchestration.core.errors import InputError, NotReadyError
from orchestration.virtual_rack.layout import DELAY_LINE, Layout

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Let this process become the parent of descendants whose own parent has ended."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def await_orphans() -> None:
    """Wait until all children of this process have ended.

    The first process of a PID namespace ends after all others in it.
    """
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def layout_here(layout: Layout) -> Layout:
    """Return a layout for this machine's kernel, which lacks what it says.

    Raises:
        InputError: devices that only a rack in virtual time has.
        NotReadyError: a rack cannot be built here.
    """
    for option, names in (("--sonic", layout.sonic), ("--roce", layout.roce)):
        if names:
            raise InputError.single(
                option,
                f"{', '.join(names)}: a rack in real time has Linux switches and plain NICs only",
                "leave it out, or leave --clock real out",
            )
    lacks = missing_parts()
    if layout.testbed.classes and (without := sorted({"red", "ets"} & {*lacks})):
        raise NotReadyError(
            f"traffic classes take {', '.join(without)}, and this machine's kernel lacks it",
            "use a testbed without classes; or in virtual time: leave --clock real out",
        )
    return replace(layout, clock="real", lacks=lacks)


def shortcomings(lacks: Sequence[str]) -> list[str]:
    """Return sentences about what a rack on a kernel without these parts does not have."""
    said = []
    if missing := sorted(DELAY_LINE & {*lacks}):
        said.append(
            f"no propagation delay: this kernel lacks {', '.join(missing)}; round trips are those "
            "of queues and CPU"
        )
    if "red" in lacks:
        said.append(
            "this kernel lacks RED: a BPF program marks in its place, with RED's straight line"
        )
    if "fq" in lacks:
        said.append("this kernel lacks fq: a NIC's flows share one queue")
    if "dctcp" in lacks:
        said.append("this kernel lacks DCTCP: hosts take it as a BPF program, during trials")
    if controls := [name for name in CONTROLS if name in lacks and name != "dctcp"]:
        said.append(
            f"no {', '.join(controls)}: this kernel lacks it, or does not allow it to namespaces "
            "(net.ipv4.tcp_allowed_congestion_control)"
        )
    return said
