"""Read what is exported: flows, fabric and settings of a finished trial or a campaign's trials.

A campaign file needs no run, because its schedules follow from its seed. Trials that differ only in
their tuner then count as one, and thresholds are not known.
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
from orchestration.core.condition import factors_of, settings
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
NewFolder = Annotated[Path, "--out", "-o", "The folder to make."]


@dataclass(frozen=True)
class QueueThresholds:
    """The initial thresholds of all queues, shapes (queues,), and whether they changed later."""

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
            "is no trial's folder, no campaign's folder with finished trials, and no campaign file",
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
            what = f"its schedule names a host {error.args[0]!r} that its testbed has not"
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
    """Return each queue's thresholds when the flows began; None unless all are known."""
    table, queues = result.table("actions"), result.testbed.queues
    place = {(q.device, q.name, q.klass): number for number, q in enumerate(queues)}
    rows = np.full(len(queues), -1, dtype=np.int64)
    keys = zip(table["device"], table["port"], table["queue"].tolist(), strict=True)
    number = np.fromiter((place.get(key, -1) for key in keys), np.int64)
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

    found: dict[tuple[str, int, int], ExportedTrial] = {}
    for trial in load_campaign(path).trials:
        key = (settings(trial), trial.seed, trial.repeat)
        if key not in found:
            testbed = load_testbed(trial.testbed)
            words = map(str, factors_of(trial.cell).values())
            safe = "-".join(
                "".join(c if c.isalnum() or c in "._" else "_" for c in w) for w in words
            )
            stem = f"{safe}-r{trial.repeat}" if safe else f"r{trial.repeat}"
            taken = sum(item.name.split(".")[0] == stem for item in found.values())
            name = f"{stem}.{taken + 1}" if taken else stem
            found[key] = ExportedTrial(name, trial, testbed, make_schedule(trial, testbed))
    return list(found.values())


def parse_quantity(
    flag: str, text: str, parse: Callable[[object], int], minimum: int = 0
) -> int | None:
    """Return an option's value in its base unit, None if it is not given. Raises InputError."""
    if not text:
        return None
    try:
        value = parse(text)
    except UnitError as error:
        raise InputError([error.problem.relocated(flag)]) from error
    if value < minimum:
        raise InputError.single(flag, f"{text!r} is nothing", "use more than 0")
    return value


def export_targets(run: Path, out: Path, prefix: str = "") -> list[tuple[ExportedTrial, Path, str]]:
    """Return what to export of a run, the folder of each, and that folder's path elsewhere.

    `prefix` is the path of `out` there. A single trial gets `out` itself.
    """
    items = read_source(run)
    if len(items) == 1:
        return [(items[0], out, prefix)]
    return [(item, out / item.name, prefix and f"{prefix}/{item.name}") for item in items]


@contextmanager
def new_path(place: Path) -> Iterator[Path]:
    """Yield the path to write to. Raises InputError if it exists.

    An OSError becomes a NotReadyError.
    """
    if place.exists():
        raise InputError.single(str(place), "is there already", "choose another place with -o")
    try:
        yield place
    except OSError as error:
        raise unwritable(
            place, error, "make room there or make it writable, or choose another place with -o"
        ) from error


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes `folder` if nothing is raised. Raises as `new_path`."""
    with new_path(folder), whole_folder(folder) as partial:
        yield partial
