"""Kernel settings and queues of hosts and Linux switches, the same on every backend.

Some functions take `lacks`, the names of parts that a kernel does not have: queueing disciplines
(`red`, `fq`, `netem`, ...) and congestion controls (`dctcp`, ...). On a kernel without DCTCP a BPF
program takes its place, which orchestration/agent/bpf/congestion.py registers for as long as a
process lives (docs/hardware.md).
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

# NewReno (RFC 6582). With SACK, Linux detects losses by time only: clearing the first bit of
# tcp_recovery has no effect any more. Without SACK it counts tcp_reordering duplicate
# acknowledgements, a number that it would raise when it sees reordering.
_BY_DUPLICATES = {
    "net/ipv4/tcp_sack": "0",
    "net/ipv4/tcp_reordering": "3",
    "net/ipv4/tcp_max_reordering": "3",
    "net/ipv4/tcp_early_retrans": "0",
}

# Source and destination address, protocol, source and destination port.
_FIVE_TUPLE = 0x01 | 0x02 | 0x04 | 0x10 | 0x20


def host_sysctls(host: HostSpec, lacks: Collection[str] = ()) -> dict[str, str]:
    """Return a host's sysctls: its TCP, and that no flow uses what earlier flows measured.

    On a kernel that `lacks` DCTCP, connections negotiate ECN (RFC 3168), so that the other
    congestion controls respond to CE packets.
    """
    return {
        **({"net/ipv4/tcp_ecn": "1"} if "dctcp" in lacks else {}),
        "net/ipv4/tcp_congestion_control": "dctcp" if host.is_roce else host.congestion_control,
        "net/ipv4/tcp_rto_min_us": str(max(1, host.min_rto_ns // 1000)),
        "net/ipv4/tcp_limit_output_bytes": str(TSQ_LIMIT_BYTES),
        # a flow must not inherit what an earlier flow learned about the path
        "net/ipv4/tcp_no_metrics_save": "1",
        # a flow keeps its socket's hash even after a timeout, because the flow table identifies
        # flows by that hash
        "net/core/txrehash": "0",
        **(_BY_DUPLICATES if host.loss_detection == "duplicate-acks" else {}),
    }


def switch_sysctls(seed: int, number: int) -> dict[str, str]:
    """Return the sysctls of switch `number`: routing, and ECMP by a salted five-tuple hash."""
    return {
        "net/ipv4/ip_forward": "1",
        # no connection ends at a switch, so packets need no lookup of one
        "net/ipv4/ip_early_demux": "0",
        # 3, not 1, which would use the sender's random socket hash where a packet still carries it
        "net/ipv4/fib_multipath_hash_policy": "3",
        "net/ipv4/fib_multipath_hash_fields": str(_FIVE_TUPLE),
        "net/ipv4/fib_multipath_hash_seed": str(ecmp_seed(seed, number)),
    }


def ecmp_seed(seed: int, number: int) -> int:
    """Return the seed of the multipath hash of switch `number`, in a trial with this seed."""
    return (seed * 2_654_435_761 + number * 40_503 + 1) & 0x7FFFFFFF or 1


def absent_setting_findings(absent: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return findings for a trial's stamp on settings that kernels do not have.

    `absent` has the names of the missing sysctls by device.
    """
    by_name: dict[str, list[str]] = {}
    for device, names in absent.items():
        for name in names:
            by_name.setdefault(name, []).append(device)
    return [
        {
            "code": "settings-absent",
            "severity": "warning",
            "text": f"the kernels of {', '.join(devices)} have no {name.replace('/', '.')}: "
            f"it was not set there",
        }
        for name, devices in sorted(by_name.items())
    ]


def has_link_delays(lacks: Collection[str]) -> bool:
    """Return whether ports have propagation delays, on a kernel that `lacks` these parts.

    Without netem there is no delay. Nor is there one without RED: the program that marks in RED's
    place sees only the port's whole backlog, which would include the packets that netem delays.
    """
    return {"netem", "red"}.isdisjoint(lacks)


def bucket_bytes(testbed: Testbed) -> int:
    """Return the size of a shaper's token bucket: one frame and a little more, to avoid bursts.

    Thanks to the spare bytes, a shaper that wakes up a nanosecond late catches up instead of losing
    a nanosecond's share of its rate.
    """
    return testbed.mtu_bytes + ETHERNET_HEADER_BYTES + _BUCKET_SPARE_BYTES


def host_queues(
    testbed: Testbed, port: Port, lacks: Collection[str] = (), late_ns: int = 0
) -> dict[str, Any]:
    """Return a NIC's queues for `qdiscs.stack`: round robin between flows.

    The shaper's bucket is large enough to catch up when it wakes up to `late_ns` late. On a kernel
    that `lacks` fq all flows share one queue, in which TCP's own limit (`TSQ_LIMIT_BYTES`) keeps
    each flow's share small.
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
    """Return a switch port's queues for `qdiscs.stack`: RED that marks only if the queue is full.

    A tuner sets other thresholds later. Without `shape` there is no shaper; with one, its bucket is
    large enough to catch up when it wakes up to `late_ns` late. A kernel that `lacks` RED gets a
    plain queue of the same size, in which a BPF program marks packets during trials
    (agent/linux_switch/marks.py). Raises InputError for several traffic classes on such a kernel.
    """
    if "red" in lacks:
        if testbed.classes:
            raise InputError.single(
                f"{testbed.name}: {port.device}",
                "on a kernel without RED, only one queue per port can be marked, and the testbed "
                "has traffic classes",
                "use a testbed without classes, or a kernel with RED (modprobe sch_red)",
            )
        fifo: dict[str, Any] = {"fifo": {"limit_bytes": port.buffer_bytes}}
        return {**fifo, "shaper": _shaper(testbed, port, late_ns)} if shape else fifo
    queues: dict[str, Any] = {
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
        queues["shaper"] = _shaper(testbed, port, late_ns)
    if testbed.classes:
        queues["weights"] = [klass.weight for klass in testbed.classes]
        queues["frame_bytes"] = testbed.mtu_bytes + ETHERNET_HEADER_BYTES
    return queues


def _shaper(testbed: Testbed, port: Port, late_ns: int) -> dict[str, int]:
    return {
        "rate_bps": port.rate_bps,
        "bucket_bytes": bucket_bytes(testbed) + port.rate_bps * late_ns // 8_000_000_000,
        "framing_bytes": testbed.framing_bytes,
    }


DCTCP = "dctcp"
# The name of a congestion control has at most 15 characters. The random digits keep the programs of
# two trials on one kernel apart.
_NAME_PREFIX, _NAME_DIGITS = "bpf_dctcp_", 5


def new_program_name() -> str:
    """Return a new name for a trial's DCTCP program, unique among all programs of the kernel."""
    return _NAME_PREFIX + secrets.token_hex(_NAME_DIGITS)[:_NAME_DIGITS]


def with_dctcp_program(trial: TrialSpec, name: str) -> TrialSpec:
    """Return the trial with the program `name` as congestion control wherever it had DCTCP."""

    def renamed(control: str) -> Any:
        return name if control == DCTCP else control

    host: HostSpec = replace(trial.host, congestion_control=renamed(trial.host.congestion_control))
    traffic = tuple(
        replace(spec, congestion_control=renamed(spec.congestion_control)) for spec in trial.traffic
    )
    return replace(trial, host=host, traffic=traffic)


def dctcp_facts(name: str, totals: dict[str, Any], **where: Any) -> dict[str, Any]:
    """Return facts for a trial's record: the program in DCTCP's place, and its counters."""
    program = {"by": "a BPF program", "name": name, **where, "totals": totals}
    return {"congestion_control": {DCTCP: program}}


def dctcp_findings(astray: int) -> list[dict[str, str]]:
    """Return findings for the stamp on window cuts that the kernel made without the program.

    `astray` is the number of such cuts.
    """
    if not astray:
        return []
    text = (
        f"hosts' kernels reduced windows {astray} times without asking DCTCP's program, which "
        "corrected that at the next acknowledgement"
    )
    return [{"code": "dctcp-program", "severity": "warning", "text": text}]
