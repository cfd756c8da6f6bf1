"""Write the config file of the HPCC ns-3 simulator: run.py's parameters, times, thresholds.

Facts from alibaba-edu/High-Precision-Congestion-Control at 9f4be2a, `simulation/scratch/third.cc`:
queue lengths are counted each 100 ns between QLEN_MON_START and QLEN_MON_END, and are written, all
since the start, at whole multiples of 100 ms only. So arrivals must end at such a multiple.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inventory.routing import PathTable
from orchestration.core.errors import InputError
from orchestration.core.load_balancing import ECMP
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration, format_rate, format_size
from orchestration.exchange.hpcc_parameters import (
    BASE_NS,
    DCTCP,
    HEADER_BYTES,
    MARKED,
    Control,
    Thresholds,
    control_of,
    differences,
    in_words,
    rate_step_mbps,
    window_bytes,
)
from orchestration.exchange.source import Exported

DUMP_NS = 100_000_000
# run.py's kmin and kmax in KB per Gbit/s, and pmax.
_MARKS, _DCTCP_MARKS = (4, 16, 0.2), (3, 3, 1.0)
# The kernel holds probabilities in so many parts, and reads them back rounded.
_PROBABILITY_STEP = 2.0**-32


@dataclass(frozen=True)
class Clock:
    """The simulator's times: `base_ns` is the trial's 0, `dump_ns` the dump that ends arrivals."""

    base_ns: int
    dump_ns: int
    stop_ns: int


def clock_of(spec: TrialSpec) -> Clock:
    """Return times that begin at 2 s or later, as little as lets arrivals end at a dump.

    They begin at a whole microsecond, for LINK_DOWN. The simulator stops after the dump.
    """
    lasts_ns = -(-spec.duration_ns // 1000) * 1000
    dump_ns = -(-(BASE_NS + lasts_ns) // DUMP_NS) * DUMP_NS
    base_ns = dump_ns - lasts_ns
    stop_ns = base_ns + spec.duration_ns + spec.drain_ns
    return Clock(base_ns, dump_ns, max(stop_ns, dump_ns + 1000))


def thresholds_of(item: Exported, control: Control, wanted: bool, notes: list[str]) -> Thresholds:
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
    result: Thresholds = {}
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
    item: Exported,
    control: Control,
    marks: Thresholds,
    clock: Clock,
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


def _about_control(item: Exported, control: Control) -> list[str]:
    testbed, paths = item.testbed, PathTable(item.testbed)
    nic_bps = testbed.nic_rates_bps[0]
    own = control_of(control.name, nic_bps)
    other = differences(own, control.values)
    notes = [
        f"parameters are those of run.py for {control.name} at {format_rate(nic_bps)}"
        + (f", but for {in_words(own, other)}" if other else "")
    ]
    if control.mode == DCTCP and "DCTCP_RATE_AI" not in other:
        here = rate_step_mbps(testbed, paths, testbed.mss_bytes + HEADER_BYTES)
        notes.append(
            f"run.py's DCTCP_RATE_AI is worked out for 13us and 1,000 B; this fabric's would be "
            f"{here}Mb/s (--set DCTCP_RATE_AI={here}Mb/s)"
        )
    if control.mode not in MARKED:
        notes.append(f"{control.name} does not look at marks: thresholds change nothing there")
    elif float(control.values["HAS_WIN"]):
        notes.append(window_note(control, window_bytes(testbed, paths, testbed.mss_bytes)))
    return notes


def window_note(control: Control, window: int) -> str:
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
