"""What ns-3 can do: its own TCP, or closloop's RoCE NICs on closloop's ports."""

from __future__ import annotations

from dataclasses import replace

from orchestration.core.capabilities import EVERYWHERE, Capabilities, Mode, Pace
from orchestration.core.knobs import DCQCN, ECN, FLOWLET_TIMEOUT
from orchestration.core.load_balancing import ROUTES
from orchestration.core.signals import (
    BALANCING_KEYS,
    HOST_KEYS,
    NIC_KEYS,
    PAIRS,
    SHARED_BUFFER_KEYS,
)

_TCP = Mode(
    signals=(
        *EVERYWHERE,
        *BALANCING_KEYS,
        *(key for key in HOST_KEYS if key not in NIC_KEYS),
        PAIRS,
    ),
    knobs=(ECN.name, FLOWLET_TIMEOUT.name),
    pace=Pace(0.1, 250_000, 0.53, 4_400_000),
    # TcpSocketBase's UseEcn is Off, and TcpDctcp sets it On
    tcp_controls=("dctcp", "reno", "cubic"),
    load_balancing=ROUTES,
    policies=(".c",),
    why={
        "loss_detections": "its TCP has one of its own",
        "marks": "its RED is Linux', which marks arrivals",
        "programs_send": "programs send from a rack's hosts only",
    },
)
_ROCE = replace(
    _TCP,
    signals=(*_TCP.signals, *NIC_KEYS, *SHARED_BUFFER_KEYS),
    knobs=(*_TCP.knobs, DCQCN.name),
    fabric="closloop",
    tcp_controls=(),
    has_roce=True,
    marks=("arrivals", "departures"),
    shared_buffers=True,
    why={
        **_TCP.why,
        "controls": "it has no TCP beside RoCE",
        "policies": "ns-3 runs a policy's C source",
    },
)
CAPABILITIES = Capabilities(
    "simulated",
    (_TCP, _ROCE),
    "orchestration.backends.simulated.backend:SimulatedBackend",
    "sim",
    former_hop="a packet sent by a NIC or a switch port",
)
