"""The patterns of a campaign file as those of its trials: paths resolved, windows closed."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from orchestration.campaign import schema
from orchestration.campaign.fields import beside, file_beside, is_path, reference_beside
from orchestration.model.trial import (
    AllToAllSpec,
    AlternatingSpec,
    ConcurrentSpec,
    DriverSpec,
    IncastSpec,
    MessageMixSpec,
    PatternSpec,
    PoissonSpec,
    ReplaySpec,
    SingleFlowSpec,
)
from traffic.workloads import load_workload


def pattern_spec(item: schema.AnyPattern, duration_ns: int, folder: str) -> PatternSpec:
    """Return a pattern of a trial; the campaign's paths start at `folder`."""
    name = reference_beside(folder, item.driver.name)
    driver = DriverSpec(name, tuple(item.driver.options.items()))
    return replace(
        flows_spec(item, duration_ns, folder),
        driver=driver,
        congestion_control=item.congestion_control or "",
    )


def flows_spec(item: schema.AnyPattern, duration_ns: int, folder: str) -> PatternSpec:
    """Return a pattern without what sends its flows, and without a congestion control."""
    klass = item.queue_class
    match item:
        case schema.SingleFlow():
            return SingleFlowSpec(item.src, item.dst, item.size, item.start, queue_class=klass)
        case schema.Poisson():
            workload = beside(folder, item.workload)
            if not is_path(workload):
                workload = load_workload(workload).name  # one id for `websearch` and `WebSearch`
            window = _window(item, duration_ns)
            return PoissonSpec(workload, item.load, *window, queue_class=klass, draw=item.draw)
        case schema.Incast():
            return IncastSpec(
                item.fan_in,
                item.size,
                item.period,
                *_window(item, duration_ns),
                receiver=item.receiver,
                queue_class=klass,
            )
        case schema.AllToAll():
            window = _window(item, duration_ns)
            return AllToAllSpec(item.size, item.period, *window, queue_class=klass)
        case schema.MessageMix():
            window = _window(item, duration_ns)
            return MessageMixSpec(
                item.sizes,
                item.load,
                *window,
                receiver=item.receiver,
                queue_class=klass,
                draw=item.draw,
            )
        case schema.Concurrent():
            return ConcurrentSpec(
                item.flows,
                item.size or 0,
                item.start,
                item.receiver,
                item.senders or 0,
                item.within,
                item.spread,
                queue_class=klass,
            )
        case schema.Alternating():
            return AlternatingSpec(
                item.receiver,
                item.few,
                item.many,
                item.size,
                item.phase,
                item.load,
                item.spread,
                item.short,
                item.short_load,
                *_window(item, duration_ns),
                queue_class=klass,
            )
        case schema.Replay():
            window = _window(item, duration_ns)
            name = file_beside(folder, item.file)
            return ReplaySpec(name, *window, item.recorded_class, queue_class=klass)
        case _:
            assert_never(item)


def _window(item: schema.Windowed | schema.Replay, duration_ns: int) -> tuple[int, int]:
    return item.start, duration_ns if item.stop is None else item.stop
