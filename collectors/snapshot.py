"""How a running trial looks at one moment: a small file that is replaced whole, never changed.

The file is the magic `CLOSLIVE`, the header's length (uint32, little-endian), the header as JSON,
then the arrays of `_ARRAYS` in that order, 8 bytes an entry. It is no record: it is gone with the
trial's hidden work folder, and nothing is computed from it but what a viewer shows.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestration.model.records import Floats, Ints

# Where a trial's snapshot is in its work folder, and what tells of the trial itself.
SNAPSHOT_FILE, ABOUT_FILE = "live.bin", "live.json"
SNAPSHOT_FORMAT = 1

_MAGIC = b"CLOSLIVE"
_LENGTH = struct.Struct("<I")
_ARRAYS: Mapping[str, str] = {
    "qlen_bytes": "<i8",
    "mean_bytes": "<f8",
    "peak_bytes": "<i8",
    "tx_bytes": "<i8",
    "tx_packets": "<i8",
    "marked_packets": "<i8",
    "dropped_packets": "<i8",
    "before_tx_bytes": "<i8",
    "before_tx_packets": "<i8",
    "before_marked_packets": "<i8",
    "kmin_bytes": "<i8",
    "kmax_bytes": "<i8",
    "pmax": "<f8",
}


class SnapshotError(ValueError):
    """The bytes are no snapshot, or one of another format."""


@dataclass(frozen=True)
class Change:
    """One answer of the tuner: how many queues it changed, and the range of what they have now."""

    t_ns: int
    applied_ns: int
    queues: int
    kmin_bytes: tuple[int, int]
    kmax_bytes: tuple[int, int]
    pmax: tuple[float, float]


@dataclass(frozen=True)
class Snapshot:
    """A reading of all queues, arrays of shape (queues,), and how the trial stands.

    `before_…` are the counters at `before_ns`, some samples ago; `mean_bytes` and `peak_bytes` are
    of each queue's samples since then. `flows_done` is -1 where the backend learns it at the end.
    `late_samples` counts the readings that were over half a period off their time, `changes` the
    answers of the tuner; `recent` has the last of them, newest last.
    """

    t_ns: int
    before_ns: int
    samples: int
    late_samples: int
    flows_done: int
    changes: int
    recent: tuple[Change, ...]
    qlen_bytes: Ints
    mean_bytes: Floats
    peak_bytes: Ints
    tx_bytes: Ints
    tx_packets: Ints
    marked_packets: Ints
    dropped_packets: Ints
    before_tx_bytes: Ints
    before_tx_packets: Ints
    before_marked_packets: Ints
    kmin_bytes: Ints
    kmax_bytes: Ints
    pmax: Floats


_NUMBERS = ("t_ns", "before_ns", "samples", "late_samples", "flows_done", "changes")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot's file."""
    header = json.dumps(
        {
            "format": SNAPSHOT_FORMAT,
            "queues": len(snapshot.qlen_bytes),
            "recent": [list(vars(change).values()) for change in snapshot.recent],
            **{name: int(getattr(snapshot, name)) for name in _NUMBERS},
        },
        separators=(",", ":"),
    ).encode()
    arrays = [
        np.ascontiguousarray(getattr(snapshot, name), dtype=kind).tobytes()
        for name, kind in _ARRAYS.items()
    ]
    return b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *arrays])


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot of `encode_snapshot`'s bytes. Raises SnapshotError on any others."""
    start = len(_MAGIC) + _LENGTH.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        raise SnapshotError("no snapshot of a trial")
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    try:
        header: dict[str, Any] = json.loads(data[start : start + length])
        if header["format"] != SNAPSHOT_FORMAT:
            raise SnapshotError(f"a snapshot of format {header['format']}, not {SNAPSHOT_FORMAT}")
        queues, at = int(header["queues"]), start + length
        if len(data) != at + 8 * queues * len(_ARRAYS):
            raise SnapshotError("its length is not what it says")
        fields: dict[str, Any] = {name: int(header[name]) for name in _NUMBERS}
        for place, (name, kind) in enumerate(_ARRAYS.items()):
            fields[name] = np.frombuffer(data, kind, queues, at + 8 * queues * place)
        return Snapshot(recent=tuple(_change(*values) for values in header["recent"]), **fields)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(str(error)) from error


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` in the place of the file `path`; a reader sees the old bytes or the new ones.

    Raises OSError. No system call in it fails where all goes well: in a guest each would cost a
    microsecond of virtual time.
    """
    partial = f"{path}.partial"
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)
    os.rename(partial, path)


def _change(t_ns: int, applied_ns: int, queues: int, *ranges: list[Any]) -> Change:
    kmin, kmax, pmax = ((low, high) for low, high in ranges)
    return Change(t_ns, applied_ns, queues, kmin, kmax, pmax)
