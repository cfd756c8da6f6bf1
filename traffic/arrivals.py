"""Arrivals that offer a load: when flows come, how many, and how large they are.

`independent` is a Poisson process with a size drawn for each flow. A short window then offers a
load that is far from the one asked for: with n flows expected, the relative variance is
(1 + cv^2) / n, where cv^2 (WebSearch: 5.4, DataMining: 46) is that of the sizes.

`strata` keeps the expectation and removes what it can of this variance:

- *How many.* A Poisson process conditioned on its count is that many independent uniform times
  (Ross, Stochastic Processes, 2nd ed., theorem 2.3.1). The count is the expected one, rounded up
  with the probability of its fraction, so that the mean load is exact. Within a short part, a share
  s of the window, counts have the variance of a Poisson process times 1 - s: bursts remain.
- *How large.* Of n flows one is drawn from each n-th of the distribution: u_i = (i + U_i) / n in
  random order, through the inverse of the distribution. Proportional allocation never has a larger
  variance than independent draws (Cochran, Sampling Techniques, 3rd ed., section 5.6; with one draw
  a stratum, McKay, Beckman and Conover, Technometrics 21(2), 1979). Each size alone has the
  workload's distribution.

What remains is the variance within the strata, nearly all of it in the topmost: of sizes that fewer
than one flow of the window has, some windows have one and others none. No draw of whole flows can
do without it.

A window that is cut by a warm-up is drawn in two parts, so that the part that is measured offers
the load by itself.
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
    """Sizes of flows: their mean, and those at probabilities in [0, 1), shape (flows,)."""

    mean_bytes: float
    at: Callable[[Floats], Ints]


class OfferedLoad(PatternSpec):
    """A pattern that offers a load: Poisson arrivals of flows of drawn sizes.

    `load` counts payload bytes, as a share of the hosts' line rates, or of the receiver's if the
    pattern has one. Sources are drawn in proportion to their line rates, destinations uniformly
    among the other hosts. With strata, the load is offered before and after the warm-up.
    """

    load: float
    start_ns: int
    stop_ns: int
    draw: Draw
    receiver: str = ""
    sized_by = (
        "stop",
        "makes about {flows:,.0f} flows a trial and needs {memory} of memory or more",
        "use a shorter time, a smaller load, or larger flows",
    )

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """How large flows are."""

    @abstractmethod
    def quantiles(self, at: Floats) -> Floats:
        """Return sizes in bytes that stand for the distribution, such as those at `at`."""

    def capacity_bps(self, testbed: Testbed) -> float:
        """Return what a load of 1 is: the receiver's line rate, or those of all hosts."""
        hosts = [self.receiver] if self.receiver else testbed.hosts
        return float(sum(testbed.host_rate_bps(host) for host in hosts))

    def expected(self, testbed: Testbed) -> Expected:
        """Return the means."""
        window_ns = max(0, self.stop_ns - self.start_ns)
        offered = self.load * self.capacity_bps(testbed) / 8e9 * window_ns
        return Expected(offered / self.sizes.mean_bytes, offered)

    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return arrivals in the window that offer the load."""
        sizes = self.sizes
        receiver = testbed.hosts.index(self.receiver) if self.receiver else None
        rates = np.array([testbed.host_rate_bps(host) for host in testbed.hosts], dtype=np.float64)
        flows_per_ns = self.load * self.capacity_bps(testbed) / 8 / sizes.mean_bytes / 1e9
        window = window_cuts(self.start_ns, self.stop_ns, warm_up_ns)
        start_ns, size_bytes = arrivals(
            self.draw, flows_per_ns, window, sizes, streams.times, streams.sizes
        )
        n, hosts = len(start_ns), len(testbed.hosts)
        places = streams.hosts.random((n, 2))
        senders = np.flatnonzero(np.arange(hosts) != receiver).astype(np.int64)
        # Without the last entry, which may round to just below 1, no draw exceeds the last sender.
        upper = np.cumsum(rates[senders] / rates[senders].sum())[:-1]
        src = senders[np.searchsorted(upper, places[:, 0], side="right")]
        if receiver is not None:
            return Flows(start_ns, src, np.full(n, receiver), size_bytes)
        other = (places[:, 1] * (hosts - 1)).astype(np.int64)
        dst = other + (other >= src)
        return Flows(start_ns, src, dst, size_bytes)


def arrivals(
    draw: Draw,
    flows_per_ns: float,
    cuts_ns: Sequence[int],
    sizes: Sizes,
    times: np.random.Generator,
    of_sizes: np.random.Generator,
) -> tuple[Ints, Ints]:
    """Return starts, sorted, in whole ns, and sizes in bytes, both (flows,).

    Flows arrive from the first to before the last of `cuts_ns`, which ascend; `strata` offers the
    load in each part between two of them. `times` and `of_sizes` are independent streams.
    """
    if draw != STRATA:
        window_ns = cuts_ns[-1] - cuts_ns[0]
        start_ns = cuts_ns[0] + _poisson_times(flows_per_ns, window_ns, times)
        return start_ns, sizes.at(of_sizes.random(len(start_ns)))
    starts, found = [], []
    for begin_ns, end_ns in itertools.pairwise(cuts_ns):
        part_ns = max(0, end_ns - begin_ns)
        count = int(flows_per_ns * part_ns + times.random())
        offset_ns = np.sort((times.random(count) * part_ns).astype(np.int64))
        starts.append(begin_ns + np.minimum(offset_ns, part_ns - 1))
        found.append(sizes.at(stratified(count, of_sizes)))
    return np.concatenate(starts), np.concatenate(found)


def stratified(count: int, rng: np.random.Generator) -> Floats:
    """Return `count` probabilities in [0, 1), one from each stratum, in random order."""
    places = rng.permutation(count)
    drawn = (places + rng.random(count)) / max(1, count)
    return np.minimum(drawn, np.nextafter(1.0, 0.0))  # the division may round up to 1


def window_cuts(start_ns: int, stop_ns: int, *inner_ns: int) -> tuple[int, ...]:
    """Return the ends of a window, with those of `inner_ns` that are within it."""
    within = sorted({at for at in inner_ns if start_ns < at < stop_ns})
    return (start_ns, *within, stop_ns)


def _poisson_times(flows_per_ns: float, window_ns: int, rng: np.random.Generator) -> Ints:
    """Return the times of a Poisson process in [0, window_ns), in whole ns, sorted."""
    if flows_per_ns <= 0 or window_ns <= 0:
        return np.zeros(0, dtype=np.int64)
    expected = flows_per_ns * window_ns
    block = int(expected + 4 * math.sqrt(expected)) + 16
    gaps = rng.standard_exponential(block)
    while (elapsed := np.cumsum(gaps))[-1] <= expected:
        gaps = np.concatenate([gaps, rng.standard_exponential(block)])
    times_ns = (elapsed[elapsed < expected] / flows_per_ns).astype(np.int64)
    return np.minimum(times_ns, window_ns - 1)  # rounding may reach the window's end
