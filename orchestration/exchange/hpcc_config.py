"""Writes the config file of the HPCC ns-3 simulator for a trial."""

from __future__ import annotations

import math

import numpy as np

from inventory.routing import PathTable
from orchestration.exchange.hpcc_inputs import (
    BASE_NS,
    CONGESTION_CONTROL,
    HEADER_BYTES,
    Thresholds,
)
from orchestration.exchange.source import Exported
from orchestration.model.errors import InputError
from orchestration.model.units import format_rate

# Its shipped setting, which grows with the rate: for ports whose thresholds are not known.
_KMIN_BYTES_PER_GBPS, _KMAX_BYTES_PER_GBPS, _PMAX = 4_000, 16_000, 0.2


def mode_of(control: str) -> tuple[int, str]:
    """Return CC_MODE and its name. Raises InputError for what the simulator has not."""
    for number, name in CONGESTION_CONTROL.items():
        if name == control:
            return number, name
    known = ", ".join(CONGESTION_CONTROL.values())
    raise InputError.single(
        "congestion control", f"the simulator has no {control!r}", f"say --cc with one of {known}"
    )


def thresholds_of(item: Exported, wanted: bool, notes: list[str]) -> Thresholds:
    """Return the maps of thresholds; HPCC's own if they are not `wanted` or not known.

    Raises InputError for what maps by rate, in whole KB, cannot hold.
    """
    rates = sorted({port.rate_bps for port in item.testbed.switch_ports})
    known = item.thresholds if wanted else None
    if known is None:
        notes.append(
            "thresholds are HPCC's, 100KB and 400KB per 25Gbps with 20%"
            + ("" if not wanted else ": the run does not say its own")
        )
        return {
            rate: (
                max(1, rate * _KMIN_BYTES_PER_GBPS // 10**12) * 1000,
                max(1, rate * _KMAX_BYTES_PER_GBPS // 10**12) * 1000,
                _PMAX,
            )
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
    mode: tuple[int, str],
    marks: Thresholds,
    down: tuple[int, int, int],
    prefix: str,
    notes: list[str],
) -> str:
    """Return the file's text; `notes` takes what is different there.

    `mode` is CC_MODE and its name, `down` the three values of LINK_DOWN, `prefix` the folder.
    """
    testbed, spec = item.testbed, item.spec
    stop_ns = BASE_NS + spec.duration_ns + spec.drain_ns
    buffer_bytes = max(port.buffer_bytes for port in testbed.switch_ports)
    buffer_mib = max(1, math.ceil(buffer_bytes / 2**20))
    if buffer_mib * 2**20 != buffer_bytes:
        notes.append(f"a port's buffer of {buffer_bytes} B is rounded up to {buffer_mib} MiB")
    notes.append("the buffer there is a switch's, shared by its ports; here it is a port's")
    notes.append(
        f"a packet there has {HEADER_BYTES} B beside its payload, here "
        f"{testbed.wire_bytes(1) - 1} B"
    )
    windowed = mode[1] not in ("dcqcn", "timely")
    payload = testbed.mss_bytes
    # One packet a round trip, as DCTCP's window grows.
    rtt_ns = _longest_rtt_ns(item)
    additive = max(1, (payload + HEADER_BYTES) * 8 * 10**9 // max(1, rtt_ns) // 10**6)

    def by_rate(place: int) -> str:
        values = (f"{rate} {_number(marks[rate][place])}" for rate in sorted(marks))
        return f"{len(marks)} {' '.join(values)}"

    lines = {
        "ENABLE_QCN": "1",
        "USE_DYNAMIC_PFC_THRESHOLD": "1",
        "PACKET_PAYLOAD_SIZE": payload,
        "TOPOLOGY_FILE": f"{prefix}/topology.txt",
        "FLOW_FILE": f"{prefix}/flow.txt",
        "TRACE_FILE": f"{prefix}/trace.txt",
        "TRACE_OUTPUT_FILE": f"{prefix}/mix.tr",
        "FCT_OUTPUT_FILE": f"{prefix}/fct.txt",
        "PFC_OUTPUT_FILE": f"{prefix}/pfc.txt",
        "SIMULATOR_STOP_TIME": f"{stop_ns // 10**9}.{stop_ns % 10**9:09d}",
        "CC_MODE": mode[0],
        "ALPHA_RESUME_INTERVAL": 1,
        "RATE_DECREASE_INTERVAL": 4,
        "CLAMP_TARGET_RATE": 0,
        "RP_TIMER": 300,
        "EWMA_GAIN": "0.0625" if mode[1] == "dctcp" else "0.00390625",
        "FAST_RECOVERY_TIMES": 1,
        "RATE_AI": "50Mb/s",
        "RATE_HAI": "100Mb/s",
        "MIN_RATE": "100Mb/s",
        "DCTCP_RATE_AI": f"{additive}Mb/s",
        "ERROR_RATE_PER_LINK": "0.0000",
        "L2_CHUNK_SIZE": 4000,
        "L2_ACK_INTERVAL": 1,
        "L2_BACK_TO_ZERO": 0,
        "HAS_WIN": int(windowed),
        "GLOBAL_T": 1,
        "VAR_WIN": int(windowed),
        "FAST_REACT": int(mode[1].startswith("hpcc")),
        "U_TARGET": "0.95",
        "MI_THRESH": 0,
        "INT_MULTI": 1,
        "MULTI_RATE": 0,
        "SAMPLE_FEEDBACK": 0,
        "PINT_LOG_BASE": "1.05",
        "PINT_PROB": "1.0",
        "RATE_BOUND": 1,
        "ACK_HIGH_PRIO": 0,
        "LINK_DOWN": " ".join(str(value) for value in down),
        "ENABLE_TRACE": 0,
        "KMAX_MAP": by_rate(1),
        "KMIN_MAP": by_rate(0),
        "PMAX_MAP": by_rate(2),
        "BUFFER_SIZE": buffer_mib,
        "QLEN_MON_FILE": f"{prefix}/qlen.txt",
        "QLEN_MON_START": BASE_NS,
        "QLEN_MON_END": stop_ns,
    }
    return "".join(f"{key} {value}\n" for key, value in lines.items())


def _number(value: float) -> str:
    """Return thresholds in KB, probabilities as they are."""
    return str(value // 1000) if isinstance(value, int) else repr(value)


def _longest_rtt_ns(item: Exported) -> int:
    """Return the longest base RTT between the ends of a flow."""
    paths, hosts = PathTable(item.testbed), item.testbed.hosts
    pairs = np.unique(item.schedule.src * len(hosts) + item.schedule.dst).tolist()
    return max(
        paths.base_rtt_ns(hosts[pair // len(hosts)], hosts[pair % len(hosts)]) for pair in pairs
    )
