"""Watches a machine that is a whole fabric in real time: could it keep up during a trial?

    with MachineMonitor(trial) as monitor:
        ...
    monitor.facts(), monitor.findings()

In virtual time a busy CPU only makes a trial slow. In real time it makes the results wrong without
any sign of that in the results. The bounds below say how busy or late the machine may be, and why.
A trial that exceeds a bound is invalid. The reason names the scale that would have fitted: if the
trial runs N times slower, the same packets take an N-th of the machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestration.backends.common.timer_latency import LatencyProbe, TimerLatency
from orchestration.core.trial import TrialSpec

# The environment variable that tells programs in a virtual rack whether its time is real or
# virtual: see `virtual_rack.layout.Clock`.
RACK_CLOCK = "CLOSLOOP_RACK_CLOCK"
PROC = Path("/proc")
# Above this share the queue for the CPU grows fast: with random arrivals a packet waits four times
# its service time (M/M/1 at 0.8), and nine times at 0.9.
MAX_BUSY = 0.8
# Packets are forwarded in softirqs, each on one CPU: the busiest CPU is the bottleneck.
MAX_SOFTIRQ = 0.8
# CPU time that a hypervisor takes is missing without notice, in pieces of milliseconds.
MAX_STOLEN = 0.02
# The share of packets that a softirq left to the next softirq because its time was over.
MAX_SQUEEZED = 1e-3
# A process that wakes later than a time slice of the scheduler (3 ms) and some more has waited
# behind several others. A lateness below what flows in virtual time may have (`analysis.stamp`) is
# harmless, however long it is by the clock.
LATE_NS, HARMLESS_NS = 5_000_000, 2_000
# A shaper whose bucket holds only one frame loses rate whenever its timer is late. The buckets of
# emulated shapers in real time hold more: enough for this lateness, or for `HARMLESS_NS` of the
# trial's time if that is longer.
SHAPERS_LATE_NS = 200_000
_MIN_PERIOD_NS, _MAX_PERIOD_NS = 2_000_000, 10_000_000


@dataclass(frozen=True)
class Counters:
    """The machine's counters at one moment: CPU times in ticks, and softirqs' packets.

    `softirq` has each CPU's ticks in softirqs and `total` all ticks of each CPU. `own` are the
    ticks of the processes that can be seen from here, `waiting_us` is the time during which some
    process waited for a CPU.
    """

    busy: int
    stolen: int
    softirq: tuple[int, ...]
    total: tuple[int, ...]
    own: int
    packets: int
    squeezed: int
    dropped: int
    waiting_us: int
    at_us: int

    @classmethod
    def now(cls, proc: Path = PROC) -> Counters:
        """Read the counters from `proc`."""
        rows = [
            [int(word) for word in line.split()[1:9]]
            for line in (proc / "stat").read_text().splitlines()
            if line.startswith("cpu") and line[3].isdecimal()
        ]
        # user, nice, system, idle, iowait, irq, softirq, steal
        idle = sum(row[3] + row[4] for row in rows)
        softnet = [
            [int(word, 16) for word in line.split()[:3]]
            for line in (proc / "net" / "softnet_stat").read_text().splitlines()
        ]
        return cls(
            busy=sum(map(sum, rows)) - idle,
            stolen=sum(row[7] for row in rows),
            softirq=tuple(row[6] for row in rows),
            total=tuple(map(sum, rows)),
            own=_own_ticks(proc),
            packets=sum(row[0] for row in softnet),
            dropped=sum(row[1] for row in softnet),
            squeezed=sum(row[2] for row in softnet),
            waiting_us=_waiting_us(proc),
            at_us=int(float((proc / "uptime").read_text().split()[0]) * 1e6),
        )


@dataclass(frozen=True)
class Load:
    """How busy a machine was during a trial: shares of its CPUs and of packets; times in ns.

    `others` is a lower bound on the share of programs that do not belong to the rack. `squeezed` is
    the share of packets that a softirq left for later.
    """

    cpus: int
    busy: float
    others: float
    stolen: float
    softirq: float
    squeezed: float
    dropped: int
    waiting: float
    processes: TimerLatency
    shapers: TimerLatency

    @classmethod
    def between(
        cls, first: Counters, last: Counters, processes: TimerLatency, shapers: TimerLatency
    ) -> Load:
        """Return the load between two moments."""
        total = max(1, sum(last.total) - sum(first.total))
        by_cpu = [
            (after - before) / max(1, end - begin)
            for before, after, begin, end in zip(
                first.softirq, last.softirq, first.total, last.total, strict=False
            )
        ]
        busy = last.busy - first.busy
        in_softirqs = sum(last.softirq) - sum(first.softirq)
        stolen = last.stolen - first.stolen
        others = busy - stolen - (last.own - first.own) - in_softirqs
        packets = max(1, last.packets - first.packets)
        return cls(
            cpus=len(by_cpu),
            busy=busy / total,
            others=max(0, others) / total,
            stolen=stolen / total,
            softirq=max(by_cpu, default=0.0),
            squeezed=(last.squeezed - first.squeezed) / packets,
            dropped=last.dropped - first.dropped,
            waiting=(last.waiting_us - first.waiting_us) / max(1, last.at_us - first.at_us),
            processes=processes,
            shapers=shapers,
        )

    def facts(self) -> dict[str, Any]:
        """Return the numbers for a trial's record."""
        return {
            "cpus": self.cpus,
            "busy_share": round(self.busy, 4),
            "others_share": round(self.others, 4),
            "stolen_share": round(self.stolen, 4),
            "busiest_softirq_share": round(self.softirq, 4),
            "packets_squeezed_share": round(self.squeezed, 6),
            "packets_dropped": self.dropped,
            "waiting_share": round(self.waiting, 4),
            "timer_lag_us": self.processes.facts(),
            "shaper_lag_us": self.shapers.facts(),
        }


def bound_late_ns(scale: int) -> int:
    """Return how late a process may wake, in ns of the clock."""
    return max(LATE_NS, HARMLESS_NS * scale)


def bound_shapers_late_ns(scale: int) -> int:
    """Return how late a shaper may send, in ns of the clock."""
    return max(SHAPERS_LATE_NS, HARMLESS_NS * scale)


def load_findings(load: Load, scale: int) -> list[dict[str, str]]:
    """Return a finding for the trial's stamp for each bound that the machine exceeded."""
    problems: list[tuple[str, str]] = []

    def add(code: str, text: str, factor: float) -> None:
        fitting = round_up_scale(scale * factor)
        fits = f"about {factor:.2g} times the scale would fit, --scale {fitting}"
        problems.append((code, f"{text}; {fits}"))

    if load.busy > MAX_BUSY:
        text = f"the CPU was busy {load.busy:.0%} of {load.cpus} cores, above {MAX_BUSY:.0%}"
        available = MAX_BUSY - load.others
        own = load.busy - load.others
        if load.others > own:
            text += f", {load.others:.0%} by programs that are not the rack's: end them"
        # if other programs alone exceed the bound, no scale fits: the factor is then only a hint
        add("cpu-busy", text, own / available if available > 0 else load.busy / MAX_BUSY)
    if load.softirq > MAX_SOFTIRQ:
        text = f"one core forwarded packets {load.softirq:.0%} of the time"
        add("softirq-busy", f"{text}, above {MAX_SOFTIRQ:.0%}", load.softirq / MAX_SOFTIRQ)
    if load.stolen > MAX_STOLEN:
        text = f"the hypervisor took {load.stolen:.1%} of this machine's CPU time"
        add("cpu-stolen", f"{text}, above {MAX_STOLEN:.0%}", load.stolen / MAX_STOLEN)
    if load.squeezed > MAX_SQUEEZED:
        text = f"{load.squeezed:.2%} of packets were left for later by a busy CPU"
        factor = load.squeezed / MAX_SQUEEZED
        add("packets-squeezed", f"{text}, above {MAX_SQUEEZED:.1%}", factor)
    if load.dropped:
        text = (
            f"{load.dropped} packets were dropped before a CPU processed them, which no port counts"
        )
        add("packets-lost", text, 2.0)
    for code, who, latency, late_ns in (
        ("timers-late", "a process woke", load.processes, bound_late_ns(scale)),
        ("shapers-late", "a shaper sent", load.shapers, bound_shapers_late_ns(scale)),
    ):
        if latency.exceeds(late_ns):
            p99_ms, bound_ms = latency.p99_ns / 1e6, late_ns / 1e6
            text = f"{who} up to {p99_ms:.2f} ms late (p99), above {bound_ms:.3g} ms"
            add(code, text, latency.p99_ns / late_ns)
    return [{"code": code, "severity": "invalid", "text": text} for code, text in problems]


class MachineMonitor:
    """Watches this machine while a whole trial runs on it, as a context manager.

    On leaving, `load` has what was measured.
    """

    def __init__(self, trial: TrialSpec) -> None:
        self._scale = trial.scale
        period_ns = trial.sample_period_ns * trial.scale
        self._period_ns = min(max(period_ns, _MIN_PERIOD_NS), _MAX_PERIOD_NS)

    def __enter__(self) -> MachineMonitor:
        self._probes = LatencyProbe("timers", str(self._period_ns)), LatencyProbe("shapers")
        for probe in self._probes:
            probe.await_start()
        self._first = Counters.now()
        return self

    def __exit__(self, *_: object) -> None:
        last = Counters.now()
        self.load = Load.between(self._first, last, *(probe.end() for probe in self._probes))

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record."""
        return {"machine": self.load.facts()}

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the trial's stamp."""
        return load_findings(self.load, self._scale)


class NoMonitor:
    """Watches nothing: in place of `MachineMonitor` where devices have machines of their own."""

    def __enter__(self) -> NoMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def facts(self) -> dict[str, Any]:
        """Return no facts."""
        return {}

    def findings(self) -> Sequence[dict[str, str]]:
        """Return no findings."""
        return ()


def on_this_machine() -> bool:
    """Return whether this program runs in a virtual rack in real time, on one machine with it."""
    return os.environ.get(RACK_CLOCK) == "real"


def monitor_for(trial: TrialSpec) -> MachineMonitor | NoMonitor:
    """Return a monitor of this machine if all devices are on it in real time, else `NoMonitor`."""
    return MachineMonitor(trial) if on_this_machine() else NoMonitor()


def round_up_scale(factor: float) -> int:
    """Return the smallest whole number with two significant digits that is not below `factor`."""
    minimum = max(1, math.ceil(factor))
    step: int = 10 ** max(0, len(str(minimum)) - 2)
    return -(-minimum // step) * step


def _own_ticks(proc: Path) -> int:
    """Return the CPU ticks of all processes that can be seen, and of their ended children."""
    total = 0
    for stat in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # the process may end meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total


def _waiting_us(proc: Path) -> int:
    """Return for how long some process waited for a CPU; 0 on kernels that do not report it."""
    with suppress(OSError, ValueError):
        some = (proc / "pressure" / "cpu").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2])
    return 0
