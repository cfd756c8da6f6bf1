"""DCQCN's parameters among those of a tuner of thresholds, so that one tuner turns two knobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestration.model.knobs import DCQCN, ECN
from orchestration.model.records import Change
from orchestration.model.roce import DCQCN_PARAMETERS
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from inventory.topology import Testbed


@dataclass(eq=False, kw_only=True)
class WithDcqcn(BaseTuner):
    """Parameters of DCQCN in the hosts' NICs, under mlx5's names: see `DCQCN_PARAMETERS`.

    Those left out stay as the campaign has them. With none, the tuner does not turn the knob, and
    hosts can have any congestion control.
    """

    rpg_time_reset: int | None = None
    rpg_byte_reset: int | None = None
    rpg_threshold: int | None = None
    rpg_ai_rate: int | None = None
    rpg_hai_rate: int | None = None
    rpg_gd: int | None = None
    rpg_min_dec_fac: int | None = None
    rpg_min_rate: int | None = None
    rpg_max_rate: int | None = None
    rate_to_set_on_first_cnp: int | None = None
    dce_tcp_g: int | None = None
    dce_tcp_rtt: int | None = None
    rate_reduce_monitor_period: int | None = None
    initial_alpha_value: int | None = None
    clamp_tgt_rate: int | None = None
    clamp_tgt_rate_after_time_inc: int | None = None
    min_time_between_cnps: int | None = None

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
