"""What rigs share: knobs that are set by name, readings kept for the record, exact sleep."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from orchestration.core.errors import TrialError
from orchestration.core.knobs import DCQCN, Knob
from orchestration.core.ports import Rig
from orchestration.core.records import (
    Action,
    Applied,
    Change,
    Event,
    HostReading,
    Ints,
    Program,
    Samples,
)
from orchestration.core.roce import RoceSpec
from orchestration.core.signals import FLOW_SCOPE, names
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec

# The counters of hosts are kept for the record once per this many samples.
SAMPLES_PER_HOST_READING = 10
_NEVER = 1 << 62

# Sets all columns of a knob on some targets, and returns the values read back:
# (targets, values) -> values. Values have shape (targets, columns).
SetAndRead = Callable[[Ints, Ints], Ints]


class BaseRig(Rig):
    """The common part of rigs.

    `fabric` is the fabric's name in messages. `_setters` has a function for each knob, by the
    knob's name, that makes a change and returns what was read back.
    """

    fabric: str

    def __init__(self, testbed: Testbed) -> None:
        self.events: list[Event] = []
        self.host_readings = HostReadings(len(testbed.hosts))
        self._setters: dict[str, Callable[[Change], Change]] = {}

    def apply(self, action: Action) -> Applied:
        """Make the changes, and return what devices report afterwards."""
        changes = tuple(self._setters[change.knob](change) for change in action)
        return Applied(self.now_ns(), changes)

    def install(self, programs: Sequence[Program]) -> None:
        """Raise TrialError: these devices run no programs."""
        raise TrialError(f"the {self.fabric} cannot run {programs[0].kind!r}")

    def last_hosts(self) -> HostReading | None:
        """Return the last reading of the hosts, without a new one; None before the first."""
        return self.host_readings.last()


def merged_facts(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of several parts of a fabric, with the findings of all."""
    facts = {name: fact for part in parts for name, fact in part.items()}
    if "findings" in facts:
        facts["findings"] = [finding for part in parts for finding in part.get("findings", ())]
    return facts


class HostReadings:
    """The readings of all hosts that are kept for the record, in the order of `Testbed.hosts`."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._t_ns: list[int] = []
        self._rows: list[Mapping[str, Ints]] = []

    def keep(self, t_ns: int, values: Mapping[str, Ints]) -> None:
        """Keep the signals of one moment by name, arrays (hosts,)."""
        self._t_ns.append(t_ns)
        self._rows.append(values)

    def last(self) -> HostReading | None:
        """Return the latest reading that was kept; None if there is none."""
        return HostReading(self._t_ns[-1], self._rows[-1]) if self._rows else None

    def samples(self) -> Samples:
        """Return what was kept."""
        known = [name for name in names("host") if self._rows and name in self._rows[0]]
        columns = [np.array([row[name] for row in self._rows]) for name in known]
        t_ns = np.array(self._t_ns, dtype=np.int64)
        return Samples.of("host", t_ns, *columns, targets=self._hosts)


class FlowReadings:
    """Reads the counters of all flows when that is due, and keeps what a trial asks for.

    A trial may ask for samples at its `flow_sample_period`. With RoCE NICs, the bytes acknowledged
    at the beginning and end of the measured time are kept as well: one reading at each of the two
    if the sample period divides their times, else the reading before and the reading after.
    """

    def __init__(self, trial: TrialSpec, read: Callable[[], Mapping[str, Ints]]) -> None:
        """`read` returns the signals of scope flow by name, arrays (flows,)."""
        self._read = read
        period_ns = trial.sample_period_ns
        self._every = trial.flow_sample_period_ns // period_ns
        ends = {
            tick
            for end_ns in trial.measured_ns
            for tick in (end_ns // period_ns, -(-end_ns // period_ns))
            if tick
        }
        self._ends = sorted(ends) if trial.host.roce is not None else []
        self._sampled: list[tuple[int, Mapping[str, Ints]]] = []
        self._acked: list[tuple[int, Ints]] = []

    def take(self, tick: int, t_ns: int) -> None:
        """Read the flows, at `t_ns`, if they are due at sample number `tick`."""
        sampled, at_end = self._every and tick % self._every == 0, tick in self._ends
        if not sampled and not at_end:
            return
        counters = self._read()
        if sampled:
            self._sampled.append((t_ns, counters))
        if at_end:
            self._acked.append((t_ns, counters["acked_bytes"]))

    def ticks_until_due(self, tick: int) -> int:
        """Return after how many more samples flows are read next; a huge number if never."""
        to_sample = self._every - tick % self._every if self._every else _NEVER
        return min(to_sample, *(end - tick for end in self._ends if end > tick), _NEVER)

    def samples(self) -> Samples | None:
        """Return the samples, arrays (samples, flows); None if the trial asks for none."""
        if not self._every:
            return None
        rows = [row for _, row in self._sampled]
        values = {name: np.array([row[name] for row in rows]) for name in names(FLOW_SCOPE)}
        return Samples(np.array([t_ns for t_ns, _ in self._sampled], dtype=np.int64), values)

    def acked(self) -> Samples | None:
        """Return `acked_bytes` at both ends of the measured time; None without RoCE NICs.

        The array has shape (readings, flows).
        """
        if not self._acked:
            return None
        t_ns, rows = (np.array(column, dtype=np.int64) for column in zip(*self._acked, strict=True))
        return Samples(t_ns, {"acked_bytes": rows})


class KnobSettings:
    """The current settings, in whole numbers, of a knob on all its targets.

    `known` has them by column name; the dictionary is replaced at a change, never altered.
    """

    def __init__(self, knob: Knob, testbed: Testbed, values: Ints, exchange: SetAndRead) -> None:
        """`values` (targets, columns) are the settings before the first change."""
        self._knob, self._exchange, self._values = knob, exchange, values
        self._bounds = knob.bounds(testbed)
        self.known: dict[str, Ints] = knob.named(*values.T)

    def apply(self, change: Change) -> Change:
        """Make `change`; return all columns of its targets as read back afterwards.

        Raises ImpossibleSetting for values out of bounds.
        """
        self._bounds.check(change)
        targets, values = change.targets, self._values.copy()
        for column, name in enumerate(self._knob.column_names):
            if name in change.values:
                values[targets, column] = np.rint(change[name])
        if len(targets):
            values[targets] = self._exchange(targets, values[targets])
        self._values, self.known = values, self._knob.named(*values.T)
        return Change(change.knob, targets, self._knob.named(*values[targets].T))


def dcqcn_settings(roce: RoceSpec, testbed: Testbed, exchange: SetAndRead) -> KnobSettings:
    """Return DCQCN's parameters of all hosts, initially those of `roce` on every host."""
    values = [roce.parameters[name] for name in DCQCN.column_names]
    rows = np.tile(np.array(values, dtype=np.int64), (len(testbed.hosts), 1))
    return KnobSettings(DCQCN, testbed, rows, exchange)


class Ticker:
    """Sleeps until absolute times without timer slack."""

    def __init__(self) -> None:
        pr_set_timerslack = 29
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1, 0, 0, 0)

    def sleep_until(self, at_ns: int) -> None:
        """Return at CLOCK_MONOTONIC `at_ns`; at once if that has passed."""
        left = at_ns - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
            # converted to float seconds, the time may fall short by some nanoseconds
            while time.monotonic_ns() < at_ns:
                time.sleep(1e-9)
