"""The parameters of the congestion controls of the HPCC ns-3 simulator, as its run.py sets them.

Facts from alibaba-edu/High-Precision-Congestion-Control at 9f4be2a: `simulation/run.py` has a set
of parameters by name, rates in proportion to the NICs'; `rdma-hw.cc` says which of them a control
uses; `third.cc` works out the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inventory.routing import PathTable
from orchestration.core.errors import InputError
from orchestration.core.topology import Testbed
from orchestration.core.units import UnitError, parse_rate_bps

HEADER_BYTES = 48
# LINK_DOWN counts from this time, even if the flows begin at another one.
BASE_NS = 2_000_000_000
# kmin and kmax in bytes and pmax, by rate.
Thresholds = dict[int, tuple[int, int, float]]
CONGESTION_CONTROL = {1: "dcqcn", 3: "hpcc", 7: "timely", 8: "dctcp", 10: "hpcc-pint"}
# The other controls do not look at marks.
DCTCP = 8
MARKED = (1, DCTCP)

# The lines of a config file about a control, with run.py's values where it has only one.
_FIXED = {
    "CLAMP_TARGET_RATE": "0",
    "FAST_RECOVERY_TIMES": "1",
    "MIN_RATE": "1000Mb/s",
    "DCTCP_RATE_AI": "1000Mb/s",
    "L2_CHUNK_SIZE": "4000",
    "L2_ACK_INTERVAL": "1",
    "L2_BACK_TO_ZERO": "0",
    "GLOBAL_T": "1",
    "U_TARGET": "0.95",
    "MI_THRESH": "0",
    "MULTI_RATE": "0",
    "SAMPLE_FEEDBACK": "0",
    "PINT_LOG_BASE": "1.01",
    "PINT_PROB": "1.0",
    "RATE_BOUND": "1",
}
_DCQCN = {"ALPHA_RESUME_INTERVAL": "1", "RATE_DECREASE_INTERVAL": "4", "RP_TIMER": "300"}
_PAPER = {"ALPHA_RESUME_INTERVAL": "50", "RATE_DECREASE_INTERVAL": "50", "RP_TIMER": "55"}
_GAIN, _DCTCP_GAIN = "0.00390625", "0.0625"


@dataclass(frozen=True)
class _Set:
    """One set of run.py; `ai` and `hai` in Mb/s at 25 Gbit/s, `paper`: DCQCN's paper's timers."""

    mode: int
    ai: int
    hai: int
    window: bool = False
    ack_first: bool = False
    paper: bool = False


# By our name of run.py's --cc: hpcc is its hp, hpcc-pint its hpccPint, - stands for its _.
_SETS = {
    "dcqcn": _Set(1, 5, 50, ack_first=True),
    "dcqcn-paper": _Set(1, 5, 50, ack_first=True, paper=True),
    "dcqcn-vwin": _Set(1, 5, 50, window=True),
    "dcqcn-paper-vwin": _Set(1, 5, 50, window=True, paper=True),
    "hpcc": _Set(3, 10, 10, window=True),
    "timely": _Set(7, 25, 125, ack_first=True),
    "timely-vwin": _Set(7, 25, 125, window=True, ack_first=True),
    "dctcp": _Set(8, 10, 10, window=True),
    "hpcc-pint": _Set(10, 10, 10, window=True),
}
_SHARED = ("MIN_RATE", "ACK_HIGH_PRIO", "HAS_WIN", "VAR_WIN", "GLOBAL_T", "L2_ACK_INTERVAL")
_INT = ("RATE_AI", "U_TARGET", "MI_THRESH", "FAST_REACT", "SAMPLE_FEEDBACK")
_USED = {
    1: (*_DCQCN, "CLAMP_TARGET_RATE", "EWMA_GAIN", "FAST_RECOVERY_TIMES", "RATE_AI", "RATE_HAI"),
    3: (*_INT, "INT_MULTI", "MULTI_RATE"),
    7: ("RATE_AI", "RATE_HAI", "FAST_REACT"),
    8: ("EWMA_GAIN", "DCTCP_RATE_AI"),
    10: (*_INT, "PINT_LOG_BASE", "PINT_PROB"),
}


@dataclass(frozen=True)
class Control:
    """A congestion control there: the name of its set, CC_MODE, and its lines of a config file."""

    name: str
    mode: int
    values: Mapping[str, str]

    @property
    def used(self) -> tuple[str, ...]:
        """The keys that change what this control does."""
        return (*_USED[self.mode], *_SHARED)


def control_of(name: str, nic_bps: int) -> Control:
    """Return a control with run.py's values for NICs of `nic_bps`. Raises InputError if unknown."""
    if name not in _SETS:
        what, known = f"the simulator has no {name!r}", ", ".join(_SETS)
        raise InputError.single("congestion control", what, f"say --cc with one of {known}")
    chosen = _SETS[name]
    # run.py takes the rate in whole Gbit/s, and its divisions are of integers. Below 25 Gbit/s its
    # INT_MULTI is 0, by which the simulator divides: 1 here.
    gbps = max(1, nic_bps // 10**9)
    dctcp, with_int = chosen.mode == DCTCP, chosen.mode in (3, 10)
    ai, hai = ((mbps if dctcp else max(1, mbps * gbps // 25)) for mbps in (chosen.ai, chosen.hai))
    values = {
        **_FIXED,
        **(_PAPER if chosen.paper else _DCQCN),
        "EWMA_GAIN": _DCTCP_GAIN if dctcp else _GAIN,
        "RATE_AI": f"{ai}Mb/s",
        "RATE_HAI": f"{hai}Mb/s",
        "HAS_WIN": str(int(chosen.window)),
        "VAR_WIN": str(int(chosen.window)),
        "FAST_REACT": str(int(with_int)),
        "INT_MULTI": str(max(1, gbps // 25) if with_int else 1),
        "ACK_HIGH_PRIO": str(int(chosen.ack_first)),
    }
    if dctcp:
        values["DCTCP_RATE_AI"] = "615Mb/s"
    return Control(name, chosen.mode, values)


def changed(control: Control, own: Mapping[str, str]) -> Control:
    """Return a control with some values replaced.

    Raises InputError for a key that says nothing of a control, or a value of another kind.
    """
    for key, value in own.items():
        if key not in control.values:
            known = ", ".join(sorted(control.values))
            raise InputError.single("--set", f"{key!r} is no parameter", f"known are {known}")
        if _number(value) is None or value.endswith("/s") != control.values[key].endswith("/s"):
            what = f"{key} cannot be {value!r}"
            raise InputError.single("--set", what, f"write it like {control.values[key]}")
    return Control(control.name, control.mode, {**control.values, **own})


def closest(mode: int, values: Mapping[str, str], nic_bps: int) -> Control | None:
    """Return run.py's set that a config file's values are closest to; None for another mode."""
    sets = [control_of(name, nic_bps) for name, one in _SETS.items() if one.mode == mode]
    return min(sets, key=lambda one: len(differences(one, values)), default=None)


def differences(control: Control, values: Mapping[str, str]) -> dict[str, str]:
    """Return which of the values that matter to a control are not its own: key -> value."""
    return {
        key: values[key]
        for key in control.used
        if key in values and _number(values[key]) != _number(control.values[key])
    }


def in_words(control: Control, other: Mapping[str, str]) -> str:
    """Return differences as `RATE_AI 50Mb/s (run.py: 5Mb/s)`."""
    return ", ".join(
        f"{key} {value} (run.py: {control.values[key]})" for key, value in other.items()
    )


def _number(text: str) -> float | None:
    """Return a number or a rate in bit/s; None for other text."""
    try:
        if text.endswith("b/s"):
            return float(parse_rate_bps(text.removesuffix("b/s") + "bps"))
        return float(text)
    except (UnitError, ValueError):
        return None


def rate_step_mbps(testbed: Testbed, paths: PathTable, packet_bytes: int) -> int:
    """Return what run.py's rule for DCTCP_RATE_AI gives here: a packet more each round trip."""
    rtt_ns = max(paths.base_rtt_ns(src, dst) for src, dst in _ends(testbed))
    return max(1, packet_bytes * 8 * 10**9 // max(1, rtt_ns) // 10**6)


def window_bytes(testbed: Testbed, paths: PathTable, payload_bytes: int) -> int:
    """Return a flow's window where it has one: the largest bandwidth-delay product of any path."""
    most = 0
    for src, dst in _ends(testbed):
        path = paths.path(src, dst)
        links = [testbed.links[link] for link in path.links]
        rtt_ns = sum(
            2 * link.delay_ns + payload_bytes * 8 * 10**9 // link.rate_bps for link in links
        )
        most = max(most, rtt_ns * path.rate_bps // 10**9 // 8)
    return most


def _ends(testbed: Testbed) -> list[tuple[str, str]]:
    """Return pairs of hosts with every kind of path: one host of each switch, rate and delay."""
    kinds: dict[tuple[str, int, int], list[str]] = {}
    for host in testbed.hosts:
        port = testbed.ports_of[host][0]
        key = (testbed.peer_device(port).name, port.rate_bps, port.delay_ns)
        kinds.setdefault(key, []).append(host)
    some = [host for alike in kinds.values() for host in alike[:2]]
    return [(src, dst) for src in some for dst in some if src != dst]
