"""DCQCN's parameters among those of a tuner of thresholds, so that one tuner turns two knobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestration.core.knobs import DCQCN, ECN
from orchestration.core.records import Change
from orchestration.core.roce import DCQCN_PARAMETERS
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


# A parameter for each that NICs have; None where it is left out.
_Parameters: Any = make_dataclass(
    "_Parameters",
    [(name, int | None, None) for name in DCQCN_PARAMETERS],
    bases=(BaseTuner,),
    eq=False,
    kw_only=True,
)


@dataclass(eq=False, kw_only=True)
class WithDcqcn(_Parameters):  # type: ignore[misc] # its fields are not known before
    """Parameters of DCQCN in the hosts' NICs, under mlx5's names: see `DCQCN_PARAMETERS`.

    Those left out stay as the campaign has them. With none, the tuner does not turn the knob, and
    hosts can have any congestion control.
    """

    def __post_init__(self) -> None:
        if self.dcqcn:
            self.knobs = (ECN.name, DCQCN.name)

    @property
    def dcqcn(self) -> dict[str, int]:
        """The parameters that are given, by name."""
        given = {name: getattr(self, name) for name in DCQCN_PARAMETERS}
        return {name: value for name, value in given.items() if value is not None}

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters."""
        for name, value in self.dcqcn.items():
            least, most = DCQCN_PARAMETERS[name].least, DCQCN_PARAMETERS[name].most
            if not least <= value <= most:
                yield f"{name} {value} is outside {least}..{most}: use a value that a NIC takes"

    def dcqcn_change(self, testbed: Testbed) -> tuple[Change, ...]:
        """Return the change that gives every host the parameters; none if there are none."""
        if not self.dcqcn:
            return ()
        return (DCQCN.change(np.arange(len(testbed.hosts)), **self.dcqcn),)
