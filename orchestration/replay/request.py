"""What a user asks of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestration.campaign.schema import check_backend
from orchestration.model.errors import InputError
from tuners.registry import RECORDED


@dataclass(frozen=True)
class ReplayRequest:
    """What is replayed, where, and what is changed.

    `run` is a run folder, a trial's folder, or a CSV of flows; `trials` chooses among a run's
    trials. `backend` "" is the recorded one. `tuners` are names or mappings as in a campaign file;
    `recorded` stands for the recorded actions. `testbed` "" is the recorded one; `rates` are in
    bit/s, by links' names. `repeats` None is as many as were recorded. `name` "" is made up.
    """

    run: Path
    backend: str = ""
    tuners: tuple[str, ...] = (RECORDED,)
    trials: str = ""
    repeats: int | None = None
    name: str = ""
    testbed: str = ""
    scale_rates: float = 1.0
    rates: Mapping[str, int] = field(default_factory=dict)
    scale_thresholds: bool = False


def backend_of(request: ReplayRequest, recorded: str) -> str:
    """Return the backend of a replay. Raises InputError if nothing can run on the one asked for."""
    if not request.backend:
        return recorded
    try:
        return check_backend(request.backend)
    except ValueError as error:
        what, _, remedy = str(error).partition(": ")
        raise InputError.single("--on", what, remedy) from error
