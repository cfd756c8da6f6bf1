"""Writes a schedule's flows to the guest's RoCE NICs, and reads their results.

The layouts of structs are those in `roce.h`, `roce_flows.c` and `nic.c`.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from abc import ABC, abstractmethod
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
# In the order of their numbers in roce_flows.c.
POLICIES = ("fixed", "dcqcn", "swift", "timely", "hpcc", "rlcc", "rlcc-mlp", "rlcc-lstm", PROGRAM)
# The parameters of policy_dcqcn.c, in its order.
PARAMETER_ORDER = tuple(name for name in DCQCN_PARAMETERS if name != CNP_INTERVAL)
MAX_PARAMETERS = 24
# For each signal of scope flow, its field in the results, in the order of the declarations.
SIGNALS = {
    "acked_bytes": "acked_bytes",
    "resent_packets": "resent",
    "rtts": "rtts",
    "rtt_sum_ns": "rtt_sum_ns",
    "rate_bps": "rate_bps",
}
_NIC = struct.Struct("=QQI4s")
_SETTINGS = struct.Struct(f"=QQQQIIIIIIII{MAX_PARAMETERS}I")
_FLOW = np.dtype(
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
    """Return the netlink request that makes a host's interface a RoCE NIC.

    `delay_ns` is the delay of its cable, `framing_bytes` the framing of each packet.
    """
    options = _NIC.pack(rate_bps, delay_ns, framing_bytes, socket.inet_aton(address))
    root, handle = qdiscs.TC_H_ROOT, qdiscs.LEAF_HANDLE
    return qdiscs.qdisc(ifindex, handle, root, KIND, attribute(1, options), nested=True)


class FlowResults(ABC):
    """The results of a trial's RoCE flows, wherever they are sent.

    Time 0 of the trial is `t0_ns` on the clock of the results, where 0 stands for never. Long-lived
    flows do not end by themselves: they count as finished from `lasts_until_ns` on, on the trial's
    clock.
    """

    def __init__(
        self,
        schedule: Schedule,
        policy: NicPolicy,
        lasting: NDArray[np.bool_] | None = None,
        lasts_until_ns: int = 0,
    ) -> None:
        """`lasting` (flows,) says which flows are long-lived, by default none."""
        self._schedule = schedule
        self._times_round_trips = policy.times_round_trips
        self._lasting = np.zeros(len(schedule), dtype=bool) if lasting is None else lasting
        self._lasts_until_ns = lasts_until_ns if self._lasting.any() else 0
        self._order = np.argsort(schedule.start_ns, kind="stable")
        self.t0_ns = 0

    @abstractmethod
    def received(self) -> int:
        """Return how many flows their receivers have received completely."""

    @abstractmethod
    def results(self) -> np.ndarray:
        """Return the result of each flow, dtype `RESULT`, in the order of the schedule."""

    @abstractmethod
    def now_ns(self) -> int:
        """Return the time on the clock of the results."""

    def all_done(self) -> bool:
        """Return whether all flows have ended.

        A flow has ended when its sender has the last acknowledgement, a long-lived one when its
        time is over.
        """
        if self.received() < len(self._schedule) - self._lasting.sum():
            return False
        if self._lasts_until_ns and self.now_ns() < self.t0_ns + self._lasts_until_ns:
            return False
        return bool((self.results()["done_ns"] > 0)[~self._lasting].all())

    def counters(self) -> dict[str, Ints]:
        """Return the present values of the flows' signals, arrays (flows,)."""
        results = self.results()
        return {name: results[field].astype(np.int64) for name, field in SIGNALS.items()}

    def facts(self) -> dict[str, int]:
        """Return the counters, summed over all flows.

        With a congestion control that times round trips, they include the number of flows that were
        sent without any such measurement.
        """
        results = self.results()
        sums = {name: int(results[name].sum()) for name in COUNTERS}
        if self._times_round_trips:
            untimed = (results["sent_ns"] > 0) & (results["rtt_ns"] == 0)
            sums["untimed_flows"] = int(untimed.sum())
        return sums

    def records(self) -> FlowRecords:
        """Return the flows' records: a flow ends when its sender has the last acknowledgement."""
        results = self.results()
        done, otherwise = results["done_ns"] > 0, np.where(self._lasting, LONG_LIVED, UNFINISHED)
        return FlowRecords(
            # The NIC has the flow from its start on, as TCP has it when an application has passed
            # the bytes. The time that the flow waits in the NIC is part of its completion time.
            sent_ns=np.where(results["sent_ns"] > 0, self._schedule.start_ns, -1),
            end_ns=np.where(done, results["done_ns"].astype(np.int64) - self.t0_ns, -1),
            retransmits=results["resent"].astype(np.int64),
            status=np.where(done, DONE, otherwise).astype(np.int64),
        )


class RoceFlows(FlowResults):
    """The flows of a trial on the NICs of this guest. They are written once, with `post`."""

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
        """Prepare the flows.

        `addresses` has the addresses of each host's NICs, in the order of `Testbed.hosts`. `tos`
        has the type of service of each pattern's flows; empty means RoCE's default. With `icrc`,
        for packet captures, packets have a real invariant CRC; otherwise its four bytes are 0.
        """
        super().__init__(schedule, policy, lasting, lasts_until_ns)
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
        self._addresses = [[socket.inet_aton(word) for word in words] for words in addresses]
        self._count = os.open(RECEIVED, os.O_RDONLY)

    def post(self, t0_ns: int) -> None:
        """Write all flows to the NICs; time 0 of the trial is `t0_ns` of CLOCK_MONOTONIC."""
        schedule, order = self._schedule, self._order
        self.t0_ns = t0_ns
        flows = np.zeros(len(schedule), dtype=_FLOW)
        flows["start_ns"] = schedule.start_ns[order] + t0_ns
        flows["size_bytes"] = schedule.size_bytes[order]
        for name, hosts in (("src", schedule.src[order]), ("dst", schedule.dst[order])):
            chosen = [
                self._addresses[host][flow % len(self._addresses[host])]
                for flow, host in zip(order.tolist(), hosts.tolist(), strict=True)
            ]
            flows[name] = np.array(chosen, dtype="V4")
        flows["udp_source"] = udp_source(order)
        flows["tos"] = self._tos[order]
        fd = os.open(FLOWS, os.O_WRONLY)
        os.write(fd, self._settings + flows.tobytes())
        os.close(fd)

    def received(self) -> int:
        """Return how many flows their receivers have received completely."""
        return int.from_bytes(os.pread(self._count, 4, 0), "little")

    def results(self) -> np.ndarray:
        """Return the kernel's result of each flow, dtype `RESULT`, in the order of the schedule."""
        fd = os.open(FLOWS, os.O_RDONLY)
        size = len(self._schedule) * RESULT.itemsize
        data = b""
        while len(data) < size and (piece := os.read(fd, size - len(data))):
            data += piece
        os.close(fd)
        results = np.zeros(len(self._schedule), dtype=RESULT)
        results[self._order] = np.frombuffer(data, dtype=RESULT)
        return results

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC."""
        return time.monotonic_ns()
