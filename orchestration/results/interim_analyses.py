"""The interim analyses of a campaign with adaptive repeats, kept in its run folder: `looks.json`.

Reports need them: an interval that holds over several interim analyses is wider than that of a
single analysis at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orchestration.core.errors import InputError
from orchestration.core.files import write_whole
from orchestration.core.repeats import ConditionStatus, StoppingRule

INTERIM_FILE = "looks.json"
INTERIM_FORMAT = 1


@dataclass(frozen=True)
class InterimAnalyses:
    """The interim analyses of a run folder.

    `sizes` are the numbers of repeats at which they are planned. `condition_statuses` has what the
    last one showed of each condition.
    """

    rule: StoppingRule
    sizes: tuple[int, ...]
    condition_statuses: tuple[ConditionStatus, ...]


def write_interim_analyses(
    folder: Path, rule: StoppingRule, condition_statuses: Iterable[ConditionStatus]
) -> None:
    """Write a campaign's interim analyses into its run folder, atomically."""
    data = {
        "format": INTERIM_FORMAT,
        "rule": {
            "until": rule.until,
            "of": rule.of,
            "least": rule.minimum,
            "most": rule.maximum,
        },
        "looks": rule.sizes,
        "conditions": [status.to_json() for status in condition_statuses],
    }
    write_whole(folder / INTERIM_FILE, json.dumps(data, indent=1) + "\n")


def read_interim_analyses(folder: Path) -> InterimAnalyses | None:
    """Return the interim analyses in a run folder, None if its repeats are not adaptive.

    Raises InputError, naming the file, if it is damaged or of a newer closloop.
    """
    path = folder / INTERIM_FILE
    try:
        status = path.stat()
    except OSError:
        return None
    return _read(path, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int, inode: int) -> InterimAnalyses:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] > INTERIM_FORMAT:
            raise InputError.single(
                str(path),
                f"has format {data['format']}; this closloop reads formats up to {INTERIM_FORMAT}",
                "use the closloop that wrote it, or a newer one",
            )
        rule = dict(data["rule"])
        return InterimAnalyses(
            StoppingRule(rule["until"], tuple(rule["of"]), rule["least"], rule["most"]),
            tuple(int(size) for size in data["looks"]),
            tuple(ConditionStatus.from_json(item) for item in data["conditions"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError.single(
            str(path),
            f"does not hold a campaign's interim analyses: {error!r}",
            "give the campaign's run command again, which rewrites it",
        ) from error
