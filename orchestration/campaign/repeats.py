"""The field `repeats`: a number, or until the results are precise enough."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from inventory.strictyaml import StrictModel, must
from orchestration.campaign.fields import SOME, Positive
from orchestration.core.problems import WrongValue
from orchestration.core.repeats import RepeatRule

# Two pairs give an interval with one degree of freedom, which tells nothing.
_LEAST = 3


def _percent(value: object) -> object:
    """Return a share, of text such as 3%."""
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
    """Repeats until the interval of each difference is narrow enough."""

    until: Annotated[float, BeforeValidator(_percent), _BELOW_ONE] = Field(
        description="half an interval, as a share of the first tuner's mean, like 3%"
    )
    of: Annotated[tuple[str, ...], SOME] = ("slowdown_mean",)
    least: Positive = 5
    most: Positive = 60

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least < _LEAST:
            raise WrongValue(f"'least' is {self.least}", f"use {_LEAST} or more")
        if self.most <= self.least:
            what = f"'most' is {self.most} and 'least' {self.least}"
            raise WrongValue(what, "use more for 'most', or write one number of repeats")
        return self

    def rule(self) -> RepeatRule:
        """Return the rule as trials and results know it."""
        return RepeatRule(self.until, self.of, self.least, self.most)


def _which(value: object) -> str:
    return "adaptive" if isinstance(value, (dict, Adaptive)) else "count"


Repeats = Annotated[
    Annotated[Positive, Tag("count")] | Annotated[Adaptive, Tag("adaptive")], Discriminator(_which)
]


def most_repeats(repeats: int | Adaptive) -> int:
    """Return how many repeats there are, or at most."""
    return repeats.most if isinstance(repeats, Adaptive) else repeats
