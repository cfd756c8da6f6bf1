"""The looks of a campaign with adaptive repeats, in its run folder: `looks.json`.

Whoever reads the trials needs them: an interval after several looks is wider than after one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orchestration.core.errors import InputError
from orchestration.core.files import write_whole
from orchestration.core.repeats import RepeatRule, Standing

LOOKS_FILE = "looks.json"
LOOKS_FORMAT = 1


@dataclass(frozen=True)
class FoundLooks:
    """The rule of a run folder, its planned looks by their repeats, and each condition's last."""

    rule: RepeatRule
    sizes: tuple[int, ...]
    standings: tuple[Standing, ...]


def write_looks(folder: Path, rule: RepeatRule, standings: Iterable[Standing]) -> None:
    """Write a campaign's looks into its run folder, whole or not at all."""
    data = {
        "format": LOOKS_FORMAT,
        "rule": {
            "until": rule.until,
            "of": rule.of,
            "least": rule.minimum,
            "most": rule.maximum,
        },
        "looks": rule.sizes,
        "conditions": [standing.to_json() for standing in standings],
    }
    write_whole(folder / LOOKS_FILE, json.dumps(data, indent=1) + "\n")


def read_looks(folder: Path) -> FoundLooks | None:
    """Return the looks in a run folder, None if its repeats are not adaptive.

    Raises InputError, naming the file, if it is damaged or of a newer closloop.
    """
    path = folder / LOOKS_FILE
    try:
        status = path.stat()
    except OSError:
        return None
    return _read(path, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int, inode: int) -> FoundLooks:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] > LOOKS_FORMAT:
            raise InputError.single(
                str(path),
                f"has format {data['format']}; this closloop reads formats up to {LOOKS_FORMAT}",
                "use the closloop that wrote it, or a newer one",
            )
        rule = dict(data["rule"])
        return FoundLooks(
            RepeatRule(rule["until"], tuple(rule["of"]), rule["least"], rule["most"]),
            tuple(int(size) for size in data["looks"]),
            tuple(Standing(**item) for item in data["conditions"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError.single(
            str(path),
            f"is not the looks of a campaign: {error!r}",
            "give the campaign's run command again, which writes it anew",
        ) from error
