"""A congestion control of boosted trees in integers: what all of its renderings compute.

A feature is a word of the flow's window (rlcc.h): delta[0], action[0], delta[1], ..., and, if the
model has them, the present inflation and rate. Words are signed, have 32 bits, and are in units of
2^-16. Trees are oblivious: all nodes of a level make the same comparison, so the results of the
levels are the bits of the leaf's number (Prokhorenkova et al., "CatBoost", NeurIPS 2018, section
4). The action is the sum of one leaf of each tree.
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
# A flow's state has 24 words of 64 bits. Of these, 28 bytes are not the window, and 8 are
# `PRESENT`.
MAX_HISTORY = 19
MAX_TREES, MAX_DEPTH, MAX_LEAVES = 64, 8, 4_096
MIN_ACTION, MAX_ACTION = 1 / 16, 16.0
# Inflation is RTT / base RTT, up to 256. Rate is that before the action, as a share of the line.
PRESENT = ("inflation", "rate")
_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Tree:
    """A tree: bit k of the leaf's number is set if features[k] > thresholds[k]. All in 2^-16."""

    features: tuple[int, ...]
    thresholds: tuple[int, ...]
    leaves: tuple[int, ...]


def _default(parameter: str) -> int:
    return congestion_control("rlcc").parameters[parameter].default


@dataclass(frozen=True)
class Settings:
    """What a model was trained with: steps of history, bounds of an action, the reward's terms.

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
        """Return the settings as stored next to renderings, by the names of closloop-trees-1."""
        data = asdict(self)
        stored = {"min_action": "least_action", "max_action": "most_action"}
        return {stored.get(name, name): value for name, value in data.items()}


@dataclass(frozen=True)
class IntegerTrees:
    """A model in integers. Each leaf was rounded once: see `error_bound`."""

    settings: Settings
    trees: tuple[Tree, ...]

    def infer(self, windows: np.ndarray) -> np.ndarray:
        """Return the sums of leaves (N,), not yet bounded, for windows (N, features); int32."""
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
        """Return the bounded actions (N,), int32 in 2^-16, for windows (N, features) int32."""
        return self.infer(windows).clip(self.settings.min_action, self.settings.max_action)

    @property
    def error_bound(self) -> float:
        """The largest difference of an action from the model's in exact arithmetic.

        Thresholds are exact: a feature x and a threshold t have x * 2^-16 > t exactly if
        x > floor(t * 2^16), as x is whole; and scaling a float by 2^16 rounds nothing. So the same
        leaves are chosen, and only their values differ: each was rounded to the nearest multiple
        of 2^-16 (the model's bias within the first tree's leaves), half a unit at most, and the
        sum has one leaf of each tree. Bounding both actions brings them no further apart.
        """
        return len(self.trees) / 2 / ONE

    @property
    def hash(self) -> str:
        """The model's identifier in renderings: 12 hexadecimal digits of its content's SHA-256."""
        data = {"settings": self.settings.to_json(), "trees": [asdict(tree) for tree in self.trees]}
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the model as stored next to renderings: settings, hash, error bound, trees."""
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
    """Return the names of the window's words for a history, the newest first."""
    return tuple(f"{word}[{step}]" for step in range(history) for word in ("delta", "action"))


def fits_32_bits(trees: tuple[Tree, ...]) -> bool:
    """Whether every sum of leaves fits into a signed 32-bit integer."""
    return sum(max(abs(leaf) for leaf in tree.leaves) for tree in trees) <= _INT32
