"""Likely causes of differences: recorded settings in which two paired trials differ.

Causes are listed in the order in which they act: program and backend, fabric, hosts, traffic,
tuner, samples, single kernel settings, findings of the stamps. This is not a ranking by
likelihood. Each cause names the metrics that it can affect; to prove one, change only that setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter, ne
from typing import Any

import numpy as np

from orchestration.analysis.comparison.equivalence import DIFFERENT
from orchestration.analysis.comparison.hypothesis_tests import MetricVerdict
from orchestration.analysis.comparison.runs import without_tables
from orchestration.analysis.metrics import DROPS, FCT, MARKS, QUEUE, SLOWDOWN, TAIL, UTILISATION
from orchestration.analysis.summary import tuner_label
from orchestration.core.capabilities import capabilities, mode_of
from orchestration.core.condition import SCHEDULE
from orchestration.core.engines import engine_of, in_words
from orchestration.core.errors import InputError
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.core.units import format_duration, format_rate, format_size
from orchestration.results.reader import TrialResult
from orchestration.results.tables import Columns
from tuners.registry import RECORDED

EVERYTHING = (SLOWDOWN, TAIL, FCT, QUEUE, MARKS, UTILISATION, DROPS)
# Printed wherever causes are listed.
ORDER = (
    "They are listed in the order in which settings act (program and backend, fabric, hosts, "
    "traffic, tuner, samples, kernel settings), which is not a ranking by likelihood."
)


@dataclass(frozen=True)
class Cause:
    """A setting that differs: its two values, the topics that it `moves`, and why.

    Topics are groups of metrics such as "queues". `could_explain` counts the metrics of these
    topics with the verdict "different".
    """

    what: str
    a: str
    b: str
    moves: tuple[str, ...]
    why: str
    could_explain: int = 0


@dataclass(frozen=True)
class Settings:
    """One trial's settings. `testbed` and `actions` are None if they cannot be read.

    `timeouts` counts retransmission timeouts of TCP and of RoCE NICs. `missed` is the share of
    sampling periods without a reading. Both are None if unknown.
    """

    trial: TrialResult
    testbed: Testbed | None
    actions: Columns | None
    timeouts: int | None
    missed: float | None

    @property
    def spec(self) -> TrialSpec:
        """The trial's spec."""
        return self.trial.spec

    @property
    def runs(self) -> bool:
        """Whether closloop ran the trial: imported results are other programs'."""
        return capabilities(self.spec.backend).runs

    def fact(self, key: str, default: object = "") -> Any:
        """Return a fact of the trial, or the version of a program."""
        return {**self.trial.facts, **self.trial.versions}.get(key, default)


def causes_of(a: Settings, b: Settings, tested: Sequence[MetricVerdict]) -> list[Cause]:
    """Return the settings in which two paired trials differ, in the order in which they act."""
    different = [item.metric.topic for item in tested if item.verdict == DIFFERENT]
    return [
        dataclasses.replace(cause, could_explain=sum(topic in cause.moves for topic in different))
        for compare in _SETTINGS
        for cause in compare(a, b)
    ]


def read_settings(trial: TrialResult) -> Settings:
    """Return a trial's settings; files that cannot be read leave their fields None."""
    try:
        testbed: Testbed | None = trial.testbed
    except InputError:
        testbed = None
    hosts, ports = _table(trial, "hosts"), _table(trial, "ports")
    return Settings(
        trial=without_tables(trial),
        testbed=testbed,
        actions=_table(trial, "actions"),
        timeouts=_timeouts_of(hosts) if hosts is not None else None,
        missed=_missed(trial, np.unique(ports["t_ns"])) if ports is not None else None,
    )


def _table(trial: TrialResult, name: str) -> Columns | None:
    try:
        return trial.table(name)
    except InputError:
        return None


def _timeouts_of(hosts: Columns) -> int:
    """Return the timeouts of all hosts together, by their last samples."""
    names, host_of = np.unique(hosts["host"].astype(str), return_inverse=True)
    maximum = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(maximum, host_of, hosts["timeouts"])
    return int(maximum.sum())


def _missed(trial: TrialResult, t_ns: np.ndarray) -> float | None:
    """Return the share of sampling periods without a reading, while flows arrived.

    If all flows end earlier, the readings end with them, and later periods do not count.
    """
    if not len(t_ns):
        return None
    period = trial.spec.sample_period_ns
    periods = min(trial.spec.duration_ns, int(t_ns.max()) + period // 2) // period
    if periods < 1:
        return None
    sampled = np.unique((t_ns + (period - 1) // 2) // period)
    return 1 - float(np.count_nonzero((sampled >= 1) & (sampled <= periods))) / periods


@dataclass(frozen=True)
class _Setting:
    """Compares one setting of two trials, and yields a cause if it differs.

    `value` returns None if the setting is unknown or must not be compared. `words` turns a value
    into text, `differ` compares two values.
    """

    what: str
    value: Callable[[Settings], Any]
    moves: tuple[str, ...]
    why: str | Callable[[Settings, Settings], str]
    words: Callable[[Any], str] = str
    differ: Callable[[Any, Any], bool] = ne

    def __call__(self, a: Settings, b: Settings) -> Iterator[Cause]:
        first, second = self.value(a), self.value(b)
        if first is not None and second is not None and self.differ(first, second):
            why = self.why if isinstance(self.why, str) else self.why(a, b)
            yield Cause(self.what, self.words(first), self.words(second), self.moves, why)


def _differ_by(share: float) -> Callable[[float, float], bool]:
    """Return a test of whether two numbers differ by more than `share` of the larger one."""
    return lambda a, b: abs(a - b) > share * max(abs(a), abs(b))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _of_testbed(value: Callable[[Testbed], float]) -> Callable[[Settings], float | None]:
    return lambda item: value(item.testbed) if item.testbed else None


def _of_program(key: str) -> Callable[[Settings], str | None]:
    return lambda item: str(item.fact(key)) or None


def _of_campaign(what: str, field: str) -> _Setting:
    """Compare a duration in the spec. Imports are skipped: they did not run such a campaign."""

    def value(item: Settings) -> int | None:
        return getattr(item.spec, field) if item.runs else None

    return _Setting(what, value, (QUEUE, MARKS, TAIL), "set in the campaign", format_duration)


def _model(item: Settings) -> str:
    model = item.fact("model")
    return (
        f"{item.spec.backend}, {model} model"
        if isinstance(model, str) and model
        else item.spec.backend
    )


def _two_models(a: Settings, b: Settings) -> str:
    if not (mode_of(a.spec).has_packets and mode_of(b.spec).has_packets):
        return "a fluid model has rates in place of packets, so no slow start and no bursts"
    return "these are two implementations of hosts and queues"


def _framing_share(a: Settings, b: Settings) -> str:
    beds = [item.testbed for item in (a, b) if item.testbed]
    share = abs(beds[0].framing_bytes - beds[1].framing_bytes) / (beds[0].mtu_bytes + 14)
    return f"it changes the bytes of each packet on the wire, by {share:.1%} of a full packet"


def _threshold(name: str, column: str, words: Callable[[float], str]) -> _Setting:
    """Compare a threshold as read back, averaged over all changes."""

    def mean(item: Settings) -> float | None:
        return _mean(item.actions[column]) if item.actions and len(item.actions[column]) else None

    return _Setting(
        f"{name} as read back",
        mean,
        (QUEUE, MARKS, SLOWDOWN, TAIL),
        "marking begins at another queue length, and queues settle where marking begins",
        lambda value: f"{words(value)} on average",
        _differ_by(0.001),
    )


def _loop_delay_ns(item: Settings) -> float | None:
    """Return the mean time from a reading to the change it led to; None without changes."""
    if item.actions is None:
        return None
    made = item.actions["t_ns"] > 0
    delays = (item.actions["applied_ns"] - item.actions["t_ns"])[made]
    return float(np.mean(delays)) if made.any() else None


def _timeouts(a: Settings, b: Settings) -> str:
    if a.timeouts == 0 == b.timeouts:
        return "it is the wait after the last packet of a flow is lost; neither had a timeout"
    return (
        "it is the wait after the last packet of a flow is lost; timeouts: "
        f"{a.timeouts} in A, {b.timeouts} in B"
    )


def _texts(item: Settings, key: str) -> list[str]:
    return [text for _, text in leaves({"": item.fact(key)}) if text]


def _facts(group: str, moves: tuple[str, ...]) -> Callable[[Settings, Settings], Iterator[Cause]]:
    """Return a function that compares the facts of a group, such as sysctls, one by one."""

    def compare(a: Settings, b: Settings) -> Iterator[Cause]:
        first, second = (dict(leaves(item.trial.facts.get(group, {}))) for item in (a, b))
        for key in sorted(set(first) & set(second)):
            if first[key] != second[key]:
                sets_paths = "hash" in key
                yield Cause(
                    f"{group}: {key}",
                    first[key],
                    second[key],
                    (UTILISATION, TAIL, SLOWDOWN) if sets_paths else moves,
                    "ECMP puts flows on other paths" if sets_paths else "a kernel setting",
                )

    return compare


def _flows_made(a: Settings, b: Settings) -> Iterator[Cause]:
    """Compare the traffic, unless one trial replays the other and so has its flows."""
    first, second = a.spec, b.spec
    if first.parent != second.parent:
        return
    if not (a.runs and b.runs):
        # an import has no traffic patterns: its flows can only be compared with another import's
        in_a, in_b = (spec.files.get(SCHEDULE, "") for spec in (first, second))
        if in_a != in_b and first.backend == second.backend:
            yield Cause("traffic", in_a[:8], in_b[:8], EVERYTHING, "the flows differ")
    elif first.traffic != second.traffic or first.traffic_files != second.traffic_files:
        in_a, in_b = (
            ", ".join(sorted(item.kind for item in spec.traffic)) or "none"
            for spec in (first, second)
        )
        why = "the patterns' settings differ" if in_a == in_b else "the traffic patterns differ"
        yield Cause("traffic", in_a, in_b, EVERYTHING, why)
    elif first.seed != second.seed:
        why = "other flows of the same traffic: run more repeats, or use the same seeds"
        yield Cause("seed", str(first.seed), str(second.seed), EVERYTHING, why)


def _fields(
    what: str, fields: Callable[[TrialSpec], Mapping[str, Any]], why: str
) -> Callable[[Settings, Settings], Iterator[Cause]]:
    """Return a function that compares fields of the specs that both trials have, one by one.

    Trials of two backends are not compared, because each backend has defaults of its own.
    """

    def compare(a: Settings, b: Settings) -> Iterator[Cause]:
        if not (a.runs and a.spec.backend == b.spec.backend):
            return
        first, second = (dict(leaves(fields(item.spec))) for item in (a, b))
        for key in first:
            if first[key] != second.get(key, first[key]):
                yield Cause(f"{what}: {key}", first[key], second[key], EVERYTHING, why)

    return compare


def _nic_fields(spec: TrialSpec) -> dict[str, Any]:
    """Return the settings of RoCE NICs, and under its name those of their congestion control."""
    nic = spec.host.roce
    if nic is None:
        return {}
    apart = ("control", "dcqcn", "values")
    own = {name: value for name, value in vars(nic).items() if name not in apart}
    return {**own, nic.control: nic.control_values}


def _balancing_fields(spec: TrialSpec) -> dict[str, Any]:
    own = dict(vars(spec.load_balancing))
    return {own.pop("kind"): own}


def _stamps(a: Settings, b: Settings) -> Iterator[Cause]:
    """Yield the codes of findings that only one of the two stamps has."""
    moves = {
        "drops": (DROPS, TAIL, FCT),
        "sampler-behind": (QUEUE, MARKS),
        "sources": (QUEUE, MARKS),
        "thresholds-clamped": (QUEUE, MARKS),
        "faster-than-ideal": (FCT, SLOWDOWN),
        "programs-late": (FCT, SLOWDOWN, TAIL),
    }
    first, second = ({r.code: r.text for r in item.trial.stamp.reasons} for item in (a, b))
    # a difference in backends already says that one trial was imported
    for code in sorted((set(first) ^ set(second)) - {"imported"}):
        in_a, in_b = ("yes" if code in findings else "no" for findings in (first, second))
        why = first.get(code, second.get(code, ""))
        yield Cause(f"finding: {code}", in_a, in_b, moves.get(code, EVERYTHING), why)


def leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested facts as (path, value); a path is `host: net/ipv4/...`."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, f"{prefix}: {key}" if prefix else str(key))
    elif isinstance(data, str | int | float | bool):
        yield prefix, f"{data:.6g}" if isinstance(data, float) else str(data)


_short = itemgetter(slice(12))
_PROGRAM = "the program differs: closloop's CHANGELOG.md lists what changed"
# fmt: off
_SETTINGS: tuple[Callable[[Settings, Settings], Iterator[Cause]], ...] = (
    # program and backend
    _Setting("closloop's version", _of_program("closloop"), EVERYTHING, _PROGRAM, _short),
    _Setting("closloop's commit", _of_program("commit"), EVERYTHING, _PROGRAM, _short),
    _Setting("engine", lambda item: engine_of(item.trial.facts)[0] or None, EVERYTHING,
             "the packet engine and the kernel order events of one nanosecond differently",
             in_words),
    _Setting("packet engine's version", _of_program("engine_hash"), EVERYTHING, _PROGRAM, _short),
    _Setting("kernel's build", _of_program("kernel_hash"), EVERYTHING, _PROGRAM, _short),
    _Setting("backend", _model, EVERYTHING, _two_models),
    _Setting("clock", lambda item: str(item.fact("clock", "unknown")),
             (FCT, SLOWDOWN, TAIL, QUEUE),
             "on a real clock, a busy processor delays packets"),
    _Setting("scale", lambda item: item.spec.scale, (FCT, SLOWDOWN, TAIL),
             "a trial's second takes so many seconds; kernel timers and CPU time are not scaled"),
    _Setting("kernel", lambda item: ", ".join(sorted(set(_texts(item, "kernel")))) or None,
             (FCT, SLOWDOWN, TAIL, QUEUE, MARKS), "TCP and queues are those of another version"),
    # the fabric
    _Setting("framing", _of_testbed(lambda bed: bed.framing_bytes), (FCT, SLOWDOWN, UTILISATION),
             _framing_share, "{} B".format),
    _Setting("link delay", _of_testbed(lambda bed: _mean(link.delay_ns for link in bed.links)),
             (SLOWDOWN, FCT, QUEUE, MARKS),
             "it sets the base RTT, on which the FCT of short flows and queues depend",
             lambda delay: f"{format_duration(delay)} on average"),
    _Setting("link rates", _of_testbed(lambda bed: sum(link.rate_bps for link in bed.links)),
             (FCT, SLOWDOWN, TAIL, QUEUE, MARKS, UTILISATION),
             "packets are sent at another rate",
             lambda rate: f"{format_rate(rate)}, sum of all links"),
    _Setting("MTU", _of_testbed(lambda bed: bed.mtu_bytes), (FCT, SLOWDOWN, QUEUE, MARKS),
             "packet sizes, the share of headers, and the steps of windows change", "{} B".format),
    _Setting("buffers", _of_testbed(lambda bed: _mean(queue.buffer_bytes for queue in bed.queues)),
             (DROPS, TAIL), "a smaller buffer drops packets earlier",
             lambda size: f"{format_size(size)} a queue"),
    _Setting("marking probability", lambda item: "; ".join(_texts(item, "red")) or "not recorded",
             (MARKS, QUEUE, SLOWDOWN),
             "with the same thresholds, other packets are marked"),
    _Setting("faults", lambda item: item.spec.faults, EVERYTHING,
             "other links fail, or at other times", lambda faults: str(len(faults))),
    _Setting("load balancing", lambda item: item.spec.load_balancing, EVERYTHING,
             "packets take other paths", lambda spec: spec.kind, lambda a, b: a.kind != b.kind),
    _fields("load balancing", _balancing_fields, "packets take other paths"),
    _fields("fabric", lambda spec: vars(spec.fabric), "switches queue and mark in another way"),
    # the hosts; for an import, congestion control is a fact and not in the spec
    _Setting("congestion control",
             lambda item: str(item.fact("congestion_control", item.spec.host.congestion_control)),
             EVERYTHING, "senders react to marks in another way"),
    _fields("RoCE NICs", _nic_fields, "NICs send at other rates or times"),
    _Setting("minimum RTO", lambda item: item.spec.host.min_rto_ns, (TAIL, FCT),
             _timeouts, format_duration),
    _Setting("loss detection", lambda item: item.spec.host.loss_detection, (TAIL, FCT),
             "packets that arrive out of order are sent again, or waited for"),
    # the traffic
    _flows_made,
    _of_campaign("duration", "duration_ns"),
    _Setting("warm-up", lambda item: item.spec.warm_up_ns, EVERYTHING,
             "other flows and samples are counted", format_duration),
    # the tuner
    _Setting("tuner", lambda item: None if item.spec.tuner.name == RECORDED else item.spec.tuner,
             (QUEUE, MARKS, SLOWDOWN, TAIL), "another rule sets the thresholds", tuner_label,
             lambda a, b: a.name != b.name),
    _threshold("kmin", "kmin_bytes", format_size),
    _threshold("kmax", "kmax_bytes", format_size),
    _threshold("pmax", "pmax", "{:.3g}".format),
    _Setting("control-loop delay", _loop_delay_ns, (QUEUE, MARKS, TAIL),
             "the time from a sample to the change of thresholds", format_duration,
             _differ_by(0.05)),
    _of_campaign("decision latency", "decision_latency_ns"),
    _of_campaign("action period", "action_period_ns"),
    # the samples
    _Setting("sampling period",
             lambda item: None if item.missed is None else item.spec.sample_period_ns,
             (QUEUE, MARKS), "queues are seen, and tuners act, at other times", format_duration),
    _Setting("samples missed", lambda item: item.missed, (QUEUE, MARKS),
             "a busy sampler misses long queues first of all", "{:.1%}".format,
             lambda a, b: abs(a - b) > 0.001),
    _Setting("sources of samples",
             lambda item: ", ".join(sorted(set(_texts(item, "sources")))[:4]) or "the queue itself",
             (QUEUE, MARKS),
             "a polled counter is older than the sample that it is part of"),
    # single kernel settings, and findings of the stamps
    _facts("sysctls", (FCT, SLOWDOWN, TAIL)),
    _facts("qdiscs", (QUEUE, MARKS, FCT, SLOWDOWN)),
    _stamps,
)
# fmt: on
