"""DCQCN's parameters of hosts as a rig's knob: what they are, and a change of some of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from orchestration.core.knobs import DCQCN
from orchestration.core.records import Change, Ints
from orchestration.core.topology import Testbed
from orchestration.core.trial import HostSpec

# Sets all parameters of some hosts, and reads them back: (hosts, values) -> values. Values have
# shape (hosts, parameters), in the order of the knob's columns.
Exchange = Callable[[Ints, Ints], Ints]


class NicParameters:
    """The parameters of all hosts, in the order of `Testbed.hosts`.

    `known` has them by name, arrays (hosts,), which are never altered.
    """

    def __init__(self, host: HostSpec, testbed: Testbed, exchange: Exchange) -> None:
        """All hosts begin with those of `host`, which has RoCE NICs."""
        assert host.roce is not None
        values = [host.roce.parameters[name] for name in DCQCN.column_names]
        self._values = np.tile(np.array(values, dtype=np.int64), (len(testbed.hosts), 1))
        self._bounds = DCQCN.bounds(testbed)
        self._exchange = exchange
        self.known = DCQCN.named(*self._values.T)

    @staticmethod
    def are_in(host: HostSpec) -> bool:
        """Return whether hosts have these parameters: whether they have NICs under DCQCN."""
        return host.roce is not None and host.roce.control == DCQCN.control

    def turn(self, change: Change) -> Change:
        """Set what `change` names; return all parameters of its hosts, as their NICs have them.

        Raises ImpossibleSetting for what is out of bounds.
        """
        self._bounds.check(change)
        hosts = change.targets
        values = self._values.copy()
        for place, name in enumerate(DCQCN.column_names):
            if name in change.values:
                values[hosts, place] = np.rint(change[name])
        if len(hosts):
            values[hosts] = self._exchange(hosts, values[hosts])
        self._values = values
        self.known = DCQCN.named(*values.T)
        return Change(change.knob, hosts, DCQCN.named(*values[hosts].T))
