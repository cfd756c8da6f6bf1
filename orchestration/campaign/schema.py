"""The campaign file's schema: its fields, their types and defaults, and faults of single fields.

Faults that involve several fields, or a testbed, are found in `checks`. `factors` resolves `$name`
references before a file comes here. Every field is described in docs/campaign.md.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from collectors.bpf.policy import policy_object, read_policy
from inventory.strictyaml import Duration, Size, StrictModel, suggest
from orchestration.campaign.controls import Program, move_program, read_values
from orchestration.model import plugins
from orchestration.model.congestion import ACK_EVERY, CONTROLS, PROGRAM
from orchestration.model.roce import BDP_WINDOW, DCQCN_SETS, Recovery, RoceSpec
from orchestration.model.trial import (
    FORMER_BACKENDS,
    ROCE_CONTROLS,
    BackendName,
    CongestionControl,
    Scalar,
)
from orchestration.model.units import parse_duration_ns, parse_rate_bps, parse_size_bytes
from traffic.drivers.programs import DRIVERS, known, option_units

# The backends that can run a campaign, among those that a trial can name.
ACCEPTED_BACKENDS: tuple[BackendName, ...] = ("emulated", "fluid", "simulated", "hardware")

_UNITS = {"_bytes": parse_size_bytes, "_ns": parse_duration_ns, "_bps": parse_rate_bps}

# ACC (SIGCOMM 2021), figure 7: messages of 1 KB to 10 MB.
ACC_MESSAGE_SIZES_BYTES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


def check_backend(name: str) -> BackendName:
    """Return `name` as a backend's name; raise ValueError if campaigns cannot run on it.

    A name of version 0.1 is accepted with a FutureWarning.
    """
    if name in FORMER_BACKENDS:
        now = FORMER_BACKENDS[name]
        warnings.warn(f"backend {name!r} is called {now!r} now", FutureWarning, stacklevel=2)
        name = now
    for accepted in ACCEPTED_BACKENDS:
        if name == accepted:
            return accepted
    usable = f"{', '.join(ACCEPTED_BACKENDS[:-1])} or {ACCEPTED_BACKENDS[-1]}"
    if name in get_args(BackendName):
        raise ValueError(
            f"nothing runs on backend {name!r}, which has results of other programs only: "
            f"use {usable}"
        )
    raise ValueError(f"unknown backend {name!r}: {suggest(name, ACCEPTED_BACKENDS)}use {usable}")


def beside(folder: str, name: str) -> str:
    """Return a name unchanged; resolve a file's path against `folder`."""
    return os.path.normpath(os.path.join(folder, name)) if is_path(name) else name


def is_path(name: str) -> bool:
    """Return whether the name of a testbed, workload or checkpoint is the path of a user's file."""
    return "/" in name or name.endswith((".csv", ".yml", ".yaml", ".safetensors"))


def reference_beside(folder: str, name: str) -> str:
    """Return a name unchanged; resolve the path in a reference to a class in a file.

    `folder` is where the path starts. See `orchestration.model.plugins`.
    """
    return os.path.normpath(os.path.join(folder, name)) if plugins.is_file(name) else name


def file_beside(folder: str, name: str) -> str:
    """Return a file's path resolved against `folder`, whatever its name looks like."""
    return os.path.normpath(os.path.join(folder, name))


def params_beside(folder: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return a tuner's parameters, with the paths of checkpoint and actions resolved.

    `folder` is where the paths start.
    """
    seen = dict(params)
    for key, place in (("checkpoint", beside), ("actions", file_beside)):
        name = params.get(key)
        if isinstance(name, str):
            seen[key] = place(folder, name)
    return seen


def read_param(name: str, value: object, unit: str = "") -> Scalar:
    """Return a parameter or option. Text is read in `unit`, or the unit that ends its name.

    `kmin_bytes` accepts 5KB, or 5000. Raises ValueError if it cannot be read.
    """
    if isinstance(value, str):
        for suffix, parse in _UNITS.items():
            if (f"_{unit}" if unit else name).endswith(suffix):
                return parse(value)
    if isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"{name!r} is not a single value: give a number, text, true or false")


def _positive(value: int, info: ValidationInfo) -> int:
    if value <= 0:
        raise ValueError(f"{info.field_name!r} is {value}: use more than 0")
    return value


def _not_negative(value: int, info: ValidationInfo) -> int:
    if value < 0:
        raise ValueError(f"{info.field_name!r} is {value}: use 0 or more")
    return value


def _load(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(
            f"load {value:g} is outside (0, 1]: "
            "it is the share of the hosts' line rate, 0.6 for 60 %"
        )
    return value


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(
            f"share {value:g} is outside (0, 1]: "
            "it is the share of the switch-to-switch links, 0.1 for 10 %"
        )
    return value


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(f"{value!r} is no SHA-256: use the 64 digits that sha256sum prints")
    return value


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", value):
        raise ValueError(
            f"campaign {value!r} cannot name a folder: "
            "use at most 64 of a-z, 0-9 and -, a letter or digit first"
        )
    return value


def _some(value: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
    if not value:
        raise ValueError(f"{info.field_name!r} is empty: name at least one")
    return value


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
PositiveSize = Annotated[Size, AfterValidator(_positive)]
Positive = Annotated[int, AfterValidator(_positive)]
NotNegative = Annotated[int, AfterValidator(_not_negative)]
Load = Annotated[float, AfterValidator(_load)]


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


class Classed(StrictModel):
    """A pattern in one of the testbed's traffic classes, by default the first."""

    queue_class: str = Field(default="", alias="class")
    driver: Annotated[Driver, BeforeValidator(_named)] = Driver(name="sockets")


class Windowed(Classed):
    """A pattern that lasts from `start` to `stop`, by default from 0 to the trial's duration."""

    start: Duration = 0
    stop: Duration | None = None


class Poisson(Windowed):
    """Poisson arrivals of flows whose sizes follow a workload."""

    kind: Literal["poisson"]
    workload: str = Field(description="flow sizes, like WebSearch")
    load: Load = Field(description="share of the hosts' line rate, like 0.6")


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
    sizes: Annotated[tuple[PositiveSize, ...], AfterValidator(_some)] = ACC_MESSAGE_SIZES_BYTES
    receiver: str = ""


class SingleFlow(Classed):
    """One flow between two hosts."""

    kind: Literal["flow"]
    src: str = Field(description="the sending host's name")
    dst: str = Field(description="the receiving host's name")
    size: PositiveSize = Field(description="bytes of each flow, like 64KB")
    start: Duration = 0


class Replay(StrictModel):
    """Recorded flows, at their recorded times. `class` is the file's, `queue_class` the testbed's.

    `{repeat}` in the file's name is the number of the repeat.
    """

    kind: Literal["replay"]
    file: str = Field(description="a CSV file of start_ns,src,dst,bytes,class, like flows.csv")
    recorded_class: str = Field(default="", alias="class")
    queue_class: str = ""
    driver: Annotated[Driver, BeforeValidator(_named)] = Driver(name="sockets")
    start: Duration = 0
    stop: Duration | None = None


AnyPattern = Poisson | Incast | AllToAll | MessageMix | SingleFlow | Replay
Pattern = Annotated[AnyPattern, Field(discriminator="kind")]


class Fault(StrictModel):
    """Links, named or a share of them, that go down and come up again."""

    links: tuple[str, ...] = ()
    share: Annotated[float, AfterValidator(_share)] | None = None
    down: Duration = Field(description="when the links go down, like 3ms")
    up: Duration | None = None
    convergence: Duration = Field(description="how long routes take to follow, like 500us")


def _dcqcn_set(name: str) -> str:
    if name not in DCQCN_SETS:
        raise ValueError(
            f"no set of parameters {name!r}: {suggest(name, DCQCN_SETS)}use {', '.join(DCQCN_SETS)}"
        )
    return name


class Dcqcn(StrictModel):
    """DCQCN's parameters: a set by name, and any of them beside it, under mlx5's names."""

    model_config = ConfigDict(extra="allow")

    set: Annotated[str, AfterValidator(_dcqcn_set)] = "mlx5"

    @property
    def own(self) -> dict[str, Any]:
        """The parameters given beside the set."""
        return dict(self.model_extra or {})

    @property
    def parameters(self) -> tuple[tuple[str, int], ...]:
        """Those that differ from mlx5's defaults, in the order of their names."""
        values = {**DCQCN_SETS[self.set], **self.own}
        default = DCQCN_SETS["mlx5"]
        return tuple(sorted((k, v) for k, v in values.items() if default.get(k) != v))


def _set(value: object) -> object:
    return {"set": value} if isinstance(value, str) else value


def _window(value: object) -> int:
    return BDP_WINDOW if value == "bdp" else parse_size_bytes(value)


class Roce(StrictModel):
    """The hosts' RoCE NICs."""

    payload: PositiveSize = RoceSpec.payload_bytes
    ack_every: Positive = RoceSpec.ack_every
    window: Annotated[int, BeforeValidator(_window)] = RoceSpec.window_bytes
    timeout: PositiveDuration = RoceSpec.timeout_ns
    recovery: Recovery = RoceSpec.recovery
    rtt_probe_interval: Duration = RoceSpec.rtt_probe_interval_ns
    dcqcn: Annotated[Dcqcn, BeforeValidator(_set)] = Dcqcn()
    fixed: dict[str, Any] = Field(default_factory=dict)
    swift: dict[str, Any] = Field(default_factory=dict)
    timely: dict[str, Any] = Field(default_factory=dict)
    hpcc: dict[str, Any] = Field(default_factory=dict)
    rlcc: dict[str, Any] = Field(default_factory=dict)
    program: Program | None = None

    @property
    def given(self) -> dict[str, dict[str, Any]]:
        """The parameters of controls other than DCQCN, by the controls' names."""
        return {name: getattr(self, name) for name in CONTROLS}

    def spec(self, control: str, folder: str) -> RoceSpec:
        """Return it as a trial under this control has it; paths start in `folder`."""
        spec = RoceSpec(
            self.payload,
            self.ack_every,
            self.window,
            self.timeout,
            self.recovery,
            self.rtt_probe_interval,
            self.dcqcn.parameters,
            control,
        )
        if control == PROGRAM and self.program is not None:
            numbers = tuple((f"{n:02}", value) for n, value in enumerate(self.program.parameters))
            program = file_beside(folder, self.program.program)
            asks = read_policy(policy_object(Path(program))).telemetry
            spec = replace(spec, values=numbers, program=program, telemetry=asks)
        elif control in CONTROLS:
            spec = replace(spec, values=read_values(control, self.given[control]))
        if control in ACK_EVERY and "ack_every" not in self.model_fields_set:
            spec = replace(spec, ack_every=ACK_EVERY[control])
        return spec


class Host(StrictModel):
    """The hosts' congestion control, and their TCP or RoCE."""

    congestion_control: CongestionControl = "dctcp"
    min_rto: PositiveDuration = 1_000_000
    roce: Roce = Roce()

    _moved = model_validator(mode="before")(staticmethod(move_program))


class Fabric(StrictModel):
    """What the switches of an emulated fabric are."""

    kind: Literal["linux", "closloop"] = "closloop"
    marks: Literal["arrivals", "departures"] = "arrivals"


def chosen_fabric(fabric: Fabric | None, backend: str, control: str) -> Fabric:
    """Return a campaign's fabric, or the default for its backend and congestion control."""
    if fabric is not None:
        return fabric
    own = backend == "emulated" or (backend == "simulated" and control in ROCE_CONTROLS)
    return Fabric(kind="closloop" if own else "linux")


def _kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class Tuner(StrictModel):
    """A tuner by name. Its parameters, which are the tuner's own, stand beside the name."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="the tuner's name, like secn1")
    label: str = ""

    @property
    def called(self) -> str:
        """What reports call this tuner: its label, or else its name."""
        return self.label or plugins.short_name(self.name)

    @property
    def params(self) -> dict[str, Scalar]:
        """The parameters in base units. Raises ValueError for one that cannot be read."""
        return {key: read_param(key, value) for key, value in (self.model_extra or {}).items()}


NamedTuner = Annotated[Tuner, BeforeValidator(_named)]


class ParentTrial(StrictModel):
    """A trial that is replayed, and as which: the tuner's label, the repeat, and the seed."""

    tuner: str = Field(description="the label of the tuner that takes its place")
    repeat: Positive = Field(description="which repeat it is replayed as, like 1")
    seed: NotNegative = Field(description="the seed of its replay, by default its own")
    trial: str = Field(description="its id, like secn1-r1-0f2975e3ff")
    sha256: Annotated[str, AfterValidator(_sha256)] = Field(
        description="the SHA-256 of its trial.json"
    )


class Parent(StrictModel):
    """What a replay repeats: a run with its trials, or a file of flows with its digest."""

    run: str = Field(description="the name of the run or file that is replayed")
    sha256: Annotated[str, AfterValidator(_sha256)] | None = None
    trials: tuple[ParentTrial, ...] = ()


# The papers say "sub-millisecond" and act every 100 us (GraphCC): half of that.
DECISION_LATENCY_NS = 50_000


class CampaignFile(StrictModel):
    """A campaign file with one level chosen for each factor."""

    campaign: Annotated[str, AfterValidator(_folder_name)] = Field(
        description="the name of its run folder"
    )
    testbed: str = Field(description="its name, like graphcc, or its file's path")
    backend: Annotated[str, AfterValidator(check_backend)] = "emulated"
    tuners: Annotated[tuple[NamedTuner, ...], AfterValidator(_some)] = Field(
        description="a list, like [secn1, secn2]"
    )
    traffic: Annotated[tuple[Pattern, ...], AfterValidator(_some)] = Field(
        description="a list of patterns, each with its kind"
    )
    factors: Annotated[dict[str, Any], Field(default_factory=dict)]
    repeats: Positive = 5
    seed: NotNegative = 1
    duration: PositiveDuration = Field(description="how long flows arrive, like 10ms")
    drain: Duration = 200_000_000
    sample_period: PositiveDuration = 100_000
    action_period: PositiveDuration | None = None
    decision_latency: Duration | None = None
    host: Host = Host()
    fabric: Annotated[Fabric, BeforeValidator(_kind)] | None = None
    faults: tuple[Fault, ...] = ()
    parent: Parent | None = None

    @property
    def latency_ns(self) -> int:
        """From a reading to the change that answers it; by default at most half a sample period."""
        if self.decision_latency is not None:
            return self.decision_latency
        return min(DECISION_LATENCY_NS, self.sample_period // 2)
