"""The schema of a campaign file: its fields with their types and defaults.

It finds problems of single fields; `checks` finds those of several fields together, and of the
testbed. `factors` has replaced `$name` references before a file comes here. `make reference` writes
docs/generated/campaign-file.md from the descriptions of all fields.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, create_model

from inventory.strictyaml import SOMETHING, Duration, StrictModel, must, suggest
from inventory.variant import split_name
from orchestration.campaign import rotation
from orchestration.campaign.fields import (
    NOT_EMPTY,
    FolderName,
    NotNegative,
    Positive,
    PositiveDuration,
    Sha256,
    Share,
    like_as_mapping,
    name_as_mapping,
    read_param,
    text_as_list,
)
from orchestration.campaign.hosts import Fabric, Host, kind_as_mapping
from orchestration.campaign.load_balancing import LoadBalancing, load_balancing_as_mapping
from orchestration.campaign.patterns import Pattern, any_pattern, file_kinds
from orchestration.campaign.repeats import Repeats
from orchestration.campaign.streams import check_protocol
from orchestration.core import plugins
from orchestration.core.capabilities import GROUP, backends, capabilities
from orchestration.core.trial import FORMER_BACKENDS, Scalar


def check_backend(name: str) -> str:
    """Return a backend's name; raise ValueError if campaigns cannot run on it.

    A name of version 0.1 is replaced by the present one, with a FutureWarning.
    """
    if name in FORMER_BACKENDS:
        now = FORMER_BACKENDS[name]
        warnings.warn(f"backend {name!r} is called {now!r} now", FutureWarning, stacklevel=2)
        name = now
    offered = name in plugins.offered(GROUP)
    if offered and capabilities(name).runs:
        return name
    *others, last = accepted = [backend.name for backend in backends()]
    usable = f"{', '.join(others)} or {last}"
    if offered:
        raise ValueError(
            f"no campaign runs on backend {name!r}, which is for results of other programs: "
            f"use {usable}"
        )
    raise ValueError(f"unknown backend {name!r}: {suggest(name, accepted)}use {usable}")


class Fault(StrictModel):
    """A link fault: named links, or a random share of all, go down and may come up again."""

    links: tuple[str, ...] = Field(
        default=(), description="the links, each named by its two devices, like leaf1-spine2"
    )
    share: Share | None = Field(
        default=None,
        description="instead of links: a share of the links between switches, drawn by the seed",
    )
    down: Duration = Field(description="when the links go down, before the duration ends, like 3ms")
    up: Duration | None = Field(
        default=None,
        description="when they come up again, at most duration + drain; else they stay down",
    )
    convergence: Duration = Field(
        description="how long routes take to follow each change, like 500us"
    )


class Tuner(StrictModel):
    """A tuner by name. Its parameters, which differ from tuner to tuner, are beside the name."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="the tuner's name, like secn1")
    label: str = Field(
        default="",
        description="what reports call it, by default the name; two tuners of one campaign "
        "need two labels",
    )

    @property
    def called(self) -> str:
        """The tuner's name in reports: its label, or else its name."""
        return self.label or plugins.short_name(self.name)

    def params(self, repeat: int) -> dict[str, Scalar]:
        """Return the tuner's parameters in a repeat, in base units.

        Raises ValueError for one that cannot be read.
        """
        given = rotation.params_of_repeat(self.model_extra or {}, repeat)
        return {key: read_param(key, value) for key, value in given.items()}


NamedTuner = Annotated[Tuner, BeforeValidator(name_as_mapping)]


_WITHOUT_FIELDS = must(
    lambda name: not split_name(name)[1],
    "testbed {!r} has replaced fields in its name",
    "write them as a mapping: {like: graphcc, buffer: 8MB}",
)


class NamedTestbed(StrictModel):
    """A testbed by name or path. Fields of its file that are replaced are beside `like`."""

    model_config = ConfigDict(extra="allow")

    like: Annotated[str, _WITHOUT_FIELDS] = Field(
        description="a name, like graphcc, or a file's path"
    )

    @property
    def fields(self) -> dict[str, Any]:
        """All fields, as the file has them."""
        return {"like": self.like, **(self.model_extra or {})}


class ParentTrial(StrictModel):
    """A recorded trial, and tuner, arm, repeat and seed of the trial that replays it."""

    tuner: str = Field(description="the label of the tuner that takes its place")
    repeat: Positive = Field(description="which repeat it is replayed as, like 1")
    seed: NotNegative = Field(description="the seed of its replay, by default its own")
    trial: str = Field(description="its id, like secn1-r1-0f2975e3ff")
    sha256: Sha256 = Field(description="the SHA-256 of its trial.json")
    arm: str = Field(default="", description="the arm of the replay, where that has `arms`")


class Parent(StrictModel):
    """What a replay repeats: a run with its trials, or a file of flows with its SHA-256."""

    run: str = Field(description="the name of the run or file that is replayed")
    sha256: Sha256 | None = Field(default=None, description="the SHA-256 of a file of flows")
    trials: tuple[ParentTrial, ...] = Field(default=(), description="the trials of a run")


# The tuner of campaigns that name none: fixed thresholds.
DEFAULT_TUNER = "secn1"
# GraphCC's paper has decisions every 100 us and calls their latency "sub-millisecond": this is half
# of the 100 us.
DECISION_LATENCY_NS = 50_000


class CampaignFile(StrictModel):
    """A campaign file in which each factor has one level: that of a cell.

    Files are read as `campaign_file`, a schema that also has the fields of each kind of pattern.
    """

    campaign: FolderName = Field(description="the name of its run folder")
    testbed: Annotated[NamedTestbed, BeforeValidator(like_as_mapping)] = Field(
        description="its name, like graphcc, its file's path, or a mapping that replaces some of "
        "its file's fields: {like: graphcc, buffer: 8MB}"
    )
    backend: Annotated[str, AfterValidator(check_backend)] = Field(
        default="emulated", description="where trials run; the option --on overrules it"
    )
    tuners: Annotated[tuple[NamedTuner, ...], NOT_EMPTY] = Field(
        default=(Tuner(name=DEFAULT_TUNER),),
        description="what decides on ECN thresholds or other knobs: a list, like [secn1, secn2]; "
        "without it secn1, the fixed thresholds of DCQCN's paper",
    )
    traffic: Annotated[tuple[Pattern, ...], NOT_EMPTY] = Field(
        description="a list of patterns, each with its kind"
    )
    factors: dict[str, Any] = Field(
        default_factory=dict,
        description="what varies: levels by the name of the factor, which fields take as `$name`; "
        "a factor that is named by the path of a field sets it: host.congestion_control",
    )
    arms: dict[str, Any] = Field(
        default_factory=dict,
        description="named sets of fields that are compared: an arm sets each field, named by its "
        "path like host.congestion_control, to a value",
    )
    compare: str = Field(
        default="",
        description="what is compared: the name of a factor, arms, or tuners; its first level is "
        "the baseline; without it the arms, or else the tuners",
    )
    judge: Annotated[tuple[str, ...], BeforeValidator(text_as_list), SOMETHING] = Field(
        default=(),
        description="the metrics that decide which arm is best, like mean_slowdown; without it one "
        "that suits the traffic; all others are exploratory",
    )
    repeats: Repeats = Field(
        default=5,
        description="trials of each cell, each with a seed of its own; or a mapping: until results "
        "are precise enough",
    )
    seed: NotNegative = Field(default=1, description="decides every random draw of the campaign")
    protocol: Annotated[int | None, AfterValidator(check_protocol)] = Field(
        default=None,
        description="the version of the training protocol, 1 or 2, whose evaluation seeds are "
        "drawn; without it those of 1",
    )
    duration: PositiveDuration = Field(description="how long flows arrive, like 10ms")
    warm_up: Duration = Field(
        default=0,
        description="time before the measurement, less than duration: flows that start in it are "
        "sent, and neither they nor its samples count in any figure",
    )
    drain: Duration = Field(
        default=200_000_000,
        description="how much longer flows have to finish; a trial ends as soon as all have",
    )
    sample_period: PositiveDuration = Field(
        default=100_000, description="time between two readings of all queues"
    )
    action_period: PositiveDuration | None = Field(
        default=None,
        description="time between two decisions of the tuner, a multiple of sample_period; without "
        "it sample_period",
    )
    decision_latency: Annotated[Duration | None, SOMETHING] = Field(
        default=None,
        description="time from a reading to the changes that follow from it, less than "
        "sample_period; without it 50us, at most half of sample_period",
    )
    flow_sample_period: PositiveDuration | None = Field(
        default=None,
        description="time between two readings of all flows of RoCE NICs, a multiple of "
        "sample_period; without it they are not read",
    )
    allow_starvation: bool = Field(
        default=False,
        description="whether long-lived flows that starve are a result, and a warning, where they "
        "would make a trial invalid",
    )
    host: Host = Field(
        default=Host(), description="the hosts' congestion control, and their TCP or RoCE"
    )
    clock: Literal["virtual", "real"] = Field(
        default="virtual",
        description="of the emulated backend: virtual time, or this machine's, which needs root; "
        "the option --clock overrules it",
    )
    fabric: Annotated[Fabric, BeforeValidator(kind_as_mapping)] | None = Field(
        default=None,
        description="what the switches of an emulated fabric are: a kind, or a mapping; without it "
        "closloop, in real time linux",
    )
    load_balancing: Annotated[LoadBalancing, BeforeValidator(load_balancing_as_mapping)] = Field(
        default=LoadBalancing(),
        description="how switches choose among equal-cost ports: a kind, or a mapping",
    )
    faults: tuple[Fault, ...] = Field(default=(), description="links that fail while a trial runs")
    parent: Parent | None = Field(
        default=None, description="which run is replayed; written for a replay, not by hand"
    )

    @property
    def latency_ns(self) -> int:
        """The time in ns from a reading to the changes that follow from it.

        By default it is at most half a sample period.
        """
        if self.decision_latency is not None:
            return self.decision_latency
        return min(DECISION_LATENCY_NS, self.sample_period // 2)


def campaign_file(data: Mapping[str, Any], folder: str) -> type[CampaignFile]:
    """Return the schema for a campaign file with this content; its paths start at `folder`."""
    return _with_patterns(tuple(sorted(set(file_kinds(data.get("traffic"))))), folder)


@cache
def _with_patterns(kinds: tuple[str, ...], folder: str) -> type[CampaignFile]:
    pattern = any_pattern(kinds, folder)
    described = Field(description=CampaignFile.model_fields["traffic"].description)
    traffic: Any = Annotated[tuple[pattern, ...], NOT_EMPTY]  # type: ignore[valid-type]
    return create_model("CampaignFile", __base__=CampaignFile, traffic=(traffic, described))
