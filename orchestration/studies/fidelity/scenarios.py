"""The scenarios that backends are compared by: campaign files of the source tree.

They are examples (`examples/fidelity/*.yml`), not part of the package, and run on both backends.
"""

from __future__ import annotations

from pathlib import Path

from inventory.strictyaml import suggest
from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.model.errors import InputError, Problem
from orchestration.model.trial import BackendName

# From the simplest to the one that campaigns are made of.
SCENARIOS = ("idle-path", "one-flow", "incast", "websearch")


def load_scenarios(
    folder: Path, names: list[str], backend: BackendName, repeats: int | None
) -> dict[str, Campaign]:
    """Return the scenarios of those names, all if there are none, on a backend.

    Raises InputError for unknown names, and if the files are not there.
    """
    problems = [
        Problem(
            name,
            "no such scenario",
            f"{suggest(name, SCENARIOS)}there are {', '.join(SCENARIOS)}",
        )
        for name in names
        if name not in SCENARIOS
    ]
    if not folder.is_dir():
        remedy = "run it in the source tree, or name the folder with --campaigns"
        problems.append(Problem(str(folder), "has no campaign files of the scenarios", remedy))
    if problems:
        raise InputError(problems)
    return {
        name: load_campaign(folder / f"{name}.yml", backend=backend, repeats=repeats)
        for name in SCENARIOS
        if not names or name in names
    }
