"""The graph of GraphCC: every switch queue is an agent, and who may send traffic into whom.

GraphCC, section 3.3: the ingress neighbourhood of an agent v is every link that ends at the switch
where v begins. Of those only switches' own ports are agents and send messages; hosts' are not.
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
    """Ingress agents of each agent, padded to one width.

    `neighbours` and `present` have shape (agents, most neighbours): indices of agents, and 1.0
    where there is one, 0.0 where there is padding.
    """

    neighbours: Ints
    present: NDArray[np.float32]


def graph(testbed: Testbed) -> Graph:
    """Return the graph of a testbed's queues; queues of one class talk to each other."""
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
