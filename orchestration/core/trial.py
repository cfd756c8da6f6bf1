"""TrialSpec: one cell of a campaign at one seed, as pure data. The same on every backend."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from orchestration.core.congestion import CONTROLS, PROGRAM
from orchestration.core.load_balancing import ECMP, LoadBalancingSpec
from orchestration.core.roce import RoceSpec

# Prefixes of the names of pretrained checkpoints and recorded actions in `TrialSpec.files`.
CHECKPOINT, ACTIONS = "checkpoint ", "actions "
# The parameter of learned tuners that names their network.
CHECKPOINT_PARAM = "checkpoint"
# Placeholder for the number of the repeat in the names of recorded flows and actions.
REPEAT = "{repeat}"
# Names of backends in 0.1. They are accepted in campaign files and on the command line, and read in
# run folders. Ids are still made from them, so that a trial keeps its id.
FORMER_BACKENDS: dict[str, str] = {"fake": "fluid"}
_BACKENDS_IN_IDS = {name: former for former, name in FORMER_BACKENDS.items()}
Scalar = str | int | float | bool
# What a trial's time is; "" for that of its backend. Emulated trials alone can be in real time.
ClockName = Literal["", "real"]
REAL: ClockName = "real"
# How patterns that offer a load draw the number and the sizes of their flows (traffic/arrivals.py).
# Files of 0.1 have no such field: `INDEPENDENT`.
Draw = Literal["strata", "independent"]
STRATA: Draw = "strata"
INDEPENDENT: Draw = "independent"


@dataclass(frozen=True)
class TunerSpec:
    """A tuner by its registered name, with its parameters."""

    name: str
    params: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverSpec:
    """The driver of a pattern's flows: sockets or a program, with (name, value) options."""

    name: str = "sockets"
    options: tuple[tuple[str, Scalar], ...] = ()


SOCKETS = DriverSpec()


@dataclass(frozen=True, kw_only=True)
class _Pattern:
    """What every pattern says of its flows.

    `queue_class` names one of the testbed's traffic classes. "" is the first of them, or the only
    queue of a port if there are none. A `driver` other than sockets runs on racks only.
    `congestion_control` is "" for that of the class, or else the hosts'.
    """

    queue_class: str = ""
    driver: DriverSpec = SOCKETS
    congestion_control: str = ""


@dataclass(frozen=True)
class PoissonSpec(_Pattern):
    """Poisson arrivals of sizes from `workload` at `load` (0..1 of the hosts' line rate)."""

    workload: str
    load: float
    start_ns: int
    stop_ns: int
    draw: Draw = INDEPENDENT
    kind: ClassVar = "poisson"


@dataclass(frozen=True)
class IncastSpec(_Pattern):
    """Every `period_ns`, `fan_in` hosts send `size_bytes` each to one receiver, together.

    `receiver` is a host's name, or "" for a new seeded choice at each period.
    """

    fan_in: int
    size_bytes: int
    period_ns: int
    start_ns: int
    stop_ns: int
    receiver: str = ""
    kind: ClassVar = "incast"


@dataclass(frozen=True)
class AllToAllSpec(_Pattern):
    """Every `period_ns` each host sends `size_bytes` to every other host."""

    size_bytes: int
    period_ns: int
    start_ns: int
    stop_ns: int
    kind: ClassVar = "all-to-all"


@dataclass(frozen=True)
class MessageMixSpec(_Pattern):
    """Poisson arrivals of messages whose sizes are drawn with equal probability (ACC, fig. 7).

    With `receiver`, a host's name, all others send to it, and `load` is a share of its line rate.
    """

    sizes_bytes: tuple[int, ...]
    load: float
    start_ns: int
    stop_ns: int
    receiver: str = ""
    draw: Draw = INDEPENDENT
    kind: ClassVar = "message-mix"


@dataclass(frozen=True)
class SingleFlowSpec(_Pattern):
    """One flow between two named hosts."""

    src: str
    dst: str
    size_bytes: int
    start_ns: int
    kind: ClassVar = "flow"


@dataclass(frozen=True)
class ConcurrentSpec(_Pattern):
    """`flows` flows together: from many hosts to `receiver`, or without one from all hosts to all.

    They start together, at a time drawn from `within_ns` after `start_ns`, and each at most
    `spread_ns` later. Each sends `size_bytes`, or with 0 for as long as the trial lasts. To a
    receiver, `senders` hosts send, drawn by the trial's seed; 0 is all others.
    """

    flows: int
    size_bytes: int
    start_ns: int
    receiver: str = ""
    senders: int = 0
    within_ns: int = 0
    spread_ns: int = 0
    kind: ClassVar = "concurrent"


@dataclass(frozen=True)
class AlternatingSpec(_Pattern):
    """`few` hosts send to `receiver`, then `many`, then few again: phases of drawn lengths.

    A phase lasts `phase_ns` on average, half of it at least and half as much again at most. The
    trial's seed draws who begins, lengths and senders. In either phase long messages offer `load`
    of the receiver's rate: few hosts send `size_bytes` each, together, again and again; many send
    one message each that lasts the phase, and begin within `spread_ns`. Once all have begun, short
    messages of `short_bytes` come from any host, which offer `short_load` more.
    """

    receiver: str
    few: int
    many: int
    size_bytes: int
    phase_ns: int
    load: float
    spread_ns: int
    short_bytes: int
    short_load: float
    start_ns: int
    stop_ns: int
    kind: ClassVar = "alternating"


@dataclass(frozen=True)
class ReplaySpec(_Pattern):
    """The flows of a CSV file that start within the window, at their recorded times.

    If the name `file` contains `REPEAT`, each repeat has its own recording. With `recorded_class`,
    only flows of that class (column `class`) are replayed.
    """

    file: str
    start_ns: int
    stop_ns: int
    recorded_class: str = ""
    kind: ClassVar = "replay"


PatternSpec = (
    PoissonSpec
    | IncastSpec
    | AllToAllSpec
    | MessageMixSpec
    | SingleFlowSpec
    | ConcurrentSpec
    | AlternatingSpec
    | ReplaySpec
)


@dataclass(frozen=True)
class FaultSpec:
    """Links that go down at `down_ns` and come up at `up_ns` (None: stay down).

    `links` names them ("leaf1-spine2"). With `share` > 0, that share of the switch-to-switch links
    is chosen by the trial's seed instead. Routes change `convergence_ns` after each event.
    """

    down_ns: int
    up_ns: int | None
    convergence_ns: int
    links: tuple[str, ...] = ()
    share: float = 0.0


CongestionControl = Literal[
    "dctcp",
    "cubic",
    "reno",
    "bbr",
    "dcqcn",
    "swift",
    "timely",
    "hpcc",
    "rlcc",
    "rlcc-mlp",
    "rlcc-lstm",
    "fixed",
    "program",
]
# How TCP tells a loss: by time (RACK, RFC 8985), or by three duplicate ACKs (RFC 6582).
LossDetection = Literal["rack", "duplicate-acks"]
# Congestion controls of RoCE NICs; all others are of TCP.
ROCE_CONTROLS = ("dcqcn", *CONTROLS, PROGRAM)


@dataclass(frozen=True)
class FabricSpec:
    """What an emulated fabric's switches are.

    `kind` is Linux' own qdiscs and forwarding, or the data path of this project
    (orchestration/datapath), whose ports mark packets that arrive or packets that leave.
    """

    kind: Literal["linux", "closloop"] = "linux"
    marks: Literal["arrivals", "departures"] = "arrivals"


LINUX, CLOSLOOP = FabricSpec(), FabricSpec("closloop")


@dataclass(frozen=True)
class HostSpec:
    """The hosts' congestion control (for classes that name none), TCP's minimum RTO, and RoCE.

    `roce` is None unless some flows are RoCE: by their class, or by this control.
    """

    congestion_control: str = "dctcp"
    min_rto_ns: int = 1_000_000
    roce: RoceSpec | None = None
    loss_detection: LossDetection = "rack"

    @property
    def is_roce(self) -> bool:
        """Whether flows of classes that name no congestion control are RoCE, not TCP."""
        return self.congestion_control in ROCE_CONTROLS

    def control_of(self, class_control: str) -> str:
        """Return the congestion control of flows, given that of their class or ""."""
        return class_control or self.congestion_control


TCP = HostSpec()


@dataclass(frozen=True)
class TrialSpec:
    """Everything that determines a trial's outcome. The trial's id is a hash of it.

    A change of thresholds takes effect `decision_latency_ns` after the reading that it answers.
    RoCE flows are sampled every `flow_sample_period_ns`, with 0 not. With the `clock` `REAL` an
    emulated trial runs on the machine's own kernel. In real time, rates may be divided by `scale`,
    and then a second of the trial takes that many: all times here, and in the trial's records, are
    without it.

    Flows that start before `warm_up_ns` are sent, and count in no metric. With `allow_starvation`,
    flows that starve are a result, and leave the trial valid.

    `backend` is the name of an entry point of `closloop.backends`; on "imported", which stands for
    results from elsewhere, nothing runs.

    `files` has the SHA-256 of each of the user's files that the trial is made from (a testbed, a
    workload's table, recorded flows), so a changed file makes another trial. `parent` names the
    trial or file that is replayed, with its SHA-256.
    """

    campaign: str
    testbed: str
    backend: str
    tuner: TunerSpec
    traffic: tuple[PatternSpec, ...]
    seed: int
    repeat: int
    duration_ns: int
    drain_ns: int
    sample_period_ns: int = 100_000
    action_period_ns: int = 100_000
    decision_latency_ns: int = 0
    faults: tuple[FaultSpec, ...] = ()
    host: HostSpec = TCP
    cell: dict[str, Scalar] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    parent: str = ""
    fabric: FabricSpec = LINUX
    flow_sample_period_ns: int = 0
    load_balancing: LoadBalancingSpec = ECMP
    clock: ClockName = ""
    scale: int = 1
    warm_up_ns: int = 0
    allow_starvation: bool = False

    @property
    def samples_per_action(self) -> int:
        """How many readings there are from one decision to the next."""
        return max(1, self.action_period_ns // self.sample_period_ns)

    @property
    def measured_ns(self) -> tuple[int, int]:
        """The time that is measured: after the warm-up, while flows arrive."""
        return self.warm_up_ns, self.duration_ns

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON-ready data.

        What a trial of 0.1 could not have is left out: `driver` for flows that sockets send,
        `parent` for a trial that is no replay, `fabric` for Linux' own, `roce` for TCP, the
        `congestion_control` of patterns that name none, the period of flow samples, how NICs decide
        that do so at once, `load_balancing` for ECMP, a `loss_detection` that is Linux' own, the
        `clock` of the backend, a scale of 1, a `draw` that is independent, no warm-up, and
        `allow_starvation` where it is not asked for.
        """
        data = dataclasses.asdict(self)
        _leave_out(data, self, _NEW_IN_TRIALS)
        _leave_out(data["host"], self.host, ("loss_detection", "roce"))
        if self.host.roce is not None and not self.host.roce.decision_latency_ns:
            del data["host"]["roce"]["decision_latency_ns"], data["host"]["roce"]["decisions"]
        for pattern, spec in zip(data["traffic"], self.traffic, strict=True):
            common = ("queue_class", "driver", "congestion_control", "draw")
            # in the order that they have always had
            pattern |= {name: pattern.pop(name) for name in common if name in pattern}
            _leave_out(pattern, spec, [name for name in common[1:] if name in pattern])
            pattern["kind"] = spec.kind
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TrialSpec:
        """Rebuild a spec from `to_json`'s data. Raises KeyError or TypeError on foreign data."""
        values = dict(data)
        values["backend"] = FORMER_BACKENDS.get(data["backend"], data["backend"])
        values["tuner"] = TunerSpec(**data["tuner"])
        values["traffic"] = tuple(_pattern(item) for item in data["traffic"])
        values["faults"] = tuple(
            FaultSpec(**{**item, "links": tuple(item["links"])}) for item in data["faults"]
        )
        values["host"] = _host(data["host"])
        values["fabric"] = FabricSpec(**data.get("fabric", {}))
        values["load_balancing"] = LoadBalancingSpec(**data.get("load_balancing", {}))
        return cls(**values)

    @property
    def traffic_files(self) -> dict[str, str]:
        """Return the files that the trials of all repeats and tuners have in common.

        Checkpoints, recorded actions and files of classes belong to a tuner, the recorded flows of
        one repeat to that repeat.
        """
        return {
            name: digest
            for name, digest in self.files.items()
            if not name.startswith((CHECKPOINT, ACTIONS))
            and not name.endswith((".safetensors", ".py"))
            and REPEAT not in name
        }

    @property
    def id(self) -> str:
        """The name of the trial's folder: readable cell and repeat, then a hash of the spec."""
        data = self.to_json()
        data["backend"] = _BACKENDS_IN_IDS.get(self.backend, self.backend)
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        words = [str(value) for value in self.cell.values()] or [self.tuner.name]
        safe = "-".join("".join(c if c.isalnum() or c in "._" else "_" for c in w) for w in words)
        return f"{safe[:60]}-r{self.repeat}-{digest}"


def checkpoint_in(trial: TrialSpec) -> str:
    """Return the name or path of the network that a trial's tuner loads; "" if it has none."""
    if CHECKPOINT_PARAM in trial.tuner.params:
        return str(trial.tuner.params[CHECKPOINT_PARAM])
    named = (name[len(CHECKPOINT) :] for name in trial.files if name.startswith(CHECKPOINT))
    return next(named, "")


# The patterns by their kinds.
PATTERNS: dict[str, type[PatternSpec]] = {cls.kind: cls for cls in get_args(PatternSpec)}
# Fields of a trial that files of 0.1 have not.
_NEW_IN_TRIALS = (
    *("parent", "fabric", "flow_sample_period_ns", "load_balancing", "clock", "scale"),
    *("warm_up_ns", "allow_starvation"),
)


def _leave_out(data: dict[str, Any], spec: object, names: Iterable[str]) -> None:
    """Remove from a spec's data those of the named fields that have their defaults."""
    for name in names:
        if getattr(spec, name) == getattr(type(spec), name):
            del data[name]


def drawn_independently(trial: TrialSpec) -> TrialSpec:
    """Return the trial as 0.1 would have had it, whose loads had no strata."""
    traffic = tuple(
        dataclasses.replace(spec, draw=INDEPENDENT)
        if isinstance(spec, PoissonSpec | MessageMixSpec)
        else spec
        for spec in trial.traffic
    )
    return dataclasses.replace(trial, traffic=traffic)


def of_repeat(name: str, repeat: int) -> str:
    """Return the name of a repeat's file: `flows-3.csv` for `flows-{repeat}.csv`."""
    return name.replace(REPEAT, str(repeat))


def _host(data: dict[str, Any]) -> HostSpec:
    values = dict(data)
    if values.get("roce") is not None:
        roce = values["roce"]
        pairs = {
            key: tuple((name, value) for name, value in roce.get(key, ()))
            for key in ("dcqcn", "values")
        }
        values["roce"] = RoceSpec(**{**roce, **pairs})
    return HostSpec(**values)


def _pattern(data: dict[str, Any]) -> PatternSpec:
    values = dict(data)
    if "sizes_bytes" in values:
        values["sizes_bytes"] = tuple(values["sizes_bytes"])
    if "driver" in values:
        options = tuple((name, value) for name, value in values["driver"]["options"])
        values["driver"] = DriverSpec(values["driver"]["name"], options)
    return PATTERNS[values.pop("kind")](**values)
