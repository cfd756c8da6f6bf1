"""Runs a backend's probes, and takes figures from their records: RTT, goodput, marks, delays."""

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

_BINS = 8
# A sample in which the queue moved by more than this share of the ramp belongs to no one length.
_STEADY_SHARE = 0.15
_Z95 = 1.96


@dataclass(frozen=True)
class BaseRtt:
    """The RTT of one kind of path, idle, in ns: median and range over `count` flows."""

    path: PathKind
    testbed_ns: int
    median_ns: int
    # The aliases are what files of this format have.
    min_ns: Annotated[int, Field(alias="least_ns")]
    max_ns: Annotated[int, Field(alias="most_ns")]
    count: int


@dataclass(frozen=True)
class Goodput:
    """One flow alone, sending steadily: payload in bit/s, and the implied framing in bytes."""

    rate_bps: int
    testbed_bps: float
    measured_bps: float
    testbed_framing_bytes: int
    framing_bytes: float


@dataclass(frozen=True)
class MarkingBin:
    """Samples with a queue in [from, to) bytes: share marked, its 95 % interval, share expected."""

    from_bytes: int
    to_bytes: int
    packets: int
    marked_share: float
    low: float
    high: float
    wanted_share: float


@dataclass(frozen=True)
class LoopDelay:
    """The time from a reading to the read-back of a changed threshold, in ns, over all changes."""

    count: int
    median_ns: int
    p99_ns: int


@dataclass(frozen=True)
class Calibration:
    """The measurements of one backend's fabric. `marking` is empty if it counts no marks."""

    backend: str
    testbed: str
    rtts: tuple[BaseRtt, ...]
    goodput: Goodput
    marking: tuple[MarkingBin, ...]
    loop: LoopDelay


def base_rtts(testbed: Testbed, schedule: Schedule, record: TrialRecord) -> tuple[BaseRtt, ...]:
    """Return the base RTT of each kind of path, from the path trial's tiny flows.

    Raises TrialError if one of them did not end.
    """
    fct_ns = _fct_ns(schedule, record)
    paths = PathTable(testbed)
    found = []
    for number, kind in enumerate(path_kinds(testbed)):
        tiny = fct_ns[tiny_flows(number)]
        found.append(
            BaseRtt(
                path=kind,
                testbed_ns=paths.base_rtt_ns(kind.src, kind.dst),
                median_ns=int(np.median(tiny)),
                min_ns=int(tiny.min()),
                max_ns=int(tiny.max()),
                count=len(tiny),
            )
        )
    return tuple(found)


def goodput(testbed: Testbed, schedule: Schedule, record: TrialRecord) -> Goodput:
    """Return steady goodput from the path trial's two long flows; slow start cancels out."""
    fct_ns = _fct_ns(schedule, record)
    size_bytes = int(schedule.size_bytes[-1] - schedule.size_bytes[-2])
    measured_bps = size_bytes * 8e9 / float(fct_ns[-1] - fct_ns[-2])
    far = path_kinds(testbed)[-1]
    rate_bps = PathTable(testbed).path(far.src, far.dst).rate_bps
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
            "see whether the fabric is idle and provisioned: `closloop inventory check`",
        )
    result: Ints = record.flows.end_ns - schedule.start_ns
    return result


def marking(testbed: Testbed, ports: Samples) -> tuple[MarkingBin, ...]:
    """Return the share marked by queue length, at the queue that the marking trial held.

    A packet is marked on arrival and counted when sent. So a sample's queue is the mean of those at
    its two ends, and samples in which it moved far are left out.
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
    wanted = MarkingProbability(kmin, kmax, PMAX).line(mean)
    edges = [0, *np.linspace(kmin, kmax, _BINS + 1).astype(int).tolist()]
    found = []
    for low, high in pairwise(edges):
        here = (mean >= low) & (mean < high)
        sent = int(packets[here].sum())
        if not sent:
            continue
        share = float(marked[here].sum()) / sent
        minimum, maximum = _wilson(share, sent)
        expected = float((wanted[here] * packets[here]).sum()) / sent
        found.append(MarkingBin(low, high, sent, share, minimum, maximum, expected))
    return tuple(found)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    z2 = _Z95**2
    middle = share + z2 / (2 * count)
    half = _Z95 * float(np.sqrt(share * (1 - share) / count + z2 / (4 * count**2)))
    return max(0.0, (middle - half) / (1 + z2 / count)), (middle + half) / (1 + z2 / count)


def loop_delay(record: TrialRecord) -> LoopDelay:
    """Return the time that the loop trial's changes took, from reading to read-back."""
    actions = record.changes[ECN.name]
    read_ns = actions.observed_ns
    # all queues that respond to one reading are one change
    took = np.array(
        [
            int(actions.applied_ns[read_ns == t_ns].max()) - t_ns
            for t_ns in np.unique(read_ns[read_ns > 0]).tolist()
        ],
        dtype=np.int64,
    )
    if not len(took):
        return LoopDelay(0, 0, 0)
    return LoopDelay(len(took), int(np.median(took)), int(np.quantile(took, 0.99)))


FORMAT = "closloop calibration 1"


_DATA = TypeAdapter(Calibration)


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as JSON-ready data."""
    return {"format": FORMAT, **_DATA.dump_python(calibration, mode="json", by_alias=True)}


def read_calibration(path: Path) -> Calibration:
    """Return what `closloop calibrate --json` wrote. Raises InputError for any other file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.pop("format", "") != FORMAT:
            raise ValueError("another format")
        return _DATA.validate_python(data)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError.single(
            str(path),
            f"is not a calibration: {why}",
            "make one: closloop calibrate TESTBED --on BACKEND --json > FILE",
        ) from error


# (what is being done, the share that is done from 0 to 1)
Listener = Callable[[str, float], None]
_PROBES = {"paths": path_trial, "marking": marking_trial, "loop": loop_trial}


def calibrate(
    backend: Backend,
    backend_name: str,
    testbed: Testbed,
    testbed_name: str,
    folder: Path,
    listener: Listener = lambda what, share: None,
) -> Calibration:
    """Measure `backend` on a testbed that is idle but for the probes; keep the trials in `folder`.

    Trials of an earlier calibration there are replaced. Raises what the backend raises, and
    TrialError if a probing flow does not end.
    """
    done: dict[str, tuple[Schedule, TrialRecord]] = {}
    for number, (what, make) in enumerate(_PROBES.items()):
        trial = make(testbed, testbed_name, backend_name)

        def progress(t_ns: int, end_ns: int, what: str = what, number: int = number) -> None:
            listener(what, (number + min(1.0, t_ns / max(1, end_ns))) / len(_PROBES))

        listener(what, number / len(_PROBES))
        done[what] = _run(backend, trial, testbed, folder, progress)
    listener("done", 1.0)
    return Calibration(
        backend=backend_name,
        testbed=testbed_name,
        rtts=base_rtts(testbed, *done["paths"]),
        goodput=goodput(testbed, *done["paths"]),
        marking=marking(testbed, done["marking"][1].ports),
        loop=loop_delay(done["loop"][1]),
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
    place = folder / trial.id
    shutil.rmtree(place, ignore_errors=True)
    ideal_ns = ideal_times_ns(testbed, schedule, trial)
    verdict = stamp(trial, testbed, schedule, record, ideal_ns)
    write_trial(place, trial, testbed, schedule, record, verdict, {}, ideal_ns)
    return schedule, record


@dataclass(frozen=True)
class Correction:
    """Changes of a testbed file: its framing in bytes, and delays in ns by the links' tier."""

    framing_bytes: int
    delay_change_ns: dict[int, int]


def correction(testbed: Testbed, mine: Calibration, like: Calibration | None) -> Correction:
    """Return the change of `testbed` that makes the backend of `mine` behave like that of `like`.

    Both were measured on `testbed`. Without `like`, the change makes the testbed agree with `mine`.
    A framing that is right within a byte stays. All links of a tier get the same correction of
    their delay: kinds of paths differ only in how many links of each tier they have, so round trips
    cannot tell more apart. Raises InputError if the two were measured on different paths.
    """
    if like is not None and [r.path for r in like.rtts] != [r.path for r in mine.rtts]:
        raise InputError.single(
            f"testbed {testbed.name}",
            "the two backends were measured on different paths",
            "calibrate both on one testbed",
        )
    tiers = sorted({tier for rtt in mine.rtts for tier in rtt.path.links_of_tier})
    crossings = np.array(
        [[2 * rtt.path.links_of_tier.get(tier, 0) for tier in tiers] for rtt in mine.rtts],
        dtype=np.float64,
    )
    measured = np.array([rtt.median_ns for rtt in mine.rtts], dtype=np.float64)
    if like is None:
        gaps = measured - np.array([rtt.testbed_ns for rtt in mine.rtts])
        more_framing = mine.goodput.framing_bytes - testbed.framing_bytes
    else:
        gaps = np.array([rtt.median_ns for rtt in like.rtts]) - measured
        more_framing = like.goodput.framing_bytes - mine.goodput.framing_bytes
    changes = np.linalg.lstsq(crossings, gaps, rcond=None)[0]
    framing = testbed.framing_bytes + (more_framing if abs(more_framing) >= 1 else 0)
    return Correction(
        max(0, round(framing)),
        {tier: round(change) for tier, change in zip(tiers, changes.tolist(), strict=True)},
    )
