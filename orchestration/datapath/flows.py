"""Posts a schedule's flows to the guest's RoCE NICs, and reads their results.

The structs are those of `roce.h`, `roce_flows.c` and `nic.c`.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.netlink import attribute
from orchestration.core.congestion import PROGRAM, NicPolicy
from orchestration.core.records import FlowRecords, Ints, Schedule
from orchestration.core.roce import CNP_INTERVAL, DCQCN_PARAMETERS, DECISIONS, RoceSpec, udp_source
from orchestration.core.status import DONE, LONG_LIVED, UNFINISHED

FLOWS, RECEIVED = "/proc/closloop/flows", "/proc/closloop/received"
KIND = "closloop_nic"
# DSCP 26 and ECT(0), the traffic class that RoCE has by default on mlx5 NICs.
ROCE_TOS = 106
_NOT_ECT, ECT0 = 0xFC, 2
# By their numbers in roce_flows.c.
POLICIES = ("fixed", "dcqcn", "swift", "timely", "hpcc", "rlcc", "rlcc-mlp", "rlcc-lstm", PROGRAM)
# Those of policy_dcqcn.c, in its order.
PARAMETER_ORDER = tuple(name for name in DCQCN_PARAMETERS if name != CNP_INTERVAL)
MAX_PARAMETERS = 24
# Signals of scope flow by the fields of the results, in the order of their declarations.
SIGNALS = {
    "acked_bytes": "acked_bytes",
    "resent_packets": "resent",
    "rtts": "rtts",
    "rtt_sum_ns": "rtt_sum_ns",
    "rate_bps": "rate_bps",
}
_NIC = struct.Struct("=QQI4s")
_SETTINGS = struct.Struct(f"=QQQQIIIIIIII{MAX_PARAMETERS}I")
_POSTED = np.dtype(
    [
        ("start_ns", np.uint64),
        ("size_bytes", np.uint64),
        ("src", "V4"),
        ("dst", "V4"),
        ("udp_source", np.uint16),
        ("tos", np.uint8),
        ("unused", "V5"),
    ]
)
COUNTERS = ("packets", "resent", "marked", "cnps", "naks", "timeouts", "probes")
RESULT = np.dtype(
    [
        *((name, np.uint64) for name in ("sent_ns", "received_ns", "done_ns")),
        *((name, np.uint64) for name in ("rate_bps", "rtt_ns", "rtt_sum_ns", "acked_bytes")),
        *((name, np.uint32) for name in (*COUNTERS, "rtts")),
    ]
)


def nic_request(
    ifindex: int, address: str, *, rate_bps: int, delay_ns: int, framing_bytes: int
) -> bytes:
    """Return the request that makes a host's interface a RoCE NIC; `delay_ns` is its cable's."""
    options = _NIC.pack(rate_bps, delay_ns, framing_bytes, socket.inet_aton(address))
    root, handle = qdiscs.TC_H_ROOT, qdiscs.LEAF_HANDLE
    return qdiscs.qdisc(ifindex, handle, root, KIND, attribute(1, options), nested=True)


class RoceFlows:
    """The flows of a trial on the NICs of this guest. They are posted once.

    Those that last never end: they are finished at `lasts_until_ns` of the trial's clock.
    """

    def __init__(
        self,
        schedule: Schedule,
        addresses: Sequence[tuple[str, ...]],
        spec: RoceSpec,
        policy: NicPolicy,
        tos: Sequence[int] = (),
        *,
        lasting: NDArray[np.bool_] | None = None,
        lasts_until_ns: int = 0,
        icrc: bool = False,
    ) -> None:
        """Prepare them.

        `addresses` are those of each host's NICs, in the order of `Testbed.hosts`; `tos` is the
        type of service of each pattern's flows, empty for RoCE's default; `lasting` (flows,) says
        which last, by default none. With `icrc`, for a capture, packets have their CRC; else its
        four bytes are 0.
        """
        numbers = policy.numbers
        self._settings = _SETTINGS.pack(
            spec.parameters[CNP_INTERVAL] * 1000,
            spec.timeout_ns,
            spec.rtt_probe_interval_ns,
            spec.decision_latency_ns,
            spec.payload_bytes,
            spec.ack_every,
            spec.window_bytes,
            POLICIES.index(PROGRAM if spec.program else spec.control),
            int(spec.recovery == "selective-repeat"),
            int(icrc),
            DECISIONS.index(spec.decisions),
            0,
            *numbers,
            *[0] * (MAX_PARAMETERS - len(numbers)),
        )
        self._tos = np.full(len(schedule), ROCE_TOS, dtype=np.uint8)
        if len(tos):
            self._tos = np.array(tos, dtype=np.uint8)[schedule.klass]
        if not policy.answers_marks:
            self._tos &= _NOT_ECT
        self._schedule = schedule
        self._times_round_trips = policy.times_round_trips
        self._lasting = np.zeros(len(schedule), dtype=bool) if lasting is None else lasting
        self._lasts_until_ns = lasts_until_ns if self._lasting.any() else 0
        self._order = np.argsort(schedule.start_ns, kind="stable")
        self._addresses = [[socket.inet_aton(word) for word in words] for words in addresses]
        self._t0_ns = 0
        self._count = os.open(RECEIVED, os.O_RDONLY)

    def post(self, t0_ns: int) -> None:
        """Give all flows to the NICs; time 0 is `t0_ns` of CLOCK_MONOTONIC."""
        schedule, order = self._schedule, self._order
        self._t0_ns = t0_ns
        posted = np.zeros(len(schedule), dtype=_POSTED)
        posted["start_ns"] = schedule.start_ns[order] + t0_ns
        posted["size_bytes"] = schedule.size_bytes[order]
        for name, hosts in (("src", schedule.src[order]), ("dst", schedule.dst[order])):
            chosen = [
                self._addresses[host][flow % len(self._addresses[host])]
                for flow, host in zip(order.tolist(), hosts.tolist(), strict=True)
            ]
            posted[name] = np.array(chosen, dtype="V4")
        posted["udp_source"] = udp_source(order)
        posted["tos"] = self._tos[order]
        fd = os.open(FLOWS, os.O_WRONLY)
        os.write(fd, self._settings + posted.tobytes())
        os.close(fd)

    def received(self) -> int:
        """Return how many flows have been received."""
        return int.from_bytes(os.pread(self._count, 4, 0), "little")

    def all_done(self) -> bool:
        """Return whether the sender of every flow has its last acknowledgement, or it lasts and
        its time is over."""
        if self.received() < len(self._schedule) - self._lasting.sum():
            return False
        if self._lasts_until_ns and time.monotonic_ns() < self._t0_ns + self._lasts_until_ns:
            return False
        return bool((self.results()["done_ns"] > 0)[~self._lasting].all())

    def counters(self) -> dict[str, Ints]:
        """Return the flows' signals as they are now, arrays (flows,)."""
        found = self.results()
        return {name: found[field].astype(np.int64) for name, field in SIGNALS.items()}

    def results(self) -> np.ndarray:
        """Return the kernel's results, dtype `RESULT`, in the order of the schedule."""
        fd = os.open(FLOWS, os.O_RDONLY)
        size = len(self._schedule) * RESULT.itemsize
        data = b""
        while len(data) < size and (piece := os.read(fd, size - len(data))):
            data += piece
        os.close(fd)
        found = np.zeros(len(self._schedule), dtype=RESULT)
        found[self._order] = np.frombuffer(data, dtype=RESULT)
        return found

    def facts(self) -> dict[str, int]:
        """Return sums over all flows, and how many were sent without one round trip timed."""
        found = self.results()
        sums = {name: int(found[name].sum()) for name in COUNTERS}
        if self._times_round_trips:
            untimed = (found["sent_ns"] > 0) & (found["rtt_ns"] == 0)
            sums["untimed_flows"] = int(untimed.sum())
        return sums

    def records(self) -> FlowRecords:
        """Return the flows' records: a flow ends when its sender has the last acknowledgement."""
        found = self.results()
        done, left = found["done_ns"] > 0, np.where(self._lasting, LONG_LIVED, UNFINISHED)
        return FlowRecords(
            # The NIC has a flow from its start on, as TCP has it when the bytes are handed over.
            # What it waits there for its turn is part of its time.
            sent_ns=np.where(found["sent_ns"] > 0, self._schedule.start_ns, -1),
            end_ns=np.where(done, found["done_ns"].astype(np.int64) - self._t0_ns, -1),
            retransmits=found["resent"].astype(np.int64),
            status=np.where(done, DONE, left).astype(np.int64),
        )
