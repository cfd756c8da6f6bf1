"""The measured table of the best static timeouts by load (DRLet, section V, step 2).

"the optimal flowlet timeout value for each load intensity is selected as the basic action a_base";
the paper does not print its table. This one is of a grid of seven timeouts for WebSearch on
drlet-k4: the lowest mean FCT at each load, of three seeds. By how much it is lower than the next
one's stands in docs/load-balancing.md. `closloop search examples/papers/search-drlet-1g.yml --over
timeouts --metric fct_mean` and `search-drlet-10g.yml` find it anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from orchestration.core.records import Ints

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

LOADS = (0.2, 0.4, 0.6, 0.8)
# By the hosts' rate, for each of LOADS.
BEST_NS = {
    1_000_000_000: (400_000, 1_000_000, 1_000_000, 1_000_000),
    10_000_000_000: (100_000, 100_000, 100_000, 200_000),
}


def best_static_ns(load: ArrayLike, rate_bps: int) -> Ints:
    """Return the best static timeout in ns at the loads of the table nearest to `load`, any shape.

    `rate_bps` is the hosts'; of two rates in the table the nearest by its ratio counts.
    """
    rates = np.array(sorted(BEST_NS))
    rate = int(rates[np.argmin(np.abs(np.log2(rates / rate_bps)))])
    nearest = np.argmin(np.abs(np.asarray(load)[..., None] - np.array(LOADS)), axis=-1)
    best: Ints = np.array(BEST_NS[rate], dtype=np.int64)[nearest]
    return best


def host_rate(testbed: Testbed) -> int:
    """Return the rate of the slowest host port, in bit/s."""
    return min(port.rate_bps for host in testbed.hosts for port in testbed.ports_of[host])
