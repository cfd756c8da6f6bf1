"""Campaign files in run folders of closloop 0.2, where a name meant something else than now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.artifacts.reader import finished_trials, read_trial
from orchestration.model.errors import InputError
from orchestration.model.roce import FORMER_HPCC, HPCC, is_former_hpcc

if TYPE_CHECKING:
    from orchestration.campaign.expand import Cell


def with_former_sets(cells: Sequence[Cell], path: str | Path) -> list[Cell]:
    """Return cells with the DCQCN set that their file named when its trials ran.

    The trials beside the file tell: where some have the parameters that 0.2 called `hpcc`, and the
    file does not know them by their present name, `hpcc` is that set.
    """
    named = [cell.file.host.roce.dcqcn.set for cell in cells]
    if HPCC not in named or FORMER_HPCC in named or not _has_former(Path(path).parent):
        return list(cells)
    return [
        _renamed(cell) if name == HPCC else cell for cell, name in zip(cells, named, strict=True)
    ]


def has_former_hpcc(trial: Path) -> bool:
    """Return whether a finished trial ran under the parameters that 0.2 called `hpcc`."""
    try:
        roce = read_trial(trial).spec.host.roce
    except InputError:
        return False
    return roce is not None and is_former_hpcc(roce.parameters)


def _has_former(folder: Path) -> bool:
    return any(has_former_hpcc(trial) for trial in finished_trials(folder))


def _renamed(cell: Cell) -> Cell:
    host = cell.file.host
    dcqcn = host.roce.dcqcn.model_copy(update={"set": FORMER_HPCC})
    roce = host.roce.model_copy(update={"dcqcn": dcqcn})
    host = host.model_copy(update={"roce": roce})
    return replace(cell, file=cell.file.model_copy(update={"host": host}))
