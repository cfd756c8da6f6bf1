"""Capabilities of results that were imported from other programs: nothing can be run, so none."""

from __future__ import annotations

from orchestration.core.capabilities import Capabilities, Mode

CAPABILITIES = Capabilities(
    "imported",
    (Mode(signals=(), knobs=(), deterministic=False, tcp_controls=(), known_senders=False),),
)
