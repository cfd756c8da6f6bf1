"""A rack in real time: the same devices, in namespaces of the machine's own kernel.

Its first process is the init of a PID namespace and has namespaces of its own for mounts, network,
IPC and host name. When it dies, whatever kills it, the kernel ends all its processes, and with them
go the interfaces, routes and mounts. The machine's own are never touched: the cables lie between
new namespaces, and settings that are not of a namespace are read-only on the devices.

What this kernel lacks is found by trying it, in a namespace that is gone afterwards:

    python -m orchestration.virtual_rack.host_kernel     prints what is missing, as a JSON list
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestration.backends.emulated.system import run
from orchestration.model.errors import InputError, NotReadyError
from orchestration.virtual_rack.folder import PROJECT, SBIN
from orchestration.virtual_rack.layout import DELAY_LINE, Layout

# A port of the machine's kernel, and what is tried on it: the arguments of `ip` or `tc`. A part
# that a rack cannot do without is `NEEDED`; without the others it says what it does not have.
_PORT = "tried"
_TRIED: Mapping[str, str] = {
    "veth": f"ip link add {_PORT} type veth peer name peer",
    "tbf": f"tc qdisc add dev {_PORT} root handle 2: tbf rate 8mbit burst 2000 limit 20000",
    "bfifo": f"tc qdisc add dev {_PORT} parent 2:1 handle 3: bfifo limit 20000",
    "red": (
        f"tc qdisc replace dev {_PORT} parent 2:1 handle 4: red limit 60000 min 10000 max 20000 "
        "avpkt 1000 burst 20 bandwidth 8mbit ecn nodrop"
    ),
    "fq": f"tc qdisc replace dev {_PORT} parent 2:1 handle 5: fq",
    "netem": f"tc qdisc replace dev {_PORT} parent 2:1 handle 6: netem delay 1us",
    "ets": f"tc qdisc replace dev {_PORT} parent 2:1 handle 7: ets bands 2 quanta 2000 2000",
    "clsact": "tc qdisc add dev peer clsact",
    "ifb": "ip link add delay type ifb",
    "matchall": "tc filter add dev peer ingress matchall action mirred egress redirect dev delay",
}
# Congestion controls besides reno, which every namespace may use.
_CONTROLS = ("dctcp", "cubic", "bbr")
_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
NEEDED = ("veth", "tbf", "bfifo")
_MODULES = {"veth": "veth", "tbf": "sch_tbf", "bfifo": "sch_fifo"}
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")


def guest_argv(init: Path) -> list[str]:
    """Return the command line that runs `init` as the first process of its own namespaces.

    It dies with the thread that starts it.
    """
    die = ["setpriv", "--pdeathsig", "KILL"]
    own = ["unshare", *_NAMESPACES, "--propagation", "private", "--fork", "--kill-child=KILL"]
    return [*die, *own, str(init)]


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


def missing_parts() -> tuple[str, ...]:
    """Return the names of what this machine's kernel lacks; all of `NEEDED` is there.

    Nothing is left behind. Raises NotReadyError where a rack cannot be built.
    """
    if os.geteuid():
        raise NotReadyError(
            "a rack in real time is made of this machine's namespaces, which takes root",
            "run it with sudo; or in virtual time, which does not: leave --clock real out",
        )
    own = ["unshare", *_NAMESPACES, "--fork", "--kill-child=KILL"]
    argv = [*own, sys.executable, "-P", "-m", "orchestration.virtual_rack.host_kernel"]
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        argv,
        env={**os.environ, "PYTHONPATH": path, "PATH": f"{os.environ.get('PATH', '')}:{SBIN}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NotReadyError(
            f"this machine gives no namespaces for a rack in real time: {said}",
            "in a container that takes --privileged; or run it in virtual time: leave --clock out",
        )
    lacks = tuple(json.loads(done.stdout))
    if without := [name for name in NEEDED if name in lacks]:
        modules = " ".join(_MODULES[name] for name in without)
        raise NotReadyError(
            f"this machine's kernel lacks {', '.join(without)}",
            f"modprobe {modules}; or run it in virtual time: leave --clock real out",
        )
    return lacks


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
    if controls := [name for name in _CONTROLS if name in lacks and name != "dctcp"]:
        said.append(
            f"no {', '.join(controls)}: this kernel lacks it, or does not allow it to namespaces "
            "(net.ipv4.tcp_allowed_congestion_control)"
        )
    return said


def _try_all() -> list[str]:
    lacks = []
    for name, line in _TRIED.items():
        try:
            run(line.split())
        except RuntimeError:
            lacks.append(name)
    for name in _CONTROLS:
        try:
            _CONTROL.write_text(name)
        except OSError:
            lacks.append(name)
    return lacks


if __name__ == "__main__":
    print(json.dumps(_try_all()))
