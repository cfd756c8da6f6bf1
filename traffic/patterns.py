"""Arrival patterns: each is a pure function from (spec, testbed, random streams) to flows.

Times, places and sizes come from separate streams that are read sequentially. So a wider incast or
a longer one adds flows without changing the others. So it is with loads of `draw: independent`: a
higher load compresses the same sequence of flows in time, a longer window adds flows. With
`strata`, sizes depend on how many flows there are (`traffic.arrivals`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np

from orchestration.core.files import here
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed
from orchestration.core.trial import (
    AllToAllSpec,
    AlternatingSpec,
    ConcurrentSpec,
    IncastSpec,
    MessageMixSpec,
    PatternSpec,
    PoissonSpec,
    ReplaySpec,
    SingleFlowSpec,
)
from traffic.alternating import alternating
from traffic.arrivals import Sizes, arrivals, cut_at
from traffic.flow_file import host_numbers, read_flows
from traffic.workloads import load_workload

_DRAWS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Streams:
    """The independent random streams of one pattern."""

    times: np.random.Generator
    places: np.random.Generator
    sizes: np.random.Generator

    @classmethod
    def spawn(cls, seed: int, pattern: int) -> Streams:
        """Return the streams of the pattern with index `pattern` in a trial of `seed`."""
        times, places, sizes = np.random.SeedSequence(seed, spawn_key=(pattern,)).spawn(3)
        return cls(*(np.random.default_rng(child) for child in (times, places, sizes)))


@dataclass(frozen=True)
class Flows:
    """Flows of one pattern, arrays of shape (flows,); `src` and `dst` index `Testbed.hosts`."""

    start_ns: Ints
    src: Ints
    dst: Ints
    size_bytes: Ints


def make_flows(spec: PatternSpec, testbed: Testbed, streams: Streams, warm_up_ns: int = 0) -> Flows:
    """Return the flows of `spec` in a trial whose measurement begins at `warm_up_ns`.

    Raises ValueError for what `check_pattern` finds wrong, and InputError for a workload or a file
    of flows that cannot be read.
    """
    problem = check_pattern(spec, testbed)
    if problem:
        raise ValueError(problem)
    match spec:
        case PoissonSpec():
            return poisson(spec, testbed, streams, warm_up_ns)
        case MessageMixSpec():
            return message_mix(spec, testbed, streams, warm_up_ns)
        case IncastSpec():
            return incast(spec, testbed, streams)
        case AllToAllSpec():
            return all_to_all(spec, testbed)
        case SingleFlowSpec():
            return single_flow(spec, testbed)
        case ConcurrentSpec():
            return concurrent(spec, testbed, streams)
        case AlternatingSpec():
            return Flows(*alternating(spec, testbed, streams.times))
        case ReplaySpec():
            return replay(spec, testbed)
        case _:
            assert_never(spec)


def poisson(spec: PoissonSpec, testbed: Testbed, streams: Streams, warm_up_ns: int = 0) -> Flows:
    """Return Poisson arrivals with an offered load of `load` times the hosts' line rates.

    Load counts payload bytes. Sources are drawn in proportion to their line rates, destinations
    uniformly among the other hosts. With strata, the load is offered before and after `warm_up_ns`.
    """
    workload = load_workload(spec.workload)
    sizes = Sizes(workload.mean_bytes, workload.sizes_bytes)
    return _arrivals(spec, sizes, testbed, streams, warm_up_ns)


def message_mix(
    spec: MessageMixSpec, testbed: Testbed, streams: Streams, warm_up_ns: int = 0
) -> Flows:
    """Return Poisson arrivals, as `poisson`, of messages of `sizes_bytes`, all equally likely.

    With a receiver, `load` is a share of its line rate, and the other hosts are the sources.
    """
    each = np.array(spec.sizes_bytes, dtype=np.int64)
    sizes = Sizes(float(each.mean()), lambda u: each[(u * len(each)).astype(np.int64)])
    receiver = testbed.hosts.index(spec.receiver) if spec.receiver else None
    return _arrivals(spec, sizes, testbed, streams, warm_up_ns, receiver)


def incast(spec: IncastSpec, testbed: Testbed, streams: Streams) -> Flows:
    """Return incasts: at `start_ns` and every period after, `fan_in` hosts send to one receiver.

    Senders start together. They are distinct and drawn anew for each period. A narrower incast has
    a subset of the same senders.
    """
    starts = _periodic(spec)
    hosts = len(testbed.hosts)
    receiver = np.empty(len(starts), dtype=np.int64)
    senders = np.empty((len(starts), spec.fan_in), dtype=np.int64)
    # in parts, since all draws at once are many times the flows where fabrics are large
    rows = max(1, _DRAWS_AT_ONCE // hosts)
    for part in (slice(at, at + rows) for at in range(0, len(starts), rows)):
        # One row of draws per event: the first picks a receiver, the others rank hosts as senders.
        draws = streams.places.random((len(starts[part]), 1 + hosts))
        receiver[part] = (draws[:, 0] * hosts).astype(np.int64)
        if spec.receiver:
            receiver[part] = testbed.hosts.index(spec.receiver)
        rank = draws[:, 1:]
        rank[np.arange(len(rank)), receiver[part]] = np.inf
        senders[part] = np.argsort(rank, axis=1, kind="stable")[:, : spec.fan_in]
    return Flows(
        start_ns=np.repeat(starts, spec.fan_in),
        src=senders.ravel(),
        dst=np.repeat(receiver, spec.fan_in),
        size_bytes=np.full(senders.size, spec.size_bytes, dtype=np.int64),
    )


def all_to_all(spec: AllToAllSpec, testbed: Testbed) -> Flows:
    """Return all-to-all bursts, at `start_ns` and every period after, with all flows at once."""
    starts = _periodic(spec)
    hosts = len(testbed.hosts)
    src, dst = np.nonzero(~np.eye(hosts, dtype=np.bool_))
    return Flows(
        start_ns=np.repeat(starts, len(src)),
        src=np.tile(src.astype(np.int64), len(starts)),
        dst=np.tile(dst.astype(np.int64), len(starts)),
        size_bytes=np.full(len(src) * len(starts), spec.size_bytes, dtype=np.int64),
    )


def single_flow(spec: SingleFlowSpec, testbed: Testbed) -> Flows:
    """Return one flow."""
    src, dst = testbed.hosts.index(spec.src), testbed.hosts.index(spec.dst)
    return Flows(
        *(np.array([x], dtype=np.int64) for x in (spec.start_ns, src, dst, spec.size_bytes))
    )


def concurrent(spec: ConcurrentSpec, testbed: Testbed, streams: Streams) -> Flows:
    """Return flows that are all there at once. More flows are the same ones, and others.

    To a receiver, senders take turns in an order that is drawn. From all to all, flows come in
    rounds: in each, every host sends to one other and receives from one, never to the same again
    before it has sent to all.
    """
    start_ns = spec.start_ns + int(streams.times.random() * spec.within_ns)
    later_ns = (streams.times.random(spec.flows) * spec.spread_ns).astype(np.int64)
    number, hosts = np.arange(spec.flows, dtype=np.int64), len(testbed.hosts)
    if spec.receiver:
        receiver = testbed.hosts.index(spec.receiver)
        others = np.delete(np.arange(hosts, dtype=np.int64), receiver)
        chosen = streams.places.permutation(others)[: spec.senders or hosts - 1]
        src = chosen[number % len(chosen)]
        dst = np.full(spec.flows, receiver, dtype=np.int64)
    else:
        order = streams.places.permutation(hosts).astype(np.int64)
        shift = 1 + streams.places.permutation(hosts - 1).astype(np.int64)
        src, rounds = order[number % hosts], number // hosts
        dst = order[(number + shift[rounds % (hosts - 1)]) % hosts]
    return Flows(start_ns + later_ns, src, dst, np.full(spec.flows, spec.size_bytes, np.int64))


def replay(spec: ReplaySpec, testbed: Testbed) -> Flows:
    """Return the flows of a file that are in the window and of the recorded class, in its order.

    Raises InputError, with the line, for a bad file and for hosts that the testbed does not have.
    """
    flows = read_flows(here(spec.file))
    src, dst = host_numbers(flows, testbed)
    chosen = (flows.start_ns >= spec.start_ns) & (flows.start_ns < spec.stop_ns)
    if spec.recorded_class:
        names = flows.klass.names
        wanted = names.index(spec.recorded_class) if spec.recorded_class in names else -1
        chosen &= flows.klass.codes == wanted
    return Flows(flows.start_ns[chosen], src[chosen], dst[chosen], flows.size_bytes[chosen])


def check_pattern(spec: PatternSpec, testbed: Testbed) -> str:
    """Return what makes the pattern impossible on the testbed, "" if nothing does."""
    if len(testbed.hosts) < 2:
        return f"testbed {testbed.name} has {len(testbed.hosts)} hosts: traffic needs 2 or more"
    classes = [klass.name for klass in testbed.classes]
    if spec.queue_class and spec.queue_class not in classes:
        known = f"its classes are {', '.join(classes)}" if classes else "it has none"
        return f"testbed {testbed.name} has no traffic class {spec.queue_class!r}: {known}"
    for name, check in _CHECKS.items():
        value = getattr(spec, name, None)
        # what a pattern need not have is not checked where it has none
        if value is not None and value != getattr(type(spec), name, None):
            for each in (value or (0,)) if isinstance(value, tuple) else (value,):
                if problem := check(each, testbed):
                    return problem
    if isinstance(spec, SingleFlowSpec) and spec.src == spec.dst:
        return f"a flow from {spec.src} to itself: name two hosts"
    return ""  # the file of a replay is checked when it is read


def _check_load(load: float, testbed: Testbed) -> str:
    return "" if 0 <= load <= 1 else f"load {load:g} is not a share of line rate: use 0 to 1"


def _check_size(size_bytes: int, testbed: Testbed) -> str:
    return "" if size_bytes >= 1 else "a flow has at least 1 byte: name a larger size"


def _check_period(period_ns: int, testbed: Testbed) -> str:
    return "" if period_ns >= 1 else f"a period of {period_ns} ns never ends: use 1 ns or more"


def _check_fan_in(fan_in: int, testbed: Testbed) -> str:
    most = len(testbed.hosts) - 1
    if 1 <= fan_in <= most:
        return ""
    return (
        f"fan-in {fan_in} does not fit testbed {testbed.name} of {most + 1} hosts: use 1 to {most}"
    )


def _check_host(name: str, testbed: Testbed) -> str:
    hosts = testbed.hosts
    if name in hosts:
        return ""
    return f"testbed {testbed.name} has no host {name!r}: its hosts are {hosts[0]} to {hosts[-1]}"


# What is asked of a pattern's fields, whatever its kind.
_CHECKS: Mapping[str, Callable[[Any, Testbed], str]] = {
    **dict.fromkeys(("load", "short_load"), _check_load),
    **dict.fromkeys(("size_bytes", "sizes_bytes", "short_bytes"), _check_size),
    **dict.fromkeys(("period_ns", "phase_ns"), _check_period),
    **dict.fromkeys(("fan_in", "senders", "few", "many"), _check_fan_in),
    **dict.fromkeys(("src", "dst", "receiver"), _check_host),
}


def _periodic(spec: IncastSpec | AllToAllSpec) -> Ints:
    return np.arange(spec.start_ns, spec.stop_ns, spec.period_ns, dtype=np.int64)


def _arrivals(
    spec: PoissonSpec | MessageMixSpec,
    sizes: Sizes,
    testbed: Testbed,
    streams: Streams,
    warm_up_ns: int,
    receiver: int | None = None,
) -> Flows:
    """Return arrivals in the spec's window that offer its load."""
    line_bps = [testbed.host_rate_bps(host) for host in testbed.hosts]
    rates = np.array(line_bps, dtype=np.float64)
    capacity_bps = float(rates.sum() if receiver is None else rates[receiver])
    flows_per_ns = spec.load * capacity_bps / 8 / sizes.mean_bytes / 1e9
    window = cut_at(spec.start_ns, spec.stop_ns, warm_up_ns)
    start_ns, size_bytes = arrivals(
        spec.draw, flows_per_ns, window, sizes, streams.times, streams.sizes
    )
    n, hosts = len(start_ns), len(testbed.hosts)
    places = streams.places.random((n, 2))
    senders = np.flatnonzero(np.arange(hosts) != receiver).astype(np.int64)
    # Without the last entry, which may round to just below 1, no draw exceeds the last sender.
    upper = np.cumsum(rates[senders] / rates[senders].sum())[:-1]
    src = senders[np.searchsorted(upper, places[:, 0], side="right")]
    if receiver is not None:
        return Flows(start_ns, src, np.full(n, receiver), size_bytes)
    other = (places[:, 1] * (hosts - 1)).astype(np.int64)
    dst = other + (other >= src)
    return Flows(start_ns, src, dst, size_bytes)
