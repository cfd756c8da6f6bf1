"""The campaign file's `host` and `fabric`: congestion control, RoCE NICs, and what switches are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from collectors.bpf.policy import policy_object, read_policy
from inventory.strictyaml import Duration, StrictModel, one_of
from orchestration.campaign.controls import Program, move_program, read_values
from orchestration.campaign.fields import Positive, PositiveDuration, PositiveSize
from orchestration.core.congestion import ACK_EVERY, CONTROLS, PROGRAM
from orchestration.core.files import sha256_of
from orchestration.core.roce import (
    BDP_WINDOW,
    DCQCN_SETS,
    Decisions,
    Recovery,
    RoceSpec,
    dcqcn_set,
)
from orchestration.core.trial import CongestionControl, LossDetection
from orchestration.core.units import parse_size_bytes
from orchestration.policies.store import program_path


class Dcqcn(StrictModel):
    """DCQCN's parameters: a set by name, and any of them beside it, under mlx5's names."""

    model_config = ConfigDict(extra="allow")

    set: Annotated[str, one_of("no set of parameters", DCQCN_SETS)] = "mlx5"

    @property
    def own(self) -> dict[str, Any]:
        """The parameters given beside the set."""
        return dict(self.model_extra or {})

    def parameters(self, nic_bps: int) -> tuple[tuple[str, int], ...]:
        """Return those that differ from mlx5's defaults, in the order of their names.

        `nic_bps` is the NICs' rate in bit/s, by which some sets go.
        """
        values = {**dcqcn_set(self.set, nic_bps), **self.own}
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
    decision_latency: Duration = RoceSpec.decision_latency_ns
    decisions: Decisions = RoceSpec.decisions
    dcqcn: Annotated[Dcqcn, BeforeValidator(_set)] = Dcqcn()
    fixed: dict[str, Any] = Field(default_factory=dict)
    swift: dict[str, Any] = Field(default_factory=dict)
    timely: dict[str, Any] = Field(default_factory=dict)
    hpcc: dict[str, Any] = Field(default_factory=dict)
    rlcc: dict[str, Any] = Field(default_factory=dict)
    rlcc_mlp: dict[str, Any] = Field(default_factory=dict, alias="rlcc-mlp")
    rlcc_lstm: dict[str, Any] = Field(default_factory=dict, alias="rlcc-lstm")
    program: Program | None = None

    @property
    def given(self) -> dict[str, dict[str, Any]]:
        """The parameters of controls other than DCQCN, by the controls' names."""
        return {name: getattr(self, name.replace("-", "_")) for name in CONTROLS}

    def spec(self, control: str, folder: str, nic_bps: int) -> RoceSpec:
        """Return it as a trial under this control has it, with NICs of a rate in bit/s.

        Paths start in `folder`.
        """
        spec = RoceSpec(
            self.payload,
            self.ack_every,
            self.window,
            self.timeout,
            self.recovery,
            self.rtt_probe_interval,
            self.dcqcn.parameters(nic_bps),
            control,
            decision_latency_ns=self.decision_latency,
            decisions=self.decisions,
        )
        if control == PROGRAM and self.program is not None:
            numbers = tuple((f"{n:02}", value) for n, value in enumerate(self.program.parameters))
            program = str(program_path(folder, self.program.program))
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
    loss_detection: LossDetection = "rack"
    roce: Roce = Roce()

    _moved = model_validator(mode="before")(staticmethod(move_program))

    def program_digests(self, folder: str) -> dict[str, str]:
        """Return the SHA-256 of the hosts' own program by its path, which starts in `folder`."""
        if self.congestion_control != PROGRAM or self.roce.program is None:
            return {}
        path = str(program_path(folder, self.roce.program.program))
        return {path: sha256_of(path)}


class Fabric(StrictModel):
    """What the switches of an emulated fabric are."""

    kind: Literal["linux", "closloop"] = "closloop"
    marks: Literal["arrivals", "departures"] = "arrivals"


def kind_of(value: object) -> object:
    """Return a fabric's name as a mapping that has it, and anything else as it is."""
    return {"kind": value} if isinstance(value, str) else value
