"""Write the config file of the HPCC ns-3 simulator: parameters, times and thresholds.

From the sources of alibaba-edu/High-Precision-Congestion-Control at commit 9f4be2a:
`simulation/run.py` has sets of parameters by name, whose rates are in proportion to the NICs' rate;
`rdma-hw.cc` shows which of them a congestion control uses; `third.cc` computes the window. The
simulator samples queue lengths every 100 ns from QLEN_MON_START to QLEN_MON_END. It writes all
samples since the start, but only at whole multiples of 100 ms, so that arrivals must end at such a
multiple.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
# LINK_DOWN counts from this time, even if the flows begin at another time.
BASE_NS = 2_000_000_000
# kmin and kmax in bytes, and pmax, by a port's rate in bit/s.
ThresholdMaps = dict[int, tuple[int, int, float]]
CONGESTION_CONTROL = {1: "dcqcn", 3: "hpcc", 7: "timely", 8: "dctcp", 10: "hpcc-pint"}
# The modes of controls that respond to CE packets.
DCTCP = 8
ECN_MODES = (1, DCTCP)

# The parameters of a config file for which run.py has the same value in all of its sets.
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
    """One set of run.py. `ai` and `hai` are in Mb/s at 25 Gbit/s, `window` is HAS_WIN.

    With `ack_first`, acknowledgements have priority. With `paper`, timers are those of its paper.
    """

    mode: int
    ai: int
    hai: int
    window: bool = False
    ack_first: bool = False
    paper: bool = False


# The sets by our names of run.py's --cc: hpcc is its hp, hpcc-pint its hpccPint, - is its _.
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
    """A congestion control of the simulator: the name of its set, CC_MODE, and its parameters."""

    name: str
    mode: int
    values: Mapping[str, str]

    @property
    def used(self) -> tuple[str, ...]:
        """The keys of the parameters that this control uses."""
        return (*_USED[self.mode], *_SHARED)


def control_of(name: str, nic_bps: int) -> HpccControl:
    """Return a control with run.py's values for NICs of `nic_bps`. Raises InputError if unknown."""
    if name not in _SETS:
        what, known = f"the simulator has no {name!r}", ", ".join(_SETS)
        raise InputError.single("congestion control", what, f"choose with --cc: {known}")
    chosen = _SETS[name]
    # run.py takes the rate in whole Gbit/s and divides integers. Below 25 Gbit/s its INT_MULTI is
    # 0, by which the simulator divides; here it is 1.
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
    """Return a control with some parameters replaced.

    Raises InputError for a key that is not a control's parameter, and for a value of another unit.
    """
    for key, value in own.items():
        if key not in control.values:
            known = ", ".join(sorted(control.values))
            raise InputError.single("--set", f"{key!r} is not a parameter", f"known are {known}")
        if _number(value) is None or value.endswith("/s") != control.values[key].endswith("/s"):
            what = f"{key} cannot be {value!r}"
            raise InputError.single("--set", what, f"write it like {control.values[key]}")
    return HpccControl(control.name, control.mode, {**control.values, **own})


def closest_control(mode: int, values: Mapping[str, str], nic_bps: int) -> HpccControl | None:
    """Return the control whose set in run.py is closest to a config file's values.

    It is None for a mode that run.py does not have.
    """
    sets = [control_of(name, nic_bps) for name, of_name in _SETS.items() if of_name.mode == mode]
    return min(sets, key=lambda known: len(control_differences(known, values)), default=None)


def control_differences(control: HpccControl, values: Mapping[str, str]) -> dict[str, str]:
    """Return the values that differ from a control's, among the parameters that it uses."""
    return {
        key: values[key]
        for key in control.used
        if key in values and _number(values[key]) != _number(control.values[key])
    }


def differences_text(control: HpccControl, other: Mapping[str, str]) -> str:
    """Return differences as text, like `RATE_AI 50Mb/s (run.py: 5Mb/s)`."""
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
    """Return DCTCP_RATE_AI by run.py's rule for this fabric: one packet more each round trip."""
    rtt_ns = max(paths.base_rtt_ns(src, dst) for src, dst in _ends(testbed))
    return max(1, packet_bytes * 8 * 10**9 // max(1, rtt_ns) // 10**6)


def window_bytes(testbed: Testbed, paths: PathTable, payload_bytes: int) -> int:
    """Return the window of a flow with HAS_WIN: the largest bandwidth-delay product of any path."""
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
    """Return pairs of hosts with every kind of path.

    Two hosts of each switch, rate and delay are enough for that.
    """
    kinds: dict[tuple[str, int, int], list[str]] = {}
    for host in testbed.hosts:
        port = testbed.ports_of[host][0]
        key = (testbed.peer_device(port).name, port.rate_bps, port.delay_ns)
        kinds.setdefault(key, []).append(host)
    some = [host for hosts in kinds.values() for host in hosts[:2]]
    return [(src, dst) for src in some for dst in some if src != dst]


DUMP_NS = 100_000_000
# run.py's kmin and kmax in KB per Gbit/s, and pmax.
_MARKS, _DCTCP_MARKS = (4, 16, 0.2), (3, 3, 1.0)
# The kernel holds probabilities in 32 bits, and reads them back rounded.
_PROBABILITY_STEP = 2.0**-32


@dataclass(frozen=True)
class SimulatorTimes:
    """Times of the simulator in ns.

    `base_ns` is time 0 of the trial. Arrivals end at `dump_ns`, when queue lengths are written.
    """

    base_ns: int
    dump_ns: int
    stop_ns: int


def simulator_times(spec: TrialSpec) -> SimulatorTimes:
    """Return the simulator's times for a trial.

    Time 0 is the earliest time from 2 s on for which arrivals end when queue lengths are written.
    It is a whole microsecond, as LINK_DOWN needs it. The simulator stops after the writing.
    """
    lasts_ns = -(-spec.duration_ns // 1000) * 1000
    dump_ns = -(-(BASE_NS + lasts_ns) // DUMP_NS) * DUMP_NS
    base_ns = dump_ns - lasts_ns
    stop_ns = base_ns + spec.duration_ns + spec.drain_ns
    return SimulatorTimes(base_ns, dump_ns, max(stop_ns, dump_ns + 1000))


def threshold_maps(
    item: ExportedTrial, control: HpccControl, own: bool, notes: list[str]
) -> ThresholdMaps:
    """Return the thresholds by rate: with `own` the trial's, if they are known, else run.py's.

    Raises InputError for thresholds that maps by rate, in whole KB, cannot express.
    """
    rates = sorted({port.rate_bps for port in item.testbed.switch_ports})
    known = item.thresholds if own else None
    if known is None:
        kmin, kmax, pmax = _DCTCP_MARKS if control.mode == DCTCP else _MARKS
        notes.append(
            f"thresholds are run.py's for {control.name}, {kmin}KB and {kmax}KB per Gbps with "
            f"{pmax:.0%}" + ("" if not own else ": the run does not record its own")
        )
        return {
            rate: (max(1, rate * kmin // 10**9) * 1000, max(1, rate * kmax // 10**9) * 1000, pmax)
            for rate in rates
        }
    if known.changed:
        notes.append("the tuner changes thresholds; the config has those at the start")
    of_port = np.array([queue.rate_bps for queue in item.testbed.queues])
    result: ThresholdMaps = {}
    for rate in rates:
        at_rate = of_port == rate
        kmin, kmax = known.kmin_bytes[at_rate], known.kmax_bytes[at_rate]
        pmax = known.pmax[at_rate]
        where = f"trial {item.name}"
        remedy = "leave them out: --no-thresholds"
        if len(set(zip(kmin.tolist(), kmax.tolist(), pmax.tolist(), strict=True))) > 1:
            what = (
                f"ports of {format_rate(rate)} have different thresholds; the simulator has one "
                "setting for each rate"
            )
            raise InputError.single(where, what, remedy)
        if kmin[0] % 1000 or kmax[0] % 1000:
            what = f"thresholds of {kmin[0]} B and {kmax[0]} B; the simulator has whole KB"
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
    """Return the text of config.txt, and append its differences from the trial to `notes`.

    `down` are the three values of LINK_DOWN, `prefix` is the folder as the simulator sees it.
    """
    notes += _fabric_notes(item)
    notes += _about_control(item, control)
    if clock.base_ns != BASE_NS:
        notes.append(
            f"time 0 is the simulator's {format_duration(clock.base_ns, 9)}, so that arrivals end "
            "when it writes queue lengths (every 100ms); names.json has this time"
        )

    def by_rate(column: int) -> str:
        values = (f"{rate} {_threshold(marks[rate][column])}" for rate in sorted(marks))
        return f"{len(marks)} {' '.join(values)}"

    lines = {
        "ENABLE_QCN": "1",
        "USE_DYNAMIC_PFC_THRESHOLD": "1",
        "PACKET_PAYLOAD_SIZE": item.testbed.mss_bytes,
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
        "BUFFER_SIZE": _buffer_mib(_buffer_bytes(item.testbed)),
        "QLEN_MON_FILE": f"{prefix}/qlen.txt",
        "QLEN_MON_START": clock.base_ns,
        "QLEN_MON_END": clock.dump_ns,
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())


def _buffer_bytes(testbed: Testbed) -> int:
    return max(port.buffer_bytes for port in testbed.switch_ports)


def _buffer_mib(size_bytes: int) -> int:
    """Return a buffer's size in whole MiB, rounded up."""
    return max(1, math.ceil(size_bytes / 2**20))


def _fabric_notes(item: ExportedTrial) -> Iterator[str]:
    """Yield how the simulator's fabric differs from the trial's."""
    testbed, balancing = item.testbed, item.spec.load_balancing
    size_bytes = _buffer_bytes(testbed)
    size_mib = _buffer_mib(size_bytes)
    if size_mib * 2**20 != size_bytes:
        yield f"a port's buffer of {size_bytes} B is rounded up to {size_mib} MiB"
    if not testbed.switch:
        yield "in the simulator a switch's ports share a buffer; here each port has its own"
    if not (testbed.switch and testbed.switch.lossless):
        yield "the simulator's switches always have PFC; here they drop what does not fit"
    if balancing != ECMP:
        here = f"{balancing.kind} ({balancing.route_by})"
        yield f"the simulator's switches do ECMP; here they do {here}"
    yield (
        f"a packet in the simulator has {HEADER_BYTES} B beside its payload, here "
        f"{testbed.wire_bytes(1) - 1} B"
    )


def _about_control(item: ExportedTrial, control: HpccControl) -> list[str]:
    """Return notes on a control's parameters, and on what they mean on this fabric."""
    testbed, paths = item.testbed, PathTable(item.testbed)
    nic_bps = testbed.nic_rates_bps[0]
    own = control_of(control.name, nic_bps)
    other = control_differences(own, control.values)
    notes = [
        f"parameters are those of run.py for {control.name} at {format_rate(nic_bps)}"
        + (f", except {differences_text(own, other)}" if other else "")
    ]
    if control.mode == DCTCP and "DCTCP_RATE_AI" not in other:
        step_mbps = rate_step_mbps(testbed, paths, testbed.mss_bytes + HEADER_BYTES)
        notes.append(
            f"run.py's DCTCP_RATE_AI is computed for 13us and 1,000 B; for this fabric it would be "
            f"{step_mbps}Mb/s (--set DCTCP_RATE_AI={step_mbps}Mb/s)"
        )
    if control.mode not in ECN_MODES:
        notes.append(
            f"{control.name} does not respond to CE packets: thresholds change nothing there"
        )
    elif float(control.values["HAS_WIN"]):
        notes.append(window_note(control, window_bytes(testbed, paths, testbed.mss_bytes)))
    return notes


def window_note(control: HpccControl, window: int) -> str:
    """Return the note that a flow's window bounds queues, whatever the thresholds are."""
    return (
        f"{control.name} has a window of at most {format_size(window, 1)} for each flow there "
        "(HAS_WIN 1), so that thresholds hardly change anything; HAS_WIN 0 removes it"
    )


def _threshold(value: float) -> str:
    """Return a threshold in KB, or a probability with as few digits as its 32 bits need."""
    if isinstance(value, int):
        return str(value // 1000)
    return next(
        text
        for digits in range(1, 18)
        if abs(float(text := f"{value:.{digits}g}") - value) <= _PROBABILITY_STEP
    )
