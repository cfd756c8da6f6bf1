"""What is known of results of other programs: next to nothing."""

from __future__ import annotations

from orchestration.core.capabilities import Capabilities, Mode

CAPABILITIES = Capabilities(
    "imported",
    (Mode(signals=(), knobs=(), deterministic=False, tcp_controls=(), known_senders=False),),
)
