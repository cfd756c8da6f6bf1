"""TrialSpec: one cell of a campaign at one seed, as pure data. The same on every backend."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestration.core.load_balancing import ECMP, LoadBalancingSpec
from orchestration.core.pattern import INDEPENDENT, REPEAT, PatternSpec, pattern_from_json
from orchestration.core.pattern import Scalar as Scalar
from orchestration.core.pattern import of_repeat as of_repeat
from orchestration.core.roce import RoceSpec

# In `TrialSpec.files`, names of pretrained checkpoints and of recorded actions begin with these.
CHECKPOINT, ACTIONS = "checkpoint ", "actions "
# The parameter of learned tuners that names their network.
CHECKPOINT_PARAM = "checkpoint"
# Names of backends in version 0.1. Campaign files, the command line and run folders may still have
# them. A trial's id is still made from them, so that it stays the same.
FORMER_BACKENDS: dict[str, str] = {"fake": "fluid"}
_BACKENDS_IN_IDS = {name: former for former, name in FORMER_BACKENDS.items()}
# The clock of a trial; "" means that of its backend. Only emulated trials can be in real time.
ClockName = Literal["", "real"]
REAL: ClockName = "real"


@dataclass(frozen=True)
class TunerSpec:
    """A tuner: the name under which it is registered, and its parameters."""

    name: str
    params: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class FaultSpec:
    """Links that go down at `down_ns` and come up at `up_ns` (None: stay down).

    `links` has their names, such as "leaf1-spine2". With `share` > 0, the trial's seed chooses that
    share of the links between switches instead. Routes change `convergence_ns` after each event.
    """

    down_ns: int
    up_ns: int | None
    convergence_ns: int
    links: tuple[str, ...] = ()
    share: float = 0.0


# How TCP detects a loss: by time (RACK, RFC 8985), or by three duplicate ACKs (RFC 6582).
LossDetection = Literal["rack", "duplicate-acks"]


@dataclass(frozen=True)
class FabricSpec:
    """What the switches of an emulated fabric are made of.

    `kind` is "linux" for the qdiscs and the forwarding of Linux, or "closloop" for the data path of
    this project (orchestration/datapath). Ports of the latter mark packets either when they arrive
    or when they leave (`marks`).
    """

    kind: Literal["linux", "closloop"] = "linux"
    marks: Literal["arrivals", "departures"] = "arrivals"


LINUX, CLOSLOOP = FabricSpec(), FabricSpec("closloop")


@dataclass(frozen=True)
class HostSpec:
    """The hosts' congestion control, TCP's minimum RTO and loss detection, and their RoCE NICs.

    `congestion_control` is that of flows whose traffic class names none. `roce` is None if no flow
    is RoCE. Flows are RoCE if their congestion control is that of `roce`.
    """

    congestion_control: str = "dctcp"
    min_rto_ns: int = 1_000_000
    roce: RoceSpec | None = None
    loss_detection: LossDetection = "rack"

    @property
    def is_roce(self) -> bool:
        """Whether flows of classes without a congestion control are RoCE flows, not TCP."""
        return self.roce is not None and self.roce.control == self.congestion_control

    def control_of(self, class_control: str) -> str:
        """Return the congestion control of flows, given that of their class, which may be ""."""
        return class_control or self.congestion_control


TCP = HostSpec()


@dataclass(frozen=True)
class TrialSpec:
    """Everything that determines a trial's outcome. The trial's id is a hash of it.

    A change of thresholds takes effect `decision_latency_ns` after the reading that it responds to.
    RoCE flows are sampled every `flow_sample_period_ns`; 0 means never. With the `clock` `REAL`, an
    emulated trial runs on the machine's own kernel. In real time, time dilation is possible: all
    rates are divided by `scale`, and a second of the trial takes `scale` seconds. Times here and in
    the trial's records are those without dilation.

    Flows that start before `warm_up_ns` are sent, but count in no metric. With `allow_starvation`,
    a trial whose flows starve is still valid.

    `backend` is the name of an entry point of `closloop.backends`. The backend "imported" stands
    for results from elsewhere and runs nothing.

    `files` has the SHA-256 of each of the user's files that the trial is made from (a testbed, a
    workload's table, recorded flows), so that a changed file makes another trial. `parent` names
    the trial or file that is replayed, with its SHA-256.
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
        """The number of readings from one decision to the next."""
        return max(1, self.action_period_ns // self.sample_period_ns)

    @property
    def measured_ns(self) -> tuple[int, int]:
        """Begin and end of the measured time: after the warm-up, while flows arrive."""
        return self.warm_up_ns, self.duration_ns

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON-ready data.

        The id of a trial is a hash of this data, and trials that version 0.1 could run keep their
        ids. So fields that are newer than 0.1 are left out if they have their defaults: `driver`
        for sockets, no `parent`, Linux' `fabric`, no `roce`, no `congestion_control` of a pattern,
        no samples of flows, NICs that decide without latency, ECMP, Linux' `loss_detection`, the
        backend's `clock`, a `scale` of 1, an independent `draw`, what a pattern calls `newer`, no
        warm-up, and no `allow_starvation`.
        """
        data = dataclasses.asdict(self)
        _leave_out(data, self, _NEW_IN_TRIALS)
        _leave_out(data["host"], self.host, ("loss_detection", "roce"))
        if self.host.roce is not None and not self.host.roce.decision_latency_ns:
            del data["host"]["roce"]["decision_latency_ns"], data["host"]["roce"]["decisions"]
        for pattern, spec in zip(data["traffic"], self.traffic, strict=True):
            common = ("queue_class", "driver", "congestion_control", "draw")
            # the order of keys in files stays as it was in earlier versions
            pattern |= {name: pattern.pop(name) for name in common if name in pattern}
            newer = (*(name for name in common[1:] if name in pattern), *spec.newer)
            _leave_out(pattern, spec, newer)
            pattern["kind"] = spec.kind
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TrialSpec:
        """Rebuild a spec from the data of `to_json`. Raises KeyError or TypeError on other data."""
        values = dict(data)
        values["backend"] = FORMER_BACKENDS.get(data["backend"], data["backend"])
        values["tuner"] = TunerSpec(**data["tuner"])
        values["traffic"] = tuple(pattern_from_json(item) for item in data["traffic"])
        values["faults"] = tuple(
            FaultSpec(**{**item, "links": tuple(item["links"])}) for item in data["faults"]
        )
        values["host"] = _host(data["host"])
        values["fabric"] = FabricSpec(**data.get("fabric", {}))
        values["load_balancing"] = LoadBalancingSpec(**data.get("load_balancing", {}))
        return cls(**values)

    @property
    def traffic_files(self) -> dict[str, str]:
        """The files that the trials of all repeats and tuners have in common.

        Checkpoints, recorded actions and Python files are left out, because they belong to a tuner,
        and so are recorded flows that belong to one repeat.
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
        """The name of the trial's folder: the cell's levels, the repeat, and a hash of the spec."""
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


# Fields of a trial that version 0.1 did not have.
_NEW_IN_TRIALS = (
    *("parent", "fabric", "flow_sample_period_ns", "load_balancing", "clock", "scale"),
    *("warm_up_ns", "allow_starvation"),
)


def _leave_out(data: dict[str, Any], spec: object, names: Iterable[str]) -> None:
    """Remove from a spec's data the fields among `names` that have their defaults."""
    for name in names:
        if getattr(spec, name) == getattr(type(spec), name):
            del data[name]


def with_independent_draws(trial: TrialSpec) -> TrialSpec:
    """Return the trial as version 0.1 would have had it: flows are drawn independently."""
    traffic = tuple(
        spec.having(draw=INDEPENDENT) if hasattr(spec, "draw") else spec for spec in trial.traffic
    )
    return dataclasses.replace(trial, traffic=traffic)


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
