"""Watches the machine that is a whole fabric in real time: could it keep up during a trial?

    with MachineMonitor(trial) as watch:
        ...
    watch.facts(), watch.findings()

In virtual time a busy CPU makes a trial slow; in real time it makes it wrong, and nothing in the
results says so. What is watched, and why a bound is where it is, stands at `_BOUNDS`. A trial
beyond one is invalid, and the reason names the scale that would have fitted: so many times slower
the same packets take that much less of the machine.
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

# Says to programs in a rack whose time passes there: see `virtual_rack.layout.Clock`.
RACK_CLOCK = "CLOSLOOP_RACK_CLOCK"
PROC = Path("/proc")
# Above it a queue for the CPU grows fast: with random arrivals a packet waits four times as long
# as it is worked on (M/M/1 at 0.8), and ten times at 0.9.
MAX_BUSY = 0.8
# Packets are forwarded in softirqs, each on one CPU: the busiest one is the bottleneck.
MAX_SOFTIRQ = 0.8
# What a hypervisor takes is missing without notice, in pieces of milliseconds.
MAX_STOLEN = 0.02
# Of packets: a softirq that ends before its work is done leaves them to the next one, later.
MAX_SQUEEZED = 1e-3
# A process that wakes later than by a time slice of the scheduler (3 ms) and some more has queued
# behind several. What is below the lateness that virtual time's flows may have
# (`analysis.stamp`) is harmless, however long it takes by the clock.
LATE_NS, HARMLESS_NS = 5_000_000, 2_000
# A shaper that holds no more than a frame loses of its rate what its timer is late. Emulated ones
# in real time hold that much more, or `HARMLESS_NS` of the trial's time if that is more.
SHAPERS_LATE_NS = 200_000
_MIN_PERIOD_NS, _MAX_PERIOD_NS = 2_000_000, 10_000_000


@dataclass(frozen=True)
class Counters:
    """The machine's counters at a moment: CPU times in ticks, and softirqs' packets.

    `softirq` has each CPU's ticks and `total` all ticks of each; `own` are those of the processes
    that can be seen, `waiting_us` the time for which a process waited for a CPU.
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
        """Read them."""
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
    """What a machine did during a trial: shares of its CPUs, and of packets; times in ns.

    `others` is what programs took at least that do not belong to the rack.
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
    """Return how late a process may wake."""
    return max(LATE_NS, HARMLESS_NS * scale)


def bound_shapers_late_ns(scale: int) -> int:
    """Return how late a shaper may send."""
    return max(SHAPERS_LATE_NS, HARMLESS_NS * scale)


def load_findings(load: Load, scale: int) -> list[dict[str, str]]:
    """Return a finding for each bound that a machine went beyond, for the trial's stamp."""
    found: list[tuple[str, str]] = []

    def add(code: str, text: str, factor: float) -> None:
        fitting = round_up_scale(scale * factor)
        fits = f"about {factor:.2g} times the scale would fit, --scale {fitting}"
        found.append((code, f"{text}; {fits}"))

    if load.busy > MAX_BUSY:
        text = f"the CPU was busy {load.busy:.0%} of {load.cpus} cores, above {MAX_BUSY:.0%}"
        room = MAX_BUSY - load.others
        own = load.busy - load.others
        if load.others > own:
            text += f", {load.others:.0%} by programs that are not the rack's: end them"
        # beside programs that leave no room no scale fits: what then remains is their share
        add("cpu-busy", text, own / room if room > 0 else load.busy / MAX_BUSY)
    if load.softirq > MAX_SOFTIRQ:
        text = f"one core forwarded packets {load.softirq:.0%} of the time"
        add("softirq-busy", f"{text}, above {MAX_SOFTIRQ:.0%}", load.softirq / MAX_SOFTIRQ)
    if load.stolen > MAX_STOLEN:
        text = f"this machine's hypervisor took {load.stolen:.1%} of its CPU time"
        add("cpu-stolen", f"{text}, above {MAX_STOLEN:.0%}", load.stolen / MAX_STOLEN)
    if load.squeezed > MAX_SQUEEZED:
        text = f"{load.squeezed:.2%} of packets were left for later by a busy CPU"
        factor = load.squeezed / MAX_SQUEEZED
        add("packets-squeezed", f"{text}, above {MAX_SQUEEZED:.1%}", factor)
    if load.dropped:
        text = f"{load.dropped} packets were dropped before a CPU took them, which no port counts"
        add("packets-lost", text, 2.0)
    for code, who, lag, late_ns in (
        ("timers-late", "a process woke", load.processes, bound_late_ns(scale)),
        ("shapers-late", "a shaper sent", load.shapers, bound_shapers_late_ns(scale)),
    ):
        if lag.exceeds(late_ns):
            text = f"{who} up to {lag.p99_ns / 1e6:.2f} ms late (p99), above {late_ns / 1e6:.3g} ms"
            add(code, text, lag.p99_ns / late_ns)
    return [{"code": code, "severity": "invalid", "text": text} for code, text in found]


class MachineMonitor:
    """Watches this machine while a trial runs on it, all of it; then `load` was measured."""

    def __init__(self, trial: TrialSpec) -> None:
        self._scale = trial.scale
        period_ns = trial.sample_period_ns * trial.scale
        self._period_ns = min(max(period_ns, _MIN_PERIOD_NS), _MAX_PERIOD_NS)

    def __enter__(self) -> MachineMonitor:
        self._lags = LatencyProbe("timers", str(self._period_ns)), LatencyProbe("shapers")
        for program in self._lags:
            program.await_start()
        self._first = Counters.now()
        return self

    def __exit__(self, *_: object) -> None:
        last = Counters.now()
        self.load = Load.between(self._first, last, *(program.end() for program in self._lags))

    def facts(self) -> dict[str, Any]:
        """Return facts for the trial's record."""
        return {"machine": self.load.facts()}

    def findings(self) -> list[dict[str, str]]:
        """Return findings for the trial's stamp."""
        return load_findings(self.load, self._scale)


class NoMonitor:
    """In place of a watch where devices have machines of their own."""

    def __enter__(self) -> NoMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def facts(self) -> dict[str, Any]:
        """Return none."""
        return {}

    def findings(self) -> Sequence[dict[str, str]]:
        """Return none."""
        return ()


def on_this_machine() -> bool:
    """Return whether this is a program in a rack in real time: all its devices share this CPU."""
    return os.environ.get(RACK_CLOCK) == "real"


def monitor_for(trial: TrialSpec) -> MachineMonitor | NoMonitor:
    """Return a watch of this machine if all devices are on it, in real time."""
    return MachineMonitor(trial) if on_this_machine() else NoMonitor()


def round_up_scale(factor: float) -> int:
    """Return the least scale of two digits, and zeros, that is not below a factor."""
    minimum = max(1, math.ceil(factor))
    step: int = 10 ** max(0, len(str(minimum)) - 2)
    return -(-minimum // step) * step


def _own_ticks(proc: Path) -> int:
    """Return the CPU time of all processes that can be seen, and of their ended children."""
    total = 0
    for stat in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it may end meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total


def _waiting_us(proc: Path) -> int:
    """Return for how long some process waited for a CPU; 0 on kernels that do not say."""
    with suppress(OSError, ValueError):
        some = (proc / "pressure" / "cpu").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2])
    return 0
