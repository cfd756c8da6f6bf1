"""Traffic classes as what sockets are set to: a type of service, and a congestion control."""

from __future__ import annotations

from collections.abc import Sequence

from inventory.topology import Testbed
from orchestration.device.qdiscs import CLASS_TOS
from orchestration.model.trial import PatternSpec
from traffic.drivers.flows import Service


def services(testbed: Testbed, traffic: Sequence[PatternSpec]) -> list[Service]:
    """Return how each pattern's flows are sent; nothing where the testbed has no classes.

    Raises ValueError for a class that the testbed has not.
    """
    if not testbed.classes:
        return []
    numbers = [testbed.class_index(spec.queue_class) for spec in traffic]
    return [
        Service(number, CLASS_TOS[number], testbed.classes[number].congestion_control)
        for number in numbers
    ]
