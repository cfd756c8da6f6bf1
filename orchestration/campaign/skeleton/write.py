"""Makes a first campaign of the answers, checks that it loads, and writes it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from orchestration.campaign.deliverable_load import deliverable_loads
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.skeleton import arms as sizes
from orchestration.campaign.skeleton.arms import COMPARISONS, DCTCP, Comparison, choose_arms
from orchestration.campaign.skeleton.text import SkeletonSpec, campaign_text, lossless_text
from orchestration.core.errors import InputError, Problem, check_known, unwritable
from orchestration.core.files import write_whole
from orchestration.core.topology import Testbed
from traffic.schedule import make_schedule
from traffic.workloads import load_workload

FILE = "campaign.yml"
_ENDS = (".yml", ".yaml")
# Longer warm-ups would cost more than the share of large flows that they settle is worth.
_MAX_WARM_UPS = 4


@dataclass(frozen=True)
class Answers:
    """The answers to the three questions: which fabric, which traffic, what to compare.

    `load` is a share of the hosts' line rate, 0 for what is usual there. Without `tuners` a fair
    set is compared.
    """

    testbed: str = "graphcc"
    workload: str = "WebSearch"
    load: float = 0.0
    incast: bool = True
    compare: str = "ecn-tcp"
    tuners: tuple[str, ...] = ()


@dataclass(frozen=True)
class GeneratedCampaign:
    """A campaign that was made, not yet in its place: its name, and its files' texts by path."""

    name: str
    file: Path
    texts: dict[Path, str]


def generate(answers: Answers, place: Path) -> GeneratedCampaign:
    """Return the campaign for a file (`*.yml`) or a folder, which gets `campaign.yml`.

    Raises InputError for answers that do not go together, or that the campaign's checks refuse.
    """
    file, name = _place(place)
    comparison = comparison_named(answers.compare)
    fabric = load_testbed(answers.testbed)
    if problem := unfit(comparison, fabric):
        raise InputError([problem])
    load_workload(answers.workload)
    load = answers.load or sizes.usual_load(fabric)
    lossless = comparison.transport != DCTCP
    window_ns = sizes.window_ns(fabric)
    draft = SkeletonSpec(
        name=name,
        file=str(file),
        **_named(answers, lossless, file),
        fabric=fabric,
        comparison=comparison,
        chosen=choose_arms(comparison, fabric, answers.tuners),
        load=sizes.checked_load(load, fabric),
        incast=sizes.incast(fabric) if answers.incast else None,
        warm_up_ns=window_ns,
        duration_ns=2 * window_ns,
        drain_ns=sizes.drain_ns(fabric, answers.workload),
    )
    settled_ns = _settled_ns(draft, answers, file, window_ns)
    draft = replace(
        draft,
        warm_up_ns=settled_ns or window_ns,
        duration_ns=(settled_ns or window_ns) + window_ns,
        settled=settled_ns > 0,
    )
    return GeneratedCampaign(name, file, _texts(draft, file))


def _named(answers: Answers, lossless: bool, file: Path) -> dict[str, Any]:
    """Return the testbed and the workload as the campaign in a file names them."""
    testbed = _seen(answers.testbed, file)
    return {
        "testbed": f"./{_beside(file).name}" if lossless else testbed,
        "like": testbed if lossless else "",
        "workload": _seen(answers.workload, file, (".csv",)),
    }


def comparison_named(name: str) -> Comparison:
    """Return a comparison by its name. Raises InputError for an unknown one."""
    check_known("--compare", "no comparison is called {!r}", [name], COMPARISONS)
    return COMPARISONS[name]


def unfit(comparison: Comparison, testbed: Testbed) -> Problem | None:
    """Return why a comparison makes no sense on a fabric, None if it does."""
    if not comparison.several_paths or sizes.uplink_ratio(testbed):
        return None
    return Problem(
        "--compare",
        f"{testbed.name} has one path between two hosts, so that {comparison.name} has no choice",
        "choose a fabric with links between switches, or another comparison",
    )


def check_free(place: Path) -> None:
    """Raise InputError if there is a campaign already where one is to be written."""
    file, _ = _place(place)
    _refuse_existing([file])


def write(made: GeneratedCampaign, *, force: bool = False) -> None:
    """Write the campaign's files. Raises InputError, and writes none, if one is there already."""
    if not force:
        _refuse_existing(made.texts)
    for path, text in made.texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise unwritable(path, error, "choose another place", InputError) from error


def _refuse_existing(paths: Iterable[Path]) -> None:
    remedy = "choose another place, or --force to replace it"
    if there := [path for path in paths if path.exists()]:
        raise InputError([Problem(str(path), "is there already", remedy) for path in there])


def _place(place: Path) -> tuple[Path, str]:
    """Return the campaign's file, and its name: that of the file or folder, as campaigns are."""
    is_file = place.suffix in _ENDS
    called = place.stem if is_file else place.absolute().name
    name = re.sub(r"[^a-z0-9]+", "-", called.lower()).strip("-")
    if not name:
        raise InputError.single(
            str(place), "makes no name for a campaign", "use letters or digits in it"
        )
    return (place if is_file else place / FILE), name


def _seen(name: str, file: Path, ends: Sequence[str] = _ENDS) -> str:
    """Return the name or path of a testbed or workload as a campaign file names it."""
    if "/" not in name and not name.endswith(tuple(ends)):
        return name
    path = os.path.relpath(Path(name).absolute(), file.absolute().parent)
    return path if "/" in path else f"./{path}"


def _texts(draft: SkeletonSpec, file: Path) -> dict[Path, str]:
    texts = {file: campaign_text(draft)}
    if draft.like:
        texts[_beside(file)] = lossless_text(draft.fabric, draft.like)
    return texts


def _beside(file: Path) -> Path:
    """Return the testbed file that stands beside a campaign."""
    return file.with_name(f"{file.stem}-testbed.yml")


def _settled_ns(draft: SkeletonSpec, answers: Answers, file: Path, window_ns: int) -> int:
    """Return a warm-up after which the load can arrive, 0 if none is short enough.

    The campaign is loaded for it, so what its checks refuse comes out here.
    """
    for warm_ups in range(1, _MAX_WARM_UPS + 1):
        warm_up_ns = warm_ups * window_ns
        tried = replace(draft, warm_up_ns=warm_up_ns, duration_ns=warm_up_ns + window_ns)
        if _arrives(tried, answers, file):
            return warm_up_ns
    return 0


def _arrives(draft: SkeletonSpec, answers: Answers, file: Path) -> bool:
    """Return whether what a campaign offers can arrive; it is loaded from another place."""
    with tempfile.TemporaryDirectory(prefix="closloop-init-") as place:
        there = Path(place).resolve() / file.name
        moved = replace(draft, **_named(answers, bool(draft.like), there))
        for path, text in _texts(moved, there).items():
            path.write_text(text, encoding="utf-8")
        try:
            campaign = load_campaign(there)
        except InputError as error:
            home = str(file.parent)
            problems = [
                replace(one, where=one.where.replace(str(there.parent), home))
                for one in error.problems
            ]
            raise InputError(problems) from error
        found = deliverable_loads(campaign.trials, campaign.testbeds, make_schedule)
    return all(one.enough for one in found)
