"""Flows to one receiver from few senders and from many, in turn, at drawn times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orchestration.core.records import Ints
from orchestration.core.topology import Testbed
from orchestration.core.trial import AlternatingSpec


@dataclass(frozen=True)
class Phase:
    """From `start_ns` to `end_ns` few hosts send, or many; its flows are drawn from `seed`."""

    start_ns: int
    end_ns: int
    crowded: bool
    seed: int


def phases(spec: AlternatingSpec, times: np.random.Generator) -> Iterator[Phase]:
    """Yield the phases in turn, the last of which may end after `stop_ns`.

    They are the same whatever the sizes, the loads and the numbers of senders are.
    """
    now, crowded = spec.start_ns, bool(times.random() < 0.5)
    while now < spec.stop_ns:
        end_ns = now + max(1, round(spec.phase_ns * (0.5 + times.random())))
        yield Phase(now, end_ns, crowded, int(times.integers(2**63)))
        now, crowded = end_ns, not crowded


def alternating(
    spec: AlternatingSpec, testbed: Testbed, times: np.random.Generator
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return starts in ns, sources, destinations and bytes of all flows; see `AlternatingSpec`."""
    receiver = testbed.hosts.index(spec.receiver)
    others = np.delete(np.arange(len(testbed.hosts), dtype=np.int64), receiver)
    bytes_per_ns = testbed.host_rate_bps(spec.receiver) / 8e9
    rows: list[tuple[Ints, Ints, Ints]] = []
    for phase in phases(spec, times):
        rng = np.random.default_rng(phase.seed)
        lasts_ns = phase.end_ns - phase.start_ns
        order = rng.permutation(others)
        if phase.crowded:
            spread_ns = min(spec.spread_ns, lasts_ns // 2)
            offered = bytes_per_ns * spec.load * (lasts_ns - spread_ns)
            start = (rng.random(spec.many) * spread_ns).astype(np.int64)
            size = np.full(spec.many, max(1, round(offered / spec.many)), dtype=np.int64)
            rows.append((phase.start_ns + start, order[: spec.many], size))
            crowded_ns = lasts_ns - spread_ns
            count = round(bytes_per_ns * spec.short_load * crowded_ns / spec.short_bytes)
            start = (spread_ns + rng.random(count) * crowded_ns).astype(np.int64)
            src = others[rng.integers(len(others), size=count)]
            size = np.full(count, spec.short_bytes, dtype=np.int64)
        else:
            period_ns = spec.few * spec.size_bytes / (bytes_per_ns * spec.load)
            count = max(1, round(lasts_ns / period_ns))
            start = np.repeat((np.arange(count) * period_ns).astype(np.int64), spec.few)
            src = np.tile(order[: spec.few], count)
            size = np.full(len(src), spec.size_bytes, dtype=np.int64)
        rows.append((phase.start_ns + start, src, size))
    start, src, size = (np.concatenate(column) for column in zip(*rows, strict=True))
    kept = start < spec.stop_ns
    dst = np.full(int(kept.sum()), receiver, dtype=np.int64)
    return start[kept], src[kept], dst, size[kept]
