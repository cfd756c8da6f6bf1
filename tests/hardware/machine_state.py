"""The machine's own state, and the processes of what was started on it, for tests of real time."""

import json
import subprocess
import time
from pathlib import Path

from orchestration.bench.machine_state import children


def machine():
    """Return the machine's links, routes, rules, namespaces with names, mounts and settings.

    Others change them meanwhile, unless it is a machine of the test's own (`own_machine`).
    """

    def said(*argv):
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    links = json.loads(said("ip", "-j", "link"))
    return {
        "links": [(link["ifname"], link["flags"], link["mtu"]) for link in links],
        "routes": said("ip", "route", "show", "table", "all"),
        "rules": said("ip", "rule"),
        "names": said("ip", "netns"),
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "settings": [
            Path("/proc/sys", name).read_text()
            for name in (
                "vm/overcommit_memory",
                "net/ipv4/tcp_congestion_control",
                "net/ipv4/ip_forward",
            )
        ],
    }


def family(pid):
    """Return a process and its descendants: pid and start time of each."""
    return {(pid, started(pid))}.union(*map(family, children(pid)))


def started(pid):
    """Return when a process was started, "" if it has ended, waited for or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def alive(processes):
    return {pid for pid, start in processes if start and started(pid) == start}


def gone(processes):
    deadline = time.monotonic() + 120
    while left := alive(processes):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def nothing_stays(before, patience_s=120):
    """Wait until the machine has nothing that it had not before: other tests come and go."""
    deadline = time.monotonic() + patience_s
    while added := {name: lines for name, lines in news(before).items() if lines}:
        assert time.monotonic() < deadline, added
        time.sleep(0.2)


def news(before):
    """Return what the machine has now and had not before, by kind."""

    def lines(values):
        return set(values.splitlines() if isinstance(values, str) else map(str, values))

    return {name: lines(values) - lines(before[name]) for name, values in machine().items()}
