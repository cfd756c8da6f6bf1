"""What networks of ACC take and give, as trained now and by earlier versions of this project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuners.ecn.features import ACC_FEATURES, RATE, size_feature, width
from tuners.ecn.templates import Parts, Templates, acc_templates, earlier_acc_templates

_QUEUE = ACC_FEATURES.index("queue")


@dataclass(frozen=True)
class Layout:
    """Inputs and outputs of a network.

    With `parts` an action's value is the sum of one for its kmin, one for its kmax and one for its
    pmax. Without there is one output per action.
    """

    features: tuple[str, ...]
    templates: Callable[[], Templates]
    parts: Parts | None = None

    @property
    def outputs(self) -> tuple[int, ...]:
        """Numbers of outputs: for kmin, kmax and pmax, or for all actions."""
        return self.parts.sizes if self.parts else (len(self.templates()),)

    def inputs(self, history: int) -> int:
        """Return the number of inputs, with that many readings."""
        return width(self.features, history)

    def in_card(self) -> dict[str, Any]:
        """Return what a checkpoint's card says of the outputs."""
        actions = {"actions": len(self.templates())}
        return actions | ({"outputs": list(self.outputs)} if self.parts else {})

    def values(self, outputs: Any) -> Any:
        """Return the values of all actions (…, actions) from outputs, NumPy or torch."""
        return self.parts.sums(outputs) if self.parts else outputs

    def busy(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return which queues exceed the lowest kmin that can be set, given inputs (…, inputs).

        Below it no action would have changed anything.
        """
        least = size_feature(np.array(float(self.templates().kmin_bytes.min())))
        exceeds: NDArray[Any] = x[..., _QUEUE] > least
        return exceeds


PUBLISHED = Layout((*ACC_FEATURES, RATE), acc_templates, acc_templates().parts())
EARLIER = Layout(ACC_FEATURES, earlier_acc_templates)
LAYOUTS = (PUBLISHED, EARLIER)


def layout_of(card: Mapping[str, Any]) -> Layout:
    """Return the layout of a checkpoint by its card: the one that is trained now, if of no other.

    What is wrong with a card of another tuner is for `tuners.checkpoint.load_for` to say.
    """
    actions = card.get("architecture", {}).get("actions")
    return next((one for one in LAYOUTS if len(one.templates()) == actions), PUBLISHED)
