"""Sets how often a large SONiC switch polls its counters, as the load of syncd allows.

Each poll reads the counters of all ports, and at 100 ms that can take more than a core of a switch
with many ports (sonic-buildimage issue 9202: 116 ports). So polls begin at a longer interval there,
and the load of syncd, read from /proc, decides whether the desired one is used.
"""

from __future__ import annotations

import os
import time

from ansible.module_utils.agent.sonic.resp import CONFIG_DB, Redis

GROUPS = ("PORT", "QUEUE", "WRED_ECN_QUEUE")
# Switches with more ports than this begin at INITIAL_MS.
MAX_PORTS = 64
INITIAL_MS = 500
# How many cores syncd may use at most: at INITIAL_MS, for the desired interval (which is five times
# as short) to be tried at all, and then at that interval.
_MAX_BEFORE, _MAX_AFTER = 0.2, 0.8
_MEASURED_S = 5.0


def is_large(redis: Redis) -> bool:
    """Return True if the switch has many ports."""
    return len(redis.call(CONFIG_DB, "KEYS", "PORT|*")) > MAX_PORTS


def initial_interval(present: str, wanted: str) -> str:
    """Return the first interval of a large switch, in ms: its own if that is short enough."""
    good = present.isdigit() and int(wanted) <= int(present) <= INITIAL_MS
    return present if good else str(INITIAL_MS)


def set_polls(redis: Redis, wanted: dict, load=None) -> str:
    """Set the desired intervals, in ms by group, if syncd's load allows; return why not, or "".

    The intervals are INITIAL_MS before, and afterwards if the load is too high. `load` measures
    syncd's load in cores.
    """
    load = load or syncd_cores
    initial_cores = load()
    if initial_cores is None:
        return "syncd's load cannot be measured: there is no process of that name"
    if initial_cores > _MAX_BEFORE:
        return f"syncd takes {initial_cores:.2f} cores at {INITIAL_MS} ms already"
    _write(redis, wanted)
    final_cores = load()
    if final_cores is not None and final_cores <= _MAX_AFTER:
        return ""
    _write(redis, dict.fromkeys(wanted, str(INITIAL_MS)))
    cores_text = "an unknown number of" if final_cores is None else f"{final_cores:.2f}"
    return f"syncd takes {cores_text} cores at {min(map(int, wanted.values()))} ms"


def _write(redis: Redis, intervals: dict) -> None:
    redis.run(
        [
            (CONFIG_DB, ("HSET", f"FLEX_COUNTER_TABLE|{group}", "POLL_INTERVAL", interval))
            for group, interval in intervals.items()
        ]
    )


def syncd_cores(proc: str = "/proc", seconds: float = _MEASURED_S):
    """Return how many cores syncd's threads used over some seconds, None if it does not run.

    The host sees processes in containers, so syncd is found by its name.
    """
    before, start = _ticks(proc), time.monotonic()
    time.sleep(seconds)
    after, elapsed_s = _ticks(proc), time.monotonic() - start
    common_pids = [pid for pid in after if pid in before]
    if not common_pids:
        return None
    ticks = sum(after[pid] - before[pid] for pid in common_pids)
    return ticks / os.sysconf("SC_CLK_TCK") / elapsed_s


def _ticks(proc: str) -> dict:
    """Return the CPU time of each process called syncd, in clock ticks."""
    ticks_by_pid = {}
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
            stat_fields = rest.split()
            # utime and stime, the 14th and 15th fields; the 3rd comes first here
            ticks_by_pid[pid] = int(stat_fields[11]) + int(stat_fields[12])
    return ticks_by_pid
