"""The tuners of a replay, as lines of a campaign file: recordings, and others in their place."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inventory.strictyaml import parse
from orchestration.model.errors import InputError
from orchestration.replay.text import mapping
from tuners.registry import RECORDED

_OPTION = "--tuner"


@dataclass(frozen=True)
class TunerEntry:
    """A tuner as a campaign file has it: its fields, and what reports call it."""

    fields: dict[str, Any]
    label: str

    @property
    def text(self) -> str:
        """The entry on one line."""
        return mapping(self.fields)


def other_tuners(wanted: Sequence[str]) -> tuple[TunerEntry, ...]:
    """Return the entries of all that is wanted but the recording: names, or mappings like
    `{name: static, kmin_bytes: 5KB, kmax_bytes: 50KB}`.

    Raises InputError for text that is neither.
    """
    entries = []
    for text in wanted:
        if text == RECORDED:
            continue
        fields: dict[str, Any] = {"name": text}
        if text.lstrip().startswith("{"):
            fields = parse(text, _OPTION).data
        name = fields.get("name")
        if not isinstance(name, str) or not name or name == RECORDED:
            raise InputError.single(
                _OPTION,
                f"{text!r} names no tuner",
                "like amt, or '{name: static, kmin_bytes: 5KB, kmax_bytes: 50KB}'; "
                f"{RECORDED} alone repeats the recorded actions",
            )
        entries.append(TunerEntry(fields, str(fields.get("label") or name)))
    return tuple(entries)


def recorded_tuner(label: str, actions: str, taken: Sequence[str]) -> TunerEntry:
    """Return the entry that repeats a tuner's actions under its label, if that is not `taken`."""
    called = f"{RECORDED}-{label}" if label in taken else label
    return TunerEntry({"name": RECORDED, "label": called, "actions": actions}, called)


def with_checkpoint(entry: TunerEntry, folder: Path) -> TunerEntry:
    """Return the entry with its checkpoint copied into `folder`, if it names a file of the user's.

    Raises InputError if that cannot be read.
    """
    name = entry.fields.get("checkpoint")
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        return entry
    source = Path(name)
    try:
        shutil.copyfile(source, folder / source.name)
        card = source.with_suffix(".json")
        if card.is_file():
            shutil.copyfile(card, folder / card.name)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError.single(name, f"cannot be read: {reason}", "check the path") from error
    return TunerEntry({**entry.fields, "checkpoint": source.name}, entry.label)
