"""Readings of all flows of a trial: samples at a campaign's `flow_sample_period`, and those at the
ends of the measured time, which every trial with RoCE NICs has."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping

import numpy as np

from orchestration.core.knobs import DCQCN
from orchestration.core.records import Change, Ints, Samples
from orchestration.core.signals import FLOW_SCOPE, names
from orchestration.core.topology import Testbed
from orchestration.core.trial import HostSpec, TrialSpec


class FlowReadings:
    """Reads every flow when that is due, and keeps what a trial asks for.

    What flows had acknowledged is kept of the readings around the measured time's ends. A trial
    whose sample period divides these times has one reading at each, others have the one before and
    the one after.
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
        """Read the flows at `t_ns` if that is due after so many sample periods."""
        sampled, at_end = self._every and tick % self._every == 0, tick in self._ends
        if not sampled and not at_end:
            return
        counters = self._read()
        if sampled:
            self._sampled.append((t_ns, counters))
        if at_end:
            self._acked.append((t_ns, counters["acked_bytes"]))

    def ahead(self, tick: int) -> int:
        """Return after how many more sample periods flows are read next; many if never."""
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
        """Return `acked_bytes` at the measured time's ends, (readings, flows); None if unknown."""
        if not self._acked:
            return None
        t_ns, rows = (np.array(column, dtype=np.int64) for column in zip(*self._acked, strict=True))
        return Samples(t_ns, {"acked_bytes": rows})


_NEVER = 1 << 62


# Sets all parameters of some hosts, and reads them back: (hosts, values) -> values. Values have
# shape (hosts, parameters), in the order of the knob's columns.
Exchange = Callable[[Ints, Ints], Ints]


class NicParameters:
    """The parameters of all hosts, in the order of `Testbed.hosts`.

    `known` has them by name, arrays (hosts,), which are never altered.
    """

    def __init__(self, host: HostSpec, testbed: Testbed, exchange: Exchange) -> None:
        """All hosts begin with those of `host`, which has RoCE NICs."""
        assert host.roce is not None
        values = [host.roce.parameters[name] for name in DCQCN.column_names]
        self._values = np.tile(np.array(values, dtype=np.int64), (len(testbed.hosts), 1))
        self._bounds = DCQCN.bounds(testbed)
        self._exchange = exchange
        self.known = DCQCN.named(*self._values.T)

    @staticmethod
    def are_in(host: HostSpec) -> bool:
        """Return whether hosts have these parameters: whether they have NICs under DCQCN."""
        return host.roce is not None and host.roce.control == DCQCN.control

    def turn(self, change: Change) -> Change:
        """Set what `change` names; return all parameters of its hosts, as their NICs have them.

        Raises ImpossibleSetting for what is out of bounds.
        """
        self._bounds.check(change)
        hosts = change.targets
        values = self._values.copy()
        for place, name in enumerate(DCQCN.column_names):
            if name in change.values:
                values[hosts, place] = np.rint(change[name])
        if len(hosts):
            values[hosts] = self._exchange(hosts, values[hosts])
        self._values = values
        self.known = DCQCN.named(*values.T)
        return Change(change.knob, hosts, DCQCN.named(*values[hosts].T))


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
