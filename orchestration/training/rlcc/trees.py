"""CatBoost's side of distillation: windows and actions to a model for `closloop compile`.

Fuhrer et al., HPSR 2023, section V-C: regression by RMSE, at most 10 trees of depth 4, at most 150
operations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.core.errors import InputError, needs
from orchestration.core.files import whole_file
from orchestration.policies.trees import IntegerTrees, feature_names
from tuners.nic.networks import SPAN, Architecture
from tuners.nic.observation import BETA, ONE, TARGET

MOST_OPERATIONS = 150


@dataclass(frozen=True)
class Budget:
    """How many trees of which depth, and the operations of one decision."""

    trees: int = 10
    depth: int = 4
    operations: int = MOST_OPERATIONS

    def check(self) -> None:
        """Raise InputError for trees that take more operations."""
        needed = operations(self.trees, self.depth)
        if needed > self.operations:
            raise InputError.single(
                "--trees",
                f"{self.trees} trees of depth {self.depth} take {needed} operations, more than "
                f"{self.operations}",
                "take fewer or flatter trees, or --operations",
            )


def operations(trees: int, depth: int) -> int:
    """Return the operations of a decision: a comparison, a shift and an or for each level but the
    first's shift and or, a load and a sum for each tree."""
    return trees * (depth + 2 * (depth - 1) + 2)


def fit(windows: NDArray[np.int32], actions: NDArray[np.int32], budget: Budget, seed: int) -> Any:
    """Return a CatBoost regressor of actions, windows and actions in 2^-16.

    Raises NotReadyError without catboost.
    """
    with needs("distillation", "learn"):
        from catboost import CatBoostRegressor
    model = CatBoostRegressor(
        iterations=budget.trees,
        depth=budget.depth,
        loss_function="RMSE",
        learning_rate=0.5,
        l2_leaf_reg=0.0,
        border_count=1024,
        random_seed=seed,
        bootstrap_type="No",
        thread_count=1,
        allow_writing_files=False,
        verbose=False,
    )
    return model.fit(windows / ONE, actions / ONE)


def save(model: Any, architecture: Architecture, path: Path) -> None:
    """Write the model, with what a NIC must know beside it, as `closloop compile` reads it."""
    model.get_metadata()["closloop"] = json.dumps(
        {
            "history": architecture.history,
            "least_action": 1 - SPAN,
            "most_action": 1 + SPAN,
            "target": TARGET,
            "beta": BETA,
            "features": feature_names(architecture.history),
        }
    )
    with whole_file(path) as partial:
        model.save_model(str(partial), format="json")


def rmse(student: IntegerTrees, windows: NDArray[np.int32], actions: NDArray[np.int32]) -> float:
    """Return the root mean squared difference of the student's actions, as fractions."""
    return float(np.sqrt(np.mean(np.square((student.act(windows) - actions) / ONE))))
