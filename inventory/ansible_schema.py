"""Schema of the variables that closloop reads from an Ansible inventory.

Those named `closloop_*` are defined here. Of Ansible's own variables, closloop reads those that say
how to log in.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from inventory.addressing import DEFAULT_PREFIX
from inventory.rack import (
    MAX_SCALE,
    SONIC_QUEUE,
    Access,
    Guardrails,
    Lacking,
    NicKind,
    Safety,
    switch_systems,
)
from inventory.schema import AnyFile, DeviceName
from inventory.strictyaml import Duration, Rate, StrictModel, matching, must, name_in
from orchestration.core.problems import WrongValue

PREFIX = "closloop_"
# Groups by tier. Higher tiers have their number in the name.
GROUPS = ("hosts", "leaves", "spines", "cores", "tier4", "tier5", "tier6", "tier7", "tier8")
COLLECTOR = "collector"
# Machines that run trials, not devices of the rack (`--cluster`).
CLUSTER = "cluster"

PASSWORDS = (
    "ansible_password",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_become_pass",
    "ansible_become_password",
    "ansible_sudo_pass",
    "ansible_sudo_password",
)
# Variables with which Ansible would log in differently from closloop, and what to write instead.
REFUSED = {
    "ansible_ssh_common_args": "write jump hosts and the like in ~/.ssh/config, which both read",
    "ansible_ssh_extra_args": "write jump hosts and the like in ~/.ssh/config, which both read",
    "ansible_ssh_args": "write jump hosts and the like in ~/.ssh/config, which both read",
    "ansible_host_key_checking": "host keys are always verified: add the key to known_hosts",
    "ansible_ssh_host_key_checking": "host keys are always verified: add the key to known_hosts",
    "ansible_ssh_host": "write ansible_host",
    "ansible_ssh_port": "write ansible_port",
    "ansible_ssh_user": "write ansible_user",
    "ansible_private_key_file": "write ansible_ssh_private_key_file",
    "ansible_sudo": "write ansible_become",
}
_LINK_LOCAL = ip_network("169.254.0.0/16")
_WORDS = dict.fromkeys(("yes", "true", "on", "1"), True)
_WORDS |= dict.fromkeys(("no", "false", "off", "0"), False)


def _truth(value: object) -> object:
    """Convert Ansible's words for true and false, which are text in YAML 1.2."""
    return _WORDS.get(str(value).lower(), value)


def _number(value: object) -> object:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else value


def _plain(value: object) -> object:
    if isinstance(value, str) and "{{" in value:
        raise WrongValue("templates are not evaluated here", "write the value itself")
    return value


_ADDRESS, _DPU = (
    matching(
        rf"{empty}[A-Za-z0-9:][A-Za-z0-9.:_%-]{{0,252}}",
        "{!r} is not an address",
        "write an IP address or a host name",
    )
    for empty in ("", "|")
)
_USER = matching(
    r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}", "{!r} is not a user name", "write the name that logs in"
)
_KEY_FILE = matching(
    r"|(/|~/)(.|\n)*",
    "{!r} is a relative path",
    "write a path that begins with / or ~/",
)
_PYTHON = matching(
    r"python3|/[A-Za-z0-9_./+-]{1,252}",
    "{!r} is not a program",
    "write its path, like /usr/bin/python3.9",
)
_INTERFACE = matching(
    r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}",
    "{!r} is not an interface",
    "write the operating system's name of the port, like eth0",
)
_RDMA_DEVICE = matching(
    r"|[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}",
    "{!r} is not an RDMA device",
    "write its name in `rdma link`, like mlx5_0",
)
_POSITIVE = must(lambda value: value > 0, "it is zero", "use more")
_MICROSECONDS = must(
    lambda value: value % 1000 == 0 and value < 2**32 * 1000,
    "SONiC does not accept such a time",
    "write whole microseconds, less than 71 minutes",
)
_SHARE = must(lambda value: 0.0 <= value <= 1.0, "{} is not a share", "use 0 to 1")


def _fabric_prefix(value: str) -> str:
    try:
        network = ip_network(value)
    except ValueError as error:
        raise ValueError(f"{error}: write an IPv4 network, like {DEFAULT_PREFIX}") from None
    if network.version != 4 or network.is_loopback or network.is_multicast or not network.prefixlen:
        raise ValueError(
            f"{value} cannot be used in a fabric: write an IPv4 network, like {DEFAULT_PREFIX}"
        )
    if network.overlaps(_LINK_LOCAL):
        what = f"SONiC does not pass addresses of {_LINK_LOCAL} on to the ASIC"
        raise ValueError(f"{what}: write a network like {DEFAULT_PREFIX}")
    return value


Plain = BeforeValidator(_plain)
Truth = Annotated[bool, BeforeValidator(_truth)]
Interface = Annotated[str, _INTERFACE]
Positive = Annotated[Duration, _POSITIVE]
Share = Annotated[float, _SHARE]


class LinkVariable(StrictModel):
    """One item of `closloop_links`: a port, and the port that it is wired to."""

    interface: Interface = Field(description="this device's name of the port, like eth0")
    peer: DeviceName = Field(description="the device at the other end")
    peer_interface: Interface = Field(description="the peer's name of the port there")
    rate: Annotated[Rate, _POSITIVE] | None = Field(default=None, description="like 25Gbps")
    delay: Positive | None = Field(default=None, description="one-way delay, like 1us")
    rdma_device: Annotated[str, _RDMA_DEVICE] = Field(
        default="", description="the RDMA device of this port, like mlx5_0"
    )


class DeviceVariables(StrictModel):
    """The variables that are read for each device: how to log in, and the device's settings."""

    ansible_host: Annotated[str, _ADDRESS, Plain] | None = None
    ansible_port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(_number), Plain] = 22
    ansible_user: Annotated[str, _USER, Plain] = Field(
        description="who logs in, like root or admin"
    )
    ansible_ssh_private_key_file: Annotated[str, _KEY_FILE, Plain] = ""
    ansible_become: Annotated[Truth, Plain] = False
    ansible_python_interpreter: Annotated[str, _PYTHON, Plain] = Access.python
    ansible_become_method: Annotated[Literal["sudo"], Plain] = "sudo"
    ansible_become_user: Annotated[Literal["root"], Plain] = "root"
    ansible_connection: Annotated[Literal["ssh", "smart", "paramiko", "paramiko_ssh"], Plain] = (
        "ssh"
    )
    closloop_platform: Annotated[str, name_in(switch_systems)] = Access.platform
    closloop_nic: NicKind = "plain"
    closloop_rdma_device: Annotated[str, _RDMA_DEVICE] = ""
    closloop_shape: Truth = False
    closloop_pcc: Annotated[str, _RDMA_DEVICE] = Field(
        default="", description="the RDMA device that takes programs of DOCA PCC, like mlx5_0"
    )
    closloop_dpu: Annotated[str, _DPU, Plain] = Field(
        default="", description="the address of the NIC's own cores, if programs are run there"
    )
    closloop_queues: Annotated[
        tuple[Annotated[int, Field(ge=0, le=63)], ...], Field(min_length=1)
    ] = (SONIC_QUEUE,)
    closloop_telemetry: Annotated[Duration, _MICROSECONDS] = Field(
        default=0, description="how often queue depths are streamed, like 10ms"
    )
    closloop_lacks: tuple[Lacking, ...] = Field(
        default=(), description="what the device's kernel does not have, like [red, fq]"
    )
    closloop_links: tuple[LinkVariable, ...] = ()


# Fields of `rack.Access` by the variables that set them.
ACCESS = {
    "ansible_user": "user",
    "ansible_port": "port",
    "ansible_ssh_private_key_file": "key_file",
    "ansible_become": "become",
    "ansible_python_interpreter": "python",
    "closloop_platform": "platform",
    "closloop_nic": "nic",
    "closloop_shape": "shape",
    "closloop_pcc": "pcc_device",
    "closloop_dpu": "dpu",
    "closloop_queues": "queues",
    "closloop_telemetry": "telemetry_ns",
    "closloop_lacks": "lacks",
}


class GuardrailsVariable(StrictModel):
    """`corridor` of `closloop_safety`; see `rack.Guardrails`."""

    window: Positive = 10**9
    max_drop_share: Share = Guardrails.max_drop_share
    max_pause_share: Share = Guardrails.max_pause_share
    min_throughput_share: Share = Guardrails.min_throughput_share


class SafetyVariable(StrictModel):
    """`closloop_safety`; see `rack.Safety`."""

    deadman: Positive = 30 * 10**9
    lease: Positive = 60 * 10**9
    min_change_interval: Duration = 0
    corridor: GuardrailsVariable = GuardrailsVariable()

    def safety(self) -> Safety:
        """Return the same limits in the units of `rack.Safety`."""
        guardrails = self.corridor.model_dump()
        return Safety(
            deadman_s=self.deadman / 1e9,
            lease_s=self.lease / 1e9,
            min_change_interval_ns=self.min_change_interval,
            guardrails=Guardrails(window_s=guardrails.pop("window") / 1e9, **guardrails),
        )


class RackVariables(StrictModel):
    """The variables that apply to the whole rack, in `vars` of the group `all`."""

    closloop_name: str | None = None
    closloop_testbed: str | None = Field(default=None, min_length=1)
    closloop_known_hosts: Annotated[str, Plain] = ""
    closloop_fabric_prefix: Annotated[str, AfterValidator(_fabric_prefix), Plain] = DEFAULT_PREFIX
    closloop_safety: SafetyVariable = SafetyVariable()
    closloop_scale: Annotated[int, Field(ge=1, le=MAX_SCALE), BeforeValidator(_number), Plain] = 1


class FabricVariables(AnyFile):
    """A testbed file's fields besides devices and links, as variables `closloop_mtu` and so on."""

    model_config = ConfigDict(alias_generator=lambda name: f"{PREFIX}{name}")


def names_of(*models: type[StrictModel]) -> tuple[str, ...]:
    """Return the variables that models read."""
    fields = {
        field.alias or name: None for model in models for name, field in model.model_fields.items()
    }
    return tuple(fields)


DEVICE_NAMES = names_of(DeviceVariables)
RACK_NAMES = names_of(RackVariables, FabricVariables)
FABRIC_NAMES = tuple(name for name in names_of(FabricVariables) if name != f"{PREFIX}name")
