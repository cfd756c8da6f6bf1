"""The campaign file's schema: its fields, their types and defaults, and faults of single fields.

Faults that involve several fields, or a testbed, are found in `checks`. `factors` resolves `$name`
references before a file comes here. Every field is described in docs/campaign.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, create_model

from inventory.strictyaml import Duration, StrictModel, suggest
from orchestration.campaign import rotation
from orchestration.campaign.fields import (
    SOME,
    FolderName,
    NotNegative,
    Positive,
    PositiveDuration,
    Sha256,
    Share,
    named,
    read_param,
)
from orchestration.campaign.hosts import Fabric, Host, kind_of
from orchestration.campaign.load_balancing import LoadBalancing
from orchestration.campaign.patterns import Pattern, any_pattern, file_kinds
from orchestration.campaign.repeats import Repeats
from orchestration.campaign.streams import check_protocol
from orchestration.core import plugins
from orchestration.core.capabilities import GROUP, backends, capabilities
from orchestration.core.trial import FORMER_BACKENDS, Scalar


def check_backend(name: str) -> str:
    """Return `name` as a backend's name; raise ValueError if campaigns cannot run on it.

    A name of version 0.1 is accepted with a FutureWarning.
    """
    if name in FORMER_BACKENDS:
        now = FORMER_BACKENDS[name]
        warnings.warn(f"backend {name!r} is called {now!r} now", FutureWarning, stacklevel=2)
        name = now
    offered = name in plugins.offered(GROUP)
    if offered and capabilities(name).runs:
        return name
    *others, last = accepted = [one.name for one in backends()]
    usable = f"{', '.join(others)} or {last}"
    if offered:
        raise ValueError(
            f"nothing runs on backend {name!r}, which has results of other programs only: "
            f"use {usable}"
        )
    raise ValueError(f"unknown backend {name!r}: {suggest(name, accepted)}use {usable}")


class Fault(StrictModel):
    """Links, named or a share of them, that go down and come up again."""

    links: tuple[str, ...] = ()
    share: Share | None = None
    down: Duration = Field(description="when the links go down, like 3ms")
    up: Duration | None = None
    convergence: Duration = Field(description="how long routes take to follow, like 500us")


class Tuner(StrictModel):
    """A tuner by name. Its parameters, which are the tuner's own, stand beside the name."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="the tuner's name, like secn1")
    label: str = ""

    @property
    def called(self) -> str:
        """What reports call this tuner: its label, or else its name."""
        return self.label or plugins.short_name(self.name)

    def params(self, repeat: int) -> dict[str, Scalar]:
        """Return the parameters of a repeat in base units.

        Raises ValueError for one that cannot be read.
        """
        given = rotation.of_repeat(self.model_extra or {}, repeat)
        return {key: read_param(key, value) for key, value in given.items()}


NamedTuner = Annotated[Tuner, BeforeValidator(named)]


class ParentTrial(StrictModel):
    """A trial that is replayed, and as which: the tuner's label, the repeat, and the seed."""

    tuner: str = Field(description="the label of the tuner that takes its place")
    repeat: Positive = Field(description="which repeat it is replayed as, like 1")
    seed: NotNegative = Field(description="the seed of its replay, by default its own")
    trial: str = Field(description="its id, like secn1-r1-0f2975e3ff")
    sha256: Sha256 = Field(description="the SHA-256 of its trial.json")


class Parent(StrictModel):
    """What a replay repeats: a run with its trials, or a file of flows with its digest."""

    run: str = Field(description="the name of the run or file that is replayed")
    sha256: Sha256 | None = None
    trials: tuple[ParentTrial, ...] = ()


# The papers say "sub-millisecond" and act every 100 us (GraphCC): half of that.
DECISION_LATENCY_NS = 50_000


class CampaignFile(StrictModel):
    """A campaign file with one level chosen for each factor.

    A file is read as `campaign_file`, whose patterns have the fields of their kinds.
    """

    campaign: FolderName = Field(description="the name of its run folder")
    testbed: str = Field(description="its name, like graphcc, or its file's path")
    backend: Annotated[str, AfterValidator(check_backend)] = "emulated"
    tuners: Annotated[tuple[NamedTuner, ...], SOME] = Field(
        description="a list, like [secn1, secn2]"
    )
    traffic: Annotated[tuple[Pattern, ...], SOME] = Field(
        description="a list of patterns, each with its kind"
    )
    factors: Annotated[dict[str, Any], Field(default_factory=dict)]
    repeats: Repeats = 5
    seed: NotNegative = 1
    protocol: Annotated[int | None, AfterValidator(check_protocol)] = None
    duration: PositiveDuration = Field(description="how long flows arrive, like 10ms")
    warm_up: Duration = 0
    drain: Duration = 200_000_000
    sample_period: PositiveDuration = 100_000
    action_period: PositiveDuration | None = None
    decision_latency: Duration | None = None
    flow_sample_period: PositiveDuration | None = None
    allow_starvation: bool = False
    host: Host = Host()
    clock: Literal["virtual", "real"] = "virtual"
    fabric: Annotated[Fabric, BeforeValidator(kind_of)] | None = None
    load_balancing: Annotated[LoadBalancing, BeforeValidator(kind_of)] = LoadBalancing()
    faults: tuple[Fault, ...] = ()
    parent: Parent | None = None

    @property
    def latency_ns(self) -> int:
        """From a reading to the change that answers it; by default at most half a sample period."""
        if self.decision_latency is not None:
            return self.decision_latency
        return min(DECISION_LATENCY_NS, self.sample_period // 2)


def campaign_file(data: Mapping[str, Any], folder: str) -> type[CampaignFile]:
    """Return the schema of a file with this content, whose paths start at `folder`."""
    return _with_patterns(tuple(sorted(set(file_kinds(data.get("traffic"))))), folder)


@cache
def _with_patterns(kinds: tuple[str, ...], folder: str) -> type[CampaignFile]:
    pattern = any_pattern(kinds, folder)
    described = Field(description=CampaignFile.model_fields["traffic"].description)
    traffic: Any = Annotated[tuple[pattern, ...], SOME]  # type: ignore[valid-type]
    return create_model("CampaignFile", __base__=CampaignFile, traffic=(traffic, described))
