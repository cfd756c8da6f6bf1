"""The papers' campaign files: which there are, and the ones a user names.

They are examples of the source tree (`examples/papers/*.yml`), not part of the package. A file
whose name begins with `grid-` is a search for the best static setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inventory.strictyaml import suggest
from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.model.errors import InputError, Problem

GRID_PREFIX = "grid-"


def campaign_files(folder: Path, *, grids: bool) -> dict[str, Path]:
    """Return the campaign files of a folder by name, of grids or of the papers' experiments.

    Raises InputError if there are none.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.yml"))}
    chosen = {name: path for name, path in files.items() if name.startswith(GRID_PREFIX) == grids}
    if not chosen:
        remedy = "run it in the source tree, or name the folder with --campaigns"
        raise InputError.single(str(folder), "holds no campaign files of the papers", remedy)
    return chosen


def load_campaigns(
    folder: Path,
    names: Sequence[str],
    *,
    grids: bool = False,
    backend: str | None = None,
    repeats: int | None = None,
) -> dict[str, Campaign]:
    """Return the campaigns of those names, all if there are none, checked.

    Raises InputError for unknown names and with the problems of all the files.
    """
    files = campaign_files(folder, grids=grids)
    problems = [
        Problem(name, f"no such campaign in {folder}", f"{suggest(name, files)}{_known(files)}")
        for name in names
        if name not in files
    ]
    campaigns = {}
    for name in names or files:
        try:
            if name in files:
                campaigns[name] = load_campaign(files[name], backend=backend, repeats=repeats)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return campaigns


def _known(files: dict[str, Path]) -> str:
    return f"there are {', '.join(files)}"
