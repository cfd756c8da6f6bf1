"""Named arrays as bytes: readings, settings and actions that are sent between processes.

The format: the length of a JSON header (uint32, little-endian), the header, then the arrays' bytes.
The header holds any data that accompanies the arrays, and each array's path, dtype and shape.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.records import Action, Change, Observation, Program, Setup, TrialRecord

_LENGTH = struct.Struct("<I")


def pack(arrays: Mapping[str, Any], about: Any = None) -> bytes:
    """Return named arrays, which may be in nested mappings, and JSON-ready `about` as bytes.

    Entries that are None are left out.
    """
    flat = {path: np.asarray(value) for path, value in flattened(arrays).items()}
    shapes = [[path, array.dtype.str, array.shape] for path, array in flat.items()]
    header = json.dumps([about, shapes], separators=(",", ":")).encode()
    body = (array.tobytes() for array in flat.values())
    return b"".join([_LENGTH.pack(len(header)), header, *body])


def unpack(data: bytes) -> tuple[Any, dict[str, Any]]:
    """Return `about` and copies of the arrays, as they were passed to `pack`.

    Raises ValueError for bytes that `pack` did not write.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        offset = _LENGTH.size + length
        about, shapes = json.loads(data[_LENGTH.size : offset])
        arrays: dict[str, NDArray[Any]] = {}
        for path, dtype, shape in shapes:
            count = math.prod(shape)
            if min(shape, default=0) < 0:
                raise ValueError(f"an array of shape {shape}")
            if np.dtype(dtype).str != dtype:
                raise ValueError(f"`pack` writes no arrays of type {dtype!r}")
            array = np.frombuffer(data, dtype, count, offset).reshape(shape).copy()
            offset += array.nbytes
            arrays[path] = array
        tree = nested(arrays)
    except (struct.error, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"these bytes are not packed arrays: {error}") from error
    if offset != len(data):
        raise ValueError(f"there are {len(data)} bytes instead of {offset}")
    return about, tree


def flattened(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings as one mapping, with names joined by slashes; None is left out."""
    flat: dict[str, Any] = {}
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{inner}": array for inner, array in flattened(value).items()}
        elif value is not None:
            flat[name] = value
    return flat


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested mappings that `flattened` made into one.

    Raises KeyError if a name would be both an array and a mapping.
    """
    tree: dict[str, Any] = {}
    for path, value in arrays.items():
        *steps, name = path.split("/")
        inner = tree
        for step in steps:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                raise KeyError(path)
        if name in inner:
            raise KeyError(path)
        inner[name] = value
    return tree


def record_tables(record: TrialRecord) -> dict[str, Any]:
    """Return a record's arrays as nested mappings, by table and name."""
    return {
        "flows": vars(record.flows),
        "samples": {scope: vars(samples) for scope, samples in record.samples.items()},
        "changes": {knob: vars(changes) for knob, changes in record.changes.items()},
    }


def pack_observation(observation: Observation) -> bytes:
    """Return an observation as bytes."""
    arrays = {name: value for name, value in vars(observation).items() if name != "t_ns"}
    return pack(arrays, observation.t_ns)


def unpack_observation(data: bytes) -> Observation:
    """Return the packed observation. Raises ValueError for any other bytes."""
    t_ns, arrays = unpack(data)
    try:
        return Observation(t_ns, **{"values": {}, **arrays})
    except TypeError as error:
        raise ValueError(f"no observation: {error}") from error


def pack_setup(setup: Setup) -> bytes:
    """Return a setup as bytes. An action is packed as a setup without programs."""
    about = {
        "knobs": [change.knob for change in setup.action],
        "programs": [
            [program.kind, program.code.hex(), dict(program.settings)] for program in setup.programs
        ],
    }
    changes = {
        str(number): {"targets": change.targets, "values": change.values}
        for number, change in enumerate(setup.action)
    }
    targets = {str(number): program.targets for number, program in enumerate(setup.programs)}
    return pack({"changes": changes, "targets": targets}, about)


def unpack_setup(data: bytes) -> Setup:
    """Return the packed setup. Raises ValueError for any other bytes."""
    about, arrays = unpack(data)
    try:
        action: Action = tuple(
            Change(knob, **arrays["changes"][str(number)])
            for number, knob in enumerate(about["knobs"])
        )
        programs = tuple(
            Program(kind, arrays["targets"][str(number)], bytes.fromhex(code), settings)
            for number, (kind, code, settings) in enumerate(about["programs"])
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no setup: {error!r}") from error
    return Setup(action, programs)
