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

# Prefixes of the names of pretrained checkpoints and recorded actions in `TrialSpec.files`.
CHECKPOINT, ACTIONS = "checkpoint ", "actions "
# The parameter of learned tuners that names their network.
CHECKPOINT_PARAM = "checkpoint"
# Names of backends in 0.1. They are accepted in campaign files and on the command line, and read in
# run folders. Ids are still made from them, so that a trial keeps its id.
FORMER_BACKENDS: dict[str, str] = {"fake": "fluid"}
_BACKENDS_IN_IDS = {name: former for former, name in FORMER_BACKENDS.items()}
# What a trial's time is; "" for that of its backend. Emulated trials alone can be in real time.
ClockName = Literal["", "real"]
REAL: ClockName = "real"


@dataclass(frozen=True)
class TunerSpec:
    """A tuner by its registered name, with its parameters."""

    name: str
    params: dict[str, Scalar] = field(default_factory=dict)


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


# How TCP tells a loss: by time (RACK, RFC 8985), or by three duplicate ACKs (RFC 6582).
LossDetection = Literal["rack", "duplicate-acks"]


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

    `roce` is None unless some flows are RoCE: those whose class has its control, or this is it.
    """

    congestion_control: str = "dctcp"
    min_rto_ns: int = 1_000_000
    roce: RoceSpec | None = None
    loss_detection: LossDetection = "rack"

    @property
    def is_roce(self) -> bool:
        """Whether flows of classes that name no congestion control are RoCE, not TCP."""
        return self.roce is not None and self.roce.control == self.congestion_control

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


def with_independent_draws(trial: TrialSpec) -> TrialSpec:
    """Return the trial as 0.1 would have had it, whose loads had no strata."""
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
