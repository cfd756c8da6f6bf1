"""The validity checks of one trial: can its figures be trusted?

Each check returns findings, or None if the backend's record does not allow the check. The bounds
follow from the bytes that packets must carry, so a finding is a fault and not chance.
`Stamp.checked` lists the checks that were made; the stamp claims nothing beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from inventory.routing import ideal_times_ns
from inventory.unused_settings import unused_settings
from orchestration.analysis.counters import UNUSED, check_delivered, check_marks, check_rates
from orchestration.analysis.finite_starvation import check_finite_starvation
from orchestration.analysis.load import ends_of
from orchestration.analysis.overload import check_overload
from orchestration.analysis.starvation import check_starvation
from orchestration.core.pattern import SOCKETS
from orchestration.core.records import (
    DONE,
    FAILED,
    LONG_LIVED,
    SHAPERS_LATE,
    UNFINISHED,
    UNMEASURED,
    Ints,
    Schedule,
    TrialRecord,
)
from orchestration.core.roce import FORMER_HPCC_TEXT, trained_under_former_hpcc
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec, checkpoint_in
from orchestration.core.units import format_duration
from orchestration.results.stamp import Reason, Stamp
from tuners.learning.checkpoint import CheckpointError, card_of, find

GENERATOR_LATE_NS = 2_000
# On a rack the senders' clocks differ, and a program starts when its CPU schedules it. So flows may
# be this late by the clock, at any time scale, and at least as late as in virtual time.
GENERATOR_LATE_REAL_NS = 1_000_000
# On a real clock, samples are not misleading while at most this share of them is late or missing.
_MISSED_SHARE_REAL = 0.05
# An FCT below this share of the ideal FCT means that the path is not that of the testbed.
_FASTER_THAN_IDEAL = 0.95


@dataclass(frozen=True)
class _Case:
    """What the checks of a trial work on."""

    trial: TrialSpec
    testbed: Testbed
    schedule: Schedule
    record: TrialRecord
    ideal_ns: Ints


_Check = Callable[[_Case], Iterable[Reason] | None]


def stamp(
    trial: TrialSpec,
    testbed: Testbed,
    schedule: Schedule,
    record: TrialRecord,
    ideal_ns: Ints | None = None,
) -> Stamp:
    """Return the trial's verdict. One reason of severity `invalid` makes it invalid.

    `ideal_ns` (flows,) are the ideal completion times, if already known.
    """
    if ideal_ns is None:
        ideal_ns = ideal_times_ns(testbed, schedule, trial)
    case = _Case(trial, testbed, schedule, record, ideal_ns)
    findings = {name: check(case) for name, check in _CHECKS.items()}
    reasons = [reason for reasons in findings.values() for reason in reasons or ()]
    return verdict(reasons, [name for name, reasons in findings.items() if reasons is not None])


def verdict(reasons: Sequence[Reason], checked: Sequence[str]) -> Stamp:
    """Return the stamp of these findings; one of severity `invalid` makes it invalid."""
    valid = all(reason.severity != "invalid" for reason in reasons)
    return Stamp(valid=valid, reasons=tuple(reasons), checked=tuple(checked))


def _generator(case: _Case) -> Iterable[Reason]:
    """Compare each flow's first byte with its scheduled start."""
    sent = case.record.flows.sent_ns
    bound_ns = GENERATOR_LATE_NS
    if _real_clock(case):
        bound_ns = max(bound_ns, GENERATOR_LATE_REAL_NS // case.trial.scale)
    off = np.where(sent >= 0, sent - case.schedule.start_ns, 0)
    programs = _by_programs(case)
    if programs.any():
        worst_ns = int(np.abs(off[programs]).max())
        yield Reason(
            "programs-late",
            "warning",
            f"{int(programs.sum())} of {len(off)} flows are sent by programs, which connect first: "
            f"up to {format_duration(worst_ns)} after their start",
        )
        off = np.where(programs, 0, off)
    wrong = int(np.count_nonzero(np.abs(off) > bound_ns))
    if wrong:
        flow = int(np.argmax(np.abs(off)))
        side = "after" if off[flow] > 0 else "before"
        yield Reason(
            "generator-late",
            "invalid",
            f"{wrong} of {len(off)} flows were not sent within "
            f"{format_duration(bound_ns)} of their start; flow {flow} was sent "
            f"{format_duration(abs(int(off[flow])))} {side} it",
        )


def _flows(case: _Case) -> Iterable[Reason]:
    """Require flows in the measured time, and that all flows ended well."""
    flows, (begin_ns, stop_ns) = case.record.flows, case.trial.measured_ns
    too_early = (flows.status == DONE) & (flows.end_ns <= begin_ns)
    if not np.any((case.schedule.start_ns < stop_ns) & ~too_early):
        yield Reason(
            "nothing-sent",
            "invalid",
            f"no flow sends from {format_duration(begin_ns)} to {format_duration(stop_ns)}, the "
            "time that is measured: raise the load, or measure for longer",
        )
    yield from check_ends(flows.status)


def check_ends(status: Ints) -> Iterator[Reason]:
    """Yield problems with the ends of flows; `status` has shape (flows,)."""
    for code, word, value in (
        ("flows-unfinished", "had not ended", UNFINISHED),
        ("flows-failed", "failed", FAILED),
    ):
        count = int(np.count_nonzero(status == value))
        if count:
            yield Reason(code, "invalid", f"{count} of {len(status)} flows {word}")


def _sampler(case: _Case) -> Iterable[Reason]:
    """Require a sample within half a period of every multiple of the sampling period."""
    period, flows = case.trial.sample_period_ns, case.record.flows
    end_ns = case.trial.duration_ns + case.trial.drain_ns
    if not np.any(flows.status == UNFINISHED):  # the loop ends with the last flow
        lasts_ns = case.trial.duration_ns if np.any(flows.status == LONG_LIVED) else 0
        end_ns = min(end_ns, max(lasts_ns, int(flows.end_ns.max(initial=0))))
    ticks = end_ns // period
    t_ns = case.record.ports.t_ns
    # a sample that is half a period late counts for its tick, one a nanosecond later for the next
    sampled = np.unique((t_ns + (period - 1) // 2) // period)
    missed = ticks - int(np.count_nonzero((sampled >= 1) & (sampled <= ticks)))
    if missed:
        tolerable = _real_clock(case) and missed <= _MISSED_SHARE_REAL * ticks
        yield Reason(
            "sampler-behind",
            "warning" if tolerable else "invalid",
            f"{missed} of {ticks} sampling periods have no reading within half a period "
            f"({format_duration(period / 2)})",
        )


def _rates(case: _Case) -> Iterable[Reason]:
    return check_rates(
        case.testbed,
        case.record.ports,
        faults=bool(case.trial.faults),
        pauses=case.record.samples.get("priority"),
        taken=case.record.taken,
        late_ns=int(case.record.facts.get(SHAPERS_LATE, 0)) // case.trial.scale,
    )


def _delivered(case: _Case) -> Iterable[Reason] | None:
    """Compare ports with flows; impossible if programs send, whose overhead is unknown."""
    if not len(case.record.ports.t_ns) or _by_programs(case).any():
        return None
    return check_delivered(case.trial, case.testbed, case.schedule, case.record)


def _drops(case: _Case) -> Iterable[Reason]:
    dropped = case.record.ports.dropped_packets
    last = np.maximum(dropped.max(axis=0), 0) if len(dropped) else dropped.sum(axis=0)
    if last.any():
        queue = case.testbed.queues[int(np.argmax(last))]
        yield Reason(
            "drops",
            "warning",
            f"{int(last.sum())} packets were dropped at {np.count_nonzero(last)} of {len(last)} "
            f"queues, {int(last.max())} of them at {queue.label}",
        )


def check_ideal(start_ns: Ints, end_ns: Ints, status: Ints, ideal: Ints) -> Iterator[Reason]:
    """Compare finished flows with their ideal completion times; all shapes (flows,)."""
    done = status == DONE
    fct, ideal = (end_ns - start_ns)[done], ideal[done]
    fast = int(np.count_nonzero(fct < _FASTER_THAN_IDEAL * ideal))
    if fast:
        yield Reason(
            "faster-than-ideal",
            "warning",
            f"{fast} of {len(fct)} flows ended more than 5% sooner than an idle path allows, one "
            f"in {np.min(fct / ideal):.2f} of the ideal time: compare the links' rates and delays "
            "with the testbed's",
        )


def _offloads(case: _Case) -> Iterable[Reason] | None:
    if "offloads_on" not in case.record.facts:
        return None
    devices = [str(item) for item in case.record.facts["offloads_on"]]
    if not devices:
        return ()
    more = f" and {len(devices) - 3} more" if len(devices) > 3 else ""
    text = (
        f"segmentation offload is on at {', '.join(devices[:3])}{more}, so that several packets "
        "are counted and queued as one"
    )
    return (Reason("offloads-on", "invalid", text),)


def _clamped(case: _Case) -> Iterable[Reason] | None:
    """Report thresholds that the tuner set out of bounds and the loop clamped."""
    if "clamped_changes" not in case.record.facts:
        return None
    count = int(case.record.facts["clamped_changes"])
    if not count:
        return ()
    text = (
        f"{count} changes of thresholds were out of bounds and were clamped: "
        "0 <= kmin <= kmax <= the queue's buffer, pmax in 0..1"
    )
    return (Reason("thresholds-clamped", "warning", text),)


def _signals(case: _Case) -> Iterable[Reason]:
    """Report signals that the tuner observes and that were never measured."""
    names = case.record.facts.get(UNMEASURED, ())
    if names:
        yield Reason(
            "signal-unmeasured",
            "invalid",
            "signals that the tuner observes were never measured, so that it decided without "
            f"them: {', '.join(names)}",
        )


def _settings(case: _Case) -> Iterable[Reason]:
    """Report settings that change nothing in this trial."""
    for setting in unused_settings(case.trial, case.testbed, lambda: case.schedule):
        yield Reason(UNUSED, "warning", setting.text)


def _findings(case: _Case) -> Iterable[Reason] | None:
    """Pass on the backend's own findings: counters that a device lacks, an incomplete restore."""
    if "findings" not in case.record.facts:
        return None
    return [Reason(**finding) for finding in case.record.facts["findings"]]


def _by_programs(case: _Case) -> np.ndarray:
    """Return which flows are sent by programs, as booleans (flows,)."""
    patterns = [spec.driver != SOCKETS for spec in case.trial.traffic]
    return np.array(patterns, dtype=bool)[case.schedule.klass]


def _real_clock(case: _Case) -> bool:
    return case.record.facts.get("clock") == "real"


_CHECKS: dict[str, _Check] = {
    "generator": _generator,
    "flows": _flows,
    "sampler": _sampler,
    "link rates": _rates,
    "bytes delivered": _delivered,
    "drops": _drops,
    "starvation": lambda case: check_starvation(
        case.trial, case.testbed, case.schedule, ends_of(case.record), case.record.ports
    ),
    "finite flows": lambda case: check_finite_starvation(
        case.trial, case.testbed, case.schedule, ends_of(case.record), case.record.ports
    ),
    "load": lambda case: check_overload(
        case.trial, case.testbed, case.schedule, ends_of(case.record), case.record.ports
    ),
    "ideal times": lambda case: check_ideal(
        case.schedule.start_ns, case.record.flows.end_ns, case.record.flows.status, case.ideal_ns
    ),
    "offloads": _offloads,
    "thresholds": _clamped,
    "network": lambda case: check_network(case.trial),
    "marks": lambda case: check_marks(case.trial, case.testbed, case.record),
    "signals": _signals,
    "settings": _settings,
    "devices": _findings,
}


TRAINED_OTHERWISE = "trained-otherwise"


def check_network(trial: TrialSpec) -> Iterable[Reason] | None:
    """Report a network that was trained under other parameters than its scenario has now.

    None for a trial without a network, or with one whose model card cannot be read.
    """
    name = checkpoint_in(trial)
    card = _card(name) if name else None
    if card is None:
        return None
    if not trained_under_former_hpcc(card):
        return ()
    text = f"its network was in part trained under {FORMER_HPCC_TEXT}: train it again"
    return (Reason(TRAINED_OTHERWISE, "warning", text),)


def cautions(names: Iterable[str]) -> list[str]:
    """Return cautions on networks, which are given by names or files; one for all alike."""
    cards = {name: _card(name) for name in names}
    former = [
        name for name, card in cards.items() if card is not None and trained_under_former_hpcc(card)
    ]
    if not former:
        return []
    subject, them = ("networks were", "them") if len(former) > 1 else ("network was", "it")
    return [
        f"{', '.join(former)}: {subject} in part trained under {FORMER_HPCC_TEXT}: train {them} "
        "again"
    ]


@cache
def _card(name: str) -> Mapping[str, object] | None:
    try:
        return card_of(find(name))
    except CheckpointError:
        return None
