"""Write the config file of the HPCC ns-3 simulator: run.py's parameters, times, thresholds.

Facts from alibaba-edu/High-Precision-Congestion-Control at 9f4be2a: `simulation/run.py` has a set
of parameters by name, rates in proportion to the NICs'; `rdma-hw.cc` says which of them a control
uses; `third.cc` works out the window. It counts queue lengths each 100 ns between QLEN_MON_START
and QLEN_MON_END, and writes them, all since the start, at whole multiples of 100 ms only. So
arrivals must end at such a multiple.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from inventory.routing import PathTable
from orchestration.core.errors import InputError
from orchestration.core.load_balancing import ECMP
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import (
    UnitError,
    format_duration,
    format_rate,
    format_size,
    parse_rate_bps,
)
from orchestration.exchange.source import ExportedTrial

HEADER_BYTES = 48
# LINK_DOWN counts from this time, even if the flows begin at another one.
BASE_NS = 2_000_000_000
# kmin and kmax in bytes and pmax, by rate.
ThresholdMaps = dict[int, tuple[int, int, float]]
CONGESTION_CONTROL = {1: "dcqcn", 3: "hpcc", 7: "timely", 8: "dctcp", 10: "hpcc-pint"}
# The other controls do not look at marks.
DCTCP = 8
ECN_MODES = (1, DCTCP)

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
class _ParameterSet:
    """One set of run.py; `ai` and `hai` in Mb/s at 25 Gbit/s, `paper`: DCQCN's paper's timers."""

    mode: int
    ai: int
    hai: int
    window: bool = False
    ack_first: bool = False
    paper: bool = False


# By our name of run.py's --cc: hpcc is its hp, hpcc-pint its hpccPint, - stands for its _.
_SETS = {
    "dcqcn": _ParameterSet(1, 5, 50, ack_first=True),
    "dcqcn-paper": _ParameterSet(1, 5, 50, ack_first=True, paper=True),
    "dcqcn-vwin": _ParameterSet(1, 5, 50, window=True),
    "dcqcn-paper-vwin": _ParameterSet(1, 5, 50, window=True, paper=True),
    "hpcc": _ParameterSet(3, 10, 10, window=True),
    "timely": _ParameterSet(7, 25, 125, ack_first=True),
    "timely-vwin": _ParameterSet(7, 25, 125, window=True, ack_first=True),
    "dctcp": _ParameterSet(8, 10, 10, window=True),
    "hpcc-pint": _ParameterSet(10, 10, 10, window=True),
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
class HpccControl:
    """A congestion control there: the name of its set, CC_MODE, and its lines of a config file."""

    name: str
    mode: int
    values: Mapping[str, str]

    @property
    def used(self) -> tuple[str, ...]:
        """The keys that change what this control does."""
        return (*_USED[self.mode], *_SHARED)


def control_of(name: str, nic_bps: int) -> HpccControl:
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
    return HpccControl(name, chosen.mode, values)


def with_parameters(control: HpccControl, own: Mapping[str, str]) -> HpccControl:
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
    return HpccControl(control.name, control.mode, {**control.values, **own})


def closest_control(mode: int, values: Mapping[str, str], nic_bps: int) -> HpccControl | None:
    """Return run.py's set that a config file's values are closest to; None for another mode."""
    sets = [control_of(name, nic_bps) for name, one in _SETS.items() if one.mode == mode]
    return min(sets, key=lambda one: len(control_differences(one, values)), default=None)


def control_differences(control: HpccControl, values: Mapping[str, str]) -> dict[str, str]:
    """Return which of the values that matter to a control are not its own: key -> value."""
    return {
        key: values[key]
        for key in control.used
        if key in values and _number(values[key]) != _number(control.values[key])
    }


def differences_text(control: HpccControl, other: Mapping[str, str]) -> str:
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
    maximum = 0
    for src, dst in _ends(testbed):
        path = paths.path(src, dst)
        links = [testbed.links[link] for link in path.links]
        rtt_ns = sum(
            2 * link.delay_ns + payload_bytes * 8 * 10**9 // link.rate_bps for link in links
        )
        maximum = max(maximum, rtt_ns * path.rate_bps // 10**9 // 8)
    return maximum


def _ends(testbed: Testbed) -> list[tuple[str, str]]:
    """Return pairs of hosts with every kind of path: one host of each switch, rate and delay."""
    kinds: dict[tuple[str, int, int], list[str]] = {}
    for host in testbed.hosts:
        port = testbed.ports_of[host][0]
        key = (testbed.peer_device(port).name, port.rate_bps, port.delay_ns)
        kinds.setdefault(key, []).append(host)
    some = [host for alike in kinds.values() for host in alike[:2]]
    return [(src, dst) for src in some for dst in some if src != dst]


DUMP_NS = 100_000_000
# run.py's kmin and kmax in KB per Gbit/s, and pmax.
_MARKS, _DCTCP_MARKS = (4, 16, 0.2), (3, 3, 1.0)
# The kernel holds probabilities in so many parts, and reads them back rounded.
_PROBABILITY_STEP = 2.0**-32


@dataclass(frozen=True)
class SimulatorTimes:
    """The simulator's times: `base_ns` is the trial's 0, `dump_ns` the dump that ends arrivals."""

    base_ns: int
    dump_ns: int
    stop_ns: int


def simulator_times(spec: TrialSpec) -> SimulatorTimes:
    """Return times that begin at 2 s or later, as little as lets arrivals end at a dump.

    They begin at a whole microsecond, for LINK_DOWN. The simulator stops after the dump.
    """
    lasts_ns = -(-spec.duration_ns // 1000) * 1000
    dump_ns = -(-(BASE_NS + lasts_ns) // DUMP_NS) * DUMP_NS
    base_ns = dump_ns - lasts_ns
    stop_ns = base_ns + spec.duration_ns + spec.drain_ns
    return SimulatorTimes(base_ns, dump_ns, max(stop_ns, dump_ns + 1000))


def threshold_maps(
    item: ExportedTrial, control: HpccControl, wanted: bool, notes: list[str]
) -> ThresholdMaps:
    """Return the maps of thresholds; run.py's if they are not `wanted` or not known.

    Raises InputError for thresholds that maps by rate, in whole KB, cannot express.
    """
    rates = sorted({port.rate_bps for port in item.testbed.switch_ports})
    known = item.thresholds if wanted else None
    if known is None:
        kmin, kmax, pmax = _DCTCP_MARKS if control.mode == DCTCP else _MARKS
        notes.append(
            f"thresholds are run.py's for {control.name}, {kmin}KB and {kmax}KB per Gbps with "
            f"{pmax:.0%}" + ("" if not wanted else ": the run does not say its own")
        )
        return {
            rate: (max(1, rate * kmin // 10**9) * 1000, max(1, rate * kmax // 10**9) * 1000, pmax)
            for rate in rates
        }
    if known.changed:
        notes.append("the tuner changes thresholds; the config has those of the start")
    of_port = np.array([queue.rate_bps for queue in item.testbed.queues])
    result: ThresholdMaps = {}
    for rate in rates:
        mine = of_port == rate
        kmin, kmax = known.kmin_bytes[mine], known.kmax_bytes[mine]
        pmax = known.pmax[mine]
        where = f"trial {item.name}"
        remedy = "leave them out: --no-thresholds"
        if len(set(zip(kmin.tolist(), kmax.tolist(), pmax.tolist(), strict=True))) > 1:
            what = f"ports of {format_rate(rate)} have different thresholds; maps there go by rate"
            raise InputError.single(where, what, remedy)
        if kmin[0] % 1000 or kmax[0] % 1000:
            what = f"thresholds of {kmin[0]} B and {kmax[0]} B; maps there have whole KB"
            raise InputError.single(where, what, remedy)
        result[rate] = (int(kmin[0]), int(kmax[0]), float(pmax[0]))
    return result


def config_text(
    item: ExportedTrial,
    control: HpccControl,
    marks: ThresholdMaps,
    clock: SimulatorTimes,
    down: tuple[int, int, int],
    prefix: str,
    notes: list[str],
) -> str:
    """Return the text of config.txt, and append differences from the trial to `notes`.

    `down` are the three values of LINK_DOWN, `prefix` is the folder.
    """
    testbed = item.testbed
    buffer_bytes = max(port.buffer_bytes for port in testbed.switch_ports)
    buffer_mib = max(1, math.ceil(buffer_bytes / 2**20))
    if buffer_mib * 2**20 != buffer_bytes:
        notes.append(f"a port's buffer of {buffer_bytes} B is rounded up to {buffer_mib} MiB")
    if not testbed.switch:
        notes.append("the buffer there is a switch's, shared by its ports; here it is a port's")
    if not (testbed.switch and testbed.switch.lossless):
        notes.append("switches there have PFC, always; here they drop what does not fit")
    if item.spec.load_balancing != ECMP:
        ways = item.spec.load_balancing
        notes.append(f"switches there do ECMP; here {ways.kind} ({ways.route_by})")
    notes.append(
        f"a packet there has {HEADER_BYTES} B beside its payload, here "
        f"{testbed.wire_bytes(1) - 1} B"
    )
    notes += _about_control(item, control)
    if clock.base_ns != BASE_NS:
        notes.append(
            f"time 0 is {format_duration(clock.base_ns, 9)} there, so that arrivals end where it "
            "writes queue lengths (each 100ms); names.json knows"
        )

    def by_rate(place: int) -> str:
        values = (f"{rate} {_threshold(marks[rate][place])}" for rate in sorted(marks))
        return f"{len(marks)} {' '.join(values)}"

    lines = {
        "ENABLE_QCN": "1",
        "USE_DYNAMIC_PFC_THRESHOLD": "1",
        "PACKET_PAYLOAD_SIZE": testbed.mss_bytes,
        "TOPOLOGY_FILE": f"{prefix}/topology.txt",
        "FLOW_FILE": f"{prefix}/flow.txt",
        "TRACE_FILE": f"{prefix}/trace.txt",
        "TRACE_OUTPUT_FILE": f"{prefix}/mix.tr",
        "FCT_OUTPUT_FILE": f"{prefix}/fct.txt",
        "PFC_OUTPUT_FILE": f"{prefix}/pfc.txt",
        "SIMULATOR_STOP_TIME": f"{clock.stop_ns // 10**9}.{clock.stop_ns % 10**9:09d}",
        "CC_MODE": control.mode,
        **control.values,
        "ERROR_RATE_PER_LINK": "0.0000",
        "LINK_DOWN": " ".join(str(value) for value in down),
        "ENABLE_TRACE": 0,
        "KMAX_MAP": by_rate(1),
        "KMIN_MAP": by_rate(0),
        "PMAX_MAP": by_rate(2),
        "BUFFER_SIZE": buffer_mib,
        "QLEN_MON_FILE": f"{prefix}/qlen.txt",
        "QLEN_MON_START": clock.base_ns,
        "QLEN_MON_END": clock.dump_ns,
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())


def _about_control(item: ExportedTrial, control: HpccControl) -> list[str]:
    testbed, paths = item.testbed, PathTable(item.testbed)
    nic_bps = testbed.nic_rates_bps[0]
    own = control_of(control.name, nic_bps)
    other = control_differences(own, control.values)
    notes = [
        f"parameters are those of run.py for {control.name} at {format_rate(nic_bps)}"
        + (f", but for {differences_text(own, other)}" if other else "")
    ]
    if control.mode == DCTCP and "DCTCP_RATE_AI" not in other:
        here = rate_step_mbps(testbed, paths, testbed.mss_bytes + HEADER_BYTES)
        notes.append(
            f"run.py's DCTCP_RATE_AI is worked out for 13us and 1,000 B; this fabric's would be "
            f"{here}Mb/s (--set DCTCP_RATE_AI={here}Mb/s)"
        )
    if control.mode not in ECN_MODES:
        notes.append(f"{control.name} does not look at marks: thresholds change nothing there")
    elif float(control.values["HAS_WIN"]):
        notes.append(window_note(control, window_bytes(testbed, paths, testbed.mss_bytes)))
    return notes


def window_note(control: HpccControl, window: int) -> str:
    """Return that a flow's window bounds queues, whatever the thresholds."""
    return (
        f"{control.name} has a window of at most {format_size(window, 1)} a flow there (HAS_WIN "
        "1): thresholds hardly change anything; HAS_WIN 0 takes it away"
    )


def _threshold(value: float) -> str:
    """Return a threshold in KB, or a probability in as few digits as the kernel holds it."""
    if isinstance(value, int):
        return str(value // 1000)
    return next(
        text
        for digits in range(1, 18)
        if abs(float(text := f"{value:.{digits}g}") - value) <= _PROBABILITY_STEP
    )
