"""The campaign file's `host` and `fabric`: congestion control, RoCE NICs, the kind of switches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, create_model, model_validator

from inventory.strictyaml import CongestionControlName, Duration, StrictModel, one_of
from orchestration.campaign.controls import Program, declaration_of, move_program, read_values
from orchestration.campaign.fields import Positive, PositiveDuration, PositiveSize
from orchestration.core.congestion import (
    PROGRAM,
    congestion_control,
    default_ack_every,
    roce_controls,
)
from orchestration.core.roce import (
    BDP_WINDOW,
    DCQCN,
    Decisions,
    Recovery,
    RoceSpec,
)
from orchestration.core.trial import LossDetection
from orchestration.core.units import parse_size_bytes
from orchestration.datapath.policy_dcqcn import DCQCN_SETS, dcqcn_set
from orchestration.policies.store import program_path


class Dcqcn(StrictModel):
    """DCQCN's parameters: a named set, and single ones that replace its values, by mlx5's names."""

    model_config = ConfigDict(extra="allow")

    set: Annotated[str, one_of("no set of parameters", DCQCN_SETS)] = Field(
        default="mlx5",
        description="mlx5: the NICs' defaults; paper: SIGCOMM 2015; hpcc: what run.py of HPCC's "
        "simulator sets for NICs of this rate; hpcc-0.2: what closloop 0.2 called hpcc",
    )

    @property
    def own(self) -> dict[str, Any]:
        """The parameters that were given singly, beside the set."""
        return dict(self.model_extra or {})

    def parameters(self, nic_bps: int) -> tuple[tuple[str, int], ...]:
        """Return the parameters that differ from mlx5's defaults, sorted by name.

        `nic_bps` is the NICs' rate in bit/s, on which some sets depend.
        """
        values = {**dcqcn_set(self.set, nic_bps), **self.own}
        default = DCQCN_SETS["mlx5"]
        return tuple(sorted((k, v) for k, v in values.items() if default.get(k) != v))


def _set(value: object) -> object:
    return {"set": value} if isinstance(value, str) else value


def _window(value: object) -> int:
    return BDP_WINDOW if value == "bdp" else parse_size_bytes(value)


class _Roce(StrictModel):
    """The hosts' RoCE NICs; `Roce` adds a field for each installed congestion control."""

    payload: PositiveSize = Field(
        default=RoceSpec.payload_bytes,
        description="bytes of data in a full packet, a multiple of 4; with 44 bytes of headers it "
        "must fit the testbed's MTU",
    )
    ack_every: Positive = Field(
        default=RoceSpec.ack_every,
        description="packets to an acknowledgement (1 under swift and hpcc); the last packet of a "
        "flow always has one",
    )
    window: Annotated[int, BeforeValidator(_window)] = Field(
        default=RoceSpec.window_bytes,
        description="bytes that may be unacknowledged, or bdp: what the longest path takes in a "
        "round trip; 0 is no limit",
    )
    timeout: PositiveDuration = Field(
        default=RoceSpec.timeout_ns,
        description="after so long without progress, what is not acknowledged is sent again",
    )
    recovery: Recovery = Field(
        default=RoceSpec.recovery,
        description="what is sent again: all from the first missing packet on, or only what is "
        "missing",
    )
    rtt_probe_interval: Duration = Field(
        default=RoceSpec.rtt_probe_interval_ns,
        description="how often a flow that sends measures its round trip; 0 is never",
    )
    decision_latency: Duration = Field(
        default=RoceSpec.decision_latency_ns,
        description="how long after an event the congestion control's answer takes effect",
    )
    decisions: Decisions = Field(
        default=RoceSpec.decisions,
        description="what happens to events meanwhile: pipelined handles all, blocking ignores the "
        "flow's, serial the whole NIC's",
    )
    dcqcn: Annotated[Dcqcn, BeforeValidator(_set)] = Field(
        default=Dcqcn(), description="DCQCN's parameters: the name of a set, or a mapping"
    )
    program: Program | None = Field(
        default=None, description="written as `congestion_control: {program: …, parameters: […]}`"
    )

    @property
    def given(self) -> dict[str, dict[str, Any]]:
        """The parameters of controls other than DCQCN, by the controls' names."""
        return {name: getattr(self, _field(name)) for name in _own_parameters()}

    def spec(self, control: str, folder: str, nic_bps: int) -> RoceSpec:
        """Return the NICs' specification for a trial under the congestion control `control`.

        `nic_bps` is the NICs' rate in bit/s. A program's path starts in `folder`.
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
            spec = _loaded(
                replace(spec, values=numbers), program_path(folder, self.program.program)
            )
        elif control in _own_parameters():
            spec = replace(spec, values=read_values(control, self.given[control]))
            own = congestion_control(control)
            spec = spec if own.compiled_in else _loaded(spec, own.source)
        if control != PROGRAM and "ack_every" not in self.model_fields_set:
            spec = replace(spec, ack_every=default_ack_every(control, spec.ack_every))
        return spec


def _loaded(spec: RoceSpec, program: Path) -> RoceSpec:
    """Return the spec with a program that is loaded into the NICs, and the telemetry it needs."""
    return replace(spec, program=str(program), telemetry=declaration_of(program).telemetry)


def _own_parameters() -> list[str]:
    """Return the congestion controls that have a field of parameters in `roce`, by their names."""
    return [name for name in roce_controls() if name not in (DCQCN, PROGRAM)]


def _field(control: str) -> str:
    return control.replace("-", "_")


if TYPE_CHECKING:
    Roce = _Roce
else:
    Roce = create_model(
        "Roce",
        __base__=_Roce,
        **{
            _field(name): (
                dict[str, Any],
                Field(default_factory=dict, alias=name, description=f"parameters of {name}"),
            )
            for name in _own_parameters()
        },
    )


class Host(StrictModel):
    """The hosts' congestion control, and their TCP or RoCE."""

    congestion_control: CongestionControlName = Field(
        default="dctcp",
        description="of every host, except in traffic classes and patterns that name their own; or "
        "a policy of one's own, `{program: my_policy.c, parameters: […]}`",
    )
    min_rto: PositiveDuration = Field(
        default=1_000_000, description="TCP's minimum retransmission timeout"
    )
    loss_detection: LossDetection = Field(
        default="rack",
        description="how Linux TCP tells that a packet is lost: by time, which bears reordering "
        "(RACK, RFC 8985), or by three duplicate acknowledgements without SACK (RFC 6582)",
    )
    roce: Roce = Field(
        default=Roce(), description="the RoCE NICs, under dcqcn and the controls after it"
    )

    _moved = model_validator(mode="before")(staticmethod(move_program))


class Fabric(StrictModel):
    """What forwards and marks packets in an emulated fabric's switches."""

    kind: Literal["linux", "closloop"] = Field(
        default="closloop",
        description="Linux' own qdiscs and forwarding, or this project's data path",
    )
    marks: Literal["arrivals", "departures"] = Field(
        default="arrivals",
        description="which packets a port marks: those that arrive, as Linux RED does, or those "
        "that leave, by what they leave behind (closloop only)",
    )


def kind_as_mapping(value: object) -> object:
    """Return `{"kind": value}` for a text, and anything else unchanged."""
    return {"kind": value} if isinstance(value, str) else value
