"""The campaign files of the studies, and trials that no longer match them.

The files are examples in the source tree (`examples/papers`, `examples/fidelity`), not part of the
package. A file named `search-...` has conditions for `closloop search`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.core.errors import InputError, Problem, gather
from orchestration.core.problems import unknown
from orchestration.results.reader import finished_trials

_SEARCH_PREFIX = "search-"
# From the simplest to the most realistic.
SCENARIOS = ("idle-path", "one-flow", "incast", "websearch")
_REMEDY = "run it in the source tree, or name the folder with --campaigns"


def load_campaigns(
    folder: Path,
    names: Sequence[str],
    *,
    backend: str | None = None,
    repeats: int | None = None,
) -> dict[str, Campaign]:
    """Return the named campaigns of the papers, by default all but those to be searched.

    Raises InputError for a folder without files, unknown names, and the problems of all files.
    """
    files = {
        path.stem: path
        for path in sorted(folder.glob("*.yml"))
        if not path.stem.startswith(_SEARCH_PREFIX)
    }
    if not files:
        raise InputError.single(str(folder), "holds no campaign files of the papers", _REMEDY)
    _refuse_searches(folder, set(names) - set(files))
    return _load(files, names, f"campaign in {folder}", backend, repeats)


def _refuse_searches(folder: Path, names: set[str]) -> None:
    """Raise InputError for names of files that are searched, not run."""
    searched = sorted(name for name in names if (folder / f"{name}.yml").is_file())
    if searched:
        raise InputError(
            [
                Problem(name, "is to be searched, not run", f"closloop search {folder / name}.yml")
                for name in searched
            ]
        )


def load_scenarios(
    folder: Path, names: Sequence[str], backend: str, repeats: int | None
) -> dict[str, Campaign]:
    """Return the named scenarios, or all of them, on a backend, simplest first.

    Raises InputError as `load_campaigns` does.
    """
    if not folder.is_dir():
        raise InputError.single(str(folder), "has no campaign files of the scenarios", _REMEDY)
    files = {name: folder / f"{name}.yml" for name in SCENARIOS}
    found = _load(files, names, "scenario", backend, repeats)
    return {name: found[name] for name in SCENARIOS if name in found}


def _load(
    files: Mapping[str, Path],
    names: Sequence[str],
    noun: str,
    backend: str | None,
    repeats: int | None,
) -> dict[str, Campaign]:
    def load(name: str) -> Campaign:
        if name not in files:
            raise InputError([unknown(name, f"no such {noun}", name, files, "there are ")])
        return load_campaign(files[name], backend=backend, repeats=repeats)

    wanted = list(names or files)
    return dict(zip(wanted, gather(load, wanted), strict=True))


def put_aside(campaign: Campaign, runs: Path) -> int:
    """Put aside finished trials that the campaign no longer describes; return how many.

    They move from `runs/<campaign>/` to `runs/<campaign>.stale/`, with a number if the name is
    taken. Other trials stay, and count as finished.
    """
    known = {trial.id for trial in campaign.trials}
    folder = runs / campaign.name
    stale = [path for path in finished_trials(folder) if path.name not in known]
    target = folder.with_name(f"{folder.name}.stale")
    for path in stale:
        target.mkdir(exist_ok=True)
        place, number = target / path.name, 0
        while place.exists():
            number += 1
            place = target / f"{path.name}.{number}"
        path.rename(place)
    return len(stale)
