"""Agents per switch: each queue's switch, and each switch's copy of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.records import Ints
from tuners.checkpoint import Checkpoint, CheckpointError
from tuners.nets import Arrays

if TYPE_CHECKING:
    from inventory.topology import Testbed


def switch_of(testbed: Testbed) -> Ints:
    """Return each queue's switch, as an index into `Testbed.switches`."""
    place = {name: index for index, name in enumerate(testbed.switches)}
    return np.array([place[queue.device] for queue in testbed.queues], dtype=np.int64)


def own_parameters(checkpoint: Checkpoint, testbed: Testbed, *, per_switch: bool = False) -> Arrays:
    """Return a checkpoint's parameters for `testbed`.

    All switches share a network whose arrays have two axes, or a first one of length 1;
    `per_switch` gives each a copy of it. Raises CheckpointError if the checkpoint has one network
    per switch, but for other switches.
    """
    arrays = checkpoint.arrays
    first = next(iter(arrays.values()))
    copies = len(first) if first.ndim > 2 else 1
    count = len(testbed.switches)
    if copies == 1:
        if not per_switch:
            return arrays
        return {name: np.repeat(values, count, axis=0) for name, values in arrays.items()}
    switches = tuple(checkpoint.card.get("switches", ()))
    if switches != testbed.switches:
        raise CheckpointError(
            f"{checkpoint.path} has a network for each of {copies} switches "
            f"({', '.join(switches[:3])}…), which are not those of testbed {testbed.name!r}: "
            "run it there, or train one that all switches share"
        )
    return arrays
