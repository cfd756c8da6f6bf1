"""A congestion control of boosted trees in integers: what all its renderings compute.

A feature is a word of the flow's window (rlcc.h): delta[0], action[0], delta[1], ..., and those of
the present, inflation and rate, in 2^-16, signed, 32 bits. A tree is oblivious: every
leaf of a level asks the same question, so its `depth` answers are the bits of the leaf's number
(Prokhorenkova et al., "CatBoost", NeurIPS 2018, section 4). The action is the sum of one leaf of
each tree.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from orchestration.core.congestion import congestion_control

ONE = 65_536
# What a flow remembers has 24 words of 64 bits; 28 bytes of them are no window, 8 the present.
MAX_HISTORY = 19
MAX_TREES, MAX_DEPTH, MAX_LEAVES = 64, 8, 4_096
MIN_ACTION, MAX_ACTION = 1 / 16, 16.0
# RTT / base RTT, up to 256, and the rate before the action as a share of the line.
PRESENT = ("inflation", "rate")
_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Tree:
    """Leaf number `i` has bit `k` if feature `features[k]` > `thresholds[k]`. All in 2^-16."""

    features: tuple[int, ...]
    thresholds: tuple[int, ...]
    leaves: tuple[int, ...]


def _default(parameter: str) -> int:
    return congestion_control("rlcc").parameters[parameter].default


@dataclass(frozen=True)
class Settings:
    """What a model was trained for: steps of history, bounds of an action, and the reward's terms.

    `target_thousandths` and `beta_thousandths` are those of Fuhrer et al., HPSR 2023, equation 1.
    With `present`, windows end with the words of `PRESENT`.
    """

    history: int
    min_action: int
    max_action: int
    target_thousandths: int = field(default_factory=partial(_default, "target"))
    beta_thousandths: int = field(default_factory=partial(_default, "beta"))
    present: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the window's words."""
        return (*feature_names(self.history), *(PRESENT if self.present else ()))

    def to_json(self) -> dict[str, Any]:
        """Return it as stored beside renderings, by the names of format closloop-trees-1."""
        data = asdict(self)
        stored = {"min_action": "least_action", "max_action": "most_action"}
        return {stored.get(name, name): value for name, value in data.items()}


@dataclass(frozen=True)
class IntegerTrees:
    """A model in integers. Each leaf was rounded once: see `error_bound`."""

    settings: Settings
    trees: tuple[Tree, ...]

    def infer(self, windows: np.ndarray) -> np.ndarray:
        """Return the sums of leaves for windows (N, features) int32: int32, not yet bounded."""
        total = np.zeros(len(windows), dtype=np.int64)
        for tree in self.trees:
            index = np.zeros(len(windows), dtype=np.int64)
            for bit, (feature, threshold) in enumerate(
                zip(tree.features, tree.thresholds, strict=True)
            ):
                index |= (windows[:, feature] > threshold).astype(np.int64) << bit
            total += np.array(tree.leaves, dtype=np.int64)[index]
        return total.astype(np.int32)

    def act(self, windows: np.ndarray) -> np.ndarray:
        """Return the actions for windows (N, features) int32, int32 in 2^-16, bounded."""
        return self.infer(windows).clip(self.settings.min_action, self.settings.max_action)

    @property
    def error_bound(self) -> float:
        """How far an action is at most from that of the model in exact arithmetic.

        Thresholds are exact: a feature x and a threshold t have x * 2^-16 > t exactly if
        x > floor(t * 2^16), as x is whole; and scaling a float by 2^16 rounds nothing. So the same
        leaves are chosen, and only their values differ: each was rounded to the nearest multiple
        of 2^-16 (the model's bias within the first tree's leaves), half a unit at most, and the
        sum has one leaf of each tree. Bounding both actions brings them no further apart.
        """
        return len(self.trees) / 2 / ONE

    @property
    def hash(self) -> str:
        """The model's name in renderings: 12 hexadecimal digits of its content's SHA-256."""
        data = {"settings": self.settings.to_json(), "trees": [asdict(tree) for tree in self.trees]}
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return what stands beside a rendering: settings, hash, bound, sizes, the trees."""
        return {
            "format": "closloop-trees-1",
            "hash": self.hash,
            "error_bound": self.error_bound,
            "one": ONE,
            **self.settings.to_json(),
            "features": list(self.settings.features),
            "trees": [asdict(tree) for tree in self.trees],
        }


def feature_names(history: int) -> tuple[str, ...]:
    """Return the names of a history's words, the newest first."""
    return tuple(f"{word}[{step}]" for step in range(history) for word in ("delta", "action"))


def fits_32_bits(trees: tuple[Tree, ...]) -> bool:
    """Whether no sum of leaves passes 32 bits."""
    return sum(max(abs(leaf) for leaf in tree.leaves) for tree in trees) <= _INT32
