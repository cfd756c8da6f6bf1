"""A testbed with all rates divided by a factor: what a machine can carry in real time.

Time on it passes so many times slower (docs/decisions/0080-scaled-time.md). So sizes, buffers and
what a link holds in bytes stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from orchestration.core.topology import Link, Port, Testbed

# A second of a trial is then a day.
MOST_SCALE = 86_400
_LATE_NS = 2_000


def scaled(testbed: Testbed, factor: int) -> Testbed:
    """Return the testbed with its rates divided, and its propagation delays multiplied.

    Its name stays. Raises ValueError for a factor below 1.
    """
    if factor < 1:
        raise ValueError(f"a scale of {factor} is not 1 or more")

    def rate_bps(item: Link | Port) -> int:
        return max(1, round(item.rate_bps / factor))

    return replace(
        testbed,
        links=tuple(
            replace(link, rate_bps=rate_bps(link), delay_ns=link.delay_ns * factor)
            for link in testbed.links
        ),
        ports=tuple(
            replace(port, rate_bps=rate_bps(port), delay_ns=port.delay_ns * factor)
            for port in testbed.ports
        ),
    )


def shapers_late_ns(factor: int) -> int:
    """Return how late the shapers of a scaled testbed may wake without losing rate, by the clock.

    That is 2 us of a trial. What a shaper in real time sends late is not sent later otherwise.
    """
    return _LATE_NS * factor if factor > 1 else 0
