"""How often a large SONiC switch reads its counters: what syncd's load allows.

Each poll reads the counters of all ports, and at 100 ms that can take more than a core of a box
with many ports (sonic-buildimage issue 9202: 116 ports). So there it begins slower, and the load of
syncd, read from /proc, decides.
"""

from __future__ import annotations

import os
import time

from ansible.module_utils.agent.sonic.resp import CONFIG_DB, Redis

GROUPS = ("PORT", "QUEUE", "WRED_ECN_QUEUE")
# Switches with more ports than this begin at FIRST_MS.
MAX_PORTS = 64
FIRST_MS = 500
# The most that syncd may take, in cores: at FIRST_MS, to try the wanted interval at all (which is
# five times as often), and then at that interval.
_MAX_BEFORE, _MAX_AFTER = 0.2, 0.8
_MEASURED_S = 5.0


def is_large(redis: Redis) -> bool:
    """Return True if the switch has many ports."""
    return len(redis.call(CONFIG_DB, "KEYS", "PORT|*")) > MAX_PORTS


def first(present: str, wanted: str) -> str:
    """Return the interval in ms that a large switch begins with: its own if that is good enough."""
    good = present.isdigit() and int(wanted) <= int(present) <= FIRST_MS
    return present if good else str(FIRST_MS)


def set_polls(redis: Redis, wanted: dict, load=None) -> str:
    """Set intervals in ms by group, from FIRST_MS, if syncd stands it; return why not, or "".

    `load` measures syncd's load in cores.
    """
    load = load or syncd_cores
    slow = load()
    if slow is None:
        return "syncd's load cannot be measured: there is no process of that name"
    if slow > _MAX_BEFORE:
        return f"syncd takes {slow:.2f} cores at {FIRST_MS} ms already"
    _write(redis, wanted)
    fast = load()
    if fast is not None and fast <= _MAX_AFTER:
        return ""
    _write(redis, dict.fromkeys(wanted, str(FIRST_MS)))
    taken = "an unknown number of" if fast is None else f"{fast:.2f}"
    return f"syncd takes {taken} cores at {min(map(int, wanted.values()))} ms"


def _write(redis: Redis, intervals: dict) -> None:
    redis.run(
        [
            (CONFIG_DB, ("HSET", f"FLEX_COUNTER_TABLE|{group}", "POLL_INTERVAL", interval))
            for group, interval in intervals.items()
        ]
    )


def syncd_cores(proc: str = "/proc", seconds: float = _MEASURED_S):
    """Return the cores that syncd's threads took over some seconds, None if it does not run.

    Containers share the host's list of processes, so that syncd is seen by its name.
    """
    before, start = _ticks(proc), time.monotonic()
    time.sleep(seconds)
    after, took = _ticks(proc), time.monotonic() - start
    both = [pid for pid in after if pid in before]
    if not both:
        return None
    ticks = sum(after[pid] - before[pid] for pid in both)
    return ticks / os.sysconf("SC_CLK_TCK") / took


def _ticks(proc: str) -> dict:
    """Return the CPU time of each process called syncd, in clock ticks."""
    found = {}
    for pid in os.listdir(proc):
        if not pid.isdigit():
            continue
        try:
            with open(os.path.join(proc, pid, "stat"), encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        if name == "syncd":
            words = rest.split()
            # utime and stime, the 14th and 15th fields; the 3rd comes first here
            found[pid] = int(words[11]) + int(words[12])
    return found
