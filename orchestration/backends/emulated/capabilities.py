"""What the emulated fabric can do: closloop's ports or Linux' own, in virtual time or in real.

Without a kernel, closloop's packet engine can do a part of the first (`_IN_PROCESS`). What a trial
needs beyond that is judged in `engines`.
"""

from __future__ import annotations

from dataclasses import replace

from orchestration.core.capabilities import EVERYWHERE, Capabilities, Mode, Pace
from orchestration.core.congestion import PROGRAM
from orchestration.core.knobs import DCQCN, ECN, FLOWLET_TIMEOUT
from orchestration.core.load_balancing import ROUTES
from orchestration.core.signals import (
    BALANCING_KEYS,
    FLOW_TABLE,
    HOST_KEYS,
    NIC_KEYS,
    PAIRS,
    SHARED_BUFFER_KEYS,
)
from orchestration.core.trial import REAL

_DATA_PATH = "only the guest's kernel, in virtual time, has closloop's own data path"
_FIELDS = ("controls", "load_balancing", "marks", "shared_buffers", "fabric")

# The paces were fitted to one repeat of `closloop papers run`: 449 trials, two at a time. Linux'
# fabric has the same values per device and per flow; its value per packet was measured on the
# fabric of the quickstart. Linux acknowledges every second segment, and more when marking begins or
# ends or when segments arrive one by one.
_OWN = Mode(
    signals=(*EVERYWHERE, *HOST_KEYS, *BALANCING_KEYS, *SHARED_BUFFER_KEYS, PAIRS),
    knobs=(ECN.name, DCQCN.name, FLOWLET_TIMEOUT.name),
    fabric="closloop",
    pace=Pace(0.7, 2_700_000, 0.67, 10_000_000, 0.004, 230e-6),
    # hosts keep Linux' default tcp_ecn of 2: connections between them do not ask for ECN
    # (`orchestration.backends.common.linux.host_sysctls`)
    has_roce=True,
    loss_detections=("rack", "duplicate-acks"),
    marks=("arrivals", "departures"),
    load_balancing=ROUTES,
    shared_buffers=True,
    policies=(".c", ".o"),
    is_linux=True,
    why={"programs_send": "programs send from a rack's hosts only"},
)
_LINUX = replace(
    _OWN,
    signals=(*EVERYWHERE, *(key for key in HOST_KEYS if key not in NIC_KEYS)),
    knobs=(ECN.name,),
    fabric="linux",
    pace=Pace(0.7, 750_000, 0.67, 0.0, 0.004, 230e-6),
    has_roce=False,
    marks=("arrivals",),
    load_balancing=(),
    shared_buffers=False,
    why={
        **_OWN.why,
        "load_balancing": "Linux forwards by the flow",
        "marks": "Linux RED marks arrivals",
    },
)
_REAL_TIME = replace(
    _LINUX,
    signals=(
        *EVERYWHERE,
        *("host.retransmits", "host.timeouts", "host.out_of_order", "host.tx_bytes"),
    ),
    clock=REAL,
    real_time=True,
    deterministic=False,
    negotiates_ecn=True,  # on a kernel without DCTCP
    why={**_OWN.why, **dict.fromkeys(_FIELDS, _DATA_PATH)},
)
# What closloop's packet engine has by now. Its pace is that of the prototype of it.
_IN_PROCESS = replace(
    _OWN,
    signals=(
        *(key for key in EVERYWHERE if key not in FLOW_TABLE),
        *HOST_KEYS,
        *SHARED_BUFFER_KEYS,
    ),
    knobs=(ECN.name, DCQCN.name),
    pace=Pace(0.3, 2_700_000, 0.67, 10_000_000),
    tcp_controls=(),
    nic_controls=("dcqcn", "fixed", PROGRAM),
    loss_detections=(),
    load_balancing=(),
    policies=(".c",),
    faults=False,
    is_linux=False,
)
CAPABILITIES = Capabilities(
    "emulated",
    (_OWN, _LINUX, _REAL_TIME),
    "orchestration.backends.emulated.backend:EmulatedBackend",
    in_process=_IN_PROCESS,
    in_process_implementation="orchestration.backends.emulated.process_backend:ProcessBackend",
    former_hop="a packet sent by a switch port, as an earlier version counted",
)
