"""Calibrations as files: what one machine measured, another one's twin is corrected by."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from orchestration.calibration.measure import BaseRtt, Calibration, Goodput, LoopDelay, MarkingBin
from orchestration.calibration.probes import PathKind
from orchestration.model.errors import InputError

FORMAT = "closloop calibration 1"


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as JSON-ready data."""
    data = dataclasses.asdict(calibration)
    for row, rtt in zip(data["rtts"], calibration.rtts, strict=True):
        row["path"]["links_of_tier"] = {str(t): n for t, n in rtt.path.links_of_tier.items()}
    return {"format": FORMAT, **data}


def read_calibration(path: Path) -> Calibration:
    """Return what `closloop calibrate --json` wrote. Raises InputError if the file is not that."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("format") != FORMAT:
            raise ValueError("another format")
        return Calibration(
            backend=str(data["backend"]),
            testbed=str(data["testbed"]),
            rtts=tuple(_rtt(row) for row in data["rtts"]),
            goodput=Goodput(**data["goodput"]),
            marking=tuple(MarkingBin(**row) for row in data["marking"]),
            loop=LoopDelay(**data["loop"]),
        )
    except OSError as error:
        what = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise InputError.single(str(path), what, "check the path") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError.single(
            str(path),
            f"is not a calibration: {error}",
            "make one: closloop calibrate TESTBED --on BACKEND --json > FILE",
        ) from error


def _rtt(row: dict[str, Any]) -> BaseRtt:
    path = row["path"]
    tiers = {int(tier): int(count) for tier, count in path["links_of_tier"].items()}
    return BaseRtt(**{**row, "path": PathKind(path["src"], path["dst"], tiers)})
