"""What all tuners of flowlet timeouts share: RED as in DRLet's paper, and a change of timeouts.

Diao et al., "Deep Reinforcement Learning Based Dynamic Flowlet Switching for DCN", section VI-A.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.records import Action, Change, Ints, Setup
from tuners.base import BaseTuner
from tuners.learning.exact import exp, log

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# "the packet size of 1400 bytes, the RED queue with the minimal threshold of 65 packets and the
# maximal threshold of 250 packets". A packet in a queue has headers of 66 bytes too.
PACKET_BYTES = 1_466
KMIN_BYTES, KMAX_BYTES = 65 * PACKET_BYTES, 250 * PACKET_BYTES
# Not in the paper; the default of ns-3's RED, which the paper simulates with (LInterm = 50).
PMAX = 0.02
# Where timeouts are chosen from: those that figure 3 compares.
SHORTEST_NS, LONGEST_NS = 100_000, 8_000_000


class FlowletTuner(BaseTuner):
    """Sets flowlet timeouts. RED gets the paper's thresholds at the start, and keeps them."""

    observes: Collection[str] = ()
    knobs = (ECN.name, FLOWLET_TIMEOUT.name)

    def setup(self, testbed: Testbed, timeouts_ns: ArrayLike) -> Setup:
        """Return the start: RED's thresholds, and the timeout of every switch, or of each."""
        buffers = np.array([queue.buffer_bytes for queue in testbed.queues], dtype=np.int64)
        kmin, kmax = np.minimum(KMIN_BYTES, buffers), np.minimum(KMAX_BYTES, buffers)
        red = ECN.change(np.arange(len(buffers)), kmin, kmax, PMAX)
        return Setup((red, timeouts(np.arange(len(testbed.switches)), timeouts_ns)))


def timeouts(switches: Ints, values_ns: ArrayLike) -> Change:
    """Return the change that gives `switches` these timeouts, in whole ns."""
    return FLOWLET_TIMEOUT.change(switches, np.rint(values_ns).astype(np.int64))


def changed_only(switches: Ints, before_ns: Ints, after_ns: Ints) -> Action:
    """Return the change at those of `switches` whose timeout differs; () if none does."""
    differs = before_ns != after_ns
    return (timeouts(switches[differs], after_ns[differs]),) if differs.any() else ()


def timeout_of(action: NDArray[np.floating]) -> Ints:
    """Return the timeouts, in ns, of actions from -1 (the shortest) to 1 (the longest), any shape.

    Equal steps of an action multiply the timeout by the same factor.
    """
    share = (np.asarray(action, dtype=np.float64) + 1.0) / 2.0
    octaves = log(LONGEST_NS / SHORTEST_NS)
    result: Ints = np.rint(SHORTEST_NS * exp(share * octaves)).astype(np.int64)
    return result


def action_of(timeout_ns: ArrayLike) -> NDArray[np.float64]:
    """Undo `timeout_of`; timeouts out of its range count as the nearest in it."""
    within = np.clip(np.asarray(timeout_ns, dtype=np.float64), SHORTEST_NS, LONGEST_NS)
    action: NDArray[np.float64] = (
        2.0 * log(within / SHORTEST_NS) / log(LONGEST_NS / SHORTEST_NS) - 1.0
    )
    return action


def outside(**values_ns: int) -> Iterator[str]:
    """Yield a fault for each timeout that the knob cannot have."""
    (column,) = FLOWLET_TIMEOUT.columns
    for name, value in values_ns.items():
        if not column.least <= value <= (column.most or value):
            yield f"{name} {value} ns is not in {column.range} ns: use 1us to 1s"
