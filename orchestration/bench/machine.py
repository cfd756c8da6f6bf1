"""What there is on this machine, to compare before and after: a rack in real time leaves it alone.

Interfaces, addresses, routes, rules and queueing disciplines are those of this process's network
namespace, mounts those of its mount namespace; control groups, containers and BPF are the whole
machine's.
"""

from __future__ import annotations

import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestration.agent.bpf.load import LoadError, bpf
from orchestration.agent.safety.deadman_process import Process
from orchestration.virtual_rack import control_groups, interface_leases, interfaces

_SHOWN: Mapping[str, tuple[str, ...]] = {
    "links": ("ip", "-j", "-d", "link", "show"),
    "addresses": ("ip", "-j", "address", "show"),
    "routes": ("ip", "-j", "-4", "route", "show", "table", "all"),
    "routes6": ("ip", "-j", "-6", "route", "show", "table", "all"),
    "rules": ("ip", "-j", "-4", "rule", "show"),
    "rules6": ("ip", "-j", "-6", "rule", "show"),
    "qdiscs": ("tc", "-j", "qdisc", "show"),
    "named namespaces": ("ip", "-j", "netns", "list"),
}
# Where runtimes keep what they know of containers that root has started.
_STATES = (Path("/run/runc"), Path("/run/crun"))
# The parts of a comparison by what they are about.
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "interfaces, addresses, qdiscs": ("links", "addresses", "qdiscs", "interfaces", "loans"),
    "routes and rules": ("routes", "routes6", "rules", "rules6"),
    "namespaces": ("named namespaces", "namespaces"),
    "containers": ("containers",),
    "processes": ("processes",),
    "BPF maps": ("map_id",),
    "BPF programs and links": ("prog_id", "link_id"),
    "control groups": ("cgroups",),
    "mounts": ("mounts",),
    "folders": ("folders",),
}
# Of a snapshot: what a living process has.
_HELD = "held"
# What goes when whoever has made it lets go of it, and by nothing that a rack does.
_OTHERS_END = ("cgroups", "prog_id", "map_id", "link_id")
# What counts time or neighbours, and says nothing of what there is.
_PASSING = ("valid_life_time", "preferred_life_time", "expires", "tentative", "link_netnsid")
# Commands of bpf(2) that walk all objects of a kind, and how a descriptor's file shows its number.
_BPF = {"prog_id": 11, "map_id": 12, "link_id": 31}
_FREED_WITHIN_S = 0.2
# A busy machine takes its time to end processes and namespaces; waited is only while there are any.
SETTLES_S = 120.0


def snapshot(lent: Iterable[str] = ()) -> dict[str, Any]:
    """Return the machine's state; of the interfaces `lent` with offloads and settings, too."""
    found: dict[str, Any] = {name: _listed(argv) for name, argv in _SHOWN.items()}
    found["interfaces"] = [json.dumps(asdict(interfaces.read_state(name))) for name in lent]
    found["mounts"] = sorted(
        " ".join(line.split()[3:]) for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )
    found["loans"] = [loan.interface for loan in interface_leases.leases()]
    found["cgroups"], found[_HELD] = _cgroups()
    found["containers"] = _containers()
    for kind, (numbers, held) in bpf_objects().items():
        found[kind] = numbers
        found[_HELD] |= {f"{kind} {number}" for number in held}
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what tells two states apart, one line each.

    Control groups and BPF objects may go, and those that a living process has may come.
    """
    said = []
    for part in before.keys() - {_HELD}:
        if part not in _OTHERS_END:
            said += [f"- {part}: {row}" for row in before[part] if row not in now[part]]
        for row in now[part]:
            if row not in before[part] and f"{part} {row}" not in now[_HELD]:
                said.append(f"+ {part}: {row}")
    return said


def by_subject(said: Iterable[str]) -> dict[str, int]:
    """Count differences by what they are about, all of `SUBJECTS`. Raises KeyError for another."""
    subject = {part: name for name, parts in SUBJECTS.items() for part in parts}
    count = dict.fromkeys(SUBJECTS, 0)
    for line in said:
        count[subject[line[2:].partition(":")[0]]] += 1
    return count


def settled(before: Mapping[str, Any], within_s: float = SETTLES_S) -> list[str]:
    """Return what differs from an earlier state once the machine has settled."""
    return lasting(lambda: differences(before, snapshot()), within_s)


def lasting(find: Callable[[], list[str]], within_s: float = SETTLES_S) -> list[str]:
    """Return nothing as soon as `find` finds nothing, else what it finds for long.

    What is left stays for ever; what others have begun to do meanwhile does not count.
    """
    began = time.monotonic()
    since_s: dict[str, float] = {}
    while found := find():
        now_s = time.monotonic() - began
        since_s = {row: since_s.get(row, now_s) for row in found}
        if now_s > within_s:
            return [row for row in found if since_s[row] < within_s / 2]
        time.sleep(0.1)
    return []


def _listed(argv: tuple[str, ...]) -> list[str]:
    found = json.loads(interfaces.run_command(argv) or "[]")
    return sorted(json.dumps(_lasting(item), sort_keys=True) for item in found)


def _lasting(item: Any) -> Any:
    if isinstance(item, list):
        return [_lasting(part) for part in item]
    if isinstance(item, dict):
        return {key: _lasting(value) for key, value in item.items() if key not in _PASSING}
    return item


def _cgroups() -> tuple[list[str], set[str]]:
    """Return all control groups, and those with processes in them or below."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    mounts = [words[1] for words in lines if words[2] in ("cgroup", "cgroup2")]
    found, held = [], set()
    for mount in mounts:
        for folder, _, _ in os.walk(mount):
            found.append(folder)
            with suppress(OSError):
                if Path(folder, "cgroup.procs").read_text():
                    held |= {f"cgroups {path}" for path in (folder, *Path(folder).parents)}
    return sorted(found), held


def _containers() -> list[str]:
    """Return the containers of the machine's runtimes, and those that a gone rack's groups hold."""
    found = [str(path) for state in _STATES for path in state.glob("*")]
    for group in control_groups.orphaned_groups():
        with suppress(OSError):  # they may go meanwhile
            for procs in group.glob("*/cgroup.procs"):
                with suppress(OSError):
                    found += [str(procs.parent)] * bool(procs.read_text())
    return sorted(found)


def bpf_objects() -> dict[str, tuple[list[int], set[int]]]:
    """Return the numbers of all BPF programs, maps and links, and of those with a descriptor.

    The others are pinned, or attached to something.
    """
    # before the descriptors: what is made meanwhile is not counted
    numbers = {kind: _all(command) for kind, command in _BPF.items()}
    held = _with_descriptors()
    if any(set(numbers[kind]) - held[kind] for kind in _BPF):
        # the kernel frees what a program used some time after the program
        time.sleep(_FREED_WITHIN_S)
        still = {kind: set(_all(command)) for kind, command in _BPF.items()}
        numbers = {kind: [one for one in numbers[kind] if one in still[kind]] for kind in _BPF}
    return {kind: (numbers[kind], held[kind]) for kind in _BPF}


def _with_descriptors() -> dict[str, set[int]]:
    held: dict[str, set[int]] = {kind: set() for kind in _BPF}
    line = re.compile(rf"^({'|'.join(_BPF)}):\s*(\d+)", re.MULTILINE)
    for folder in Path("/proc").glob("[0-9]*/fdinfo"):
        with suppress(OSError):
            for entry in os.scandir(folder):
                with suppress(OSError):
                    for kind, number in line.findall(Path(entry.path).read_text()):
                        held[kind].add(int(number))
    return held


def _all(command: int) -> list[int]:
    found = [0]
    while True:
        attributes = bytearray(struct.pack("=3I", found[-1], 0, 0))
        try:
            bpf(command, attributes, "next number")
        except LoadError:  # there are no more, or they may not be seen
            return found[1:]
        found.append(struct.unpack_from("=I", attributes, 4)[0])


def running(*words: str) -> set[int]:
    """Return the processes on whose command line these words are, in parts of its own words."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            given = entry.read_bytes().decode(errors="replace").split("\0")
            if all(any(word in item for item in given) for word in words):
                found.add(int(entry.parent.name))
    return found


def children(pid: int) -> set[int]:
    """Return the child processes of a process."""
    found = set()
    with suppress(OSError):  # it may end meanwhile, as may each of its threads
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found |= {int(child) for child in text.split()}
    return found


def family(pid: int) -> set[Process]:
    """Return a process and its descendants."""
    return {Process.of(pid)}.union(*(family(child) for child in children(pid)))


def namespaces(processes: Iterable[Process]) -> set[str]:
    """Return the namespaces of processes that are not this process's own."""
    return _namespaces(process.pid for process in processes) - _namespaces([os.getpid()])


def mounted_namespaces() -> set[str]:
    """Return the namespaces that a mount keeps."""
    return {*re.findall(r" (\w+:\[\d+\]) ", Path("/proc/self/mountinfo").read_text())}


def _namespaces(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        for entry in ("net", "mnt", "pid", "ipc", "uts", "cgroup"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/ns/{entry}"))
    return found
