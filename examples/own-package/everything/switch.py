"""A switch's operating system: `closloop_platform: careful` in an inventory.

It is a Linux switch whose queues begin to mark one packet later than the tuner says.
"""

from dataclasses import replace

import numpy as np

from closloop import SwitchSystem
from orchestration.backends.hardware.linux_switch import LinuxSwitch

LATER_BYTES = 1_500


class CarefulSwitch(LinuxSwitch):
    """A switch whose kernel has thresholds that are one packet above the tuner's."""

    def set_request(self, queues, kmin, kmax, pmax):
        """Return the request that sets the thresholds of some queues."""
        return super().set_request(queues, kmin + LATER_BYTES, kmax + LATER_BYTES, pmax)

    def reading(self, answer):
        """Return the values of an answer, with thresholds as the tuner has set them."""
        reading = super().reading(answer)
        kmin = np.maximum(reading.kmin_bytes - LATER_BYTES, 0)
        kmax = np.maximum(reading.kmax_bytes - LATER_BYTES, 0)
        return replace(reading, kmin_bytes=kmin, kmax_bytes=kmax)


CAREFUL = SwitchSystem("Careful Linux", CarefulSwitch)
