"""Write replays: each is a self-contained folder, a campaign file with all files that it names."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inventory.files import load_testbed
from inventory.variant import split_name
from orchestration.core.errors import InputError, unwritable
from orchestration.core.files import partial_folder, sha256_of
from orchestration.core.outputs import check_outputs
from orchestration.replay.campaign_file import campaign_lines, parse_rate, with_rates, write_testbed
from orchestration.replay.request import ReplayRequest
from orchestration.replay.specs import ReplaySpec, replay_specs
from orchestration.results.reader import TrialResult, finished_trials

CAMPAIGN_FILE, TESTBED_FILE = "campaign.yml", "testbed.yml"
INPUTS_SUFFIX = ".inputs"
_NAME_LENGTH = 64


@dataclass(frozen=True)
class Replay:
    """A replay that is ready to run: its campaign file, and notes for the user.

    `trial` is a replayed trial, None for a file of flows.
    """

    file: Path
    notes: tuple[str, ...]
    trial: TrialResult | None = None


def build_replays(request: ReplayRequest, out: Path, *, fresh: bool = False) -> tuple[Replay, ...]:
    """Write the campaigns of the requested replay, each into `out/<name>.inputs`.

    An existing folder with the same content stays. A folder with other content is replaced if no
    finished trial was made from it, or with `fresh`. Raises InputError for trials that cannot be
    replayed, before anything is replaced.
    """
    specs = replay_specs(request)
    names = [_name(request, spec) for spec in specs]
    if len(set(names)) < len(names):
        names = [f"{name[: _NAME_LENGTH - 4]}-{number}" for number, name in enumerate(names, 1)]
    named = zip(specs, names, strict=True)
    return tuple(write_replay(request, spec, name, out, fresh=fresh) for spec, name in named)


def _name(request: ReplayRequest, spec: ReplaySpec) -> str:
    """Return a campaign's name, made of the parent's name, the changes and the backend."""
    if request.name:
        words = [request.name, spec.group_label]
    else:
        tuners = [entry.label for entry in spec.other_tuners]
        rates = [f"x{request.scale_rates:g}"] if request.scale_rates != 1 else []
        rates += ["rates"] if request.rate else []
        rates += ["thresholds"] if request.scale_thresholds else []
        base, fields = split_name(request.testbed)
        testbed = f"{Path(base).stem} {fields}"
        words = [spec.parent, spec.group_label, "replay", *tuners, testbed, *rates, spec.backend]
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(filter(None, words)).lower()).strip("-")
    return name[:_NAME_LENGTH].rstrip("-") or "replay"


def write_replay(
    request: ReplayRequest, spec: ReplaySpec, name: str, out: Path, *, fresh: bool = False
) -> Replay:
    """Write the campaign of a spec into `out/<name>.inputs`; see `build_replays`."""
    target = out / f"{name}{INPUTS_SUFFIX}"
    try:
        with partial_folder(target) as partial:
            testbed = load_testbed(request.testbed) if request.testbed else spec.testbed
            if testbed is None:
                remedy = (
                    "give one with --testbed: a name from `closloop inventory list`, or a file of "
                    "your own"
                )
                what = "a file of flows does not name a testbed"
                raise InputError.single(str(request.run), what, remedy)
            testbed = with_rates(testbed, request.scale_rates, dict(map(parse_rate, request.rate)))
            write_testbed(partial / TESTBED_FILE, testbed)
            campaign = spec.write(partial, testbed, name)
            text = "\n".join([*campaign_lines(campaign, TESTBED_FILE), ""])
            (partial / CAMPAIGN_FILE).write_text(text, encoding="utf-8")
            bases = filter(None, [split_name(request.testbed)[0]])
            read: list[str | Path] = [request.run, *bases]
            _publish(partial, target, out / name, fresh, read)
    except OSError as error:
        raise unwritable(
            error.filename or target,
            error,
            "free some space, make it writable, or choose another folder with --out",
            InputError,
        ) from error
    notes = spec.notes
    if spec.testbed is not None and spec.testbed.name != testbed.name:
        notes = (*notes, f"testbed {testbed.name} in place of {spec.testbed.name}")
    return Replay(target / CAMPAIGN_FILE, notes, spec.trial)


def _publish(
    partial: Path, target: Path, results: Path, fresh: bool, read: Iterable[str | Path]
) -> None:
    """Give the folder its final name, unless a folder with the same content exists there.

    A folder with other content is removed. Raises InputError if it has one of the files `read`, or
    if there are results of it.
    """
    if target.exists():
        if _digests(target) == _digests(partial):
            return
        if finished_trials(results) and not fresh:
            raise InputError.single(
                str(target),
                f"belongs to another replay, and {results} has its results",
                "give this one another --name, or move the old results away with --fresh",
            )
        check_outputs([target], read, "give this replay another --name")
        shutil.rmtree(target)
    partial.rename(target)


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
