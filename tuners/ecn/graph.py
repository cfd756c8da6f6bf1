"""The graph of GraphCC: agents are switch queues, edges say which may send traffic into which.

GraphCC, section 3.3: the ingress neighbourhood of an agent v is every link that ends at the switch
where v begins. Only switch ports are agents and send messages; host ports do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestration.model.records import Ints

if TYPE_CHECKING:
    from inventory.topology import Testbed


@dataclass(frozen=True)
class Graph:
    """Ingress neighbours of each agent, padded to the same number.

    `neighbours` and `present` have shape (agents, most neighbours): indices of agents, and 1.0
    for a neighbour, 0.0 for padding.
    """

    neighbours: Ints
    present: NDArray[np.float32]


def graph(testbed: Testbed) -> Graph:
    """Return the graph of a testbed's queues. Edges join queues of one traffic class only."""
    queues = testbed.queues
    into: dict[tuple[str, int], list[int]] = {}
    for index, queue in enumerate(queues):
        place = (testbed.peer_device(queue).name, getattr(queue, "klass", 0))
        into.setdefault(place, []).append(index)
    lists = [into.get((queue.device, getattr(queue, "klass", 0)), []) for queue in queues]
    most = max(1, *(len(found) for found in lists)) if lists else 1
    neighbours = np.zeros((len(queues), most), dtype=np.int64)
    present = np.zeros((len(queues), most), dtype=np.float32)
    for index, found in enumerate(lists):
        neighbours[index, : len(found)] = found
        present[index, : len(found)] = 1.0
    return Graph(neighbours, present)
