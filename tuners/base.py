"""Defaults that every tuner inherits, and checks of parameters that tuners share."""

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

    A subclass is a dataclass whose fields are its parameters: a campaign file sets them by name,
    with the types of their annotations. It adds `reset(testbed, seed)`, which returns the initial
    settings, and decides in `act`. It overrides `observes` and `knobs` if it needs others.
    See `orchestration.core.ports.Tuner`.
    """

    observes: Collection[str] = ("qlen_bytes", "tx_bytes", "marked_packets")
    knobs: Collection[str] = (ECN.name,)
    programs: Collection[str] = ()

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the parameters, each as `what: remedy`."""
        yield from ()

    def check_testbed(self, testbed: Testbed | None) -> None:
        """Accept every testbed. A tuner that cannot run raises ValueError, as `what: remedy`.

        Without a testbed, only what does not depend on one is checked, such as files.
        """

    @property
    def decides(self) -> bool:
        """Return whether the class has an `act` of its own."""
        return type(self).act is not BaseTuner.act

    def act(self, observation: Observation) -> Action:
        """Leave everything as it is."""
        return ()

    def facts(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def trace(self) -> Mapping[str, NDArray[Any]]:
        """Return nothing."""
        return {}


def probability_faults(name: str, value: float) -> Iterator[str]:
    """Yield a fault unless `value` is in 0..1."""
    if not 0 <= value <= 1:
        yield f"{name} {value} is not a probability: use 0 to 1"


def share_faults(**values: float) -> Iterator[str]:
    """Yield a fault for each value that is not in 0..1, or 0."""
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
    """Yield what is wrong with one setting of ECN thresholds, its names preceded by `prefix`."""
    if kmin_bytes < 0:
        yield f"{prefix}kmin {kmin_bytes} B is below 0: use 0 or more"
    if kmin_bytes > kmax_bytes:
        yield (
            f"{prefix}kmin {kmin_bytes} B is above {prefix}kmax {kmax_bytes} B: "
            "swap or correct them"
        )
    yield from probability_faults(f"{prefix}pmax", pmax)
