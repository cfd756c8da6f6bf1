"""The base class of tuners, and checks of parameters that several tuners share.

A tuner decides, at each observation of the fabric, how knobs are set: by default the ECN marking
thresholds of the switches' queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from orchestration.core.knobs import ECN
from orchestration.core.records import Action, Observation

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed


class BaseTuner:
    """A tuner of ECN thresholds that observes queues only and records no training data.

    A subclass is a dataclass. Its fields are its parameters, which a campaign file sets by name;
    values must have the annotated types. The subclass adds `reset(testbed, seed)`, which returns
    the initial settings, and overrides `act`, which decides. If it needs other signals or knobs, it
    overrides `observes` and `knobs`. `orchestration.core.ports.Tuner` describes every method.
    """

    observes: Collection[str] = ("qlen_bytes", "tx_bytes", "marked_packets")
    knobs: Collection[str] = (ECN.name,)
    programs: Collection[str] = ()

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters, each as `what: remedy`."""
        yield from ()

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Accept every testbed. A tuner that cannot run there raises ValueError, `what: remedy`.

        Without a testbed, a tuner checks only what does not depend on one, such as its files.
        """

    @property
    def decides(self) -> bool:
        """Whether the class overrides `act`. A fixed setting does not."""
        return type(self).act is not BaseTuner.act

    def act(self, observation: Observation) -> Action:
        """Return no change: all settings stay as they are."""
        return ()

    def facts(self) -> Mapping[str, Any]:
        """Return what the tuner says about itself after a trial, by name. Here: nothing."""
        return {}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return the trial's data for a learner, arrays by name. Here: none."""
        return {}


def probability_faults(name: str, value: float) -> Iterator[str]:
    """Yield a fault unless `value` lies in 0 to 1."""
    if not 0 <= value <= 1:
        yield f"{name} {value} is not a probability: use 0 to 1"


def share_faults(**values: float) -> Iterator[str]:
    """Yield a fault for each value that is not above 0 and at most 1."""
    for name, value in values.items():
        if not 0 < value <= 1:
            yield f"{name} {value} is not a share: use more than 0, at most 1"


def negative_faults(**values: int) -> Iterator[str]:
    """Yield a fault for each value below 0."""
    for name, value in values.items():
        if value < 0:
            yield f"{name} {value} is below 0: use 0 or more"


def threshold_faults(
    kmin_bytes: int, kmax_bytes: int, pmax: float, prefix: str = ""
) -> Iterator[str]:
    """Yield what is wrong with one ECN setting. `prefix` comes before each parameter's name."""
    if kmin_bytes < 0:
        yield f"{prefix}kmin {kmin_bytes} B is below 0: use 0 or more"
    if kmin_bytes > kmax_bytes:
        yield (
            f"{prefix}kmin {kmin_bytes} B is above {prefix}kmax {kmax_bytes} B: "
            "swap or correct them"
        )
    yield from probability_faults(f"{prefix}pmax", pmax)
