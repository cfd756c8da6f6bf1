"""The campaign file's schema: its fields, their types and defaults, and faults of single fields.

Faults that involve several fields, or a testbed, are found in `checks`. `factors` resolves `$name`
references before a file comes here. Every field is described in docs/campaign.md.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from inventory.strictyaml import Duration, StrictModel, suggest
from orchestration.campaign import rotation
from orchestration.campaign.fields import (
    SOME,
    FolderName,
    Load,
    NotNegative,
    Positive,
    PositiveDuration,
    PositiveSize,
    Sha256,
    Share,
    named,
    read_param,
)
from orchestration.campaign.hosts import Fabric, Host, kind_of
from orchestration.campaign.load_balancing import LoadBalancing
from orchestration.campaign.repeats import Repeats
from orchestration.campaign.streams import check_protocol
from orchestration.core import plugins
from orchestration.core.capabilities import GROUP, backends, capabilities
from orchestration.core.trial import FORMER_BACKENDS, STRATA, CongestionControl, Draw, Scalar
from traffic.drivers.programs import DRIVERS, known, option_units

# ACC (SIGCOMM 2021), figure 7: messages of 1 KB to 10 MB.
ACC_MESSAGE_SIZES_BYTES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


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


def _driver(name: str) -> str:
    if not known(name):
        raise ValueError(
            f"unknown driver {name!r}: {suggest(name, DRIVERS)}use {', '.join(DRIVERS)}"
        )
    return name


class Driver(StrictModel):
    """What sends a pattern's flows. A program's options, its own, stand beside its name."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, AfterValidator(_driver)] = Field(
        description="the driver's name, like perftest"
    )

    @property
    def options(self) -> dict[str, Scalar]:
        """The options in base units. Raises ValueError for one that cannot be read."""
        return {key: self.option(key) for key in self.model_extra or {}}

    def option(self, key: str) -> Scalar:
        """Return one option in its base unit. Raises ValueError if it cannot be read."""
        # options of a user's class have the units that end their names
        units = {} if plugins.is_file(self.name) else option_units(self.name)
        return read_param(key, (self.model_extra or {})[key], units.get(key, ""))


class Sent(StrictModel):
    """What sends a pattern's flows, and their congestion control, by default that of the class."""

    driver: Annotated[Driver, BeforeValidator(named)] = Driver(name="sockets")
    congestion_control: CongestionControl | None = None


class Classed(Sent):
    """A pattern in one of the testbed's traffic classes, by default the first."""

    queue_class: str = Field(default="", alias="class")


class Windowed(Classed):
    """A pattern that lasts from `start` to `stop`, by default from 0 to the trial's duration."""

    start: Duration = 0
    stop: Duration | None = None


class Poisson(Windowed):
    """Poisson arrivals of flows whose sizes follow a workload."""

    kind: Literal["poisson"]
    workload: str = Field(description="flow sizes, like WebSearch")
    load: Load = Field(description="share of the hosts' line rate, like 0.6")
    draw: Draw = STRATA


class Incast(Windowed):
    """N hosts send to one at the same moment, again and again."""

    kind: Literal["incast"]
    fan_in: Positive = Field(description="how many hosts send to one, like 16")
    size: PositiveSize = Field(description="bytes of each flow, like 64KB")
    period: PositiveDuration = Field(description="time from one to the next, like 2ms")
    receiver: str = ""


class AllToAll(Windowed):
    """Each host sends to every other host at the same moment, again and again."""

    kind: Literal["all-to-all"]
    size: PositiveSize = Field(description="bytes of each flow, like 64KB")
    period: PositiveDuration = Field(description="time from one to the next, like 2ms")


class MessageMix(Windowed):
    """Poisson arrivals of messages, each of the sizes equally likely."""

    kind: Literal["message-mix"]
    load: Load = Field(description="share of the hosts' line rate, like 0.6")
    sizes: Annotated[tuple[PositiveSize, ...], SOME] = ACC_MESSAGE_SIZES_BYTES
    receiver: str = ""
    draw: Draw = STRATA


class SingleFlow(Classed):
    """One flow between two hosts."""

    kind: Literal["flow"]
    src: str = Field(description="the sending host's name")
    dst: str = Field(description="the receiving host's name")
    size: PositiveSize = Field(description="bytes of each flow, like 64KB")
    start: Duration = 0


class Concurrent(Classed):
    """Many flows at once, each of one size or for as long as the trial lasts."""

    kind: Literal["concurrent"]
    flows: Positive = Field(description="how many flows, like 512")
    receiver: str = ""
    senders: Positive | None = None
    size: PositiveSize | None = None
    start: Duration = 0
    within: Duration = 0
    spread: Duration = 0


class Alternating(Windowed):
    """Few hosts send to one, then many, then few again, in phases whose lengths are drawn."""

    kind: Literal["alternating"]
    receiver: str = Field(description="the receiving host's name")
    few: Positive = Field(description="how many hosts send in one phase, like 2")
    many: Positive = Field(description="how many hosts send in the next, like 12")
    size: PositiveSize = Field(description="bytes of each message of few, like 500KB")
    phase: PositiveDuration = Field(description="mean length of a phase, like 4ms")
    load: Load = Field(description="of long messages, share of the receiver's rate, like 0.9")
    spread: Duration = 0
    short: PositiveSize = Field(description="bytes of each short message, like 5KB")
    short_load: Load = Field(description="share of the receiver's rate, like 0.02")


class Replay(Sent):
    """Recorded flows, at their recorded times. `class` is the file's, `queue_class` the testbed's.

    `{repeat}` in the file's name is the number of the repeat.
    """

    kind: Literal["replay"]
    file: str = Field(description="a CSV file of start_ns,src,dst,bytes,class, like flows.csv")
    recorded_class: str = Field(default="", alias="class")
    queue_class: str = ""
    start: Duration = 0
    stop: Duration | None = None


AnyPattern = (
    Poisson | Incast | AllToAll | MessageMix | SingleFlow | Concurrent | Alternating | Replay
)
Pattern = Annotated[AnyPattern, Field(discriminator="kind")]


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
    """A campaign file with one level chosen for each factor."""

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
