"""DCTCP as a BPF program where a kernel has none: its name in a trial, and what the record says.

orchestration/agent/bpf/congestion.py registers it, for as long as a process lives
(docs/hardware.md).
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from orchestration.core.trial import HostSpec, TrialSpec

DCTCP = "dctcp"
# With five more digits it has the kernel's 15 characters: two trials on a kernel do not meet.
_NAME, _DIGITS = "bpf_dctcp_", 5


def new_name() -> str:
    """Return a name for a trial's program, which all of the kernel sees."""
    return _NAME + secrets.token_hex(_DIGITS)[:_DIGITS]


def by_name(trial: TrialSpec, name: str) -> TrialSpec:
    """Return the trial with flows that ask for the program, by its name, in place of DCTCP."""

    def own(control: str) -> Any:
        return name if control == DCTCP else control

    host: HostSpec = replace(trial.host, congestion_control=own(trial.host.congestion_control))
    traffic = tuple(
        replace(spec, congestion_control=own(spec.congestion_control)) for spec in trial.traffic
    )
    return replace(trial, host=host, traffic=traffic)


def facts(name: str, totals: dict[str, Any], **where: Any) -> dict[str, Any]:
    """Return facts for a trial's record: who is DCTCP, and what connections did."""
    said = {"by": "a BPF program", "name": name, **where, "totals": totals}
    return {"congestion_control": {DCTCP: said}}


def findings(astray: int) -> list[dict[str, str]]:
    """Return findings for the stamp on `astray` cuts of windows that the kernel made without it."""
    if not astray:
        return []
    text = (
        f"hosts' kernels did not ask DCTCP's program {astray} times when windows became "
        "smaller, and it put that right with the next acknowledgement"
    )
    return [{"code": "dctcp-program", "severity": "warning", "text": text}]
