"""What is built once on a machine, when trials first need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from orchestration.core.problems import Problem

if TYPE_CHECKING:
    from orchestration.core.trial import TrialSpec


class BuildProgress(Protocol):
    """Receives the progress of a build."""

    def phase(self, name: str) -> None:
        """Show that the phase `name` begins."""

    def step(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps of the current phase are done."""


@dataclass(frozen=True)
class Build:
    """What is built: `what` names it, and `wall_s` is about how long it takes on this machine.

    `make` builds it; it raises NotReadyError if it cannot, and Interrupted after Ctrl-C. `problems`
    say what is missing for it.
    """

    what: str
    wall_s: float
    make: Callable[[BuildProgress], None]
    problems: tuple[Problem, ...] = ()


@runtime_checkable
class BuildsOnFirstUse(Protocol):
    """A backend that builds what its trials need when a campaign first runs."""

    def to_build(self, trials: Sequence[TrialSpec]) -> Sequence[Build]:
        """Return what these trials need that is not there yet. Raises InputError."""
