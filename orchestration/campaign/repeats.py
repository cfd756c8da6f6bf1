"""The field `repeats`: a number, or adaptive: until the results are precise enough."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AliasChoices, BeforeValidator, Discriminator, Field, Tag, model_validator

from inventory.strictyaml import StrictModel, must
from orchestration.campaign.fields import NOT_EMPTY, Positive
from orchestration.core.problems import WrongValue
from orchestration.core.repeats import StoppingRule

# Two pairs of trials give an interval with one degree of freedom, which is uselessly wide.
_MIN = 3


def _percent(value: object) -> object:
    """Return the share that a text such as 3% means; other values unchanged."""
    if isinstance(value, str):
        try:
            number = float(value.removesuffix("%"))
        except ValueError:
            number = -1.0
        if not value.endswith("%") or number <= 0:
            raise WrongValue(f"'until' is {value!r}", "write a share like 3%")
        return number / 100
    return value


_BELOW_ONE = must(
    lambda value: 0 < value < 1, "'until' is {:g}, outside (0, 1)", "write a share like 3%"
)


class Adaptive(StrictModel):
    """Adaptive repeats: until the interval of each arm's difference is narrow enough."""

    until: Annotated[float, BeforeValidator(_percent), _BELOW_ONE] = Field(
        description="half an interval, as a share of the first arm's mean, like 3%"
    )
    of: Annotated[tuple[str, ...], NOT_EMPTY] = Field(
        default=(),
        description="the metrics whose intervals are to be narrow enough; without it those of "
        "`judge`; of tuners compared without a judge slowdown_mean",
    )
    # `least` and `most` are their names up to version 0.3.
    min: Positive = Field(
        default=5,
        validation_alias=AliasChoices("min", "least"),
        description="repeats before the first interim analysis, 3 or more",
    )
    max: Positive = Field(
        default=60,
        validation_alias=AliasChoices("max", "most"),
        description="repeats at which it ends in any case, more than `min`",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min < _MIN:
            raise WrongValue(f"'min' is {self.min}", f"use {_MIN} or more")
        if self.max <= self.min:
            what = f"'max' is {self.max} and 'min' {self.min}"
            raise WrongValue(what, "use more for 'max', or write one number of repeats")
        return self

    def rule(self) -> StoppingRule:
        """Return the stopping rule that these fields mean; `of` is empty if they name no metric."""
        return StoppingRule(self.until, self.of, self.min, self.max)


def _which(value: object) -> str:
    return "adaptive" if isinstance(value, (dict, Adaptive)) else "count"


Repeats = Annotated[
    Annotated[Positive, Tag("count")] | Annotated[Adaptive, Tag("adaptive")], Discriminator(_which)
]


def max_repeats(repeats: int | Adaptive) -> int:
    """Return how many repeats there are at most."""
    return repeats.max if isinstance(repeats, Adaptive) else repeats
