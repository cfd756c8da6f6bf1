"""The rules by which settings become suspects: one setting each, what it moves, and how far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.analysis.comparison.settings import Settings, leaves
from orchestration.analysis.summary import tuner_label
from orchestration.model.condition import IMPORTED, SCHEDULE
from orchestration.model.trial import TrialSpec
from orchestration.model.units import format_duration, format_rate, format_size

# What a metric is about, so that a cause can say what it moves.
SLOWDOWN, TAIL, FCT, QUEUE, MARKS = "slowdown", "tail slowdown", "FCT", "queues", "marks"
UTILISATION, DROPS = "utilisation", "drops"
EVERYTHING = (SLOWDOWN, TAIL, FCT, QUEUE, MARKS, UTILISATION, DROPS)


@dataclass(frozen=True)
class Cause:
    """A setting that differs: its values, what it `moves`, why it would, and how likely it is.

    `effect` is the rule's guess of how much it moves (0..1), `fit` how well what it moves fits what
    differs (0..1); `score`, their product, ranks.
    """

    what: str
    a: str
    b: str
    moves: tuple[str, ...]
    why: str
    effect: float
    fit: float = 0.0

    @property
    def score(self) -> float:
        """What causes are ranked by."""
        return self.effect * self.fit


def _told(
    what: str, values: Iterable[str], moves: tuple[str, ...], why: str, effect: float
) -> Cause:
    a, b = values
    return Cause(what, a, b, moves, why, effect)


def _gap(a: float, b: float) -> float:
    """Return by how much two sizes differ, as a share of the larger."""
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _backend(a: Settings, b: Settings) -> Iterator[Cause]:
    first, second = (_model(s) for s in (a, b))
    if first != second:
        fluid = "fluid" in first or "fluid" in second
        why = (
            "a fluid model has rates in place of packets: no slow start, no bursts"
            if fluid
            else "two implementations of TCP and of queues"
        )
        yield Cause("backend", first, second, EVERYTHING, why, 0.8 if fluid else 0.25)


def _model(settings: Settings) -> str:
    model = settings.trial.facts.get("model")
    backend = settings.trial.spec.backend
    return f"{backend}, {model} model" if isinstance(model, str) else backend


def _framing(a: Settings, b: Settings) -> Iterator[Cause]:
    if a.testbed and b.testbed and a.testbed.framing_bytes != b.testbed.framing_bytes:
        first, second = a.testbed.framing_bytes, b.testbed.framing_bytes
        share = abs(first - second) / (a.testbed.mtu_bytes + 14)
        yield Cause(
            "framing", f"{first} B", f"{second} B", (FCT, SLOWDOWN, UTILISATION),
            f"bytes of each packet on the wire: {share:.1%} of a full one",
            5 * share,
        )  # fmt: skip


def _delays(a: Settings, b: Settings) -> Iterator[Cause]:
    if not (a.testbed and b.testbed):
        return
    first, second = (float(np.mean([k.delay_ns for k in t.links])) for t in (a.testbed, b.testbed))
    if first != second:
        yield _told(
            "link delay", (f"{format_duration(x)} on average" for x in (first, second)),
            (SLOWDOWN, FCT, QUEUE, MARKS),
            "the base RTT: short flows take a few of it, queues follow it",
            _gap(first, second),
        )  # fmt: skip
    first, second = (float(np.sum([k.rate_bps for k in t.links])) for t in (a.testbed, b.testbed))
    if first != second:
        yield _told(
            "link rates", (f"{format_rate(x)} in all" for x in (first, second)),
            (FCT, SLOWDOWN, TAIL, QUEUE, MARKS, UTILISATION),
            "everything is served at another rate", _gap(first, second),
        )  # fmt: skip
    if a.testbed.mtu_bytes != b.testbed.mtu_bytes:
        yield Cause(
            "MTU", f"{a.testbed.mtu_bytes} B", f"{b.testbed.mtu_bytes} B",
            (FCT, SLOWDOWN, QUEUE, MARKS),
            "other packets: headers' share, and how coarse windows and queues are",
            _gap(a.testbed.mtu_bytes, b.testbed.mtu_bytes),
        )  # fmt: skip
    first, second = (
        float(np.mean([q.buffer_bytes for q in t.queues])) for t in (a.testbed, b.testbed)
    )
    if first != second:
        lossy = any(r.code == "drops" for item in (a, b) for r in item.trial.stamp.reasons)
        yield _told(
            "buffers", (f"{format_size(x)} a queue" for x in (first, second)), (DROPS, TAIL),
            "a smaller buffer drops earlier", _gap(first, second) * (1.0 if lossy else 0.3),
        )  # fmt: skip


def _thresholds(a: Settings, b: Settings) -> Iterator[Cause]:
    """Compare the thresholds that the queues read back, each queue's mean over its changes."""
    if a.actions is None or b.actions is None:
        return
    for column, name in (("kmin_bytes", "kmin"), ("kmax_bytes", "kmax"), ("pmax", "pmax")):
        if not (len(a.actions[column]) and len(b.actions[column])):
            continue
        first, second = (float(np.mean(x.actions[column])) for x in (a, b) if x.actions)
        if _gap(first, second) > 0.001:
            texts = (
                (f"{x:.3g}" if column == "pmax" else format_size(x)) + " on average"
                for x in (first, second)
            )
            yield _told(
                f"{name} as read back", texts, (QUEUE, MARKS, SLOWDOWN, TAIL),
                "marks begin at another queue length, and queues settle where marks begin",
                1.5 * _gap(first, second),
            )  # fmt: skip
    delays = [_loop_delay_ns(item) for item in (a, b)]
    if None not in delays and _gap(*delays) > 0.05:  # type: ignore[arg-type]
        yield _told(
            "control-loop delay", (format_duration(x) for x in delays if x is not None),
            (QUEUE, MARKS, TAIL), "from a reading to the thresholds that answer it",
            0.3 * _gap(*delays),  # type: ignore[arg-type]
        )  # fmt: skip


def _loop_delay_ns(settings: Settings) -> float | None:
    """Return the mean time from a reading to the change that answers it; None if none was made."""
    actions = settings.actions
    if actions is None:
        return None
    made = actions["t_ns"] > 0
    return float(np.mean((actions["applied_ns"] - actions["t_ns"])[made])) if made.any() else None


def _transport(a: Settings, b: Settings) -> Iterator[Cause]:
    ours, theirs = a.trial.spec.host, b.trial.spec.host
    # an imported run's is in its facts: its campaign was another program's
    first, second = (
        str(item.trial.facts.get("congestion_control", item.trial.spec.host.congestion_control))
        for item in (a, b)
    )
    if first != second:
        why = "senders answer marks in another way"
        yield Cause("congestion control", first, second, EVERYTHING, why, 0.9)
    if ours.min_rto_ns != theirs.min_rto_ns:
        timeouts = [item.timeouts for item in (a, b)]
        none = all(count == 0 for count in timeouts)
        why = "no timeout happened in either" if none else f"timeouts: {timeouts[0]}, {timeouts[1]}"
        yield Cause(
            "minimum RTO", format_duration(ours.min_rto_ns), format_duration(theirs.min_rto_ns),
            (TAIL, FCT), f"what a lost tail waits; {why}",
            (0.02 if none else 0.6) * _gap(ours.min_rto_ns, theirs.min_rto_ns),
        )  # fmt: skip


def _sampling(a: Settings, b: Settings) -> Iterator[Cause]:
    first, second = a.trial.spec.sample_period_ns, b.trial.spec.sample_period_ns
    if first != second and a.missed is not None and b.missed is not None:
        yield Cause(
            "sampling period", format_duration(first), format_duration(second), (QUEUE, MARKS),
            "queues are seen, and tuners act, at other times", 0.3 * _gap(first, second),
        )  # fmt: skip
    if a.missed is not None and b.missed is not None and abs(a.missed - b.missed) > 0.001:
        yield Cause(
            "samples missed", f"{a.missed:.1%}", f"{b.missed:.1%}", (QUEUE, MARKS),
            "a busy sampler misses long queues first", 2 * abs(a.missed - b.missed),
        )  # fmt: skip
    polled = [_polled(item) for item in (a, b)]
    if polled[0] != polled[1]:
        yield Cause(
            "sources of samples", polled[0], polled[1], (QUEUE, MARKS),
            "a polled number is older than the sample that it stands for", 0.3,
        )  # fmt: skip


def _polled(settings: Settings) -> str:
    sources = settings.trial.facts.get("sources")
    values = sorted({value for _, value in leaves(sources)}) if sources else []
    return ", ".join(values[:4]) if values else "the queue itself"


def _machine(a: Settings, b: Settings) -> Iterator[Cause]:
    clocks = [str(item.trial.facts.get("clock", "unknown")) for item in (a, b)]
    if clocks[0] != clocks[1]:
        yield Cause(
            "clock", clocks[0], clocks[1], (FCT, SLOWDOWN, TAIL, QUEUE),
            "on a real clock a busy processor is part of the network", 0.3,
        )  # fmt: skip
    kernels = [dict(leaves({"kernel": item.trial.facts.get("kernel", "")})) for item in (a, b)]
    texts = [", ".join(sorted(set(k.values()))) or "none" for k in kernels]
    if texts[0] != texts[1] and "none" not in texts:
        yield Cause(
            "kernel", texts[0], texts[1], (FCT, SLOWDOWN, TAIL, QUEUE, MARKS),
            "another version of TCP and queues", 0.1,
        )  # fmt: skip
    laws = ["; ".join(v for _, v in leaves(item.trial.facts.get("red", ""))) for item in (a, b)]
    if laws[0] != laws[1]:
        yield Cause(
            "marking law", laws[0] or "not said", laws[1] or "not said", (MARKS, QUEUE, SLOWDOWN),
            "the same thresholds mark other packets", 0.15,
        )  # fmt: skip


def _facts(a: Settings, b: Settings) -> Iterator[Cause]:
    """Compare sysctls and queueing disciplines, one by one."""
    for group, moves, effect in (
        ("sysctls", (FCT, SLOWDOWN, TAIL), 0.15),
        ("qdiscs", (QUEUE, MARKS, FCT, SLOWDOWN), 0.15),
    ):
        first, second = (dict(leaves(item.trial.facts.get(group, {}))) for item in (a, b))
        for key in sorted(set(first) & set(second)):
            if first[key] == second[key]:
                continue
            if "hash" in key:
                yield Cause(
                    f"{group}: {key}", first[key], second[key], (UTILISATION, TAIL, SLOWDOWN),
                    "ECMP puts flows on other paths", 0.2,
                )  # fmt: skip
            else:
                yield Cause(f"{group}: {key}", first[key], second[key], moves, "a setting", effect)


def _experiment(a: Settings, b: Settings) -> Iterator[Cause]:
    ours, theirs = a.trial.spec, b.trial.spec
    # a replay has its parent's flows, whatever the pattern and the seed that they are sent by
    if ours.parent == theirs.parent:
        yield from _flows_made(ours, theirs)
    if ours.faults != theirs.faults:
        yield Cause(
            "faults", str(len(ours.faults)), str(len(theirs.faults)), EVERYTHING,
            "links are down at other times", 0.6,
        )  # fmt: skip
    if ours.tuner.name != theirs.tuner.name and "recorded" not in (
        ours.tuner.name,
        theirs.tuner.name,
    ):
        yield Cause(
            "tuner", tuner_label(ours.tuner), tuner_label(theirs.tuner),
            (QUEUE, MARKS, SLOWDOWN, TAIL), "another rule sets the thresholds", 0.5,
        )  # fmt: skip
    if IMPORTED in (ours.backend, theirs.backend):  # which no campaign of ours set
        return
    for name, first, second in (
        ("duration", ours.duration_ns, theirs.duration_ns),
        ("decision latency", ours.decision_latency_ns, theirs.decision_latency_ns),
        ("action period", ours.action_period_ns, theirs.action_period_ns),
    ):
        if first != second:
            effect = 0.1 if name == "duration" else 0.2
            yield Cause(
                name, format_duration(first), format_duration(second), (QUEUE, MARKS, TAIL),
                "set in the campaign", effect * _gap(first, second),
            )  # fmt: skip


def _flows_made(ours: TrialSpec, theirs: TrialSpec) -> Iterator[Cause]:
    backends = (ours.backend, theirs.backend)
    if IMPORTED in backends:
        # an import has no patterns: only of two is it known whether the flows are the same
        first, second = (spec.files.get(SCHEDULE, "") for spec in (ours, theirs))
        if first != second and set(backends) == {IMPORTED}:
            yield Cause("traffic", first[:8], second[:8], EVERYTHING, "other flows", 0.6)
    elif ours.traffic != theirs.traffic or ours.traffic_files != theirs.traffic_files:
        yield Cause(
            "traffic", _count(ours.traffic), _count(theirs.traffic), EVERYTHING,
            "other patterns make the flows", 0.6,
        )  # fmt: skip
    elif ours.seed != theirs.seed:
        yield Cause(
            "seed", str(ours.seed), str(theirs.seed), EVERYTHING,
            "other draws of the same traffic: more repeats, or the same seeds", 0.4,
        )  # fmt: skip


def _program(a: Settings, b: Settings) -> Iterator[Cause]:
    """Compare closloop's version and commit, and the emulated kernel's build."""
    why = "the program itself was another: its changes say what may move"
    for name, key, effect in (
        ("closloop's version", "closloop", 0.6),
        ("closloop's commit", "commit", 0.6),
        ("kernel's build", "kernel_hash", 0.4),
    ):
        first, second = (
            str({**item.trial.facts, **item.trial.versions}.get(key, "")) for item in (a, b)
        )
        if first and second and first != second:
            yield Cause(name, first[:12], second[:12], EVERYTHING, why, effect)


def _count(patterns: Sequence[object]) -> str:
    kinds = [str(getattr(pattern, "kind", "?")) for pattern in patterns]
    return ", ".join(kinds) or "none"


def _stamps(a: Settings, b: Settings) -> Iterator[Cause]:
    """Compare the codes of the stamps' findings: what happened to one of them only."""
    moves = {
        "drops": (DROPS, TAIL, FCT),
        "sampler-behind": (QUEUE, MARKS),
        "sources": (QUEUE, MARKS),
        "thresholds-clamped": (QUEUE, MARKS),
        "faster-than-ideal": (FCT, SLOWDOWN),
        "programs-late": (FCT, SLOWDOWN, TAIL),
    }
    first, second = ({r.code: r.text for r in item.trial.stamp.reasons} for item in (a, b))
    # that one was imported is what its backend says, by the same name
    for code in sorted((set(first) ^ set(second)) - {IMPORTED}):
        yield Cause(
            f"stamp: {code}", "yes" if code in first else "no", "yes" if code in second else "no",
            moves.get(code, EVERYTHING), first.get(code, second.get(code, "")), 0.4,
        )  # fmt: skip


_Rule = Callable[[Settings, Settings], Iterator[Cause]]
RULES: tuple[_Rule, ...] = (
    _backend, _framing, _delays, _thresholds, _transport, _sampling, _machine, _program,
    _facts, _experiment, _stamps,
)  # fmt: skip
