"""Kernel settings and queues of hosts and Linux switches, the same on every backend.

Where a kernel has no DCTCP, a BPF program is it, which orchestration/agent/bpf/congestion.py
registers for as long as a process lives (docs/hardware.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestration.agent.linux.qdiscs import ALWAYS
from orchestration.core.errors import InputError
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Port, Testbed
from orchestration.core.trial import HostSpec, TrialSpec

_BUCKET_SPARE_BYTES = 100

# A host keeps at most this much of one flow below TCP, as NICs with per-flow queues do. Linux'
# default of 4 MB would let an elephant flow fill the NIC's queue with a millisecond of data.
TSQ_LIMIT_BYTES = 65_536

# The limit of a NIC's queue, which its hosts' TCP does not reach.
_NEVER_BYTES = 1 << 30

# NewReno. With SACK, Linux detects losses by time only: tcp_recovery without its first bit has no
# effect any more. Without SACK it counts duplicates, as many as tcp_reordering says, a number that
# it would raise when it sees reordering.
_BY_DUPLICATES = {
    "net/ipv4/tcp_sack": "0",
    "net/ipv4/tcp_reordering": "3",
    "net/ipv4/tcp_max_reordering": "3",
    "net/ipv4/tcp_early_retrans": "0",
}

# Source and destination address, protocol, source and destination port.
_FIVE_TUPLE = 0x01 | 0x02 | 0x04 | 0x10 | 0x20


def host_sysctls(host: HostSpec, lacks: Collection[str] = ()) -> dict[str, str]:
    """Return a host's settings: its TCP, and that flows share no knowledge.

    On a kernel that `lacks` DCTCP the other controls answer marks: connections ask for that
    (RFC 3168).
    """
    return {
        **({"net/ipv4/tcp_ecn": "1"} if "dctcp" in lacks else {}),
        "net/ipv4/tcp_congestion_control": "dctcp" if host.is_roce else host.congestion_control,
        "net/ipv4/tcp_rto_min_us": str(max(1, host.min_rto_ns // 1000)),
        "net/ipv4/tcp_limit_output_bytes": str(TSQ_LIMIT_BYTES),
        # a flow must not inherit what an earlier one learned about the path
        "net/ipv4/tcp_no_metrics_save": "1",
        # a flow keeps its socket's hash even after a timeout: the flow table identifies it by that
        # hash
        "net/core/txrehash": "0",
        **(_BY_DUPLICATES if host.loss_detection == "duplicate-acks" else {}),
    }


def switch_sysctls(seed: int, number: int) -> dict[str, str]:
    """Return the settings of switch `number`: routing, and ECMP by the five-tuple, salted."""
    salt = (seed * 2_654_435_761 + number * 40_503 + 1) & 0x7FFFFFFF
    return {
        "net/ipv4/ip_forward": "1",
        # no connection ends at a switch, so none need be looked up
        "net/ipv4/ip_early_demux": "0",
        # 3, not 1, which would use the sender's random socket hash where a packet still carries it
        "net/ipv4/fib_multipath_hash_policy": "3",
        "net/ipv4/fib_multipath_hash_fields": str(_FIVE_TUPLE),
        "net/ipv4/fib_multipath_hash_seed": str(salt or 1),
    }


def absent_setting_findings(absent: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return findings for a trial's stamp on settings, by device, that its kernel does not have."""
    with_dctcp_program: dict[str, list[str]] = {}
    for device, names in absent.items():
        for name in names:
            with_dctcp_program.setdefault(name, []).append(device)
    return [
        {
            "code": "settings-absent",
            "severity": "warning",
            "text": f"the kernels of {', '.join(devices)} have no {name.replace('/', '.')}: "
            f"it stays as it is there",
        }
        for name, devices in sorted(with_dctcp_program.items())
    ]


def has_link_delays(lacks: Collection[str]) -> bool:
    """Return whether ports have propagation delays, on a kernel that `lacks` these parts.

    A program that marks in RED's place takes the port's whole backlog for its queue, and that would
    count what netem delays.
    """
    return {"netem", "red"}.isdisjoint(lacks)


def bucket_bytes(testbed: Testbed) -> int:
    """Return the bytes of a shaper's bucket: one frame and a little more, so that nothing bursts.

    With the little more, a shaper that wakes up a nanosecond late catches up instead of losing that
    nanosecond of its rate.
    """
    return testbed.mtu_bytes + ETHERNET_HEADER_BYTES + _BUCKET_SPARE_BYTES


def host_queues(
    testbed: Testbed, port: Port, lacks: Collection[str] = (), late_ns: int = 0
) -> dict[str, Any]:
    """Return a NIC's queues for `qdiscs.stack`: round robin between flows.

    Shapers make up for waking up to `late_ns` late. A kernel that `lacks` fq has one queue for all
    flows, in which TCP's own limit (`TSQ_LIMIT_BYTES`) keeps each flow's share small.
    """
    shaper = {"shaper": _shaper(testbed, port, late_ns)}
    return (
        {**shaper, "fifo": {"limit_bytes": _NEVER_BYTES}}
        if "fq" in lacks
        else {**shaper, "fair": True}
    )


def switch_queues(
    testbed: Testbed,
    port: Port,
    *,
    shape: bool = True,
    lacks: Collection[str] = (),
    late_ns: int = 0,
) -> dict[str, Any]:
    """Return a switch port's queues: RED that never marks until a tuner sets thresholds.

    Shapers make up for waking up to `late_ns` late. A kernel that `lacks` RED has a plain queue of
    the same size, which a BPF program marks during trials (agent/linux_switch/marks.py). Raises
    InputError for several traffic classes there.
    """
    if "red" in lacks:
        if testbed.classes:
            raise InputError.single(
                f"{testbed.name}: {port.device}",
                "a kernel without RED marks one queue a port, and the testbed has traffic classes",
                "use a testbed without classes, or a kernel with RED (modprobe sch_red)",
            )
        plain: dict[str, Any] = {"fifo": {"limit_bytes": port.buffer_bytes}}
        return {**plain, "shaper": _shaper(testbed, port, late_ns)} if shape else plain
    result: dict[str, Any] = {
        "reds": [
            {
                "kmin_bytes": queue.buffer_bytes,
                "kmax_bytes": queue.buffer_bytes,
                "max_p": ALWAYS,
                "limit_bytes": queue.buffer_bytes,
            }
            for queue in testbed.queues_at(port)
        ]
    }
    if shape:
        result["shaper"] = _shaper(testbed, port, late_ns)
    if testbed.classes:
        result["weights"] = [klass.weight for klass in testbed.classes]
        result["frame_bytes"] = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    return result


def _shaper(testbed: Testbed, port: Port, late_ns: int) -> dict[str, int]:
    return {
        "rate_bps": port.rate_bps,
        "bucket_bytes": bucket_bytes(testbed) + port.rate_bps * late_ns // 8_000_000_000,
        "framing_bytes": testbed.framing_bytes,
    }


DCTCP = "dctcp"
# With five more digits it has the kernel's 15 characters: two trials on a kernel do not meet.
_NAME, _DIGITS = "bpf_dctcp_", 5


def new_program_name() -> str:
    """Return a name for a trial's program, which all of the kernel sees."""
    return _NAME + secrets.token_hex(_DIGITS)[:_DIGITS]


def with_dctcp_program(trial: TrialSpec, name: str) -> TrialSpec:
    """Return the trial with flows that ask for the program, by its name, in place of DCTCP."""

    def own(control: str) -> Any:
        return name if control == DCTCP else control

    host: HostSpec = replace(trial.host, congestion_control=own(trial.host.congestion_control))
    traffic = tuple(
        replace(spec, congestion_control=own(spec.congestion_control)) for spec in trial.traffic
    )
    return replace(trial, host=host, traffic=traffic)


def dctcp_facts(name: str, totals: dict[str, Any], **where: Any) -> dict[str, Any]:
    """Return facts for a trial's record: who is DCTCP, and what connections did."""
    said = {"by": "a BPF program", "name": name, **where, "totals": totals}
    return {"congestion_control": {DCTCP: said}}


def dctcp_findings(astray: int) -> list[dict[str, str]]:
    """Return findings for the stamp on `astray` cuts of windows that the kernel made without it."""
    if not astray:
        return []
    text = (
        f"hosts' kernels did not ask DCTCP's program {astray} times when windows became "
        "smaller, and it put that right with the next acknowledgement"
    )
    return [{"code": "dctcp-program", "severity": "warning", "text": text}]
