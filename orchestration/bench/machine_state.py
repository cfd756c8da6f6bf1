"""The state of this machine, to be compared before and after a rack in real time.

Interfaces, addresses, routes, rules and queueing disciplines are those of this process's network
namespace, and mounts those of its mount namespace. Control groups, containers and BPF objects are
those of the whole machine.
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

_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "links": ("ip", "-j", "-d", "link", "show"),
    "addresses": ("ip", "-j", "address", "show"),
    "routes": ("ip", "-j", "-4", "route", "show", "table", "all"),
    "routes6": ("ip", "-j", "-6", "route", "show", "table", "all"),
    "rules": ("ip", "-j", "-4", "rule", "show"),
    "rules6": ("ip", "-j", "-6", "rule", "show"),
    "qdiscs": ("tc", "-j", "qdisc", "show"),
    "named namespaces": ("ip", "-j", "netns", "list"),
}
# Where container runtimes keep their records of containers that root has started.
_STATES = (Path("/run/runc"), Path("/run/crun"))
# The parts of a snapshot, grouped for the benchmark's table.
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "interfaces, addresses, qdiscs": ("links", "addresses", "qdiscs", "interfaces", "leases"),
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
# The part of a snapshot that names what a running process holds.
_HELD = "held"
# Objects that disappear when the program that created them lets go of them. A rack cannot remove
# those of other programs, so it does not count if one disappears.
_FREED_BY_OWNER = ("cgroups", "prog_id", "map_id", "link_id")
# Fields that change by themselves with time, or with other network namespaces.
_TRANSIENT = ("valid_life_time", "preferred_life_time", "expires", "tentative", "link_netnsid")
# The name of an object's number in a descriptor's fdinfo -> the command of bpf(2) that walks all
# objects of that kind.
_BPF = {"prog_id": 11, "map_id": 12, "link_id": 31}
_FREED_WITHIN_S = 0.2
# How long a busy machine may take to end processes and namespaces. The wait ends as
# soon as nothing differs.
SETTLES_S = 120.0


def snapshot(leased: Iterable[str] = ()) -> dict[str, Any]:
    """Return the machine's state, with offloads and settings of the interfaces `leased`."""
    found: dict[str, Any] = {name: _json_items(argv) for name, argv in _COMMANDS.items()}
    found["interfaces"] = [json.dumps(asdict(interfaces.read_state(name))) for name in leased]
    found["mounts"] = sorted(
        " ".join(line.split()[3:]) for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )
    found["leases"] = [lease.interface for lease in interface_leases.leases()]
    found["cgroups"], found[_HELD] = _cgroups()
    found["containers"] = _containers()
    for kind, (numbers, held) in bpf_objects().items():
        found[kind] = numbers
        found[_HELD] |= {f"{kind} {number}" for number in held}
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two snapshots, a line each.

    Control groups and BPF objects that disappeared do not count, nor do new ones that a running
    process holds.
    """
    lines = []
    for part in before.keys() - {_HELD}:
        if part not in _FREED_BY_OWNER:
            lines += [f"- {part}: {row}" for row in before[part] if row not in now[part]]
        for row in now[part]:
            if row not in before[part] and f"{part} {row}" not in now[_HELD]:
                lines.append(f"+ {part}: {row}")
    return lines


def count_by_subject(lines: Iterable[str]) -> dict[str, int]:
    """Return the number of differences by subject, for all of `SUBJECTS`.

    Raises KeyError for a line that is not from `differences`.
    """
    subject = {part: name for name, parts in SUBJECTS.items() for part in parts}
    counts = dict.fromkeys(SUBJECTS, 0)
    for line in lines:
        counts[subject[line[2:].partition(":")[0]]] += 1
    return counts


def settled_differences(before: Mapping[str, Any], within_s: float = SETTLES_S) -> list[str]:
    """Wait until the machine has settled; return what differs from an earlier snapshot."""
    return lasting_differences(lambda: differences(before, snapshot()), within_s)


def lasting_differences(find: Callable[[], list[str]], within_s: float = SETTLES_S) -> list[str]:
    """Call `find` until it finds nothing, or for `within_s` seconds; return what lasted.

    Differences count if they were there for the second half of that time. So what other programs
    have begun to do meanwhile does not count.
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


def _json_items(argv: tuple[str, ...]) -> list[str]:
    found = json.loads(interfaces.run_command(argv) or "[]")
    return sorted(json.dumps(_without_transient(item), sort_keys=True) for item in found)


def _without_transient(item: Any) -> Any:
    if isinstance(item, list):
        return [_without_transient(part) for part in item]
    if isinstance(item, dict):
        return {
            key: _without_transient(value) for key, value in item.items() if key not in _TRANSIENT
        }
    return item


def _cgroups() -> tuple[list[str], set[str]]:
    """Return all control groups, and the names of those that have processes in them or below."""
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
    """Return the containers of the machine's runtimes, and those that a killed rack has left."""
    found = [str(path) for state in _STATES for path in state.glob("*")]
    for group in control_groups.orphaned_groups():
        with suppress(OSError):  # the groups may disappear meanwhile
            for procs in group.glob("*/cgroup.procs"):
                with suppress(OSError):
                    found += [str(procs.parent)] * bool(procs.read_text())
    return sorted(found)


def bpf_objects() -> dict[str, tuple[list[int], set[int]]]:
    """Return, by kind, the numbers of all BPF objects, and of those that a process has open.

    Objects that no process has open are pinned, or attached to something.
    """
    # before the descriptors, so that objects created meanwhile are not counted
    numbers = {kind: _object_ids(command) for kind, command in _BPF.items()}
    held = _with_descriptors()
    if any(set(numbers[kind]) - held[kind] for kind in _BPF):
        # the kernel frees a program's maps and links some time after the program
        time.sleep(_FREED_WITHIN_S)
        still = {kind: set(_object_ids(command)) for kind, command in _BPF.items()}
        numbers = {
            kind: [number for number in numbers[kind] if number in still[kind]] for kind in _BPF
        }
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


def _object_ids(command: int) -> list[int]:
    found = [0]
    while True:
        attributes = bytearray(struct.pack("=3I", found[-1], 0, 0))
        try:
            bpf(command, attributes, "next number")
        except LoadError:  # there are no more, or this process may not see them
            return found[1:]
        found.append(struct.unpack_from("=I", attributes, 4)[0])


def find_processes(*words: str) -> set[int]:
    """Return the ids of processes whose command line has all these words, as parts of arguments."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            argv = entry.read_bytes().decode(errors="replace").split("\0")
            if all(any(word in item for item in argv) for word in words):
                found.add(int(entry.parent.name))
    return found


def children(pid: int) -> set[int]:
    """Return the ids of a process's children."""
    found = set()
    with suppress(OSError):  # the process may end meanwhile, and so may each of its threads
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found |= {int(child) for child in text.split()}
    return found


def process_tree(pid: int) -> set[Process]:
    """Return a process and its descendants."""
    return {Process.of(pid)}.union(*(process_tree(child) for child in children(pid)))


def namespaces(processes: Iterable[Process]) -> set[str]:
    """Return the namespaces of these processes, without this process's own."""
    return _namespaces(process.pid for process in processes) - _namespaces([os.getpid()])


def mounted_namespaces() -> set[str]:
    """Return the namespaces that a mount keeps alive."""
    return {*re.findall(r" (\w+:\[\d+\]) ", Path("/proc/self/mountinfo").read_text())}


def _namespaces(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        for entry in ("net", "mnt", "pid", "ipc", "uts", "cgroup"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/ns/{entry}"))
    return found
