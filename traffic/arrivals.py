"""Arrivals that offer a load: when flows start, how many there are, and how large they are.

With `draw: independent`, arrivals are a Poisson process, and each flow's size is drawn by itself.
In a short window the offered load can then be far from the intended one: with n flows expected, its
relative variance is (1 + cv^2) / n, where cv^2 is the squared coefficient of variation of the sizes
(WebSearch: 5.4, DataMining: 46).

With `draw: strata`, the expected load is the same, and most of this variance is removed:

- *How many.* A Poisson process conditioned on its count is that many independent uniform times
  (Ross, Stochastic Processes, 2nd ed., theorem 2.3.1). The count is the expected one, rounded up
  with the probability of its fraction, so that the mean load is exact. Within a short part, a share
  s of the window, counts have the variance of a Poisson process times 1 - s: bursts remain.
- *How large.* For n flows, the distribution is cut into n strata of equal probability, and one size
  is drawn from each: u_i = (i + U_i) / n in random order, through the inverse of the distribution
  function. Proportional allocation never has a larger
  variance than independent draws (Cochran, Sampling Techniques, 3rd ed., section 5.6; with one draw
  a stratum, McKay, Beckman and Conover, Technometrics 21(2), 1979). Each size alone has the
  workload's distribution.

The variance within the strata remains, nearly all of it in the topmost one: if fewer than one flow
of such a size is expected in a window, some windows have one and others have none. No draw of whole
flows can avoid that.

A window in which a warm-up ends is drawn in two parts, so that the measured part alone offers the
intended load.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.core.pattern import STRATA, Draw, Expected, Flows, PatternSpec, Streams
from orchestration.core.records import Floats, Ints
from orchestration.core.topology import Testbed


@dataclass(frozen=True)
class Sizes:
    """A distribution of flow sizes: its mean, and `at`, its inverse distribution function.

    `at` takes probabilities in [0, 1), shape (flows,), and returns sizes in bytes.
    """

    mean_bytes: float
    at: Callable[[Floats], Ints]


class OfferedLoad(PatternSpec):
    """A pattern that offers a load, from `start_ns` until before `stop_ns`.

    `load` counts payload bytes, as a share of the sum of the hosts' line rates, or of the
    receiver's line rate if the pattern has one. It is 0 if the pattern has no intended load.
    """

    load: float
    start_ns: int
    stop_ns: int
    receiver: str = ""

    @abstractmethod
    def quantiles(self, at: Floats) -> Floats:
        """Return in bytes what begins at one receiver at once, so that it represents all sizes.

        They may be the quantiles of a distribution at the probabilities `at`.
        """

    def capacity_bps(self, testbed: Testbed) -> float:
        """Return the rate of a load of 1: the receiver's line rate, or the sum of all hosts'."""
        hosts = [self.receiver] if self.receiver else testbed.hosts
        return float(sum(testbed.host_rate_bps(host) for host in hosts))


class PoissonFlows(OfferedLoad):
    """Poisson arrivals of flows of drawn sizes, which offer a load.

    Sources are drawn in proportion to their line rates, destinations uniformly among the other
    hosts. With `draw: strata`, the load is offered both before and after the end of the warm-up.
    """

    draw: Draw
    sized_by = (
        "stop",
        "makes about {flows:,.0f} flows a trial and needs {memory} of memory or more",
        "use a shorter time, a smaller load, or larger flows",
    )

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """The distribution of flow sizes."""

    def expected(self, testbed: Testbed) -> Expected:
        """Return the mean number of flows and their mean payload."""
        window_ns = max(0, self.stop_ns - self.start_ns)
        offered = self.load * self.capacity_bps(testbed) / 8e9 * window_ns
        return Expected(offered / self.sizes.mean_bytes, offered)

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the flows that arrive in the window and offer the load."""
        sizes = self.sizes
        receiver = testbed.hosts.index(self.receiver) if self.receiver else None
        rates = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
        flows_per_ns = self.load * self.capacity_bps(testbed) / 8 / sizes.mean_bytes / 1e9
        window = window_cuts(self.start_ns, self.stop_ns, warm_up_ns)
        start_ns, size_bytes = arrivals(
            self.draw, flows_per_ns, window, sizes, streams.times, streams.sizes
        )
        n, hosts = len(start_ns), len(testbed.hosts)
        draws = streams.hosts.random((n, 2))
        senders = np.flatnonzero(np.arange(hosts) != receiver).astype(np.int64)
        # Without the last entry, which may round to just below 1, no draw exceeds the last sender.
        upper = np.cumsum(rates[senders] / rates[senders].sum())[:-1]
        src = senders[np.searchsorted(upper, draws[:, 0], side="right")]
        if receiver is not None:
            return Flows(start_ns, src, np.full(n, receiver), size_bytes)
        other = (draws[:, 1] * (hosts - 1)).astype(np.int64)
        dst = other + (other >= src)
        return Flows(start_ns, src, dst, size_bytes)


def arrivals(
    draw: Draw,
    flows_per_ns: float,
    cuts_ns: Sequence[int],
    sizes: Sizes,
    time_stream: np.random.Generator,
    size_stream: np.random.Generator,
) -> tuple[Ints, Ints]:
    """Return starts, sorted, in whole ns, and sizes in bytes, both (flows,).

    Flows arrive from the first of `cuts_ns`, which ascend, until before the last. With `draw`
    "strata", each part between two cuts offers the load. The two random streams are independent.
    """
    if draw != STRATA:
        window_ns = cuts_ns[-1] - cuts_ns[0]
        start_ns = cuts_ns[0] + poisson_times(flows_per_ns, window_ns, time_stream)
        return start_ns, sizes.at(size_stream.random(len(start_ns)))
    starts, flow_sizes = [], []
    for begin_ns, end_ns in itertools.pairwise(cuts_ns):
        part_ns = max(0, end_ns - begin_ns)
        count = int(flows_per_ns * part_ns + time_stream.random())
        offset_ns = np.sort((time_stream.random(count) * part_ns).astype(np.int64))
        starts.append(begin_ns + np.minimum(offset_ns, part_ns - 1))
        flow_sizes.append(sizes.at(stratified(count, size_stream)))
    return np.concatenate(starts), np.concatenate(flow_sizes)


def stratified(count: int, rng: np.random.Generator) -> Floats:
    """Return `count` probabilities in [0, 1), one from each stratum, in random order."""
    order = rng.permutation(count)
    drawn = (order + rng.random(count)) / max(1, count)
    return np.minimum(drawn, np.nextafter(1.0, 0.0))  # the division may round up to 1


def window_cuts(start_ns: int, stop_ns: int, *inner_ns: int) -> tuple[int, ...]:
    """Return start and stop of a window, with those times of `inner_ns` between that are in it."""
    within = sorted({t_ns for t_ns in inner_ns if start_ns < t_ns < stop_ns})
    return (start_ns, *within, stop_ns)


def poisson_times(per_ns: float, window_ns: int, rng: np.random.Generator) -> Ints:
    """Return the times of a Poisson process in [0, window_ns), in whole ns, sorted.

    `per_ns` is the mean number of its events in a nanosecond. With one state of `rng`, a longer
    window only adds events.
    """
    if per_ns <= 0 or window_ns <= 0:
        return np.zeros(0, dtype=np.int64)
    expected = per_ns * window_ns
    block = int(expected + 4 * math.sqrt(expected)) + 16
    gaps = rng.standard_exponential(block)
    while (elapsed := np.cumsum(gaps))[-1] <= expected:
        gaps = np.concatenate([gaps, rng.standard_exponential(block)])
    times_ns = (elapsed[elapsed < expected] / per_ns).astype(np.int64)
    return np.minimum(times_ns, window_ns - 1)  # rounding may reach the window's end
