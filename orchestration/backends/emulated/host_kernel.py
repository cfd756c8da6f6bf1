"""This machine's own kernel, on which trials and virtual racks in real time build their fabrics.

The first process of such a fabric is the init of a PID namespace, and has namespaces of its own for
mounts, network, IPC and host name. When it dies, whatever kills it, the kernel ends all processes
of the fabric, and their interfaces, routes and mounts disappear. The machine's own interfaces are
never touched: the cables are between new namespaces.

Which parts the kernel lacks is found by trying each of them in a temporary namespace:

    python -m orchestration.backends.emulated.host_kernel     prints missing parts as a JSON list
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestration.backends.emulated.system import run, unshare_network
from orchestration.core.errors import NotReadyError

# The parts that are tried, each with a command that needs it. A fabric cannot do without the parts
# in `NEEDED`; without others it goes on and reports what it lacks.
_PORT = "tried"
_TRIAL_COMMANDS: Mapping[str, str] = {
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
# The congestion controls that are tried; every namespace may use reno.
CONGESTION_CONTROLS = ("dctcp", "cubic", "bbr")
_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
NEEDED = ("veth", "tbf", "bfifo")
_MODULES = {"veth": "veth", "tbf": "sch_tbf", "bfifo": "sch_fifo"}
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_ROOT = Path(__file__).resolve().parents[3]


def own_namespaces_argv(init: Path) -> list[str]:
    """Return the command line that runs `init` as the first process of its own namespaces.

    It dies with the thread that starts it.
    """
    setpriv = ["setpriv", "--pdeathsig", "KILL"]
    unshare = ["unshare", *_NAMESPACES, "--propagation", "private", "--fork", "--kill-child=KILL"]
    return [*setpriv, *unshare, str(init)]


def missing_parts(purpose: str = "a rack") -> tuple[str, ...]:
    """Return the names of the parts that this machine's kernel lacks, none of them `NEEDED`.

    Nothing is left behind. Raises NotReadyError, which names the `purpose`, if the user is not root
    or a part of `NEEDED` is missing.
    """
    if os.geteuid():
        raise NotReadyError(
            f"{purpose} in real time is made of this machine's namespaces, which takes root",
            "run it with sudo; or in virtual time, which needs no root: leave --clock real out",
        )
    try:
        lacks = tuple(run_in_namespaces(_NAMESPACES, "orchestration.backends.emulated.host_kernel"))
    except RuntimeError as error:
        raise NotReadyError(
            f"this machine does not allow namespaces for {purpose} in real time: {error}",
            "a container needs --privileged for that; or run it in virtual time: leave --clock out",
        ) from error
    if without := [name for name in NEEDED if name in lacks]:
        modules = " ".join(_MODULES[name] for name in without)
        raise NotReadyError(
            f"this machine's kernel lacks {', '.join(without)}",
            f"modprobe {modules}; or run it in virtual time: leave --clock real out",
        )
    return lacks


def run_in_namespaces(namespaces: Sequence[str], module: str, *arguments: str) -> Any:
    """Run a module in new namespaces, which end with it; return the JSON that it prints.

    `namespaces` are options of unshare. Raises RuntimeError with the last line of its errors.
    """
    unshare = ["unshare", *namespaces, "--fork", "--kill-child=KILL"]
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*unshare, sys.executable, "-P", "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path, "PATH": f"{os.environ.get('PATH', '')}:{_SBIN}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1])
    return json.loads(done.stdout)


def has_control(name: str) -> bool:
    """Return whether flows of this namespace can use a congestion control.

    A program that closloop has registered under that name counts as well.
    """
    try:
        _CONTROL.write_text(name)
    except OSError:
        return False
    return True


def _try_all() -> list[str]:
    unshare_network()  # so that nothing of the machine changes if a user runs this by hand
    lacks = []
    for name, line in _TRIAL_COMMANDS.items():
        try:
            run(line.split())
        except RuntimeError:
            lacks.append(name)
    return lacks + [name for name in CONGESTION_CONTROLS if not has_control(name)]


if __name__ == "__main__":
    print(json.dumps(_try_all()))
