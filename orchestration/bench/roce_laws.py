"""Measures RoCE flows where `closloop run` would run them: one packet, a lone flow, and marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.bench.outcome import MILLISECOND, SECN1, Figure, Run, run_trial
from orchestration.core.engines import engine_of, in_words
from orchestration.core.records import Ints
from orchestration.core.roce import HEADER_BYTES, RoceSpec
from orchestration.core.trial import HostSpec, TunerSpec
from traffic.patterns.single_flow import SingleFlowSpec

_PAYLOAD_BYTES = RoceSpec().payload_bytes
FRAME_BYTES = _PAYLOAD_BYTES + HEADER_BYTES
# A cut leaves the whole rate: flows keep the line's, whatever is marked.
_UNMOVED = HostSpec("dcqcn", roce=RoceSpec(dcqcn=(("rpg_min_dec_fac", 100),)))
_ROCE = HostSpec("dcqcn", roce=RoceSpec())
_SAMPLE_NS, _HOLD_NS = MILLISECOND // 10, 2 * MILLISECOND


def one_packet(testbed: str, pairs: Iterable[tuple[str, str]]) -> Iterator[Figure]:
    """Yield the time from a packet to its acknowledgement for pairs of hosts, and the base RTT."""
    paths = PathTable(load_testbed(testbed))
    for src, dst in pairs:
        run = _alone(testbed, src, dst, 1)
        measured_ns, base_ns = _fct_ns(run), paths.base_rtt_ns(src, dst)
        yield Figure(
            f"{testbed}: one packet {src} to {dst} and its answer, RoCE {_where(run)}",
            f"{measured_ns / 1e3:.3f} us",
            f"{base_ns / 1e3:.3f} us within 5 %",
            abs(measured_ns / base_ns - 1) <= 0.05,
        )


def goodput(testbed: str, src: str, dst: str, size_bytes: int) -> Figure:
    """Return the goodput of a lone flow; its target is what framing allows, but for 0.2 %."""
    run = _alone(testbed, src, dst, size_bytes)
    share = size_bytes * 8e9 / _fct_ns(run) / run.testbed.host_rate_bps(src)
    allowed = _PAYLOAD_BYTES / (FRAME_BYTES + run.testbed.framing_bytes)
    return Figure(
        f"{testbed}: {size_bytes // 10**6} MB alone, goodput, RoCE {_where(run)}",
        f"{share:.2%} of line rate",
        f"99.8 % of the {allowed:.2%} that framing allows",
        share >= 0.998 * allowed,
    )


def marks_by_queue(setting: tuple[int, int, float], levels_frames: Sequence[int]) -> Ints:
    """Return queue in bytes, packets and marks at each of ascending queue lengths, (levels, 3).

    A flow at line rate keeps one port of graphcc busy, so that a burst of another host stays in its
    queue. `setting` has kmin and kmax in bytes, and the largest probability.
    """
    duration_ns = _HOLD_NS * len(levels_frames)
    bursts = [later - earlier for earlier, later in pairwise((0, *levels_frames))]
    traffic = (
        SingleFlowSpec("h1", "h3", 25 * duration_ns // 8, 0),
        *(
            SingleFlowSpec("h2", "h3", frames * _PAYLOAD_BYTES, number * _HOLD_NS)
            for number, frames in enumerate(bursts)
            if frames
        ),
    )
    kmin_bytes, kmax_bytes, pmax = setting
    run = run_trial(
        "graphcc",
        traffic,
        TunerSpec("static", {"kmin_bytes": kmin_bytes, "kmax_bytes": kmax_bytes, "pmax": pmax}),
        duration_ns=duration_ns,
        drain_ns=0,
        sample_period_ns=_SAMPLE_NS,
        host=_UNMOVED,
    )
    ports = run.record.ports
    queue = [run.testbed.peer_device(port).name for port in run.testbed.queues].index("h3")
    per_level = _HOLD_NS // _SAMPLE_NS
    last = np.arange(1, len(levels_frames) + 1) * per_level - 1
    first = last - per_level + 1  # the burst has arrived by then
    columns = [
        ports.values[name][last, queue] - ports.values[name][first, queue]
        for name in ("tx_packets", "marked_packets")
    ]
    result: Ints = np.column_stack([ports.qlen_bytes[last, queue], *columns])
    return result


def _alone(testbed: str, src: str, dst: str, size_bytes: int) -> Run:
    flow = SingleFlowSpec(src, dst, size_bytes, 0)
    return run_trial(
        testbed,
        (flow,),
        SECN1,
        duration_ns=MILLISECOND,
        sample_period_ns=MILLISECOND,
        host=_ROCE,
    )


def _fct_ns(run: Run) -> int:
    return int(run.record.flows.end_ns[0] - run.schedule.start_ns[0])


def _where(run: Run) -> str:
    """Return in which engine a trial ran, like "in the process"."""
    return in_words(engine_of(run.record.facts)[0])
