"""Measures a backend's fabric: runs probing trials, and takes metrics from their records.

These are base RTTs, goodput, the marking curve and the delay of the control loop. A calibration is
compared with that of another backend, and a testbed file is corrected so that both agree.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from inventory.routing import PathTable, ideal_times_ns
from orchestration.analysis.stamp import stamp
from orchestration.calibration.probes import (
    PMAX,
    PathKind,
    loop_trial,
    marking_trial,
    path_kinds,
    path_trial,
    ramp,
    tiny_flows,
)
from orchestration.core.errors import InputError, TrialError, unreadable
from orchestration.core.knobs import ECN
from orchestration.core.marking_probability import MarkingProbability
from orchestration.core.ports import Backend, TrialRun
from orchestration.core.records import DONE, MISSING, Ints, Samples, Schedule, TrialRecord
from orchestration.core.topology import ETHERNET_HEADER_BYTES, TCP_IP_HEADER_BYTES, Testbed
from orchestration.core.trial import TrialSpec
from orchestration.results.writer import write_trial
from traffic.schedule import make_schedule

_MARKING_BINS = 8
# A sample in which the queue's length changed by more than this share of the ramp is left out.
_STEADY_SHARE = 0.15
_Z95 = 1.96


@dataclass(frozen=True)
class BaseRtt:
    """The base RTT of a kind of path in ns: the testbed's, and measured over `count` flows."""

    path: PathKind
    testbed_ns: int
    median_ns: int
    # The aliases are what files of this format have.
    min_ns: Annotated[int, Field(alias="least_ns")]
    max_ns: Annotated[int, Field(alias="most_ns")]
    count: int


@dataclass(frozen=True)
class Goodput:
    """Goodput of a lone flow in steady state, and the framing per packet in bytes that it implies.

    `rate_bps` is the line rate of the slowest link of the path. `testbed_bps` and
    `testbed_framing_bytes` are what the testbed file says, the others are measured.
    """

    rate_bps: int
    testbed_bps: float
    measured_bps: float
    testbed_framing_bytes: int
    framing_bytes: float


@dataclass(frozen=True)
class MarkingBin:
    """Samples with a queue length in [from, to) bytes.

    `low` and `high` are the 95 % interval of `marked_share`; `wanted_share` is the share that RED
    would mark.
    """

    from_bytes: int
    to_bytes: int
    packets: int
    marked_share: float
    low: float
    high: float
    wanted_share: float


@dataclass(frozen=True)
class LoopDelay:
    """The time in ns from a reading to the read-back of the thresholds changed by it."""

    count: int
    median_ns: int
    p99_ns: int


@dataclass(frozen=True)
class Calibration:
    """The measurements of one backend's fabric. `marking` is empty if it does not count marks."""

    backend: str
    testbed: str
    rtts: tuple[BaseRtt, ...]
    goodput: Goodput
    marking: tuple[MarkingBin, ...]
    loop: LoopDelay


def base_rtts(testbed: Testbed, schedule: Schedule, record: TrialRecord) -> tuple[BaseRtt, ...]:
    """Return the base RTT of each kind of path, from the tiny flows of the trial `path_trial`.

    Raises TrialError if a flow did not end.
    """
    fct_ns = _fct_ns(schedule, record)
    paths = PathTable(testbed)
    results = []
    for number, kind in enumerate(path_kinds(testbed)):
        tiny = fct_ns[tiny_flows(number)]
        results.append(
            BaseRtt(
                path=kind,
                testbed_ns=paths.base_rtt_ns(kind.src, kind.dst),
                median_ns=int(np.median(tiny)),
                min_ns=int(tiny.min()),
                max_ns=int(tiny.max()),
                count=len(tiny),
            )
        )
    return tuple(results)


def goodput(testbed: Testbed, schedule: Schedule, record: TrialRecord) -> Goodput:
    """Return the goodput in steady state, from the two long flows of the trial `path_trial`.

    Their difference in bytes is divided by their difference in time, so that slow start cancels
    out.
    """
    fct_ns = _fct_ns(schedule, record)
    size_bytes = int(schedule.size_bytes[-1] - schedule.size_bytes[-2])
    measured_bps = size_bytes * 8e9 / float(fct_ns[-1] - fct_ns[-2])
    longest = path_kinds(testbed)[-1]
    rate_bps = PathTable(testbed).path(longest.src, longest.dst).rate_bps
    mss = testbed.mss_bytes
    headers = TCP_IP_HEADER_BYTES + ETHERNET_HEADER_BYTES
    return Goodput(
        rate_bps=rate_bps,
        testbed_bps=rate_bps * mss / (mss + headers + testbed.framing_bytes),
        measured_bps=measured_bps,
        testbed_framing_bytes=testbed.framing_bytes,
        framing_bytes=mss * rate_bps / measured_bps - mss - headers,
    )


def _fct_ns(schedule: Schedule, record: TrialRecord) -> Ints:
    if (record.flows.status != DONE).any():
        count = int((record.flows.status != DONE).sum())
        raise TrialError(
            f"{count} of {len(schedule)} probing flows did not end",
            "check that the fabric is idle and provisioned: `closloop inventory check`",
        )
    result: Ints = record.flows.end_ns - schedule.start_ns
    return result


def marking(testbed: Testbed, ports: Samples) -> tuple[MarkingBin, ...]:
    """Return the share of packets marked by queue length, in the trial `marking_trial`.

    A packet is marked when it arrives and counted when it is sent. So the queue length of a sample
    is the mean of those at its two ends, and samples in which the length changed much are left out.
    """
    towards = (testbed.peer_device(queue).name for queue in testbed.queues)
    queue = [*towards].index(testbed.hosts[0])
    length = ports.qlen_bytes[:, queue]
    if len(length) < 2 or (ports.marked_packets[:, queue] == MISSING).any():
        return ()
    kmin, kmax = ramp(testbed)
    mean = (length[1:] + length[:-1]) // 2
    steady = np.abs(np.diff(length)) <= _STEADY_SHARE * (kmax - kmin)
    packets = np.where(steady, np.diff(ports.tx_packets[:, queue]), 0)
    marked = np.where(steady, np.diff(ports.marked_packets[:, queue]), 0)
    expected_share = MarkingProbability(kmin, kmax, PMAX).line(mean)
    edges = [0, *np.linspace(kmin, kmax, _MARKING_BINS + 1).astype(int).tolist()]
    results = []
    for low, high in pairwise(edges):
        in_bin = (mean >= low) & (mean < high)
        sent = int(packets[in_bin].sum())
        if not sent:
            continue
        share = float(marked[in_bin].sum()) / sent
        minimum, maximum = _wilson(share, sent)
        expected = float((expected_share[in_bin] * packets[in_bin]).sum()) / sent
        results.append(MarkingBin(low, high, sent, share, minimum, maximum, expected))
    return tuple(results)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    z2 = _Z95**2
    middle = share + z2 / (2 * count)
    half = _Z95 * float(np.sqrt(share * (1 - share) / count + z2 / (4 * count**2)))
    return max(0.0, (middle - half) / (1 + z2 / count)), (middle + half) / (1 + z2 / count)


def loop_delay(record: TrialRecord) -> LoopDelay:
    """Return the time of the changes in the trial `loop_trial`, from reading to read-back."""
    actions = record.changes[ECN.name]
    read_ns = actions.observed_ns
    # the changes of all queues that respond to one reading count as one
    delays_ns = np.array(
        [
            int(actions.applied_ns[read_ns == t_ns].max()) - t_ns
            for t_ns in np.unique(read_ns[read_ns > 0]).tolist()
        ],
        dtype=np.int64,
    )
    if not len(delays_ns):
        return LoopDelay(0, 0, 0)
    return LoopDelay(len(delays_ns), int(np.median(delays_ns)), int(np.quantile(delays_ns, 0.99)))


FORMAT = "closloop calibration 1"


_SCHEMA = TypeAdapter(Calibration)


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as JSON-ready data."""
    return {"format": FORMAT, **_SCHEMA.dump_python(calibration, mode="json", by_alias=True)}


def read_calibration(path: Path) -> Calibration:
    """Read a file that `closloop calibrate --json` wrote. Raises InputError for any other file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.pop("format", "") != FORMAT:
            raise ValueError("another format")
        return _SCHEMA.validate_python(data)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError.single(
            str(path),
            f"is not a calibration: {reason}",
            "make one: closloop calibrate TESTBED --on BACKEND --json > FILE",
        ) from error


# called with the name of the running probe, and the share of all probes that is done, 0 to 1
Listener = Callable[[str, float], None]
_PROBE_TRIALS = {"paths": path_trial, "marking": marking_trial, "loop": loop_trial}


def calibrate(
    backend: Backend,
    backend_name: str,
    testbed: Testbed,
    testbed_name: str,
    folder: Path,
    listener: Listener = lambda probe, share: None,
) -> Calibration:
    """Measure a backend on a testbed that is idle except for the probes.

    The trials are kept in `folder`, where they replace those of an earlier calibration. Raises what
    the backend raises, and TrialError if a probing flow does not end.
    """
    records: dict[str, tuple[Schedule, TrialRecord]] = {}
    for number, (probe, make) in enumerate(_PROBE_TRIALS.items()):
        trial = make(testbed, testbed_name, backend_name)

        def progress(t_ns: int, end_ns: int, probe: str = probe, number: int = number) -> None:
            listener(probe, (number + min(1.0, t_ns / max(1, end_ns))) / len(_PROBE_TRIALS))

        listener(probe, number / len(_PROBE_TRIALS))
        records[probe] = _run(backend, trial, testbed, folder, progress)
    listener("done", 1.0)
    return Calibration(
        backend=backend_name,
        testbed=testbed_name,
        rtts=base_rtts(testbed, *records["paths"]),
        goodput=goodput(testbed, *records["paths"]),
        marking=marking(testbed, records["marking"][1].ports),
        loop=loop_delay(records["loop"][1]),
    )


def _run(
    backend: Backend,
    trial: TrialSpec,
    testbed: Testbed,
    folder: Path,
    progress: Callable[[int, int], None],
) -> tuple[Schedule, TrialRecord]:
    schedule = make_schedule(trial, testbed)
    with tempfile.TemporaryDirectory(prefix="closloop-calibrate-") as work:
        record = backend.run(TrialRun(trial, testbed, schedule, Path(work), progress))
    trial_folder = folder / trial.id
    shutil.rmtree(trial_folder, ignore_errors=True)
    ideal_ns = ideal_times_ns(testbed, schedule, trial)
    verdict = stamp(trial, testbed, schedule, record, ideal_ns)
    write_trial(trial_folder, trial, testbed, schedule, record, verdict, {}, ideal_ns)
    return schedule, record


@dataclass(frozen=True)
class Correction:
    """Corrections of a testbed file: its new framing, and changes of delays by links' tier."""

    framing_bytes: int
    delay_change_ns: dict[int, int]


def correction(
    testbed: Testbed, measured: Calibration, reference: Calibration | None
) -> Correction:
    """Return the correction of a testbed that makes one backend behave like another one.

    `measured` is the calibration of the backend whose testbed file is corrected, and `reference`
    that of the backend that it shall behave like. Both were measured on `testbed`. Without
    `reference`, the correction makes the testbed file agree with `measured`.

    A framing that is right within a byte is kept. All links of a tier get the same change of their
    delay: kinds of paths differ only in how many links of each tier they have, so round-trip times
    say nothing about single links. Raises InputError if the two were measured on different paths.
    """
    if reference is not None and [r.path for r in reference.rtts] != [
        r.path for r in measured.rtts
    ]:
        raise InputError.single(
            f"testbed {testbed.name}",
            "the two backends were measured on different paths",
            "calibrate both on one testbed",
        )
    tiers = sorted({tier for rtt in measured.rtts for tier in rtt.path.links_of_tier})
    crossings = np.array(
        [[2 * rtt.path.links_of_tier.get(tier, 0) for tier in tiers] for rtt in measured.rtts],
        dtype=np.float64,
    )
    measured_ns = np.array([rtt.median_ns for rtt in measured.rtts], dtype=np.float64)
    if reference is None:
        gaps_ns = measured_ns - np.array([rtt.testbed_ns for rtt in measured.rtts])
        framing_change_bytes = measured.goodput.framing_bytes - testbed.framing_bytes
    else:
        gaps_ns = np.array([rtt.median_ns for rtt in reference.rtts]) - measured_ns
        framing_change_bytes = reference.goodput.framing_bytes - measured.goodput.framing_bytes
    changes = np.linalg.lstsq(crossings, gaps_ns, rcond=None)[0]
    framing_bytes = testbed.framing_bytes + (
        framing_change_bytes if abs(framing_change_bytes) >= 1 else 0
    )
    return Correction(
        max(0, round(framing_bytes)),
        {tier: round(change) for tier, change in zip(tiers, changes.tolist(), strict=True)},
    )
