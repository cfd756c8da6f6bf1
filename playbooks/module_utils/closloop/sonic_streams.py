"""Rows for High Frequency Telemetry of queue depths, where this switch can be asked for them.

A counter that SAI refuses leaves orchagent unhealthy (saihelper.cpp, handleSaiFailure). So only
what an ASIC is known to stream is asked for: of queues, Nvidia's have the depth in cells
(sonic-mgmt, tests/high_frequency_telemetry). The YANG model wants buffers for each queue's port,
and without them a session never begins (buildimage issue 24479). SONiC's own command keeps to one
profile.
"""

from __future__ import annotations

from ansible.module_utils.agent.sonic.resp import CONFIG_DB, Redis
from ansible.module_utils.agent.sonic.telemetry import GROUPS, PROFILES
from ansible.module_utils.closloop.reconcile import Refused

NAME = "CLOSLOOP"
COUNTERS = {"mellanox": "CURR_OCCUPANCY_CELLS"}


def stream_rows(redis: Redis, queues: list, interval_us: int, asic: str, streams: bool) -> dict:
    """Return the rows that stream the depths of queues, [(port, number)].

    `asic` is its kind, `streams` whether it has the family. Raises Refused, with the reason, where
    the switch cannot.
    """
    remedy = "remove closloop_telemetry: depths are then the PFC watchdog's"
    if not streams:
        raise Refused("it has no High Frequency Telemetry", remedy)
    if asic not in COUNTERS:
        raise Refused(f"what an ASIC of kind {asic!r} can stream of queues is not known", remedy)
    others = {key.split("|")[1] for key in redis.call(CONFIG_DB, "KEYS", f"{PROFILES}|*")} - {NAME}
    if others:
        raise Refused(
            f"it has the profile {', '.join(sorted(others))} already, and SONiC keeps to one",
            "let that one stream the queues' depths, or remove it; then provision again",
        )
    buffered = {key.split("|")[1] for key in redis.call(CONFIG_DB, "KEYS", "BUFFER_QUEUE|*")}
    for port, _ in queues:
        if not any(port in ports.split(",") for ports in buffered):
            raise Refused(f"{port} has no row in BUFFER_QUEUE", "run `config qos reload`")
    return {
        f"{PROFILES}|{NAME}": {"stream_state": "enabled", "poll_interval": str(interval_us)},
        f"{GROUPS}|{NAME}|QUEUE": {
            "object_names@": ",".join(f"{port}|{queue}" for port, queue in queues),
            "object_counters@": COUNTERS[asic],
        },
    }
