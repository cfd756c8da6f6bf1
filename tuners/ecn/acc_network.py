"""What networks of ACC take and give, as trained now and by earlier versions of this project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuners.ecn.features import ACC_FEATURES, RATE, size_feature, width
from tuners.ecn.templates import PMAX, Templates, acc_templates, earlier_acc_templates

_QUEUE = ACC_FEATURES.index("queue")


@dataclass(frozen=True)
class Layout:
    """Inputs and outputs of a network.

    With `steps` of pmax above 0, outputs are a value for each pair of thresholds and one for each
    pmax, and an action's is their sum. Otherwise there is one output per action.
    """

    features: tuple[str, ...]
    templates: Callable[[], Templates]
    actions: int
    steps: int = 0

    @property
    def width(self) -> int:
        """Number of outputs."""
        return self.actions // self.steps + self.steps if self.steps else self.actions

    def inputs(self, history: int) -> int:
        """Return the number of inputs, with that many readings."""
        return width(self.features, history)

    def outputs_in_card(self) -> dict[str, Any]:
        """Return what a checkpoint's card says of the outputs."""
        pairs = self.width - self.steps
        return {"actions": self.actions} | ({"outputs": [pairs, self.steps]} if self.steps else {})

    def values(self, outputs: Any) -> Any:
        """Return the values of all actions (…, actions) from outputs, NumPy or torch."""
        if not self.steps:
            return outputs
        pairs = self.width - self.steps
        both = outputs[..., :pairs, None] + outputs[..., None, pairs:]
        return both.reshape(*both.shape[:-2], self.actions)

    def busy(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return which queues exceed the lowest kmin that can be set, given inputs (…, inputs).

        Below it no action would have changed anything.
        """
        least = size_feature(np.array(float(self.templates().kmin_bytes.min())))
        exceeds: NDArray[Any] = x[..., _QUEUE] > least
        return exceeds


PUBLISHED = Layout((*ACC_FEATURES, RATE), acc_templates, 900, len(PMAX))
EARLIER = Layout(ACC_FEATURES, earlier_acc_templates, 225)
LAYOUTS = (PUBLISHED, EARLIER)


def layout_of(card: Mapping[str, Any]) -> Layout:
    """Return the layout of a checkpoint by its card: the one that is trained now, if of no other.

    What is wrong with a card of another tuner is for `tuners.checkpoint.load_for` to say.
    """
    actions = card.get("architecture", {}).get("actions")
    return next((one for one in LAYOUTS if one.actions == actions), PUBLISHED)
