"""Read what is exported: flows, fabric and settings of finished trials, or of a campaign file.

A campaign file can be exported without a run, because its schedules follow from its seed. Trials
that differ only in their tuner then count as one, and thresholds are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from inventory.files import load_testbed
from orchestration.core.condition import condition_settings, factors_of
from orchestration.core.errors import InputError, unwritable
from orchestration.core.files import whole_folder
from orchestration.core.records import Floats, Ints, Schedule
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import UnitError
from orchestration.results.reader import TrialResult, read_trial, trial_folders

Run = Annotated[
    Path, typer.Argument(help="runs/<campaign>, runs/<campaign>/<trial>, or a campaign file.")
]
NewFolder = Annotated[Path, "--out", "-o", "The folder to write, which must not exist."]


@dataclass(frozen=True)
class QueueThresholds:
    """The thresholds of all queues when flows begin, shapes (queues,), and whether they change."""

    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats
    changed: bool


@dataclass(frozen=True)
class ExportedTrial:
    """One trial to export. `thresholds` and `result` are None where nothing ran."""

    name: str
    spec: TrialSpec
    testbed: Testbed
    schedule: Schedule
    thresholds: QueueThresholds | None = None
    result: TrialResult | None = None


def read_source(path: Path) -> list[ExportedTrial]:
    """Return the trials of a trial's folder, a run folder, a folder of runs, or a campaign file.

    Raises InputError for other paths, and for files that cannot be read.
    """
    if path.suffix in (".yml", ".yaml") and path.is_file():
        return _of_campaign(path)
    folders = trial_folders(path)
    if not folders:
        raise InputError.single(
            str(path),
            "is neither a trial's folder, a run folder with finished trials, nor a campaign file",
            "give runs/<campaign>, runs/<campaign>/<trial> or FILE.yml",
        )
    return [_of_trial(folder) for folder in folders]


def _of_trial(folder: Path) -> ExportedTrial:
    result = read_trial(folder)
    return ExportedTrial(
        name=folder.name,
        spec=result.spec,
        testbed=result.testbed,
        schedule=schedule_of(result),
        thresholds=_thresholds(result),
        result=result,
    )


def schedule_of(result: TrialResult) -> Schedule:
    """Return the schedule of a finished trial. Raises InputError for an unreadable table."""
    table = result.table("schedule")
    hosts = {name: number for number, name in enumerate(result.testbed.hosts)}
    classes = {name: number for number, name in enumerate(dict.fromkeys(table["class"]))}

    def numbers(column: str, known: Mapping[str, int]) -> Ints:
        try:
            return np.fromiter((known[name] for name in table[column]), np.int64)
        except KeyError as error:
            what = f"its schedule names a host {error.args[0]!r} that its testbed does not have"
            raise InputError.single(str(result.folder), what, "restore it from a copy") from error

    return Schedule(
        start_ns=table["start_ns"],
        src=numbers("src", hosts),
        dst=numbers("dst", hosts),
        size_bytes=table["bytes"],
        klass=numbers("class", classes),
        classes=tuple(classes),
    )


def _thresholds(result: TrialResult) -> QueueThresholds | None:
    """Return each queue's thresholds when the flows begin; None unless all are known."""
    table, queues = result.table("actions"), result.testbed.queues
    number_of = {(q.device, q.name, q.klass): number for number, q in enumerate(queues)}
    rows = np.full(len(queues), -1, dtype=np.int64)
    keys = zip(table["device"], table["port"], table["queue"].tolist(), strict=True)
    number = np.fromiter((number_of.get(key, -1) for key in keys), np.int64)
    early = np.flatnonzero((table["t_ns"] <= 0) & (number >= 0))
    rows[number[early]] = early
    if not len(queues) or (rows < 0).any():
        return None
    return QueueThresholds(
        kmin_bytes=table["kmin_bytes"][rows],
        kmax_bytes=table["kmax_bytes"][rows],
        pmax=table["pmax"][rows],
        changed=bool((table["t_ns"] > 0).any()),
    )


def _of_campaign(path: Path) -> list[ExportedTrial]:
    from orchestration.campaign.expand import load_campaign
    from traffic.schedule import make_schedule

    exported: dict[tuple[str, int, int], ExportedTrial] = {}
    for trial in load_campaign(path).trials:
        key = (condition_settings(trial), trial.seed, trial.repeat)
        if key not in exported:
            testbed = load_testbed(trial.testbed)
            levels = map(str, factors_of(trial.cell).values())
            safe = "-".join(
                "".join(c if c.isalnum() or c in "._" else "_" for c in level) for level in levels
            )
            stem = f"{safe}-r{trial.repeat}" if safe else f"r{trial.repeat}"
            taken = sum(item.name.split(".")[0] == stem for item in exported.values())
            name = f"{stem}.{taken + 1}" if taken else stem
            exported[key] = ExportedTrial(name, trial, testbed, make_schedule(trial, testbed))
    return list(exported.values())


def parse_quantity(
    flag: str, text: str, parse: Callable[[object], int], minimum: int = 0
) -> int | None:
    """Return an option's value in its base unit, None if the text is "". Raises InputError.

    `flag` names the option in errors, `parse` reads its text.
    """
    if not text:
        return None
    try:
        value = parse(text)
    except UnitError as error:
        raise InputError([error.problem.relocated(flag)]) from error
    if value < minimum:
        raise InputError.single(flag, f"{text!r} is too small", "use more than 0")
    return value


def export_targets(run: Path, out: Path, prefix: str = "") -> list[tuple[ExportedTrial, Path, str]]:
    """Return the trials to export, each with its folder and that folder's path elsewhere.

    `prefix` is the path of `out` as another program sees it. A single trial gets `out` itself.
    """
    items = read_source(run)
    if len(items) == 1:
        return [(items[0], out, prefix)]
    return [(item, out / item.name, prefix and f"{prefix}/{item.name}") for item in items]


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yield a path to write to. Raises InputError if it exists.

    An OSError in the block becomes a NotReadyError.
    """
    if path.exists():
        raise InputError.single(str(path), "is there already", "choose another path with -o")
    try:
        yield path
    except OSError as error:
        raise unwritable(
            path, error, "free some space or make it writable, or choose another path with -o"
        ) from error


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes `folder` if the block succeeds. Raises as `new_path`."""
    with new_path(folder), whole_folder(folder) as partial:
        yield partial
