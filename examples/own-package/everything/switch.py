"""A switch's operating system: `closloop_platform: careful` in an inventory.

Its queues are Linux', and begin to mark a packet later than is asked for.
"""

from dataclasses import replace

import numpy as np

from closloop import SwitchSystem
from orchestration.backends.hardware.linux_switch import LinuxSwitch

LATER_BYTES = 1_500


class CarefulSwitch(LinuxSwitch):
    """A switch whose kernel has thresholds that are a packet above those of tuners."""

    def set_request(self, places, kmin, kmax, pmax):
        """Return the request that sets some queues."""
        return super().set_request(places, kmin + LATER_BYTES, kmax + LATER_BYTES, pmax)

    def reading(self, answer):
        """Turn an answer into numbers: thresholds are those of tuners."""
        found = super().reading(answer)
        kmin, kmax = (
            np.maximum(one - LATER_BYTES, 0) for one in (found.kmin_bytes, found.kmax_bytes)
        )
        return replace(found, kmin_bytes=kmin, kmax_bytes=kmax)


CAREFUL = SwitchSystem("Careful Linux", CarefulSwitch)
