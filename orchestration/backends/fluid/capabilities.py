"""What the fluid model can do: DCTCP's windows as rates, one queue per port, no packets."""

from __future__ import annotations

from orchestration.core.capabilities import EVERYWHERE, Capabilities, Mode, Pace
from orchestration.core.knobs import ECN

_MODE = Mode(
    signals=EVERYWHERE,
    recorded=("host.retransmits", "host.timeouts", "host.out_of_order", "host.tx_bytes"),
    knobs=(ECN.name,),
    pace=Pace(0.05, 8_000_000, 0.0),
    tcp_controls=("dctcp",),
    classes=False,
    has_packets=False,
    why={
        "loss_detections": "its TCP has one of its own",
        "classes": "it has one queue a port",
        "programs_send": "programs send from a rack's hosts only",
    },
)
CAPABILITIES = Capabilities("fluid", (_MODE,), "orchestration.backends.fluid.backend:FluidBackend")
