"""A policy as the pacing of Linux hosts' TCP: compiled here, loaded by the agent on the host."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from collectors.bpf.compile import cache_folder, compiled
from collectors.bpf.policy import HEADERS, MAX_PARAMETERS
from orchestration.agent.bpf.elf import read_program
from orchestration.core.errors import NotReadyError
from orchestration.core.files import write_whole

SOURCE = Path(__file__).with_name("pacing.bpf.c")
_MAPS = ("flows",)
# `config` of struct pacing in pacing.bpf.c.
_CONFIG = struct.Struct(f"=QII{MAX_PARAMETERS}III")
# Without the first flag, GCC turns a loop into a call of memmove; a BPF program can call helpers
# only.
_FLAGS = ("-fno-tree-loop-distribute-patterns", "-Wno-unused-parameter")


def pacing_object(policy: Path) -> Path:
    """Return the object file of a policy's C as pacing. Raises NotReadyError without a compiler."""
    text = policy.read_bytes()
    copy = cache_folder() / f"policy-{hashlib.sha256(text).hexdigest()[:12]}.c"
    if not copy.exists():
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_whole(copy, text)
        except OSError as error:
            raise NotReadyError(
                f"the cache folder cannot be written: {error}", "set XDG_CACHE_HOME to one that can"
            ) from error
    flags = (*_FLAGS, f"-I{HEADERS}", f"-DCL_SOURCE=<{copy}>")
    return compiled(SOURCE, flags, copy, *sorted(HEADERS.glob("*.h")))


def pacing_version(
    policy: Path,
    name: str,
    model: str,
    line_bps: int,
    prefix: str,
    interfaces: Sequence[str],
    parameters: Sequence[int],
) -> dict[str, Any]:
    """Return a version of the policy, as a host's agent takes it.

    The agent (orchestration/agent/policies/pacing.py) paces connections to addresses in `prefix`
    that leave through `interfaces`. `line_bps` is the line rate by which the policy computes.
    `parameters` are the policy's; those that are left out are 0.
    """
    program = read_program(pacing_object(policy).read_bytes(), "sockops", _MAPS)
    network = ip_network(prefix)
    words = (_in_network_order(network.network_address), _in_network_order(network.netmask))
    values = [*parameters, *[0] * (MAX_PARAMETERS - len(parameters))]
    return {
        "kind": "pacing",
        "name": name,
        "model": model,
        **program.to_json(),
        "interfaces": list(interfaces),
        "config": base64.b64encode(_CONFIG.pack(line_bps, *words, *values, 0, 0)).decode(),
    }


def _in_network_order(address: Any) -> int:
    """Return an IPv4 address as a 32-bit word in network byte order."""
    return int(struct.unpack("=I", address.packed)[0])
