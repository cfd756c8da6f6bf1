"""What a rack can do at best; `HardwareBackend.check` finds out what the rack at hand cannot do."""

from __future__ import annotations

from orchestration.core.capabilities import EVERYWHERE, Capabilities, Mode, Pace
from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.signals import BALANCING_KEYS

_MODE = Mode(
    signals=(*EVERYWHERE, *BALANCING_KEYS),
    recorded=("host.retransmits", "host.timeouts", "host.out_of_order", "host.tx_bytes"),
    knobs=(ECN.name, FLOWLET_TIMEOUT.name),
    real_time=True,
    deterministic=False,
    pace=Pace(15.0, 80_000_000, 0.67),
    loss_detections=("rack", "duplicate-acks"),
    load_balancing=("random", "round-robin"),
    programs_send=True,
    faults=False,
    is_linux=True,
    # hosts may negotiate ECN, their `bbr` may be BBRv3, and switches may drop packets that are not
    # ECN-capable above a threshold
    known_senders=False,
    # a switch may poll its counter of CE packets this rarely: WRED_ECN_QUEUE of SONiC's flex
    # counters, within the bound of `closloop provision` and `closloop inventory check`
    counters_late_ns=1_500_000_000,
    why={
        "load_balancing": "where a rack's Linux switches choose, they see neither queue lengths "
        "nor loads of other ports",
        "faults": "it does not cut links",
        "clock": "a rack is always in real time",
    },
)
CAPABILITIES = Capabilities(
    "hardware",
    (_MODE,),
    "orchestration.backends.hardware.backend:HardwareBackend",
    "hardware",
    on_rack=True,
)
