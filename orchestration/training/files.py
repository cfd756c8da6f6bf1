"""The files of a training's folder, and the card of its checkpoint.

FOLDER/training.json            the request, versions, the engine
FOLDER/checkpoint.safetensors   the network so far (with a rule: the best so far), with its card
FOLDER/latest.safetensors       with a rule: the network that plays the next episodes
FOLDER/state.safetensors        for resuming: optimiser, replay memories, counters
FOLDER/curve.csv                one row per round
FOLDER/held-out.csv             with a rule: one row per evaluation
FOLDER/result.json              with a rule, at the end: the result
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.engines import KERNEL, in_words
from orchestration.core.errors import InputError
from orchestration.core.files import whole_file
from orchestration.core.outputs import check_outputs
from orchestration.core.plugins import short_name
from orchestration.core.provenance import versions
from orchestration.render.csv import write_rows
from orchestration.training.outcome import COLUMNS as EVALUATED
from orchestration.training.outcome import Selection
from orchestration.training.request import Episodes, TrainRequest, digest

_ABOUT = "training.json"
# The files of a training that another one may read, so that it must not overwrite them.
_WRITTEN = ("checkpoint.safetensors", "checkpoint.json", "latest.safetensors", "latest.json")
_ROUNDS = "rounds"
_ROUND = ("episodes", "decisions", "reward", "loss", "explore", "act_s", "learn_s")


@dataclass(frozen=True)
class Round:
    """The results of a round: means over its episodes, and the wall time of acting and learning.

    `episodes` and `decisions` (of queues) count from the start of the training.
    """

    episodes: int
    decisions: int
    reward: float
    loss: float
    explore: float
    act_s: float
    learn_s: float


def check_folder(folder: Path, inputs: Iterable[str], *, fresh: bool) -> None:
    """Raise InputError if a training in `folder` would overwrite or remove what is not its own.

    That is a file of `inputs`, which the training reads. With `fresh`, which removes the folder, it
    is also a folder with files that is no training's.
    """
    written = [folder] if fresh else [folder / name for name in _WRITTEN]
    check_outputs(written, inputs, "choose another folder with --out")
    if fresh and folder.is_dir() and any(folder.iterdir()) and not (folder / _ABOUT).is_file():
        raise InputError.single(
            str(folder),
            f"is no training's folder: it has files but no {_ABOUT}",
            "leave out --fresh, or choose another folder with --out",
        )


class TrainingFolder:
    """A training's folder: the paths in it, and what is written there."""

    def __init__(self, path: Path, *, by_rule: bool) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.latest = path / "latest.safetensors" if by_rule else self.checkpoint
        self.work = path / "work"

    def open(self, request: TrainRequest, source: str, held_out: str, engine: str) -> bool:
        """Return whether there is a training to resume; if not, create the folder for one.

        `engine` is that of the episodes, "" if their backend has only one. Raises InputError if the
        folder holds a training of another request, or one whose episodes ran in another engine.
        """
        about = self.path / _ABOUT
        request_digest = digest(request, source, held_out)
        if about.exists():
            known = json.loads(about.read_text())
            if known["digest"] != request_digest:
                raise InputError.single(
                    str(self.path),
                    "holds a training of another request",
                    "choose another folder with --out, or remove it with --fresh",
                )
            former = known.get("engine", KERNEL)
            if engine not in ("", former):
                raise InputError.single(
                    str(self.path),
                    f"its episodes ran {in_words(former)}, and these would run {in_words(engine)}",
                    f"go on with --in {former}, or begin anew with --fresh",
                )
            return (self.path / "state.safetensors").exists()
        self.path.mkdir(parents=True, exist_ok=True)
        data = {"digest": request_digest, "request": request.to_json(), "versions": versions()}
        data |= {"engine": engine} if engine else {}
        about.write_text(json.dumps(data, indent=1) + "\n")
        return False

    def write_tables(self, rounds: Sequence[Round], selection: Selection | None) -> None:
        """Write the learning curve and the evaluations, as CSV."""
        _write_table(self.path / "curve.csv", _ROUND, rounds)
        if selection is not None:
            _write_table(self.path / "held-out.csv", EVALUATED, selection.evaluations)

    def save_state(self, rounds: Sequence[Round], state: Mapping[str, NDArray[Any]]) -> None:
        """Write what is needed to resume the training."""
        from safetensors.numpy import save_file

        rows = [[float(getattr(one_round, name)) for name in _ROUND] for one_round in rounds]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(_ROUND))
        arrays = {**state, _ROUNDS: table}
        with whole_file(self.path / "state.safetensors") as part:
            save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, part)

    def load_state(self) -> tuple[list[Round], dict[str, NDArray[Any]]]:
        """Read what `save_state` wrote. Raises InputError for a state of another version."""
        from safetensors.numpy import load_file

        state = load_file(self.path / "state.safetensors")
        rows = state.pop(_ROUNDS)
        if rows.shape[1] != len(_ROUND):
            raise InputError.single(
                str(self.path),
                "holds a training of another version of closloop",
                "use --fresh, or --out",
            )
        rounds = [Round(int(row[0]), int(row[1]), *map(float, row[2:])) for row in rows]
        return rounds, dict(state)


def checkpoint_card(
    request: TrainRequest,
    episodes: Episodes,
    architecture: Mapping[str, Any],
    parent: Mapping[str, Any],
    rounds: Sequence[Round],
) -> dict[str, Any]:
    """Return the part of a checkpoint's card that every training has."""
    import torch

    return {
        "tuner": short_name(request.tuner),
        "architecture": dict(architecture),
        "switches": list(episodes.testbed.switches) if request.per_switch else [],
        "request": {**request.to_json(), "scenario": Path(request.scenario).name},
        "parent": {key: value for key, value in parent.items() if key != "curve"},
        "scenario": episodes.source,
        "backend": episodes.backend,
        "seeds": "stream 'training' of the request's seed, one an episode from 0 on",
        "episodes": rounds[-1].episodes if rounds else 0,
        "decisions": rounds[-1].decisions if rounds else 0,
        "versions": {
            **{name: str(value) for name, value in versions().items()},
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "curve": [
            [
                one_round.episodes,
                round(one_round.reward, 6),
                round(one_round.loss, 6),
                round(one_round.explore, 4),
            ]
            for one_round in rounds
        ],
    }


def _write_table(path: Path, columns: Sequence[str], rows: Iterable[object]) -> None:
    lines = [columns, *([getattr(row, name) for name in columns] for row in rows)]
    with path.with_suffix(".part").open("w", newline="") as file:
        write_rows(file, lines)
    path.with_suffix(".part").replace(path)
