"""What a campaign asks: which of its factors is compared, and by which metrics that is judged.

The compared factor's levels are the arms. It is the campaign's `compare`; without it the `arms`,
or else the tuners. The question decides how results are read, never what a trial does: a trial has
the same id whatever is compared, so it can be asked again of a finished run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inventory.strictyaml import Document, read, suggest
from orchestration.core.condition import ARM, TUNER, labels_of
from orchestration.core.errors import InputError, Problem
from orchestration.core.files import CAMPAIGN_FILE
from orchestration.core.plugins import short_name
from orchestration.core.trial import Scalar, TrialSpec

# What a user may call the two factors that are lists of their own in a campaign file.
_PLURALS = {"tuners": TUNER, "arms": ARM}


@dataclass(frozen=True)
class Question:
    """A campaign's question.

    `compare` is the label of a trial's cell that names its arm, `arms` the labels of the arms in
    the file's order (empty if unknown), `judge` the metrics as the file names them. `levels` has
    the labels of each factor's levels in the file's order.
    """

    compare: str = TUNER
    arms: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()
    levels: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), compare=False)

    def comparing(self, factor: str) -> Question:
        """Return the question with another factor compared."""
        return replace(self, compare=factor, arms=dict(self.levels).get(factor, ()))

    def order_of(self, cell: Mapping[str, Scalar]) -> list[int]:
        """Return a key that sorts conditions by the order of levels in the file."""
        return [
            listed.index(label)
            for name, listed in self.levels
            if name != self.compare and (label := str(cell.get(name))) in listed
        ]


# The question of results without a campaign file.
TUNERS_COMPARED = Question()


def compared_factor(name: str, factors: Iterable[str]) -> str:
    """Return the factor that a name means; "" if there is none.

    `factors` are the names of the campaign's factors. The last part of a path suffices where it is
    that of one factor only.
    """
    known = [TUNER, *factors]
    name = _PLURALS.get(name, name)
    if name in known:
        return name
    short = [factor for factor in known if factor.rpartition(".")[2] == name]
    return short[0] if len(short) == 1 else ""


def short_names(factors: Iterable[str]) -> dict[str, str]:
    """Return the last part of each factor's path where no other factor has it, else the path."""
    names = list(factors)
    last = [name.rpartition(".")[2] for name in names]
    return {
        name: short if last.count(short) == 1 else name
        for name, short in zip(names, last, strict=True)
    }


def compare_problem(document: Document, factors: Iterable[str]) -> Problem | None:
    """Return the problem of a file's `compare`, None if it is right or absent."""
    name = document.data.get("compare")
    known = list(factors)
    if name is None or not isinstance(name, str) or compared_factor(name, known):
        return None
    offered = ["tuners", *("arms" if factor == ARM else factor for factor in known)]
    short = [factor.rpartition(".")[2] for factor in offered]
    remedy = f"{suggest(name, [*offered, *short])}use one of: {', '.join(offered)}"
    return document.problem(("compare",), f"there is no factor {name!r} to compare", remedy)


def question_of(data: Mapping[str, Any]) -> Question:
    """Return the question of a campaign file's data; fields that are wrong count as absent."""
    factors = data.get("factors")
    levels: dict[str, Any] = dict(factors) if isinstance(factors, dict) else {}
    if isinstance(arms := data.get("arms"), dict) and arms:
        levels[ARM] = arms
    named = data.get("compare")
    compare = compared_factor(named, levels) if isinstance(named, str) else ""
    compare = compare or (ARM if ARM in levels else TUNER)
    levels[TUNER] = list(_tuner_labels(data.get("tuners")))
    judge = data.get("judge", ())
    judged = [judge] if isinstance(judge, str) else judge
    return Question(
        compare,
        tuple(map(str, levels.get(compare, ()))),
        tuple(map(str, judged)) if isinstance(judged, (list, tuple)) else (),
        tuple(
            (name, tuple(map(str, listed)))
            for name, listed in levels.items()
            if isinstance(listed, (list, tuple, Mapping))
        ),
    )


def _tuner_labels(tuners: Any) -> Iterator[str]:
    """Yield the labels of a campaign's tuners, which are names, mappings, or checked tuners."""
    for tuner in tuners if isinstance(tuners, (list, tuple)) else ():
        if isinstance(tuner, Mapping):
            yield str(tuner.get("label") or short_name(str(tuner.get("name", ""))))
        else:
            yield getattr(tuner, "called", "") or short_name(str(tuner))


def read_question(folder: Path) -> Question:
    """Return the question of the campaign in a run folder; without a campaign file, the default."""
    try:
        return question_of(read(folder / CAMPAIGN_FILE).data)
    except InputError:
        return TUNERS_COMPARED


def arm_of(trial: TrialSpec, tuner: str, compare: str) -> str:
    """Return the name of a trial's arm where the factor `compare` is compared.

    `tuner` is the name of its tuner.
    """
    return tuner if compare == TUNER else str(labels_of(trial).get(compare, "none"))
