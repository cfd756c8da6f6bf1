"""Makes a first campaign from the user's answers, checks that it loads, and writes it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inventory.files import load_testbed
from inventory.variant import split_name
from orchestration.campaign.deliverable_load import deliverable_loads
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.skeleton import arms as sizes
from orchestration.campaign.skeleton.arms import (
    ChosenArms,
    Comparison,
    TunerComparison,
    choose_arms,
)
from orchestration.campaign.skeleton.factors import COMPARISONS, FactorComparison, factor_text
from orchestration.campaign.skeleton.text import SkeletonSpec, campaign_text, lossless_text
from orchestration.core.errors import InputError, Problem, check_known, unwritable
from orchestration.core.files import write_whole
from orchestration.core.topology import Testbed
from traffic.schedule import make_schedule
from traffic.workloads import load_workload

FILE = "campaign.yml"
_ENDS = (".yml", ".yaml")
# So many warm-ups are tried, each longer by the usual measured time: longer ones would cost more
# time than the load of the last few large flows is worth.
_MAX_WARM_UPS = 4


@dataclass(frozen=True)
class Answers:
    """The answers to the three questions: which fabric, which traffic, what to compare.

    `load` is a share of the hosts' line rate. "", 0 and None mean what suits the comparison and the
    fabric. Without `tuners` a fair set is compared.
    """

    testbed: str = ""
    workload: str = "WebSearch"
    load: float = 0.0
    incast: bool | None = None
    compare: str = "ecn-tcp"
    tuners: tuple[str, ...] = ()


@dataclass(frozen=True)
class GeneratedCampaign:
    """A campaign that is not written yet: its name, its file, and the texts of all files by path.

    With RoCE there is a second file beside the campaign: the lossless testbed.
    """

    name: str
    file: Path
    texts: dict[Path, str]


def generate(answers: Answers, path: Path) -> GeneratedCampaign:
    """Return the campaign for a file (`*.yml`), or for a folder, which gets `campaign.yml`.

    Raises InputError for answers that do not go together, or that the campaign's checks refuse.
    """
    file, name = _file_and_name(path)
    comparison = comparison_named(answers.compare)
    answers = replace(answers, testbed=answers.testbed or comparison.testbed)
    fabric = load_testbed(answers.testbed)
    if problem := unfit(comparison, fabric):
        raise InputError([problem])
    load_workload(answers.workload)
    load = answers.load or sizes.usual_load(fabric, comparison.load)
    incast = comparison.incast if answers.incast is None else answers.incast
    second_file = comparison.lossless and isinstance(comparison, TunerComparison)
    factor = comparison if isinstance(comparison, FactorComparison) else None
    unit_ns = sizes.window_ns(fabric)
    window_ns = unit_ns * (factor.windows if factor else 1)
    spec = SkeletonSpec(
        name=name,
        file=str(file),
        **_named(answers, second_file, file),
        fabric=fabric,
        comparison=comparison,
        chosen=_chosen(comparison, fabric, answers.tuners),
        load=sizes.checked_load(load, fabric),
        incast=sizes.incast(fabric, comparison.incast_bytes) if incast else None,
        warm_up_ns=unit_ns,
        duration_ns=unit_ns + window_ns,
        drain_ns=sizes.drain_ns(fabric, answers.workload),
    )
    fewest = factor.warm_ups if factor else 1
    for warm_ups in range(fewest, fewest + _MAX_WARM_UPS):
        warm_up_ns = warm_ups * unit_ns
        spec = replace(spec, warm_up_ns=warm_up_ns, duration_ns=warm_up_ns + window_ns)
        if _is_deliverable(spec, answers, file):
            break
    else:
        spec = replace(
            spec,
            warm_up_ns=fewest * unit_ns,
            duration_ns=fewest * unit_ns + window_ns,
            settled=False,
        )
    return GeneratedCampaign(name, file, _texts(spec, file))


def _chosen(comparison: Comparison, fabric: Testbed, tuners: Sequence[str]) -> ChosenArms:
    """Return the tuners that are compared. Raises InputError if they are not what is compared."""
    if isinstance(comparison, TunerComparison):
        return choose_arms(comparison, fabric, tuners)
    if tuners:
        names = ", ".join(name for name, one in COMPARISONS.items() if _of_tuners(one))
        what = f"{comparison.name} compares no tuners"
        raise InputError.single("--tuners", what, f"leave it out, or use --compare {names}")
    return ChosenArms(())


def _of_tuners(comparison: Comparison) -> bool:
    return isinstance(comparison, TunerComparison)


def _named(answers: Answers, second_file: bool, file: Path) -> dict[str, Any]:
    """Return testbed and workload as a campaign in `file` names them: names, or relative paths."""
    base, fields = split_name(answers.testbed)
    testbed = f"{_relative_name(base, file)} {fields}".rstrip()
    return {
        "testbed": f"./{_testbed_file(file).name}" if second_file else testbed,
        "like": testbed if second_file else "",
        "workload": _relative_name(answers.workload, file, (".csv",)),
    }


def comparison_named(name: str) -> Comparison:
    """Return a comparison by its name. Raises InputError for an unknown one."""
    check_known("--compare", "no comparison is called {!r}", [name], COMPARISONS)
    return COMPARISONS[name]


def unfit(comparison: Comparison, testbed: Testbed) -> Problem | None:
    """Return the problem of a comparison that makes no sense on a fabric, None if it does."""
    if comparison.several_paths and not sizes.uplink_ratio(testbed):
        why = f"has a single path between two hosts: {comparison.name} needs several"
        remedy = "choose a fabric with links between switches, or another comparison"
    elif testbed.classes and comparison.lossless and isinstance(comparison, FactorComparison):
        why = "has traffic classes, each with a congestion control of its own"
        remedy = "choose a fabric without classes, or another comparison"
    else:
        return None
    return Problem("--compare", f"{testbed.name} {why}", remedy)


def check_free(path: Path) -> None:
    """Raise InputError if the campaign file that would be written exists already."""
    file, _ = _file_and_name(path)
    _refuse_existing([file])


def write(generated: GeneratedCampaign, *, force: bool = False) -> None:
    """Write the campaign's files.

    Without `force`, it raises InputError and writes nothing if one of them exists already.
    """
    if not force:
        _refuse_existing(generated.texts)
    for path, text in generated.texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise unwritable(path, error, "choose another path", InputError) from error


def _refuse_existing(paths: Iterable[Path]) -> None:
    remedy = "choose another path, or add --force to replace it"
    if existing := [path for path in paths if path.exists()]:
        raise InputError([Problem(str(path), "exists already", remedy) for path in existing])


def _file_and_name(path: Path) -> tuple[Path, str]:
    """Return the campaign's file and its name, which is made from that of the file or folder."""
    is_file = path.suffix in _ENDS
    stem = path.stem if is_file else path.absolute().name
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not name:
        what = "gives no name for the campaign"
        raise InputError.single(str(path), what, "use letters or digits in it")
    return (path if is_file else path / FILE), name


def _relative_name(name: str, file: Path, ends: Sequence[str] = _ENDS) -> str:
    """Return a testbed's or workload's name, or its path as seen from the campaign's `file`."""
    if "/" not in name and not name.endswith(tuple(ends)):
        return name
    path = os.path.relpath(Path(name).absolute(), file.absolute().parent)
    return path if "/" in path else f"./{path}"


def _texts(spec: SkeletonSpec, file: Path) -> dict[Path, str]:
    comparison = spec.comparison
    if isinstance(comparison, FactorComparison):
        texts = {file: factor_text(spec, comparison)}
    else:
        texts = {file: campaign_text(spec)}
    if spec.like:
        texts[_testbed_file(file)] = lossless_text(spec.fabric, spec.like)
    return texts


def _testbed_file(file: Path) -> Path:
    """Return the path of the testbed file that is written beside a campaign file."""
    return file.with_name(f"{file.stem}-testbed.yml")


def _is_deliverable(spec: SkeletonSpec, answers: Answers, file: Path) -> bool:
    """Return whether nearly all of a campaign's load can be delivered.

    The campaign is written to a temporary folder and loaded; problems name `file` instead.
    """
    with tempfile.TemporaryDirectory(prefix="closloop-init-") as folder:
        temporary = Path(folder).resolve() / file.name
        moved = replace(spec, **_named(answers, bool(spec.like), temporary))
        for path, text in _texts(moved, temporary).items():
            path.write_text(text, encoding="utf-8")
        try:
            campaign = load_campaign(temporary)
        except InputError as error:
            home = str(file.parent)
            problems = [
                replace(problem, where=problem.where.replace(str(temporary.parent), home))
                for problem in error.problems
            ]
            raise InputError(problems) from error
        loads = deliverable_loads(campaign.trials, campaign.testbeds, make_schedule)
    return all(load.enough for load in loads)
