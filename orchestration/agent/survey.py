"""Collects facts about a device: system, interfaces, LLDP neighbours, programs and rights.

    survey   {interfaces: [name, ...]} -> the facts, by topic; nothing is changed

Unknown facts are None, 0, -1 or "". LLDP neighbours are returned unparsed, with their `source`:
`lldpctl` (JSON) or `redis` (rows of SONiC's APPL_DB).
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .host.dcqcn import lockdown
from .linux import vrf
from .linux.ethtool import driver, offloads_on
from .linux.netlink import RouteSocket
from .linux.qdiscs import RTM_DELQDISC, TC_H_ROOT, tc_message
from .main import Agent, Operation
from .small_files import fields, leading_int, listed, text
from .sonic import asics
from .sonic.resp import APPL_DB, CONFIG_DB, SOCKET, STATE_DB, Redis, RedisError

# Programs, and the arguments that print their version; None if a program has no such arguments.
PROGRAMS: dict[str, tuple[str, ...] | None] = {
    "tc": ("-V",),
    "ip": ("-V",),
    "rdma": ("-V",),
    "dcb": ("-V",),
    "ethtool": ("--version",),
    "lldpctl": ("-v",),
    "ib_write_bw": ("--version",),
    "iperf3": ("--version",),
    "fio": ("--version",),
    "redis-cli": ("--version",),
    "sonic-db-cli": None,
}
LLDP_FIELDS = (
    "lldp_rem_sys_name",
    "lldp_rem_chassis_id",
    "lldp_rem_port_id",
    "lldp_rem_port_desc",
)

# What is reported as the driver of an interface that is a port of an ASIC.
ASIC = "asic"
# The PATH of a non-interactive login may lack the sbin folders.
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PROGRAM_TIMEOUT_S = 10.0
_OUTPUT_BYTES = 4 << 20
_MAX_PROBLEM_CHARACTERS = 200

_NO_INTERFACE = 0x7FFFFFFF


def survey(request: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about this device and the named interfaces."""
    names = request["interfaces"]
    interfaces = {name: interface(name) for name in names}
    for name, speed_bps in asic_rates(names).items():
        # the rate of a switch port is not known to the kernel, but in the ASIC's database
        interfaces[name].update(speed_bps=speed_bps, driver=ASIC)
    return {
        "system": {**system(), **unsupported()},
        "interfaces": interfaces,
        "macs": macs(),
        "rdma_devices": listed("/sys/class/infiniband"),
        "lldp": lldp(request["interfaces"]),
        "programs": programs(),
        "rights": rights(),
        "clock": {"real_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()},
    }


def system(root: str = "/") -> dict[str, Any]:
    """Return the release, kernel, uptime in s, free memory and disk in bytes, and more."""
    release = fields(text(os.path.join(root, "etc/os-release")), "=")
    sonic = fields(text(os.path.join(root, "etc/sonic/sonic_version.yml")), ":")
    memory = fields(text(os.path.join(root, "proc/meminfo")), ":")
    uptime = text(os.path.join(root, "proc/uptime")).split()
    return {
        "hostname": platform.node(),
        "os": release.get("PRETTY_NAME", ""),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "uptime_s": float(uptime[0]) if uptime else -1.0,
        "sonic": sonic.get("build_version", ""),
        "asic": sonic.get("asic_type", ""),
        "memory_free_bytes": 1024 * leading_int(memory.get("MemAvailable", "-1")),
        "disk_free_bytes": shutil.disk_usage(root).free,
        "lldpd_runs": _is_running("lldpd", os.path.join(root, "proc")),
        "lockdown": lockdown(root),
        "vrf": vrf.current(root),
    }


def unsupported(root: str = "/", redis_socket: str = SOCKET) -> dict[str, str]:
    """Return why a SONiC switch is not supported, and the remedy; "" for all other devices."""
    metadata: dict[str, str] = {}
    if os.path.exists(redis_socket):
        with suppress(RedisError):
            metadata = Redis(redis_socket, 0.0).hash(CONFIG_DB, "DEVICE_METADATA|localhost")
    what, remedy = asics.unsupported_reason(metadata, root)
    return {"unfit": what, "unfit_remedy": remedy}


def interface(name: str, root: str = "/sys/class/net") -> dict[str, Any]:
    """Return one interface's state. A speed of -1 is unknown; offloads are None if not readable.

    `speed_bps` is what the driver reports, even for a veth, which has no real rate.
    """
    folder = os.path.join(root, name)
    if os.sep in name or not os.path.isdir(folder):
        return {"exists": False}
    speed_mbps = leading_int(text(os.path.join(folder, "speed")))
    try:
        offloads = offloads_on(name)
    except OSError:
        offloads = None
    return {
        "exists": True,
        "operstate": text(os.path.join(folder, "operstate")),
        "speed_bps": speed_mbps * 10**6 if speed_mbps > 0 else -1,
        "mtu_bytes": leading_int(text(os.path.join(folder, "mtu"))),
        "mac": text(os.path.join(folder, "address")),
        "driver": driver(name),
        "offloads": offloads,
    }


def macs(root: str = "/sys/class/net") -> dict[str, str]:
    """Return every interface's MAC address."""
    return {name: text(os.path.join(root, name, "address")) for name in listed(root)}


def lldp(interfaces: Sequence[str], redis_socket: str = SOCKET) -> dict[str, Any]:
    """Return the LLDP neighbours: `source`, `text` or `rows`, or a `problem` that says why not."""
    problems = []
    for command in (["lldpctl"], ["docker", "exec", "lldp", "lldpctl"]):
        if command[0] == "docker" and not os.path.exists(redis_socket):
            continue
        path = find_program(command[0])
        if path is None:
            problems.append(f"no {command[0]}")
            continue
        code, out, errors = run([path, *command[1:], "-f", "json"])
        if code == 0 and out.strip():
            return {"source": "lldpctl", "text": out, "problem": ""}
        reason = errors or (f"exit code {code}" if code else "no output")
        problems.append(f"{' '.join(command)}: {reason}"[:_MAX_PROBLEM_CHARACTERS])
    if os.path.exists(redis_socket):
        try:
            rows = lldp_rows(Redis(redis_socket, restart_timeout_s=0.0), interfaces)
        except RedisError as error:
            problems.append(error.what[:_MAX_PROBLEM_CHARACTERS])
        else:
            return {"source": "redis", "rows": rows, "problem": ""}
    return {"source": "", "problem": "; ".join(problems)}


def lldp_rows(redis: Redis, interfaces: Sequence[str]) -> dict[str, list[str]]:
    """Return a SONiC switch's neighbours: the values of LLDP_FIELDS by interface."""
    replies = redis.run(
        [(APPL_DB, ("HMGET", f"LLDP_ENTRY_TABLE:{name}", *LLDP_FIELDS)) for name in interfaces]
    )
    return {
        name: [value or "" for value in reply]
        for name, reply in zip(interfaces, replies)
        if any(reply)
    }


def asic_rates(interfaces: Sequence[str], redis_socket: str = SOCKET) -> dict[str, int]:
    """Return the port rates of a SONiC switch in bit/s; {} on other devices."""
    if not os.path.exists(redis_socket):
        return {}
    requests = [(STATE_DB, ("HGET", f"PORT_TABLE|{name}", "speed")) for name in interfaces]
    try:
        replies = Redis(redis_socket, restart_timeout_s=0.0).run(requests)
    except RedisError:
        return {}
    rates = zip(interfaces, (leading_int(reply or "") for reply in replies))
    return {name: mbps * 10**6 for name, mbps in rates if mbps > 0}


def programs() -> dict[str, str]:
    """Return the versions of the installed programs, "" where the version is unknown.

    All programs run at the same time, because each takes a while to start.
    """
    versions = {}
    processes = {}
    for name, arguments in PROGRAMS.items():
        path = find_program(name)
        if path is not None:
            versions[name] = ""
            if arguments is not None:
                processes[name] = _start([path, *arguments])
    deadline = time.monotonic() + _PROGRAM_TIMEOUT_S
    for name, process in processes.items():
        _, out, errors = _finish(process, max(0.1, deadline - time.monotonic()))
        versions[name] = version(out or errors)
    return versions


def version(output: str) -> str:
    """Return the first part of a text that looks like a version, "" if none does."""
    match = re.search(r"[0-9]+(?:\.[0-9]+)+[0-9A-Za-z.+~-]*", output[:1000])
    return match.group() if match else ""


def rights() -> dict[str, Any]:
    """Return this user's rights: to use rtnetlink, to change qdiscs, and to read debugfs."""
    return {
        "uid": os.geteuid(),
        "netlink": _answers_netlink(),
        "qdisc": may_change_qdiscs(),
        "debugfs": os.access("/sys/kernel/debug", os.R_OK | os.X_OK),
    }


def may_change_qdiscs() -> bool:
    """Return whether this user may change qdiscs.

    This sends a request for an interface that does not exist: the kernel checks rights first.
    """
    try:
        with RouteSocket() as route:
            route.request([tc_message(RTM_DELQDISC, _NO_INTERFACE, 0, TC_H_ROOT)])
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES)
    return True


def _answers_netlink() -> bool:
    try:
        RouteSocket().close()
    except OSError:
        return False
    return True


def find_program(name: str) -> str | None:
    """Return a program's path, found by PATH or in the sbin folders; None if it is not there."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))


def run(command: Sequence[str], timeout_s: float = _PROGRAM_TIMEOUT_S) -> tuple[int, str, str]:
    """Run a program and return its exit code, standard output and standard error.

    A program that takes too long is killed; its exit code is then -1.
    """
    return _finish(_start(command), timeout_s)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes] | OSError:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return error


def _finish(process: subprocess.Popen[bytes] | OSError, timeout_s: float) -> tuple[int, str, str]:
    if isinstance(process, OSError):
        return -1, "", str(process)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # the whole process group, since a child would keep the output open
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return -1, "", f"no answer in {timeout_s:.0f} s"
    if len(out) > _OUTPUT_BYTES:
        return -1, "", f"more than {_OUTPUT_BYTES} bytes of output"
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace").strip()


def _is_running(program: str, proc: str) -> bool:
    numbers = (name for name in listed(proc) if name.isdigit())
    return any(text(os.path.join(proc, number, "comm")) == program for number in numbers)


def operations(_: Agent) -> dict[str, Operation]:
    """Return the operations by name."""
    return {"survey": survey}
